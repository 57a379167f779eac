"""Fences: how a resource refuses a holder that comes late, checked in the resource itself.

`sql.py` raises a fence in a table of the database that the lock protects, inside the user's own transaction. `users.py`
has the user's connections and transactions, `dialects.py` the statements for each database, and `schema.py` the table.
"""
