"""Replies that are lost, servers that die, users and certificates: what the directory makes of them."""

import asyncio
import os
import warnings
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest

from tenure import LockEvent
from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.session import EtcdSession
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tenure_testing.conformance.check import API_FORMS
from tenure_testing.conformance.kit import Kit
from tests.etcd.scenes import TEST_TIMEOUT, Member, Run, contender, eventually, member, run_asyncio
from tests.faults.metronome import Metronome
from tests.faults.scenes import client_at, play
from tests.ordered.ensembles import Party
from tests.servers import Certificates, EtcdEnsemble, EtcdServer, Proxy
from tests.servers.etcd import after, encoded

if TYPE_CHECKING:
    from tenure.stores.etcd.directory import EtcdDirectory

LOGIN = ("app", "a-secret")


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(etcd_server.address) as running:
        yield running


def url_of(proxy: Proxy) -> str:
    """Return where clients connect."""
    host, port = proxy.address
    return f"etcd://{host}:{port}"


def join_again(one: Member, name: str, request_id: str) -> Callable[[], Awaitable[Listing]]:
    """Return what does the same as a late copy of a join."""
    changes, session = one.directory._changes, one.directory._sessions.current
    key = changes._contender_keys.find((name, request_id))
    assert session is not None
    assert key is not None
    return lambda: changes._try_to_join(session, (name, request_id), key, "{}", one.soon())


def test_a_join_whose_reply_was_lost_is_asked_again(run: Run, proxy: Proxy, name: str) -> None:
    """It is the same contender, and there is only one."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            proxy.swallow(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.join(name, contender("a"), a.soon())
            there = (await a.directory.look(name, a.soon())).entries
            entry, listing = await a.directory.join(name, contender("a"), a.soon())
            assert [each.position for each in there] == [each.position for each in listing.entries] == [entry.position]

    run(scene)


def test_a_join_that_comes_after_its_end_does_nothing(run: Run, proxy: Proxy, name: str) -> None:
    """Whether it had come before or not, and whether it is withdrawn or changed into something else."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            proxy.swallow(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.join(name, contender("came"), a.soon())
            late = [join_again(a, name, "came")]
            assert await a.directory.withdraw_join(name, "came", None, a.soon())
            proxy.lose(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.join(name, contender("lost"), a.soon())
            late.append(join_again(a, name, "lost"))
            assert not await a.directory.withdraw_join(name, "lost", None, a.soon())
            proxy.swallow(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.join(name, contender("kept"), a.soon())
            late.append(join_again(a, name, "kept"))
            there = (await a.directory.look(name, a.soon())).entries
            kept = Record(Kind.PLACEHOLDER, "kept", counts_for=60.0, place=there[0].order)
            assert await a.directory.change(name, there, [kept], a.soon())
            for join in late:
                listing = await join()
                assert [entry.kind for entry in listing.entries] == [Kind.PLACEHOLDER]
            there = (await a.directory.look(name, a.soon())).entries
            assert await a.directory.change(name, there, [], a.soon())

    run(scene)


@pytest.mark.parametrize("step", [b"lease/grant", b"kv/txn", b"/v3/watch"])
@pytest.mark.parametrize("fault", [Proxy.lose, Proxy.swallow], ids=["lose", "swallow"])
def test_a_session_is_begun_though_a_step_fails(
    run: Run, proxy: Proxy, step: bytes, fault: Callable[..., None], name: str
) -> None:
    """Whichever it is, to open again is all that is needed; nothing stays open."""

    async def scene(runtime: Runtime) -> None:
        one = Member(runtime, url_of(proxy))
        fault(proxy, containing=step)
        try:
            await eventually(one, lambda: one.directory.open(one.heard, one.soon()))
            await one.directory.join(name, contender("a"), one.soon())
            await one.directory.tell(one.directory.session(), "heard", one.soon())
            await one.heard.wait_for("told heard")
        finally:
            await one.directory.close()
        async with member(runtime, url_of(proxy)) as other:
            assert (await other.directory.look(name, other.soon())).entries == []

    run(scene)


def test_nothing_is_missed_while_connections_are_cut(
    run: Run, proxy: Proxy, name: str, etcd_server: EtcdServer
) -> None:
    """Messages come, each once; who waits looks again; the end of the session is heard."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a, member(runtime, etcd_server.url) as b:
            _, listing = await b.directory.join(name, contender("b"), b.soon())
            assert await a.directory.watch(name, "a", listing.entries, a.soon())
            for n in range(3):
                proxy.cut()
                await b.directory.tell(a.directory.session(), f"message {n}", b.soon())
                await a.heard.wait_for(f"told message {n}")
            await a.heard.wait_for("woken a")
            proxy.cut()
            etcd_server.revoke(str(int(a.directory.session(), 16)))
            await a.heard.wait_for("lost")
            told = [f"told message {n}" for n in range(3)]
            assert [event for event in a.heard.events if event != "woken a"] == [*told, "lost"]
            assert a.heard.events.count("woken a") == 1

    run(scene)


def test_a_silent_server_is_not_waited_for(run: Run, proxy: Proxy, name: str, metronome: Metronome) -> None:
    """Each operation ends by its time."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            proxy.blackhole()
            try:
                began = runtime.now()
                with pytest.raises(OutcomeUnknown, match="timed out"):
                    await a.directory.look(name, a.soon(0.2))
                with pytest.raises(StoreUnavailable):
                    await a.directory.watch(
                        name, "a", [Entry(Kind.CONTENDER, "x", 1, position=1, key="cx")], a.soon(0.2)
                    )
                assert metronome.elapsed(began) < 5.0
            finally:
                proxy.heal()

    run(scene)


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_a_session_survives_its_server_and_the_leader(
    run: Run, etcd_ensemble: EtcdEnsemble, name: str, harm: str
) -> None:
    """The others are asked; the queue, the session and its channel go on."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_ensemble.url) as a, member(runtime, etcd_ensemble.url) as b:
            entry, _ = await a.directory.join(name, contender("a"), a.soon())
            _, listing = await b.directory.join(name, contender("b"), b.soon())
            session = a.directory.session()
            assert await b.directory.watch(name, "b", listing.entries[:1], b.soon())
            leader = etcd_ensemble.leader()
            getattr(leader, harm)()
            etcd_ensemble.await_another_leader(leader)
            await eventually(a, lambda: a.directory.keep_alive(a.soon(2.0)))
            await eventually(b, lambda: b.directory.keep_alive(b.soon(2.0)))
            assert (await eventually(a, lambda: a.directory.check([(name, entry)], a.soon(2.0)))) == [True]
            await b.directory.tell(session, "still here", b.soon())
            await a.heard.wait_for("told still here")
            assert a.directory.session() == session
            assert await a.directory.withdraw_join(name, "a", entry, a.soon())
            await b.heard.wait_for("woken b")
            assert "lost" not in a.heard.events + b.heard.events

    try:
        run(scene)
    finally:
        etcd_ensemble.mend()


def test_what_cannot_be_read_keeps_no_message_from_being_heard(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Whoever put it there, and wherever: what others put below the prefix is no text, if they like."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            session = a.directory.session()
            for prefix in (a.directory._keys.channel(session) + "/", a.directory._keys.of(name, "")):
                raw = b64encode(prefix.encode() + b"\xff").decode()
                await a.directory._gateway.exchange("kv/put", {"key": raw, "value": "/w=="}, a.soon())
            await a.directory.tell(session, "still here", a.soon())
            await a.heard.wait_for("told still here")
            assert (await a.directory.look(name, a.soon())).entries == []
            assert name not in (await a.directory.names("", a.soon())).names
            await a.directory._gateway.exchange("kv/deleterange", {"key": raw}, a.soon())

    run(scene)


def test_an_channel_is_heard_again_whatever_went_wrong_first(
    run: Run, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would do it: so no error, of whatever kind, ends that."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            sessions, session = a.directory._sessions, a.directory._sessions.current
            assert session is not None
            assert session.watch is not None
            hear_again, tried = sessions._hear_again, runtime.event()

            async def fail_once(which: EtcdSession) -> None:
                if not tried.is_set():
                    tried.set()
                    raise KeyError("header")
                await hear_again(which)

            monkeypatch.setattr(sessions, "_hear_again", fail_once)
            session.watch.lose("the server says nothing that makes sense")
            assert await tried.wait(a.soon())
            await a.directory.tell(session.name, "still here", a.soon())
            await a.heard.wait_for("told still here")

    run(scene)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Run a server that lets in one user, on one prefix."""
    with EtcdServer(tmp_path_factory.mktemp("etcd"), login=LOGIN, prefix="tenure/") as server:
        yield server


def test_a_user_is_logged_in_and_stays_so(run: Run, guarded: EtcdServer, name: str) -> None:
    """Also when the server has forgotten the token that it gave."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, guarded.url_for(*LOGIN)) as a:
            entry, listing = await a.directory.join(name, contender("a"), a.soon())
            assert await a.directory.watch(name, "a", listing.entries, a.soon())
            guarded.kill()
            guarded.start()
            assert (await eventually(a, lambda: a.directory.check([(name, entry)], a.soon()))) == [True]
            await a.heard.wait_for("woken a")
            a.directory._gateway._token = a.directory._gateway._token[::-1]
            assert await a.directory.watch(name, "a", (await a.directory.look(name, a.soon())).entries, a.soon())
            await a.directory.stir(name, [entry], a.soon())
            await a.heard.wait_for("woken a", 2)

    run(scene)


@pytest.mark.parametrize(
    ("login", "path", "message"),
    [
        (("app", "wrong-one"), "", "refused the credentials"),
        (("nobody", "a-secret"), "", "refused the credentials"),
        (("app", "a-secret"), "/elsewhere", "grant its role READWRITE"),
    ],
)
def test_who_is_not_let_in_is_told(
    run: Run, guarded: EtcdServer, login: tuple[str, str], path: str, message: str
) -> None:
    """In words that hold no password."""

    async def scene(runtime: Runtime) -> None:
        with pytest.raises(StoreError, match=message) as told:
            async with member(runtime, guarded.url_for(*login) + path):
                pass
        assert login[1] not in str(told.value)

    run(scene)


def test_a_server_is_reached_by_tls(run: Run, tmp_path: Path, name: str) -> None:
    """If its certificate is trusted."""
    certificates = Certificates(tmp_path / "certificates")
    with EtcdServer(tmp_path / "etcd", certificates=certificates) as server:

        async def scene(runtime: Runtime) -> None:
            async with member(runtime, f"{server.url}?ssl_ca_certs={certificates.authority}") as a:
                entry, listing = await a.directory.join(name, contender("a"), a.soon())
                assert await a.directory.watch(name, "a", listing.entries, a.soon())
                assert await a.directory.withdraw_join(name, "a", entry, a.soon())
                await a.heard.wait_for("woken a")
            with pytest.raises(StoreError, match="is not trusted"):
                async with member(runtime, server.url):
                    pass

        run(scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_releases_are_sent_by_tls(form: str, tmp_path: Path) -> None:
    """And their replies are read, each from as many records of TLS as it comes in."""
    certificates, told = Certificates(tmp_path / "certificates"), list[LockEvent]()
    with EtcdServer(tmp_path / "etcd", certificates=certificates) as server:
        url = f"{server.url}?ssl_ca_certs={certificates.authority}"

        async def scene(kit: Kit) -> None:
            options: dict[str, Any] = {"ttl": 60, "wait_for_release": False, "operation_timeout": 2 * TEST_TIMEOUT}
            quick = client_at(kit, url, on_event=told.append, **options)
            for _ in range(30):
                async with quick.lock("name", timeout=0), quick.lock("another", timeout=0):
                    pass

            async def all_told() -> bool:
                return [each.cause for each in told].count("released") == 60

            await kit.until(all_told, "all are told", TEST_TIMEOUT)

        play(form, url, scene)


def abandon_in_a_child(one: Member) -> None:
    """Fork, drop what was inherited, and end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            one.directory.abandon()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_leaves_its_parents_session_alone(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """It closes what it inherited, and says nothing to the server."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            _, listing = await a.directory.join(name, contender("a"), a.soon())
            assert await a.directory.watch(name, "a", listing.entries, a.soon())
            abandon_in_a_child(a)
            await a.directory.keep_alive(a.soon())
            await a.directory.tell(a.directory.session(), "still heard", a.soon())
            await a.heard.wait_for("told still heard")
            await a.directory.stir(name, listing.entries, a.soon())
            await a.heard.wait_for("woken a")
            assert "lost" not in a.heard.events

    run(scene)


def test_a_cancelled_join_may_yet_come(proxy: Proxy, name: str) -> None:
    """So what is withdrawn then is kept from coming."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            proxy.swallow(containing=b"kv/txn", cut=False)
            join = asyncio.create_task(a.directory.join(name, contender("a"), a.soon()))
            while not proxy.counts.swallowed:
                assert not join.done()
                await asyncio.sleep(0.002)
            join.cancel()
            with pytest.raises(asyncio.CancelledError):
                await join
            late = join_again(a, name, "a")
            await a.directory.withdraw_join(name, "a", None, a.soon())
            assert (await late()).entries == []

    run_asyncio(scene)


def test_a_removal_is_sent_only_if_no_copy_of_the_join_is_under_way(
    run: Run, etcd_server: EtcdServer, proxy: Proxy, name: str
) -> None:
    """The copy would add the entry again, and only a tombstone keeps it from that."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            told = list[tuple[bool, Listing | None]]()

            def hear(removed: bool, listing: Listing | None) -> None:
                told.append((removed, listing))

            def send(entry: Entry) -> bool:
                return a.directory.send_removal(name, entry, a.soon(), hear)

            proxy.swallow(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.join(name, contender("a"), a.soon())
            entry, _ = await a.directory.join(name, contender("a"), a.soon())
            assert not send(entry)
            assert await a.directory.withdraw_join(name, "a", entry, a.soon())
            for there in (True, False):
                entry, _ = await a.directory.join(name, contender("a"), a.soon())
                if not there:
                    prefix = f"tenure/n/{quote(name, safe='')}/"
                    etcd_server.command("kv/deleterange", key=encoded(prefix), range_end=encoded(after(prefix)))
                assert send(entry)
                while not told:
                    a.directory.collect_replies()
                    await a.runtime.sleep(0.002)
                [(removed, listing)] = told
                assert removed is there
                assert listing is None if there else listing is not None and listing.entries == []
                told.clear()

    run(scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_waiter_that_was_ended_for_its_silence_waits_on(etcd_server: EtcdServer, proxy: Proxy, form: str) -> None:
    """Also if its first reply was lost, so that it was kept from coming late: it comes again, as the last."""

    async def scene(kit: Kit) -> None:
        holder, other = (client_at(kit, etcd_server.url, operation_timeout=TEST_TIMEOUT) for _ in range(2))
        party = Party(kit, url_of(proxy), namespace=kit.space, operation_timeout=TEST_TIMEOUT)
        lease = await holder.lock("name", ttl=60).acquire()
        await party.client.inspect("name")
        proxy.swallow(containing=b"kv/txn")
        waiting = kit.start(lambda: party.client.lock("name", ttl=60, timeout=TEST_TIMEOUT).acquire())
        await kit.waiters(holder, "name", 1)
        behind = kit.start(lambda: other.lock("name", ttl=60, timeout=TEST_TIMEOUT).acquire())
        await kit.waiters(holder, "name", 2)
        [place] = party.store._contenders.live.values()

        async def joined() -> bool:
            return place.unsure and place.entry is not None

        async def gone() -> bool:
            place.ends_at = 0.0
            party.store._caretaker._signal.set()
            return place not in party.store._contenders.live.values()

        await kit.until(joined, "it knows that it waits")
        await kit.until(gone, "its silence is noticed")
        await kit.waiters(holder, "name", 2)
        await lease.release()
        await (await behind.result()).release()
        await (await waiting.result()).release()
        assert not cast("EtcdDirectory", party.store.directory)._changes._contender_keys._unsure

    play(form, etcd_server.url, scene)


def test_a_join_that_is_under_way_when_it_is_given_up_stays_away(run: Run, proxy: Proxy, name: str) -> None:
    """Nobody would remove it; but who asks for it anew may come, and be given up again."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, url_of(proxy)) as a:
            directory = a.directory
            proxy.lose(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await directory.join(name, contender("a"), a.soon())
            late = join_again(a, name, "a")
            exchange, given_up = directory._gateway.exchange, list[bool]()

            async def give_up_first(path: str, body: JsonObject, until: float, **options: Any) -> JsonObject:  # noqa: ANN401
                if path == "kv/txn" and not given_up:
                    given_up.append(True)
                    await directory.withdraw_join(name, "a", None, until)
                return await exchange(path, body, until, **options)

            directory._gateway.exchange = give_up_first  # type: ignore[method-assign]
            with pytest.raises(StoreUnavailable, match="withdrawn while"):
                await directory.join(name, contender("a"), a.soon())
            assert (await directory.look(name, a.soon())).entries == []
            entry, _ = await directory.join(name, contender("a"), a.soon())
            assert await directory.withdraw_join(name, "a", entry, a.soon())
            assert (await late()).entries == []

    run(scene)
