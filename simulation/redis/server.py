"""One simulated Redis process: a clock, data, loaded scripts, and subscribers."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from simulation.redis.keyspace import WRITES, Command, Keyspace, Reply
from simulation.redis.lua import ScriptError, interpreter, source_of
from tenure.stores.redis.links.link import ReplyError, Word

Push = Callable[[bytes], None]
"""Delivers a published message to one connection."""

NOSCRIPT = "NOSCRIPT No matching script. Please use EVAL."


@dataclass(slots=True, frozen=True)
class Loaded:
    """A script that is loaded in a server."""

    text: str
    read_only: bool
    allow_oom: bool


class Server:
    """One process of Redis."""

    def __init__(
        self, run_id: str, clock: Callable[[], int], keys: Keyspace | None = None, promoted_at: int = 0
    ) -> None:
        """Start with the data in `keys`; `clock` tells the time in microseconds."""
        self.run_id = run_id.encode()
        self.promoted_at = promoted_at
        """The offset of its last promotion, or 0."""
        self.keys = Keyspace() if keys is None else keys
        self.alive = True
        self.out_of_memory = False
        self.replica = False
        """Whether it refuses writes."""
        self.after_write: Callable[[list[Command]], None] = _ignore
        """Called with the changes of each script, and of each command of the server itself."""
        self.when_broken: Callable[[str], None] = _ignore
        """Called when a script fails, which is a bug of the script."""
        self.born = clock()
        """The start of the process, by its clock."""
        self._clock = clock
        self._scripts: dict[str, Loaded] = {}
        self._channels: dict[bytes, dict[object, Push]] = {}
        self._declared: frozenset[bytes] = frozenset()
        self._read_only = False
        """Whether the running script may not write."""
        self._pushes: list[tuple[Push, bytes]] = []
        self.published: list[bytes] = []
        """The messages that the last script published, with or without subscribers."""

    # -- scripts -------------------------------------------------------------------------------------------

    def evalsha(self, digest: str, keys: Sequence[Word], args: Sequence[Word]) -> object:
        """Run a loaded script. Raises ReplyError with the error reply of a real server."""
        script = self._scripts.get(digest)
        if script is None:
            raise ReplyError(NOSCRIPT)
        if self.replica and not script.read_only:
            raise ReplyError("READONLY You can't write against a read only replica.")
        if self.out_of_memory and not (script.allow_oom or script.read_only):
            raise ReplyError("OOM allow-oom flag is not set on the script, can not run it when used memory > maxmemory")
        return self._run(script, _words(keys), _words(args))

    def eval(self, text: str, keys: Sequence[Word], args: Sequence[Word]) -> object:
        """Load and run a script."""
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        if digest not in self._scripts:
            first = text.partition("\n")[0]
            if not first.startswith("#!lua"):
                raise ReplyError("ERR the simulation wants a script to begin with #!lua")
            self._scripts[digest] = Loaded(source_of(text), "no-writes" in first, "allow-oom" in first)
        return self.evalsha(digest, keys, args)

    def forget_scripts(self) -> None:
        """Do as SCRIPT FLUSH does."""
        self._scripts.clear()

    def _run(self, script: Loaded, keys: list[bytes], args: list[bytes]) -> object:
        self.keys.now = self._clock()
        self._declared, self._read_only = frozenset(keys), script.read_only
        self.published.clear()
        try:
            value = interpreter().run(script.text, keys, args, self._carry_out)
        except ScriptError as error:
            self.when_broken(str(error))
            raise
        finally:
            self._read_only = False
            self._flush()
        return value

    def _flush(self) -> None:
        """Report the changes, then deliver the published messages."""
        effects, self.keys.effects = self.keys.effects, []
        pushes, self._pushes = self._pushes, []
        if effects:
            self.after_write(effects)
        for push, message in pushes:
            push(message)

    def _carry_out(self, name: bytes, words: list[bytes]) -> Reply:
        """Carry out a command of the running script."""
        if self.keys.knows(name):
            if not (self._declared.issuperset(words) if name == b"MGET" else words[0] in self._declared):
                raise ReplyError(f"ERR Script attempted to access keys that it does not declare: {words}")
            if self._read_only and name in WRITES:
                raise ReplyError("ERR Write commands are not allowed from read-only scripts.")
            return self.keys.carry_out(name, words)
        if name == b"TIME" and not words:
            return tuple(b"%d" % part for part in divmod(self.keys.now, 1_000_000))
        if name in {b"PUBLISH", b"SPUBLISH"}:
            channel, message = words
            return self._publish(_kind(channel, sharded=name == b"SPUBLISH"), message)
        if name == b"PUBSUB" and words[0] in {b"NUMSUB", b"SHARDNUMSUB"}:
            return tuple(each for channel in words[1:] for each in (channel, self._listeners(words[0], channel)))
        if name == b"INFO":
            return self._info()
        raise ReplyError(f"ERR unknown command {name!r} in the simulation")

    def _info(self) -> bytes:
        uptime = (self._clock() - self.born) // 1_000_000
        server = b"# Server\r\nrun_id:%s\r\nuptime_in_seconds:%d\r\n" % (self.run_id, uptime)
        return server + b"# Replication\r\nsecond_repl_offset:%d\r\n" % (self.promoted_at or -1)

    def identity(self) -> bytes:
        """Return the identity of the process, which a new connection learns."""
        return b"%s@%d" % (self.run_id, self.promoted_at)

    # -- commands ------------------------------------------------------------------------------------------

    def command(self, *words: Word) -> object:
        """Carry out a plain command. Raises ReplyError with the error reply of a real server."""
        name, *rest = _words(words)
        self.keys.now = self._clock()
        self.published.clear()
        if name == b"SCAN":
            return [b"0", self._scan(rest[rest.index(b"MATCH") + 1])]
        if name == b"INFO":
            return self._info()
        if name == b"SCRIPT" and rest == [b"FLUSH"]:
            self.forget_scripts()
            return b"OK"
        if self.replica and name in WRITES:
            raise ReplyError("READONLY You can't write against a read only replica.")
        self._declared = frozenset(rest)
        answer = self._carry_out(name, rest)
        self._flush()
        return list(answer) if isinstance(answer, tuple) else b"OK" if answer is True else answer

    def _scan(self, pattern: bytes) -> list[bytes]:
        return [key for key in self.keys.all() if fnmatchcase(key.decode(), _glob(pattern.decode()))]

    # -- channels ------------------------------------------------------------------------------------------

    def subscribe(self, channel: str, who: object, push: Push, *, sharded: bool = False) -> None:
        """Deliver the messages of a channel to `push`, until `who` unsubscribes."""
        self._channels.setdefault(_kind(channel.encode(), sharded=sharded), {})[who] = push

    def unsubscribe(self, who: object, channel: str | None = None, *, sharded: bool = False) -> None:
        """End the subscription of `who` to one channel, or to all."""
        only = None if channel is None else _kind(channel.encode(), sharded=sharded)
        for each in [only] if only is not None else list(self._channels):
            listeners = self._channels.get(each, {})
            listeners.pop(who, None)
            if not listeners:
                self._channels.pop(each, None)

    def listens(self, channel: str, *, sharded: bool = False) -> bool:
        """Tell whether a channel has subscribers."""
        return _kind(channel.encode(), sharded=sharded) in self._channels

    def end(self) -> None:
        """End the process: every connection to it breaks."""
        self.alive = False
        self._channels.clear()

    def _publish(self, channel: bytes, message: bytes) -> int:
        listeners = self._channels.get(channel, {})
        self.published.append(message)
        self._pushes += [(push, message) for push in listeners.values()]
        return len(listeners)

    def _listeners(self, kind: bytes, channel: bytes) -> int:
        return len(self._channels.get(_kind(channel, sharded=kind == b"SHARDNUMSUB"), {}))


def _kind(channel: bytes, *, sharded: bool) -> bytes:
    """Return the key of a sharded channel, which differs from a plain channel of the same name."""
    return (b"s" if sharded else b"-") + channel


def _words(words: Sequence[Word]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


def _glob(pattern: str) -> str:
    r"""Translate a pattern of Redis, in which a backslash escapes, into one of fnmatch."""
    out, escaped = "", False
    for letter in pattern:
        if escaped:
            out, escaped = out + f"[{letter}]", False
        elif letter == "\\":
            escaped = True
        else:
            out += letter
    return out


def _ignore(what: object) -> None:
    """Ignore a report."""
