"""`cache.lock()` for cache backends of Django, as django-redis has it."""

from typing import Protocol

from tenure.django import DEFAULT, locks
from tenure.primitives.lock import Lock


class _Cache(Protocol):
    """What the mixin needs of a cache backend."""

    store: str

    def make_key(self, key: str, version: int | None = None) -> str: ...


class LockMixin:
    """Adds `lock` to a cache backend: `class Cache(LockMixin, RedisCache)`, which CACHES names as its BACKEND."""

    store = DEFAULT
    """The alias of the store of the locks in the settings."""

    def lock(
        self: _Cache,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float | None = None,  # noqa: ARG002 - waiters are told
        blocking_timeout: float | None = None,
    ) -> Lock:
        """Make a lock on a key, with the arguments of django-redis: `with cache.lock("report", timeout=30):`.

        Args:
            key: the key. Its prefix and version are those of the cache, and the value of the key is another thing.
            version: the version of the key; default: that of the cache.
            timeout: after how many seconds the lock ends if its process has died; default: the ttl of the client. While
                the process lives, it is renewed.
            sleep: without effect, because waiters are told when it is their turn.
            blocking_timeout: how long to wait, in seconds; None: for ever. Then LockTimeout is raised.
        """
        return locks[self.store].lock(f"cache:{self.make_key(key, version)}", ttl=timeout, timeout=blocking_timeout)
