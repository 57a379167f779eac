"""The resource that locks protect: numbers that holders increment, in the memory of a test or in a Redis server.

A fence guards each number: a holder raises it before it reads the number, and the resource checks it at the write.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from tenure import Fence, StaleTokenError
from tests.servers import RedisServer
from tests.servers.resp import RespWire


class Resource(Protocol):
    """The resource of the holders of a name."""

    def read(self, name: str, token: int) -> int:
        """Raise the fence, and return the number. Raises StaleTokenError."""
        ...

    def write(self, name: str, token: int, value: int) -> None:
        """Write the number. Raises StaleTokenError."""
        ...


class Numbers:
    """Numbers in the memory of this process."""

    def __init__(self) -> None:
        """Start at zero."""
        self._mutex = threading.Lock()
        self._fences: dict[str, Fence] = {}
        self._values: Counter[str] = Counter()

    def read(self, name: str, token: int) -> int:
        """Raise the fence, and return the number."""
        with self._mutex:
            self._fences.setdefault(name, Fence()).touch(token)
            return self._values[name]

    def write(self, name: str, token: int, value: int) -> None:
        """Write the number."""
        with self._mutex:
            self._fences[name].touch(token)
            self._values[name] = value

    def total(self) -> int:
        """Return the sum of all numbers."""
        return self._values.total()


READ = """
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)
"""
WRITE = """
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return -1 end
return redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
"""


class SharedNumbers:
    """Numbers in a Redis server, for many processes. It is not the server of the locks."""

    def __init__(self, port: int, space: str) -> None:
        """Use the server at `port`, and keys that begin with `space`."""
        self._space = space
        self._mutex = threading.Lock()
        self._wire = RespWire(("127.0.0.1", port))

    def read(self, name: str, token: int) -> int:
        """Raise the fence, and return the number."""
        return self._ask(READ, name, token)

    def write(self, name: str, token: int, value: int) -> None:
        """Write the number."""
        self._ask(WRITE, name, token, value)

    def close(self) -> None:
        """Disconnect."""
        self._wire.close()

    def _ask(self, script: str, name: str, *arguments: int) -> int:
        with self._mutex:
            answer = self._wire.command("EVAL", script, 1, f"{self._space}:{name}", *arguments)
        assert isinstance(answer, int)
        if answer == -1:
            raise StaleTokenError(f"the token {arguments[0]} is stale")
        return answer


def total(server: RedisServer, space: str, names: Iterable[str]) -> int:
    """Return the sum of all numbers that begin with `space`."""
    return sum(int(str(server.command("HGET", f"{space}:{name}", "value") or 0)) for name in names)
