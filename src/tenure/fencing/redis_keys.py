"""A guard for keys in Redis: a command runs only if its token is not stale, in one atomic step.

The fence of a key is a key beside it, in the same slot of a Cluster. The script raises it and runs the command.
"""

from collections.abc import Awaitable
from typing import Any, Protocol

from tenure.errors import UsageError
from tenure.escaping import shown
from tenure.fencing.holders import Holder, refusal, token_of

SCRIPT = """
local seen = redis.call('GET', KEYS[2])
local token = tonumber(ARGV[1])
if seen and token < tonumber(seen) then
    return {seen}
end
if not seen or token > tonumber(seen) then
    redis.call('SET', KEYS[2], ARGV[1])
end
if ARGV[2] ~= '0' then
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
if not ARGV[3] then
    return {'', false}
end
return {'', redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))}
"""
"""KEYS: the key, and its fence. ARGV: the token; after how many milliseconds without a touch the fence goes (0: never);
the command and its arguments behind the key. Returns the greatest token if the token is stale, else '' and the reply.
A command that fails leaves the fence raised."""

Value = str | bytes | int | float


class RedisClient(Protocol):
    """A client of redis-py: Redis or RedisCluster."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as redis-py has it
        """Run a script."""
        ...


class AsyncRedisClient(Protocol):
    """A client of redis.asyncio: Redis or RedisCluster."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Awaitable[Any] | Any:  # noqa: ANN401
        """Run a script."""
        ...


def fence_of(key: str) -> str:
    """Return the key of a fence, in the same slot. Raises UsageError for a key whose slot no other key can have."""
    opened = key.find("{")
    closed = key.find("}", opened + 1)
    if 0 <= opened < closed - 1:
        return f"{key}:fence"  # the first braces in it decide about the slot, also of the fence
    if "}" in key or not key:
        raise UsageError(
            f"the fence of {shown(key)} cannot be kept in the same slot, because of its braces: use a key without a "
            "closing brace, or one with a hash tag such as 'orders:{17}'"
        )
    return f"{{{key}}}:fence"


class _RedisGuardBase:
    def __init__(self, keep: float | None) -> None:
        if keep is not None and keep <= 0:
            raise UsageError(f"keep must be a positive number of seconds, or None for ever, not {keep!r}")
        self._keep = "0" if keep is None else str(max(1, round(keep * 1000)))

    def _arguments(self, holder: Holder, key: str, command: tuple[Value, ...]) -> tuple[Value, ...]:
        return (key, fence_of(key), token_of(holder), self._keep, *command)

    def _reply(self, holder: Holder, key: str, said: Any) -> Any:  # noqa: ANN401 - what the command returns
        seen = said[0]
        if seen:
            raise refusal(key, holder, int(seen))
        return said[1] if len(said) > 1 else None


class RedisGuard(_RedisGuardBase):
    """Keys of a Redis that only holders of a lock read and write, and none that comes late.

    Each call raises the fence of its key to the token of its holder, in the same step: from then on smaller tokens are
    refused. An equal token is accepted. Raises StaleTokenError for a smaller token (then the command did not run),
    UsageError if the holder has no token, and what the client raises: after a lost reply, the command may have run.

    A fence is as safe as the key: a Redis that forgets one in a failover may forget the other. Keep fences from
    eviction as you do keys that matter.
    """

    def __init__(self, client: RedisClient, *, keep: float | None = None) -> None:
        """Use a client of redis-py, Redis or RedisCluster. `keep`: after how many seconds without a touch fences go."""
        super().__init__(keep)
        self._client = client

    def touch(self, holder: Holder, key: str) -> None:
        """Refuse all older holders from now on."""
        self._reply(holder, key, self._client.eval(SCRIPT, 2, *self._arguments(holder, key, ())))

    def run(self, holder: Holder, command: str, key: str, *arguments: Value) -> Any:  # noqa: ANN401 - as Redis replies
        """Run one command on one key, and return its reply as Redis gives it: `run(lease, "HSET", "order", "a", 1)`."""
        return self._reply(
            holder, key, self._client.eval(SCRIPT, 2, *self._arguments(holder, key, (command, *arguments)))
        )

    def get(self, holder: Holder, key: str) -> Any:  # noqa: ANN401 - bytes or str, as the client decodes
        """Return the value of a key; None if there is none."""
        return self.run(holder, "GET", key)

    def set(self, holder: Holder, key: str, value: Value) -> None:
        """Set the value of a key."""
        self.run(holder, "SET", key, value)

    def delete(self, holder: Holder, key: str) -> bool:
        """Delete a key; return whether it was there. Its fence stays."""
        return bool(self.run(holder, "DEL", key))


class AsyncRedisGuard(_RedisGuardBase):
    """The same for a client of redis.asyncio. See `RedisGuard`."""

    def __init__(self, client: AsyncRedisClient, *, keep: float | None = None) -> None:
        """Use a client of redis.asyncio, Redis or RedisCluster."""
        super().__init__(keep)
        self._client = client

    async def touch(self, holder: Holder, key: str) -> None:
        """Refuse all older holders from now on."""
        self._reply(holder, key, await self._client.eval(SCRIPT, 2, *self._arguments(holder, key, ())))

    async def run(self, holder: Holder, command: str, key: str, *arguments: Value) -> Any:  # noqa: ANN401
        """Run one command on one key, and return its reply as Redis gives it."""
        return self._reply(
            holder, key, await self._client.eval(SCRIPT, 2, *self._arguments(holder, key, (command, *arguments)))
        )

    async def get(self, holder: Holder, key: str) -> Any:  # noqa: ANN401 - bytes or str, as the client decodes
        """Return the value of a key; None if there is none."""
        return await self.run(holder, "GET", key)

    async def set(self, holder: Holder, key: str, value: Value) -> None:
        """Set the value of a key."""
        await self.run(holder, "SET", key, value)

    async def delete(self, holder: Holder, key: str) -> bool:
        """Delete a key; return whether it was there. Its fence stays."""
        return bool(await self.run(holder, "DEL", key))
