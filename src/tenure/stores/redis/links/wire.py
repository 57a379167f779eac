"""The wire protocol that the links of both forms of the API share: encoded requests, and the meaning of errors.

No error that leaves this file, and none that is its cause, contains a credential. A server repeats the arguments of a
command that it does not know; this file cuts them off.
"""

import os
import re
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import hiredis
import redis.exceptions as from_redis

from tenure.contracts.limits import LONGEST_REPLY
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.redis.links.link import RedisAddress, ReplyError, Word, Words
from tenure.stores.redis.scripts import Script
from tenure.transport.handshake import HandshakeFailed, advice

NOTHING: Final = object()
"""The value that a reader returns while no reply is complete."""

WHO: Final = (b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n", b"*3\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n$6\r\nmemory\r\n")
"""The requests whose replies `identity_of` takes: the process of a server, and its last promotion.

The replies also tell whether it is a replica and whether it may evict keys, of which the log should warn."""

WHO_AND_HOW: Final = (*WHO, b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$7\r\nappend*\r\n")
"""The same requests, and one that tells whether the server writes everything to disk before it replies."""

Identify = tuple[bytes, ...] | None

DURABLE: Final = b"durable:"
"""The prefix of the run id that tells scripts that the server forgets nothing in a restart."""

_pack: Callable[[Words], bytes] = hiredis.pack_command  # type: ignore[assignment]  # pyright: ignore[reportUnknownMemberType]

number: Callable[[int], bytes] = b"%d".__mod__
"""Encode a whole number as a word of a command."""

_RUN_ID = re.compile(rb"^(?:txt:)?run_id:(\w+)", re.MULTILINE)
_PROMOTED_AT = re.compile(rb"^(?:txt:)?second_repl_offset:(\d+)", re.MULTILINE)
_SENTINEL = re.compile(rb"^(?:txt:)?redis_mode:sentinel", re.MULTILINE)
_ECHO = ", with args beginning with:"

_NOT_REDIS = (hiredis.ProtocolError, from_redis.InvalidResponse)
_REFUSED = (from_redis.AuthenticationError, from_redis.AuthorizationError)
_PASSING = (ReplyError, from_redis.ConnectionError, from_redis.TimeoutError, OSError)


LISTS: Final = frozenset((b"*", b"%", b"~", b">", b"|"))  # a set: `in` is slower for bytes
"""The characters with which replies begin that are made of values."""

_GIANT = re.compile(rb"[*%~>|]\d{8,}\r\n")
"""The head of an array of tens of millions of values."""


def begins_giant(data: bytes) -> bool:
    """Tell whether received bytes that begin a reply, or a part of one, announce an array larger than any.

    hiredis would take the memory of an array at once, before its values come.
    """
    return data[:1] in LISTS and data[1:9].isdigit()


def check_stranger(data: bytes, received: int) -> None:
    """Refuse what a server sends that has not shown yet that it is Redis, after so many bytes. Raises ProtocolError."""
    if received > LONGEST_REPLY or _GIANT.search(data):
        raise giant()


def giant() -> hiredis.ProtocolError:
    """Return the error of a reply that is longer than any reply of Redis."""
    return hiredis.ProtocolError("it announces or sends a reply longer than any of Redis")


def new_reader() -> hiredis.Reader:
    """Create a parser whose gets() returns NOTHING while it has no reply, and error replies as ReplyError."""
    return hiredis.Reader(replyError=ReplyError, errors="replace", notEnoughData=NOTHING)


def command(*words: Word) -> bytes:
    """Encode a plain command."""
    return _pack(words)


def evalsha(script: Script, keys: Words, args: Words, run_id: bytes) -> bytes:
    """Encode the call of a script that the server knows, with the run id as its last argument."""
    return _pack((b"EVALSHA", script.digest, number(len(keys)), *keys, *args, run_id))


@lru_cache(maxsize=64)
def _words(*words: Word) -> bytes:
    """Encode words that most names have in common, without the number of words: a program may use a name but once."""
    return _pack(words).partition(b"\r\n")[2]


class RequestTemplate:
    """The call of a script for requests of one lock: all is packed but what differs between the requests.

    Such a script takes as its last key that of the request's tombstone, and as its third argument a few numbers before
    the request id.
    """

    __slots__ = ("_head", "_middle", "_seen", "_state", "fields", "length", "marker", "script", "seen")

    def __init__(  # noqa: PLR0917 - made in one place only
        self, script: Script, marker: str, state: str, fields: bytes, seen: bytes | None, numbers: int, length: int
    ) -> None:
        """Pack the call for request ids of a `length`, and so many bytes of `numbers`; `seen` is the generation."""
        self.script = script
        self.marker = marker
        self.fields = fields
        self.seen = seen
        self.length = length
        self._state = state
        self._seen = seen or b""
        key = state.encode()
        size = len(key)
        keys = b"$%d\r\n%b\r\n$%d\r\n%b:q\r\n$%d\r\n%b:t:" % (size, key, size + 2, key, size + 3 + length, key)
        self._head = _words(b"EVALSHA", script.digest, b"4", marker) + keys
        self._middle = b"\r\n%b$%d\r\n" % (_words(fields, self._seen), numbers + length)

    def fits(self, request_id: bytes, seen: Mapping[Word, bytes]) -> bool:
        """Tell whether a request id has the length that was packed, and the generation is still the one in `seen`."""
        return self.length == len(request_id) and self.seen is seen.get(self.marker)

    def packed(self, request_id: bytes, numbers: bytes, run_id: bytes) -> bytes:
        """Return the call for one request to the process with a run id, which is left out if the generation has it."""
        if run_id and self._seen.endswith(run_id):
            return b"".join((b"*10\r\n", self._head, request_id, self._middle, numbers, request_id, b"\r\n"))
        last = b"\r\n$%d\r\n%b\r\n" % (len(run_id), run_id)
        return b"".join((b"*11\r\n", self._head, request_id, self._middle, numbers, request_id, last))

    def words(self, request_id: bytes, numbers: bytes) -> tuple[Script, Words, Words]:
        """Return the script, the keys and the arguments of the call for one request, without the run id."""
        state = self._state
        keys = self.marker, state, state + ":q", f"{state}:t:{request_id.decode()}"
        return self.script, keys, (self.fields, self._seen, numbers + request_id)

    def last_words(self, run_id: bytes) -> tuple[bytes, ...]:
        """Return the run id as the last argument, or no argument if `packed` leaves it out."""
        return () if run_id and self._seen.endswith(run_id) else (run_id,)


def eval_text(script: Script, keys: Words, args: Words, run_id: bytes) -> bytes:
    """Encode the call with the script's text, after a NOSCRIPT. The server knows the script from then on."""
    return _pack((b"EVAL", script.text, number(len(keys)), *keys, *args, run_id))


def wait(replicas: int, left: float) -> bytes:
    """Encode a WAIT whose reply comes before `left` seconds have passed."""
    return command(b"WAIT", number(replicas), number(max(1, int(left * 800))))  # 0 would wait for ever


def is_error(reply: object, code: str) -> bool:
    """Return whether a reply is the error that begins with `code`."""
    return type(reply) is ReplyError and reply.code == code


def raise_if_error(reply: object) -> None:
    """Raise a reply that is an error."""
    if type(reply) is ReplyError:
        raise reply


def run_id_of(info: bytes) -> bytes:
    """Return the run id in the reply to INFO, or b"" if there is none."""
    found = _RUN_ID.search(info)
    return found[1] if found else b""


def identity_of(address: RedisAddress, reply: Any, copies: Any = None, how: Any = None) -> bytes:  # noqa: ANN401 - whatever they answer
    """Return the identity of a server from its replies to WHO or WHO_AND_HOW: RUN_ID@OFFSET.

    Raises StoreError if the server does not tell its run id. A process that was a replica meanwhile has another offset,
    that of its promotion. A server that does not tell how it writes may forget.
    """
    if type(reply) is ReplyError and reply.code != "NOPERM":
        raise cannot_connect(address, reply) from reply
    if isinstance(reply, bytes) and _SENTINEL.search(reply):
        raise StoreError(
            f"the Redis server at {address} is a Sentinel, which keeps no locks; write "
            f"redis+sentinel://{address}/SERVICE with the name of the service, such as mymaster"
        )
    if run_id := run_id_of(reply) if isinstance(reply, bytes) else b"":
        promoted = _PROMOTED_AT.search(copies) if isinstance(copies, bytes) else None
        return (DURABLE if _is_durable(how) else b"") + run_id + b"@" + (promoted[1] if promoted else b"0")
    cause = reply if type(reply) is ReplyError else None
    message = (
        f"the Redis server at {address} does not tell its run_id, which shows whether it has restarted; "
        'allow this user the command INFO (ACL SETUSER ... +info), or turn the restart guard off with guard="off"'
    )
    raise StoreError(message) from cause


def _is_durable(how: Any) -> bool:  # noqa: ANN401
    if not isinstance(how, list):
        return False
    words = cast("list[bytes]", how)
    settings = dict(zip(words[::2], words[1::2], strict=False))
    return settings.get(b"appendonly") == b"yes" and settings.get(b"appendfsync") == b"always"


def cannot_connect(address: RedisAddress, error: Exception) -> StoreError:
    """Return the error of a failed connection: StoreUnavailable if a later try may help, else StoreError.

    Takes the errors of redis-py and of sockets, and a ReplyError.
    """
    why = _why(error)
    if isinstance(root := _root(error), HandshakeFailed):
        return StoreUnavailable(advice(f"the Redis server at {address}", root, "redis"))
    if any(isinstance(each, _NOT_REDIS) for each in (error, error.__cause__)):
        return StoreError(
            f"the server at {address} does not answer as Redis does ({why}); check the host, the port and the scheme "
            "of the URL (rediss:// for TLS)"
        )
    if (text := _refused(error)) or isinstance(root, ssl.SSLCertVerificationError):
        return StoreError(f"the Redis server at {address} is there, but {text or _DISTRUST} ({why})")
    return StoreUnavailable(
        f"cannot reach the Redis server at {address} ({why}); check that it runs, that this machine may connect to it, "
        "and the host, the port and the scheme of the URL (rediss:// for TLS)"
    )


def unanswered(address: RedisAddress, error: Exception) -> OutcomeUnknown:
    """Return the error of a request that was sent and got no reply."""
    return OutcomeUnknown(
        f"the Redis server at {address} did not answer ({_why(error)}); "
        "the request may or may not have been carried out; try again, and check the server and the network"
    )


_DISTRUST = "its certificate is not trusted; check ssl_ca_certs and the host name in the URL"


def _refused(error: Exception) -> str:
    """Return the reason for which a server refuses this client, or "" if a later try may help."""
    if _code(error) == "NOAUTH":
        return "it requires a password; give one in the URL"
    if isinstance(error, _REFUSED) or _code(error) == "WRONGPASS":
        return "it refused the credentials; check the user and the password"
    if isinstance(error, from_redis.NoPermissionError) or _code(error) == "NOPERM":
        return "this user lacks a permission that connecting needs; check its ACL"
    if isinstance(error, _PASSING):
        return ""
    return "it refused the connection; check the options of the URL"


def _code(error: Exception) -> str:
    return error.code if isinstance(error, ReplyError) else ""


def _why(error: Exception) -> str:
    """Return the reason in an error, in the words of the server or the system."""
    error.args = tuple(each.partition(_ECHO)[0] if isinstance(each, str) else each for each in error.args)
    root = _root(error)
    if isinstance(root, TimeoutError | from_redis.TimeoutError):
        return "timed out"
    if isinstance(root, ConnectionError) and root.errno:  # asyncio adds the address to strerror, and drops the reason
        return os.strerror(root.errno)
    system = root.strerror if isinstance(root, OSError) else None
    return (system or str(root) or type(root).__name__).rstrip(".")


def _root(error: BaseException) -> BaseException:
    """Return the error of the system that redis-py wrapped in its own, or the error itself."""
    inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, OSError) and isinstance(error, from_redis.RedisError) else error
