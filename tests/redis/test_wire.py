"""Errors say what happened and whether asking again may help, and never a secret."""

import ssl
import subprocess
import sys

import pytest
import redis.exceptions as from_redis
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.redis import scripts
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAddress, ReplyError
from tenure.stores.redis.names import NODE, state_key

HERE = RedisAddress("example.org", 7000)


@given(
    name=st.text(min_size=1, max_size=40),
    seen=st.sampled_from([None, b"12 abc", b"12 abcd@0"]),
    run_id=st.sampled_from([b"", b"abc", b"abcd@0"]),
    request_id=st.sampled_from([b"0-1", b"0123456789abcdef-ffff"]),
    numbers=st.binary(max_size=20),
)
def test_a_template_packs_the_call_that_its_words_say(
    name: str, seen: bytes | None, run_id: bytes, request_id: bytes, numbers: bytes
) -> None:
    """A request that is packed anew after a NOSCRIPT, or by its text, is the same request."""
    state, length = state_key(name), len(request_id)
    template = wire.RequestTemplate(scripts.ACQUIRE, NODE, state, b"fields", seen, len(numbers), length)
    script, keys, args = template.words(request_id, numbers)
    assert keys == (NODE, state, f"{state}:q", f"{state}:t:{request_id.decode()}")
    assert args == (b"fields", seen or b"", numbers + request_id)
    last = template.last_words(run_id)
    call = wire.command(b"EVALSHA", script.digest, b"4", *keys, *args, *last)
    assert template.packed(request_id, numbers, run_id) == call
    assert last or (seen or b"").endswith(run_id)


def wrapped(inner: OSError) -> Exception:
    """Return what redis-py makes of an error of the system."""
    error = from_redis.ConnectionError(f"Error 1 connecting to example.org:7000. {inner}.")
    error.__context__ = inner
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (wrapped(ConnectionRefusedError(111, "Connection refused")), "(Connection refused)"),
        (wrapped(ssl.SSLError(1, "wrong version number")), "rediss://"),
        (from_redis.TimeoutError("Timeout connecting to server"), "(timed out)"),
        (TimeoutError("timed out"), "(timed out)"),
        (from_redis.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (from_redis.ConnectionError("max number of clients reached"), "max number of clients reached"),
        (ReplyError("LOADING Redis is loading the dataset in memory"), "LOADING"),
        (ReplyError("BUSY Redis is busy running a script"), "BUSY"),
    ],
    ids=str,
)
def test_what_may_pass_is_unavailable(error: Exception, reason: str) -> None:
    """A server that is away, full or busy may be there later."""
    made = wire.cannot_connect(HERE, error)
    assert type(made) is StoreUnavailable
    assert "example.org:7000" in str(made)
    assert reason in str(made)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (from_redis.AuthenticationError("invalid username-password pair or user is disabled."), "the password"),
        (ReplyError("NOAUTH Authentication required."), "requires a password; give one"),
        (ReplyError("WRONGPASS invalid username-password pair"), "the password"),
        (from_redis.NoPermissionError("this user has no permissions to run the 'select' command"), "its ACL"),
        (from_redis.ResponseError("DB index is out of range"), "options of the URL"),
        (wrapped(ssl.SSLCertVerificationError(1, "certificate verify failed")), "ssl_ca_certs"),
    ],
    ids=str,
)
def test_what_does_not_pass_is_an_error(error: Exception, advice: str) -> None:
    """Who is refused will be refused again, and learns what to look at."""
    made = wire.cannot_connect(HERE, error)
    assert type(made) is StoreError
    assert advice in str(made)


def test_what_a_server_repeats_is_cut_off() -> None:
    """The arguments of an unknown command may be credentials; neither the error nor its cause keeps them."""
    error = from_redis.ResponseError("unknown command 'AUTH', with args beginning with: 'user' 'sesame'")
    assert "sesame" not in str(wire.cannot_connect(HERE, error)) + str(error)


def test_no_answer_is_an_unknown_outcome() -> None:
    """A request that was sent and not answered may have been carried out."""
    made = wire.unanswered(HERE, ConnectionResetError(104, "Connection reset by peer"))
    assert type(made) is OutcomeUnknown
    assert "example.org:7000 did not answer (Connection reset by peer)" in str(made)


@pytest.mark.parametrize("info", [b"# Server\r\nrun_id:abc123\r\ntcp_port:1\r\n", b"txt:run_id:abc123\r\n"], ids=str)
def test_the_run_id_is_found(info: bytes) -> None:
    """In the reply to INFO, in either protocol."""
    assert wire.identity_of(HERE, info) == b"abc123@0"


@pytest.mark.parametrize("reply", [b"# Server\r\n", ReplyError("NOPERM no INFO for you"), None], ids=str)
def test_a_server_that_hides_its_run_id_is_refused(reply: object) -> None:
    """Without it no restart would be noticed; the error says what to allow or to turn off."""
    with pytest.raises(StoreError, match=r'\+info.*guard="off"'):
        wire.identity_of(HERE, reply)


def test_waiting_for_replicas_ends() -> None:
    """WAIT gets a time that ends before ours, and never 0, which is for ever."""
    assert wire.wait(2, 1.0) == wire.command("WAIT", "2", "800")
    assert wire.wait(2, 0.0) == wire.command("WAIT", "2", "1")


def test_error_replies_are_values() -> None:
    """A reader returns errors, whatever bytes they hold."""
    reader = wire.new_reader()
    assert reader.gets() is wire.NOTHING
    reader.feed(b"-NOGO not \xff here\r\n$-1\r\n")
    reply = reader.gets()
    assert wire.is_error(reply, "NOGO")
    with pytest.raises(ReplyError, match="NOGO not"):
        wire.raise_if_error(reply)
    assert reader.gets() is None


INTERRUPTED = """
import random, signal

from tenure.stores.redis.links import wire
from tenure.stores.redis import scripts

class Interrupt(Exception):
    pass

armed = False

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(1)
hits = 0
keys = ("tenure:node", "tenure:{name}", "tenure:{name}:q", "tenure:{name}:t:0123456789abcdef")

def pack_until_interrupted():
    global armed
    armed = True
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 30e-6))
    while armed:
        token = wire.number(1795368212968102)
        wire.evalsha(scripts.RELEASE, keys, (b"packed", b"seen", "request", token, b"0", b"0"), b"run id")

while hits < 3000:
    try:
        pack_until_interrupted()
    except Interrupt:
        hits += 1
print(hits)
"""


def test_an_interrupt_while_packing_crashes_nothing() -> None:
    """A signal handler may raise at any moment: hiredis would crash the process if it packed an int then."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "3000\n"), done.stderr
