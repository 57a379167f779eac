"""Fences: how a resource refuses a holder that comes late, checked in the resource itself.

`sql.py` raises a fence in a table of the database that the lock protects, inside the user's own transaction. `users.py`
has the user's connections and transactions, `dialects.py` the statements for each database, and `schema.py` the table.

The guards of other resources are public here: each checks the token and writes in one atomic step, and raises the fence
at the first touch, also of a read.
"""

from tenure.fencing.files import FileGuard
from tenure.fencing.memory import MemoryGuard
from tenure.fencing.objects import AsyncObjectGuard, ObjectGuard, StoredObject
from tenure.fencing.redis_keys import AsyncRedisGuard, RedisGuard

__all__ = [
    "AsyncObjectGuard",
    "AsyncRedisGuard",
    "FileGuard",
    "MemoryGuard",
    "ObjectGuard",
    "RedisGuard",
    "StoredObject",
]
