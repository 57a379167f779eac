"""What the links of both forms of the API share: how requests are packed, and what errors mean.

Rule of this file: no error that leaves it, and none that it names as a cause, holds a credential. A server repeats
the arguments of a command that it does not know; they are cut off.
"""

import os
import re
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, cast

import hiredis
import redis.exceptions as from_redis

from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.stores.redis.link import RedisAddress, ReplyError, Word
from holdfast.stores.redis.scripts import Script
from holdfast.transport.handshake import HandshakeFailed, advice

NOTHING: Final = object()
"""What a reader returns while no reply is complete."""

WHO: Final = (b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n", b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n")
"""The requests that `identity_of` takes the replies of: which process a server is, and when it was promoted."""

WHO_AND_HOW: Final = (*WHO, b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$7\r\nappend*\r\n")
"""The same, and whether it has everything on the disk before it answers."""

Identify = tuple[bytes, ...] | None

DURABLE: Final = b"durable:"
"""What the run id begins with that scripts are told by a connection to a server that forgets nothing in a restart."""

_pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # pyright: ignore[reportUnknownMemberType]

number: Callable[[int], bytes] = b"%d".__mod__
"""Write a whole number as a word of a command."""

_RUN_ID = re.compile(rb"^(?:txt:)?run_id:(\w+)", re.MULTILINE)
_PROMOTED_AT = re.compile(rb"^(?:txt:)?second_repl_offset:(\d+)", re.MULTILINE)
_ECHO = ", with args beginning with:"

_REFUSED = (from_redis.AuthenticationError, from_redis.AuthorizationError)
_PASSING = (ReplyError, from_redis.ConnectionError, from_redis.TimeoutError, OSError)


def new_reader() -> hiredis.Reader:
    """Make a parser whose gets() returns NOTHING while it has no reply, and error replies as ReplyError."""
    return hiredis.Reader(replyError=ReplyError, errors="replace", notEnoughData=NOTHING)


def command(*words: Word) -> bytes:
    """Pack a plain command."""
    return _pack(words)


def evalsha(script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], run_id: bytes) -> bytes:
    """Pack the call of a script that the server knows, with the run id as its last argument."""
    return _pack((b"EVALSHA", script.digest, number(len(keys)), *keys, *args, run_id))


def evalsha_alike(script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], run_id: bytes) -> bytes:
    """Pack the same, where several servers are asked almost the same: what they have in common is packed once.

    That is all but the second argument and the run id, and mostly the first argument. It takes a third of the time.
    """
    return b"".join(
        (
            b"*%d\r\n" % (4 + len(keys) + len(args)),
            _words(b"EVALSHA", script.digest, number(len(keys)), *keys),
            _words(*args[:2]),
            _words(*args[2:]),
            _words(run_id),
        )
    )


@lru_cache(maxsize=16)
def _words(*words: Word) -> bytes:
    """Pack a part of a command: without what tells how many words there are."""
    return _pack(words).partition(b"\r\n")[2]


def eval_text(script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], run_id: bytes) -> bytes:
    """Pack the same with the script's text: the answer to NOSCRIPT. The server knows it from then on."""
    return _pack((b"EVAL", script.text, number(len(keys)), *keys, *args, run_id))


def wait(replicas: int, left: float) -> bytes:
    """Pack a WAIT whose answer comes before `left` seconds have gone by."""
    return command(b"WAIT", number(replicas), number(max(1, int(left * 800))))  # 0 would wait for ever


def is_error(reply: object, code: str) -> bool:
    """Tell whether a reply is the error that begins with `code`."""
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
    """Return who a server is by its replies to WHO or WHO_AND_HOW. Raises StoreError if it does not tell its run id.

    It is RUN_ID@OFFSET: a process that was a replica in between goes on by another offset, that of its promotion. A
    server that does not tell how it writes may forget.
    """
    if type(reply) is ReplyError and reply.code != "NOPERM":
        raise cannot_connect(address, reply) from reply
    if run_id := run_id_of(reply) if isinstance(reply, bytes) else b"":
        promoted = _PROMOTED_AT.search(copies) if isinstance(copies, bytes) else None
        return (DURABLE if _is_durable(how) else b"") + run_id + b"@" + (promoted[1] if promoted else b"0")
    cause = reply if type(reply) is ReplyError else None
    message = (
        f"the Redis server at {address} does not tell its run_id, by which a restart is noticed; "
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
    """Say why there is no connection: StoreUnavailable where asking again may help, else StoreError.

    Takes the errors of redis-py and of sockets, and a ReplyError.
    """
    why = _why(error)
    if isinstance(root := _root(error), HandshakeFailed):
        return StoreUnavailable(advice(f"the Redis server at {address}", root, "redis"))
    if (text := _refused(error)) or isinstance(root, ssl.SSLCertVerificationError):
        return StoreError(f"the Redis server at {address} is there, but {text or _DISTRUST} ({why})")
    return StoreUnavailable(
        f"cannot reach the Redis server at {address} ({why}); check that it runs, that this machine may connect to it, "
        "and the host, the port and the scheme of the URL (rediss:// for TLS)"
    )


def unanswered(address: RedisAddress, error: Exception) -> OutcomeUnknown:
    """Say that a request went out and no reply came back."""
    return OutcomeUnknown(
        f"the Redis server at {address} did not answer ({_why(error)}); "
        "the request may or may not have been carried out; ask again, and check the server and the network"
    )


_DISTRUST = "its certificate is not trusted; check ssl_ca_certs and the host name in the URL"


def _refused(error: Exception) -> str:
    """Return what is wrong with us in a server's eyes, or "" if asking again may help."""
    if isinstance(error, _REFUSED) or _code(error) in {"NOAUTH", "WRONGPASS"}:
        return "it refused the credentials; check the user and the password"
    if isinstance(error, from_redis.NoPermissionError) or _code(error) == "NOPERM":
        return "this user may not do what connecting takes; check its ACL"
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
    if isinstance(root, ConnectionError) and root.errno:  # of which asyncio says more, and less
        return os.strerror(root.errno)
    system = root.strerror if isinstance(root, OSError) else None
    return (system or str(root) or type(root).__name__).rstrip(".")


def _root(error: BaseException) -> BaseException:
    """Return the error of the system that redis-py wrapped in its own, or the error itself."""
    inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, OSError) and isinstance(error, from_redis.RedisError) else error
