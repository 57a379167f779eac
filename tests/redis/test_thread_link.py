"""A link of the threads runtime answers every request by its time, with its own answer or an error that tells."""

import contextlib
import itertools
import random
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.threads import ThreadsRuntime, complete, drive
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisReply, ReplyError
from tenure.stores.redis.links.threads import FanOutLink
from tenure.transport import pool
from tests.hazards.helpers import Script
from tests.redis.threaded import COUNT, ECHO, TEST_TIMEOUT, WHOLE, Driven, Ear, at_once, linked, script
from tests.servers import Clock, Proxy, RedisServer, RedisTlsServer, wait_until
from tests.servers.fixtures import ACL_LOGIN

SPARED = 4
"""Chunks of a handshake: the names of the library, INFO, and the first request."""


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(redis_server.address, spared=SPARED) as running:
        yield running


@contextmanager
def paused(server: RedisServer) -> Generator[None, None, None]:
    """Stop a server for a while."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def alarmed(
    handler: Callable[[int, FrameType | None], None], first: float, interval: float = 0.0
) -> Generator[None, None, None]:
    """Have a signal come after some seconds, and then again and again."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def connect(driven: Driven, count: int) -> None:
    """Have a link make so many connections, which are idle afterwards."""
    barrier = threading.Barrier(count)

    def hold() -> None:
        barrier.wait(TEST_TIMEOUT)
        driven.command("BLPOP", "nothing", "0.1")

    while len(driven.link._pool.idle) < count:
        at_once([hold] * count)


# What a request brings.


def test_a_script_gets_its_arguments_and_the_run_id(redis_server: RedisServer) -> None:
    """A script knows which server process it runs in, and so does whoever asked."""
    with linked(redis_server) as driven:
        answer = driven.ask(WHOLE, "é", key="{é}")
        assert answer.value == ["{é}".encode(), "é".encode(), answer.run_id]
        assert answer.run_id.decode() == redis_server.info("server")["run_id"] + "@0"


def test_without_a_guard_nobody_is_asked_who_it_is(redis_server: RedisServer) -> None:
    """Where the guard is off, the run id is empty."""
    with linked(redis_server, identify=None) as driven:
        assert driven.run(WHOLE, "1") == [b"key", b"1", b""]


def test_a_server_that_forgot_its_scripts_is_told_again(redis_server: RedisServer) -> None:
    """SCRIPT FLUSH in the midst of work goes unnoticed, whatever way a script is run."""
    with linked(redis_server) as driven:
        for number in range(60):
            if number % 5 == 0:
                redis_server.command("SCRIPT", "FLUSH")
            asking = (driven.link.run, driven.link.run_after_asking, partial(driven.link.run_replicated, replicas=0))
            answer = drive(asking[number % 3](ECHO, ("key",), (str(number),), until=driven.soon()))
            assert answer.value == str(number).encode()


def test_an_error_reply_is_told_and_costs_no_connection(redis_server: RedisServer) -> None:
    """An error that the server answers is a ReplyError with its code, and the connection is as good as before."""
    with linked(redis_server) as driven:
        before = driven.command("CLIENT", "ID")
        with pytest.raises(ReplyError) as caught:
            driven.run(script("return redis.error_reply('NOGO not here')"))
        assert caught.value.code == "NOGO"
        with pytest.raises(ReplyError) as caught:
            driven.command("NONSENSE")
        assert caught.value.code == "ERR"
        assert driven.command("CLIENT", "ID") == before


def test_large_requests_and_replies_arrive_whole(redis_server: RedisServer) -> None:
    """A request that no buffer holds is sent in parts, and its reply is put together."""
    with linked(redis_server) as driven:
        text = random.Random(1).randbytes(20_000_000)
        assert driven.run(ECHO, text) == text


def test_replicas_are_counted(tmp_path: Path) -> None:
    """A script's answer tells how many replicas have what it wrote, and the server waits no longer than we do."""
    silent = ("--repl-ping-replica-period", "3600")  # the replica has nothing to acknowledge but what is written
    with Clock(tmp_path / "clock") as clock, RedisServer(tmp_path / "master", options=silent, clock=clock) as master:
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer(tmp_path / "replica", options=follow) as replica, linked(master) as driven:
            wait_until(lambda: replica.follows(master), "a replica that follows")
            request = partial(driven.link.run_replicated, COUNT, ("key",), ())
            assert drive(request(until=driven.soon(), replicas=1)).acknowledged == 1

            def acknowledged() -> int:
                return int(master.info("replication")["slave0"].partition("offset=")[2].partition(",")[0])

            written = int(master.info("replication")["master_repl_offset"])

            def pass_time() -> None:
                # The WAIT must not end before the replica has said that it has what the script wrote.
                wait_until(lambda: acknowledged() > written, "what the replica acknowledges")
                wait_until(lambda: master.info("clients")["blocked_clients"] == "1", "a WAIT")
                clock.step(0.9 * TEST_TIMEOUT)

            def ask_for_more() -> None:
                assert drive(request(until=driven.soon(), replicas=2)).acknowledged == 1

            at_once([pass_time, ask_for_more])
            with linked(replica) as other, pytest.raises(ReplyError) as caught:
                drive(other.link.run_replicated(COUNT, ("key",), (), other.soon(), 1))
            assert caught.value.code == "READONLY"


# Timeouts and lost replies.


def test_late_replies_answer_nobody(proxy: Proxy) -> None:
    """Eight threads with timeouts around the time of a reply: each gets its own answer, or is told that it has none."""
    proxy.delay(down=0.005)
    numbers = itertools.count()
    outcomes = {"answered": 0, "unknown": 0}

    def hammer(driven: Driven, chance: random.Random) -> None:
        middle = 0.008  # at first: then whatever a reply takes at present, on this machine
        while min(outcomes.values()) < 100:
            number = next(numbers)
            try:
                assert driven.run(ECHO, str(number), within=middle * chance.uniform(0.5, 1.5)) == b"%d" % number
                outcomes["answered"] += 1
                middle *= 0.9
            except OutcomeUnknown:
                outcomes["unknown"] += 1
                middle *= 1.1
            except StoreUnavailable:
                driven.run(ECHO, "0")  # connecting takes longer than some have time

    with linked(proxy.address) as driven:
        at_once([partial(hammer, driven, random.Random(seed)) for seed in range(8)])


def test_a_server_that_stands_still_is_waited_for_only_so_long(redis_server: RedisServer) -> None:
    """Who asks a stopped server is told that the outcome is unknown; the reply that comes later answers nobody."""
    with linked(redis_server) as driven:
        driven.run(ECHO, "warm")
        with paused(redis_server):
            with pytest.raises(OutcomeUnknown) as caught:
                driven.run(ECHO, "late", within=0.2)
            assert isinstance(caught.value.__cause__, TimeoutError)
        assert driven.run(ECHO, "next") == b"next"


def test_no_signal_prolongs_a_wait(redis_server: RedisServer) -> None:
    """Signals that keep interrupting a wait do not keep it from its end."""

    def ignore(_number: int, _frame: FrameType | None) -> None: ...

    with linked(redis_server) as driven:
        driven.run(ECHO, "warm")
        with paused(redis_server), alarmed(ignore, 0.01, 0.01), pytest.raises(OutcomeUnknown):
            driven.run(ECHO, "late", within=0.2)


def test_an_interrupted_request_leaves_no_reply_behind(redis_server: RedisServer) -> None:
    """Ctrl-C in a request: the next one gets its own answer."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with linked(redis_server) as driven:
        driven.run(ECHO, "warm")
        with paused(redis_server), pytest.raises(KeyboardInterrupt), alarmed(interrupt, 0.05):
            driven.run(ECHO, "interrupted")
        assert driven.run(ECHO, "next") == b"next"


def test_a_reply_in_drops_is_not_waited_for_to_its_end() -> None:
    """A reply that comes byte by byte, each in time, is not in time."""
    gone = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while connection.recv(4096).startswith(b"*4\r\n$6\r\nCLIENT"):
                connection.sendall(b"+OK\r\n")
            connection.sendall(b"$100\r\n")
            with contextlib.suppress(OSError):
                while not gone.wait(0.02):
                    connection.sendall(b".")

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, args=(server,), daemon=True)
        serving.start()
        with linked(RedisAddress(*server.getsockname()), identify=None) as driven:
            driven.link._pool.put_back(driven.link._take(driven.soon()))  # connected
            with pytest.raises(OutcomeUnknown):
                driven.run(ECHO, "slow", within=0.2)
        gone.set()
        serving.join(TEST_TIMEOUT)


def test_a_lost_reply_is_unknown_and_the_request_not_repeated(proxy: Proxy, redis_server: RedisServer) -> None:
    """A reply that got lost makes the outcome unknown; nobody but the caller may ask again."""
    with linked(proxy.address) as driven:
        assert driven.run(COUNT, key="lost") == 1
        proxy.swallow(1)
        with pytest.raises(OutcomeUnknown) as caught:
            driven.run(COUNT, key="lost")
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert redis_server.command("GET", "lost") == "2"
        assert driven.run(COUNT, key="lost") == 3


def test_a_lost_request_is_unknown_too(proxy: Proxy) -> None:
    """A connection that breaks under a request: nobody knows how far it came."""
    with linked(proxy.address) as driven:
        assert driven.run(COUNT, key="gone") == 1
        proxy.lose(1)
        with pytest.raises(OutcomeUnknown):
            driven.run(COUNT, key="gone")
        assert driven.run(COUNT, key="gone") == 2


def test_without_time_nothing_is_sent(proxy: Proxy) -> None:
    """A request whose time is over is not begun, with and without a connection."""
    with linked(proxy.address) as driven:
        for _ in range(2):
            before = proxy.counts.requests
            with pytest.raises(StoreUnavailable) as caught:
                driven.run(ECHO, "no", within=0)
            assert not isinstance(caught.value, OutcomeUnknown)
            assert proxy.counts.requests == before
            driven.run(ECHO, "warm")


# Connections that die.


def test_a_restart_between_requests_goes_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections of a server that was restarted are replaced before anything is sent on them."""
    monkeypatch.setattr(pool, "SURELY_OPEN", 0.0)
    with RedisServer(tmp_path) as server, linked(server) as driven:
        connect(driven, 4)
        first = driven.ask(ECHO, "before").run_id
        server.restart()
        for _ in range(6):
            assert driven.ask(ECHO, "after").run_id != first


def test_a_restart_costs_one_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one connection turns out dead, the other idle ones are not tried."""
    monkeypatch.setattr(pool, "SURELY_OPEN", TEST_TIMEOUT)
    with Proxy(("127.0.0.1", 1)) as proxy, RedisServer(tmp_path) as server:
        proxy.target = server.address
        with linked(proxy.address) as driven:
            connect(driven, 4)
            proxy.swallow(None)
            with pytest.raises(OutcomeUnknown):
                driven.run(ECHO, "lost")
            proxy.heal()
            assert not driven.link._pool.idle
            assert driven.run(ECHO, "after") == b"after"


def test_a_connection_that_answered_since_is_kept(proxy: Proxy) -> None:
    """A timeout on one connection does not cost those that are known to work."""
    with linked(proxy.address) as driven:
        connect(driven, 2)
        held, other = driven.link._take(driven.soon()), driven.link._take(driven.soon())
        driven.link._pool.put_back(other)
        assert driven.link._take(driven.soon()) is other
        driven.link._pool.put_back(other)
        driven.link._pool.lose(held)
        assert list(driven.link._pool.idle) == [other]


def test_a_request_that_could_not_be_sent_goes_over_another_connection(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing was sent, the request is sent once more, and nobody notices."""
    monkeypatch.setattr(pool, "SURELY_OPEN", TEST_TIMEOUT)
    with linked(proxy.address) as driven:
        for way in (partial(driven.run, ECHO), partial(driven.command, "ECHO")):
            connect(driven, 2)
            proxy.cut()
            for each in driven.link._pool.idle:
                wait_until(each.is_stale, "a reset that has arrived")
            assert way("sent") == b"sent"


def test_a_crash_under_load_is_survived(tmp_path: Path) -> None:
    """Threads that are in the midst of requests when the server dies each get an answer or an error, and go on."""
    with RedisServer(tmp_path) as server, linked(server) as driven:
        back = threading.Event()
        started = threading.Barrier(5)

        def work(number: int) -> None:
            driven.run(ECHO, "warm")
            started.wait(TEST_TIMEOUT)
            again = 0
            while again < 10:
                try:
                    assert driven.run(ECHO, str(number)) == b"%d" % number
                    again += back.is_set()
                except StoreUnavailable:
                    back.wait(TEST_TIMEOUT)

        def crash() -> None:
            started.wait(TEST_TIMEOUT)
            server.kill()
            server.start()
            back.set()

        at_once([crash, *(partial(work, number) for number in range(4))])


# Connecting.


def test_nobody_there(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is not there is unavailable; the error says where it was looked for, and no secrets."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host, port = taken.getsockname()
        access = RedisAccess({"username": "user", "password": "sesame"})
        with linked(RedisAddress(host, port), access=access) as driven:
            for request in (driven.command, driven.listen):
                with pytest.raises(StoreUnavailable) as caught:
                    request("PING")
                assert not isinstance(caught.value, OutcomeUnknown)
                assert f"{host}:{port}" in str(caught.value)
                assert "sesame" not in "".join(traceback.format_exception(caught.value))
            assert "sesame" not in repr(driven.link) + repr(access) + caplog.text


def test_connecting_ends_in_time() -> None:
    """A server that takes connections and says nothing is given up by the time of the request, or of the option."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = RedisAddress(*silent.getsockname())
        with linked(address) as driven, pytest.raises(StoreUnavailable):
            driven.run(ECHO, "no", within=0.05)
        with linked(address, access=RedisAccess(connect_timeout=0.05)) as driven, pytest.raises(StoreUnavailable):
            driven.run(ECHO, "no")


def test_a_slow_handshake_ends_in_time(redis_server: RedisServer) -> None:
    """All steps of connecting together have to end by the time of the request, not each of them."""
    with Proxy(redis_server.address) as proxy, linked(proxy.address) as driven:
        proxy.delay(down=0.2)
        with pytest.raises(StoreUnavailable):
            driven.run(ECHO, "no", within=0.35)
        assert driven.run(ECHO, "yes") == b"yes"


def test_a_full_server_is_unavailable(redis_server: RedisServer) -> None:
    """A server with too many clients may have room later."""
    with redis_server.connect() as wire:
        wire.command("CONFIG", "SET", "maxclients", 1)
        try:
            with linked(redis_server) as driven, pytest.raises(StoreUnavailable) as caught:
                driven.run(ECHO, "no")
            assert "max number of clients" in str(caught.value)
        finally:
            wire.command("CONFIG", "SET", "maxclients", 10000)


def test_wrong_credentials_are_no_outage(redis_acl: RedisServer) -> None:
    """A user who is refused is told so; asking again is of no use. The password is not told."""
    user, password = ACL_LOGIN
    with linked(redis_acl) as driven, pytest.raises(StoreError, match="requires a password"):
        driven.run(ECHO, "out")
    with linked(redis_acl, access=RedisAccess({"username": user, "password": "sesame"})) as driven:
        for request in (driven.command, driven.listen):
            with pytest.raises(StoreError, match="check the user and the password") as caught:
                request("PING")
            assert not isinstance(caught.value, StoreUnavailable)
            assert "sesame" not in "".join(traceback.format_exception(caught.value))
    with linked(redis_acl, access=RedisAccess({"username": user, "password": password})) as driven:
        assert driven.run(ECHO, "in") == b"in"


def test_who_may_not_ask_for_the_run_id_is_told(redis_acl: RedisServer) -> None:
    """A user without INFO learns what to allow, or what to turn off."""
    redis_acl.command("ACL", "SETUSER", "blind", "on", ">blind", "~*", "&*", "+@all", "-info")
    access = RedisAccess({"username": "blind", "password": "blind"})
    with linked(redis_acl, access=access) as driven:
        with pytest.raises(StoreError, match=r'\+info.*guard="off"') as caught:
            driven.run(ECHO, "no")
        assert not isinstance(caught.value, StoreUnavailable)
    with linked(redis_acl, access=access, identify=None) as driven:
        assert driven.run(ECHO, "yes") == b"yes"


def test_a_server_that_repeats_credentials_is_not_quoted() -> None:
    """A server repeats the arguments of commands that it does not know: no error of ours does."""
    echo = b"-ERR unknown command 'AUTH', with args beginning with: 'user' 'sesame' \r\n"

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(echo)
            connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, args=(server,), daemon=True)
        serving.start()
        access = RedisAccess({"username": "user", "password": "sesame"})
        with linked(RedisAddress(*server.getsockname()), access=access) as driven, pytest.raises(StoreError) as caught:
            driven.run(ECHO, "no")
        assert "sesame" not in "".join(traceback.format_exception(caught.value))
        serving.join(TEST_TIMEOUT)


def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    """A server is reached by its Unix socket as well."""
    path = str(tmp_path / "s")
    with RedisServer(tmp_path, options=("--unixsocket", path)) as server, linked(RedisAddress("", path=path)) as driven:
        assert driven.run(ECHO, "in") == b"in"
        driven.listen("channel")
        server.command("PUBLISH", "channel", "hello")
        assert driven.ear.push() == b"hello"


def test_tls(redis_tls: RedisTlsServer) -> None:
    """Requests and messages travel by TLS, large ones too."""
    access = RedisAccess({"ssl_ca_certs": str(redis_tls.certificates.authority)}, tls=True)
    text = random.Random(2).randbytes(300_000)
    with linked(redis_tls, access=access) as driven:
        assert driven.run(ECHO, text) == text
        driven.listen("channel")
        for number in range(20):
            redis_tls.command("PUBLISH", "channel", str(number) * 5000)
        assert [driven.ear.push() for _ in range(20)] == [str(number).encode() * 5000 for number in range(20)]
        with paused(redis_tls), pytest.raises(OutcomeUnknown):
            driven.run(ECHO, "late", within=0.2)
        assert driven.run(ECHO, "next") == b"next"


def test_requests_side_by_side_travel_by_tls(redis_tls: RedisTlsServer) -> None:
    """Large replies come whole, each to its request."""
    runtime, ear = ThreadsRuntime(), Ear()
    access = RedisAccess({"ssl_ca_certs": str(redis_tls.certificates.authority)}, tls=True)
    link = FanOutLink(runtime, access, RedisAddress(*redis_tls.address), ear.callbacks)
    texts = [random.Random(number).randbytes(300_000) for number in range(3)]
    replies: list[RedisReply | Exception | None] = [None] * 3
    until = runtime.now() + TEST_TIMEOUT
    complete(runtime.race([link.run(ECHO, ("key",), (text,), until) for text in texts], replies, 3, lambda: True))
    complete(link.close())
    assert [reply.value for reply in replies if isinstance(reply, RedisReply)] == texts


def test_an_unknown_certificate_is_no_outage(redis_tls: RedisTlsServer) -> None:
    """A server whose certificate is not trusted will not be trusted later; one without TLS may be another."""
    with linked(redis_tls, access=RedisAccess(tls=True)) as driven:
        with pytest.raises(StoreError, match="ssl_ca_certs") as caught:
            driven.run(ECHO, "no")
        assert not isinstance(caught.value, StoreUnavailable)


# Threads, ends and forks.


def open_files() -> int:
    """Count the descriptors of this process."""
    return len(list(Path("/dev/fd").iterdir()))


def test_close_leaves_nothing(redis_server: RedisServer) -> None:
    """After close there is no thread and no descriptor more than before; a closed link says so."""
    files, running = open_files(), set(threading.enumerate())
    with linked(redis_server) as driven:
        connect(driven, 5)
        driven.listen("channel")
        assert {each.name for each in set(threading.enumerate()) - running} == {"tenure-redis-channel"}
        driven.close()
        assert set(threading.enumerate()) == running
        assert open_files() == files
        for request in (driven.command, driven.listen):
            with pytest.raises(StoreUnavailable, match="closed"):
                request("PING")
        driven.ignore("channel")
    assert open_files() == files


def test_close_while_others_are_inside(redis_server: RedisServer) -> None:
    """Threads in the midst of requests end them, and put no connection into a pool that is closed."""
    files = open_files()
    begun = threading.Semaphore(0)

    def ask(driven: Driven) -> None:
        for number in itertools.count():
            assert driven.run(ECHO, str(number)) == b"%d" % number
            begun.release()

    def work(driven: Driven) -> None:
        with pytest.raises(StoreUnavailable, match="closed"):
            ask(driven)

    def end(driven: Driven) -> None:
        for _ in range(200):
            begun.acquire()
        driven.close()

    for _ in range(10):
        with linked(redis_server) as driven:
            at_once([partial(end, driven), *[partial(work, driven)] * 8])
            assert not driven.link._pool.idle
            assert open_files() == files


FORKING = """
import os, sys, threading, warnings
from tenure.stores.redis.links.link import RedisAccess
from tenure.stores.redis.links.link import RedisAddress
from tests.redis.threaded import ECHO, Driven
warnings.simplefilter("ignore", DeprecationWarning)
driven = Driven(RedisAddress(sys.argv[1], int(sys.argv[2])), access=RedisAccess({"client_name": "forked"}))
files = lambda: len(os.listdir("/dev/fd"))
driven.listen("parent")
stuck = threading.Thread(target=driven.command, args=("BLPOP", "stuck", 0))
stuck.start()
while not driven.link._pool.all:
    pass
first = driven.command("CLIENT", "ID")
to_child, from_parent = os.pipe()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        before = files()
        driven.link.abandon()
        assert files() == before - 5, "an idle connection, one in use, the channel and two ends of its bell"
        assert driven.run(ECHO, "child") == b"child"
        assert driven.command("CLIENT", "ID") != first
        driven.listen("child")
        assert driven.command("PUBLISH", "child", "hello child") == 1
        assert driven.ear.push() == b"hello child"
        print("child works", flush=True)
        os.read(to_child, 1)
        driven.close()
        assert files() == before - 5
        status = 0
    finally:
        os._exit(status)
sys.stdin.readline()
assert driven.command("CLIENT", "ID") == first
driven.command("PUBLISH", "parent", "hello parent")
assert driven.ear.push() == b"hello parent" and driven.ear.gaps.empty()
driven.command("LPUSH", "stuck", "go on")
stuck.join()
driven.close()
print("parent works", flush=True)
sys.stdin.readline()
os.write(from_parent, b".")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_leaves_its_parents_connections_alone(redis_server: RedisServer) -> None:
    """A child closes its copies in silence, and starts anew; the parent's connections live as long as it wants."""

    def connections() -> int:
        return str(redis_server.command("CLIENT", "LIST")).count("name=forked ")

    process = Script(FORKING, *map(str, redis_server.address))
    try:
        assert process.hear() == "child works"
        assert connections() == 5
        process.say()
        assert process.hear() == "parent works"
        wait_until(lambda: connections() == 2, "the end of the parent's connections, of which a child had copies")
        process.say()
    finally:
        assert process.end() == ("0\n", "")
