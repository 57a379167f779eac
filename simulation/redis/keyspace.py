"""The data of one Redis server, and the commands that scripts use on it.

A command that this file does not know is refused, so that no script can use a command that is not simulated. Every
change is recorded as a command that does the same on a replica, with instants instead of durations.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from copy import copy

from tenure.stores.redis.links.link import ReplyError

Command = tuple[bytes, ...]

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
SYNTAX = "ERR syntax error"
WRITES = frozenset({b"SET", b"HSET", b"HDEL", b"ZADD", b"ZREM", b"ZPOPMIN", b"PEXPIREAT", b"DEL"})


class SortedSet:
    """Members in the order of their scores, and of their bytes among equals."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        """Start empty."""
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __copy__(self) -> "SortedSet":
        twin = SortedSet()
        twin.scores, twin.order = dict(self.scores), list(self.order)
        return twin

    def add(self, score: float, member: bytes) -> bool:
        """Add a member, or move it; return whether it is new."""
        new = not self.remove(member)
        self.scores[member] = score
        insort(self.order, (score, member))
        return new

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[self.rank(score, member)]
        return True

    def rank(self, score: float, member: bytes) -> int:
        """Return the place of a member with a score."""
        return bisect_left(self.order, (score, member))


Value = bytes | dict[bytes, bytes] | SortedSet
Reply = bytes | int | None | bool | tuple["Reply", ...]
"""The reply to a command; True stands for the status OK."""


class Keyspace:
    """Keys with their values and their expiry times."""

    def __init__(self) -> None:
        """Start empty, at time 0."""
        self.now = 0
        """The clock of the server, in microseconds."""
        self.effects: list[Command] = []
        """The changes since this list was last emptied."""
        self._values: dict[bytes, Value] = {}
        self._ends: dict[bytes, int] = {}
        """When keys expire, in milliseconds."""
        self._commands: dict[bytes, Callable[..., Reply]] = {
            b"GET": self._get,
            b"MGET": self._mget,
            b"SET": self._set,
            b"HGET": self._hget,
            b"HSET": self._hset,
            b"HDEL": self._hdel,
            b"ZADD": self._zadd,
            b"ZREM": self._zrem,
            b"ZPOPMIN": self._zpopmin,
            b"ZRANGE": self._zrange,
            b"ZRANK": self._zrank,
            b"ZCARD": self._zcard,
            b"PEXPIREAT": self._pexpireat,
            b"DEL": self._del,
        }

    def knows(self, name: bytes) -> bool:
        """Tell whether the keyspace knows a command."""
        return name in self._commands

    def carry_out(self, name: bytes, words: Sequence[bytes]) -> Reply:
        """Carry out a command. Raises ReplyError with the error reply of a real server."""
        for key in words if name == b"MGET" else words[:1]:
            if self._has_ended(key):
                self._remove(key)
                self.effects.append((b"DEL", key))
        try:
            return self._commands[name](*words)
        except TypeError:
            raise ReplyError(f"ERR wrong number of arguments for '{name.decode().lower()}' command") from None

    def copy(self) -> "Keyspace":
        """Return a keyspace with the same data."""
        twin = Keyspace()
        twin._values = {key: copy(value) for key, value in self._values.items()}
        twin._ends = dict(self._ends)
        return twin

    def apply(self, effects: Sequence[Command]) -> None:
        """Apply the changes of another keyspace."""
        for name, *words in effects:
            self._commands[name](*words)
        self.effects.clear()

    def value(self, key: bytes) -> Value | None:
        """Return the present value of a key."""
        return None if self._has_ended(key) else self._values.get(key)

    def all(self) -> list[bytes]:
        """Return all keys."""
        return [key for key in self._values if not self._has_ended(key)]

    # -- strings -------------------------------------------------------------------------------------------

    def _get(self, key: bytes) -> Reply:
        value = self._values.get(key)
        if value is not None and type(value) is not bytes:
            raise ReplyError(WRONGTYPE)
        return value

    def _mget(self, *keys: bytes) -> Reply:
        values = map(self.value, keys)
        return tuple(value if type(value) is bytes else None for value in values)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        end = None
        if options:
            if len(options) != 2 or options[0] not in {b"PX", b"PXAT"}:
                raise ReplyError(SYNTAX)
            end = _integer(options[1])
            if end <= 0:
                raise ReplyError("ERR invalid expire time in 'set' command")
            if options[0] == b"PX":
                end += self.now // 1000
        self._values[key] = value
        self._ends.pop(key, None)
        if end is not None:
            self._ends[key] = end
        self.effects.append((b"SET", key, value) if end is None else (b"SET", key, value, b"PXAT", b"%d" % end))
        return True

    # -- hashes --------------------------------------------------------------------------------------------

    def _hash(self, key: bytes) -> dict[bytes, bytes] | None:
        value = self._values.get(key)
        if value is not None and type(value) is not dict:
            raise ReplyError(WRONGTYPE)
        return value

    def _hget(self, key: bytes, name: bytes) -> Reply:
        fields = self._hash(key)
        return None if fields is None else fields.get(name)

    def _hset(self, key: bytes, name: bytes, value: bytes, *more: bytes) -> Reply:
        if len(more) % 2:
            raise TypeError
        fields = self._hash(key)
        if fields is None:
            fields = self._values[key] = {}
        before = len(fields)
        fields[name] = value
        for at in range(0, len(more), 2):
            fields[more[at]] = more[at + 1]
        self.effects.append((b"HSET", key, name, value, *more))
        return len(fields) - before

    def _hdel(self, key: bytes, name: bytes, *more: bytes) -> Reply:
        fields, removed = self._hash(key), 0
        if fields is None:
            return 0
        for each in (name, *more):
            removed += fields.pop(each, None) is not None
        if removed:
            self.effects.append((b"HDEL", key, name, *more))
        if not fields:
            self._remove(key)
        return removed

    # -- sorted sets ---------------------------------------------------------------------------------------

    def _zset(self, key: bytes) -> SortedSet | None:
        value = self._values.get(key)
        if value is not None and type(value) is not SortedSet:
            raise ReplyError(WRONGTYPE)
        return value

    def _zadd(self, key: bytes, *words: bytes) -> Reply:
        only_new = words[:1] == (b"NX",)
        if len(words) != 2 + only_new:
            raise TypeError
        score, member = words[-2:]
        number = _float(score)
        members = self._zset(key)
        if only_new and members is not None and member in members.scores:
            return 0
        if members is None:
            members = self._values[key] = SortedSet()
        self.effects.append((b"ZADD", key, score, member))
        return 1 if members.add(number, member) else 0

    def _zrem(self, key: bytes, member: bytes, *more: bytes) -> Reply:
        members = self._zset(key)
        if members is None:
            return 0
        removed = sum(members.remove(each) for each in (member, *more))
        if removed:
            self.effects.append((b"ZREM", key, member, *more))
        if not members.order:
            self._remove(key)
        return removed

    def _zpopmin(self, key: bytes) -> Reply:
        members = self._zset(key)
        if members is None:
            return ()
        score, member = members.order[0]
        self._zrem(key, member)
        return member, b"%.17g" % score

    def _zrange(self, key: bytes, first: bytes, last: bytes, *how: bytes) -> Reply:
        if how:
            return self._zrange_by_score(key, first, last, *how)
        start, stop = _integer(first), _integer(last)
        members = self._zset(key)
        if members is None:
            return ()
        size = len(members.order)
        start = max(0, start + size if start < 0 else start)
        stop = stop + size if stop < 0 else stop
        return tuple(member for _, member in members.order[start : stop + 1])

    def _zrange_by_score(self, key: bytes, after: bytes, last: bytes, by: bytes, *limit: bytes) -> Reply:
        if by != b"BYSCORE" or after[:1] != b"(" or (limit and (limit[0], limit[3:]) != (b"LIMIT", (b"WITHSCORES",))):
            raise TypeError
        low, high = _float(after[1:]), _float(last)
        members = self._zset(key)
        found = [] if members is None else [each for each in members.order if low < each[0] <= high]
        if not limit:
            return tuple(member for _, member in found)
        skipped, most = map(_integer, limit[1:3])
        return tuple(word for score, member in found[skipped : skipped + most] for word in (member, b"%.17g" % score))

    def _zrank(self, key: bytes, member: bytes) -> Reply:
        members = self._zset(key)
        score = None if members is None else members.scores.get(member)
        return None if members is None or score is None else members.rank(score, member)

    def _zcard(self, key: bytes) -> Reply:
        members = self._zset(key)
        return 0 if members is None else len(members.order)

    # -- ends ----------------------------------------------------------------------------------------------

    def _pexpireat(self, key: bytes, end: bytes) -> Reply:
        at = _integer(end)
        if key not in self._values:
            return 0
        if at <= self.now // 1000:
            self._del(key)
        else:
            self._ends[key] = at
            self.effects.append((b"PEXPIREAT", key, end))
        return 1

    def _del(self, key: bytes) -> Reply:
        there = key in self._values
        if there:
            self._remove(key)
            self.effects.append((b"DEL", key))
        return int(there)

    def _has_ended(self, key: bytes) -> bool:
        end = self._ends.get(key)
        return end is not None and self.now // 1000 > end

    def _remove(self, key: bytes) -> None:
        self._values.pop(key, None)
        self._ends.pop(key, None)


def _integer(word: bytes) -> int:
    if not word.removeprefix(b"-").isdigit():
        raise ReplyError(NOT_AN_INTEGER)
    return int(word)


def _float(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        raise ReplyError(NOT_A_FLOAT) from None
