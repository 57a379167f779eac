"""The directory over etcd keeps its contract, in both forms of the API."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.threads import drive
from tenure.stores.etcd import reads
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import Keys
from tenure.stores.etcd.requests import LARGEST
from tenure.stores.etcd.watch_streams import EtcdWatch
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tests.etcd.scenes import Meanwhile, Member, Run, contender, member, run_threads
from tests.servers import EtcdServer
from tests.servers.etcd import encoded


def requests_of(listing: Listing, kind: Kind = Kind.CONTENDER) -> list[str]:
    """Return who is listed."""
    return [entry.request_id for entry in listing.entries if entry.kind is kind]


async def names_of(one: Member, prefix: str) -> AsyncIterator[str]:
    """List names to the last page."""
    page = await one.directory.names(prefix, one.soon())
    while True:
        for name in page.names:
            yield name
        if page.rest is None:
            return
        page = await one.directory.names(prefix, one.soon(), page.rest)


def only(listing: Listing, kind: Kind) -> Entry:
    """Return the one entry of a kind."""
    [entry] = [entry for entry in listing.entries if entry.kind is kind]
    return entry


def test_contenders_are_listed_in_the_order_of_their_joins(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Positions grow; to join again changes nothing; what is listed tells the last join and bounds the positions."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            first, _ = await a.directory.join(name, contender("a-1/0", weight=2, capacity=3), a.soon())
            second, listing = await b.directory.join(name, contender("b-1/0"), b.soon())
            again, _ = await a.directory.join(name, contender("a-1/0"), a.soon())
            assert requests_of(listing) == ["a-1/0", "b-1/0"]
            assert (first.weight, first.capacity, first.session) == (2, 3, a.directory.session())
            assert first.position < second.position == listing.joined <= listing.newest
            assert (again.position, again.order) == (first.position, first.position)
            assert a.directory.trust == 30.0
            assert 0.0 <= runtime.now() - a.directory.proved_at < a.directory.trust

    run(scene)


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_listing_tells_the_last_join(run: Run, etcd_server: EtcdServer, name: str, capacity: int) -> None:
    """It tells the last contender that is there, and one that came and went beside another if both fit."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            first, listing = await a.directory.join(name, contender("a", capacity=capacity), a.soon())
            assert listing.joined == first.position
            second, listing = await a.directory.join(name, contender("b", capacity=capacity), a.soon())
            assert listing.joined == second.position
            assert await a.directory.withdraw_join(name, "b", second, a.soon())
            joined = (await a.directory.look(name, a.soon())).joined
            assert joined == (second.position if capacity > 1 else first.position)
            assert await a.directory.withdraw_join(name, "a", first, a.soon())
            assert (await a.directory.look(name, a.soon())).joined == 0
            assert etcd_server.keys(Keys("tenure").of(name, "")) == []

    run(scene)


def test_nothing_is_left_behind(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Who leaves takes all that it wrote along; who closes its session takes the rest."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            entry, _ = await a.directory.join(name, contender("a"), a.soon())
            assert await a.directory.change(name, [], [Record(Kind.LIGHT, "a")], a.soon())
            assert await a.directory.withdraw_join(name, "a", entry, a.soon())
            assert not await a.directory.withdraw_join(name, "a", entry, a.soon())
            assert etcd_server.keys(Keys("tenure").of(name, "")) == []
            await a.directory.join(name, contender("b"), a.soon())
            session = a.directory.session()
            lease = str(int(session, 16))
            assert lease in etcd_server.leases()
        assert etcd_server.keys(Keys("tenure").of(name, "")) == []
        assert not [key for key in etcd_server.keys("tenure/") if session in key]
        assert lease not in etcd_server.leases()

    run(scene)


def test_a_change_is_made_whole_or_not_at_all(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """If something is gone, nothing else goes and nothing comes; what is kept takes the place of what it replaces."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            first, _ = await a.directory.join(name, contender("a"), a.soon())
            second, _ = await a.directory.join(name, contender("b"), a.soon())
            kept = Record(Kind.PLACEHOLDER, "a", counts_for=60.0, place=first.order)
            assert await a.directory.change(name, [first], [kept], a.soon())
            assert not await a.directory.change(name, [second, first], [Record(Kind.SIZE, "c")], a.soon())
            listing = await a.directory.look(name, a.soon())
            assert [(entry.kind, entry.order) for entry in listing.entries] == [
                (Kind.PLACEHOLDER, first.order),
                (Kind.CONTENDER, second.order),
            ]
            assert await a.directory.change(name, [only(listing, Kind.PLACEHOLDER)], [], a.soon())

    run(scene)


def test_a_watcher_is_woken_once(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """By a removal, a new text or a stir of what it watches, and by nothing else."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            first, _ = await a.directory.join(name, contender("a"), a.soon())
            second, _ = await a.directory.join(name, contender("b"), a.soon())
            _, listing = await b.directory.join(name, contender("c"), b.soon())
            seen = listing.entries
            assert await b.directory.watch(name, "one", seen[:1], b.soon())
            assert await b.directory.watch(name, "both", seen[:2], b.soon())
            assert await b.directory.watch(name, "replaced", seen[:2], b.soon())
            assert await b.directory.watch(name, "replaced", [], b.soon())
            await a.directory.stir(name, [second], a.soon())
            await b.heard.wait_for("woken both")
            assert b.heard.events == ["woken both"]
            assert await a.directory.rewrite([(name, first, "text")], a.soon()) == [True]
            await b.heard.wait_for("woken one")
            assert await b.directory.watch(name, "late", seen[:1], b.soon())  # seen before that
            await b.heard.wait_for("woken late")
            assert await b.directory.watch(
                name, "last", [(await b.directory.look(name, b.soon())).entries[1]], b.soon()
            )
            assert await a.directory.withdraw_join(name, "b", second, a.soon())
            await b.heard.wait_for("woken last")
            assert sorted(b.heard.events) == ["woken both", "woken last", "woken late", "woken one"]

    run(scene)


def test_details_are_told_of_what_is_there(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """The text as it was when it was listed, the position, the age and the session; nothing is asked for that."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            entry, _ = await a.directory.join(name, contender("a", text="erste\n"), a.soon())
            gone, _ = await a.directory.join(name, contender("b"), a.soon())
            assert await a.directory.rewrite([(name, entry, "zweite ☂")], a.soon()) == [True]
            assert await a.directory.withdraw_join(name, "b", gone, a.soon())
            assert await a.directory.rewrite([(name, gone, "")], a.soon()) == [False]
            [now] = (await a.directory.look(name, a.soon())).entries
            told, then = await a.directory.details(name, [now, entry], a.soon(-1.0))
            assert told is not None
            assert then is not None
            assert then.text == "erste\n"
            assert (told.text, told.position, told.session) == ("zweite ☂", entry.position, a.directory.session())
            assert 0.0 <= told.age < 10.0
            assert await a.directory.check([(name, entry), (name, gone)], a.soon()) == [True, False]

    run(scene)


def test_names_in_use_are_listed(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Those that begin with a prefix, each once, sorted; a name is not taken for what begins with it."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            for each in (f"{name}b", f"{name}a/", f"{name}a"):
                for request_id in "xy":
                    await a.directory.join(each, contender(request_id), a.soon())
            assert (await a.directory.names(name, a.soon())).names == [f"{name}a", f"{name}a/", f"{name}b"]
            assert (await a.directory.names(f"{name}a/", a.soon())).names == [f"{name}a/"]
            assert requests_of(await a.directory.look(f"{name}a", a.soon())) == ["x", "y"]

    run(scene)


def test_what_is_kept_ends_in_time(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Not before its time, by whoever asks; and it is gone then."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            began = runtime.now()
            assert await a.directory.change(name, [], [Record(Kind.PLACEHOLDER, "a", counts_for=0.3)], a.soon())
            kept = only(await a.directory.look(name, a.soon()), Kind.PLACEHOLDER)
            assert kept.order == 0
            while left := await a.directory.remains(name, kept, a.soon()):
                assert left <= 0.3
                await runtime.sleep(left)
            assert runtime.now() - began >= 0.3
            assert (await a.directory.look(name, a.soon())).entries == []

    run(scene)


def test_a_block_outlives_its_session(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """It counts from when somebody asks first after its contender has gone."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            await a.directory.join(name, contender("a"), a.soon())
            assert await a.directory.change(name, [], [Record(Kind.BLOCK, "a", counts_for=0.3)], a.soon())
            await a.directory.keep_alive(a.soon())
            etcd_server.revoke(str(int(a.directory.session(), 16)))
            await a.heard.wait_for("lost")
            block = only(await b.directory.look(name, b.soon()), Kind.BLOCK)
            began = runtime.now()
            while left := await b.directory.remains(name, block, b.soon()):
                await runtime.sleep(left)
            assert runtime.now() - began >= 0.3
            assert (await b.directory.look(name, b.soon())).entries == []

    run(scene)


def test_messages_reach_a_session(run: Run, etcd_server: EtcdServer) -> None:
    """Each once and in their order, also to oneself; what is read is removed; to nobody they are lost."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            for n in range(5):
                await a.directory.tell(b.directory.session(), f"message {n}", a.soon())
            await a.directory.tell(a.directory.session(), "to myself", a.soon())
            await a.directory.tell("00000000000000ff", "to nobody", a.soon())
            await b.heard.wait_for("told message 4")
            await a.heard.wait_for("told to myself")
            assert b.heard.events == [f"told message {n}" for n in range(5)]
            await b.directory.keep_alive(b.soon())
            assert etcd_server.keys(f"tenure/i/{b.directory.session()}") == [f"tenure/i/{b.directory.session()}"]

    run(scene)


def test_all_messages_that_were_read_are_removed(run: Run, etcd_server: EtcdServer) -> None:
    """However many there are: else they would pile up where more come than are removed at once."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            session = a.directory.session()
            for n in range(LARGEST + 1):
                await a.directory.tell(session, f"message {n}", a.soon())
            await a.heard.wait_for(f"told message {LARGEST}")
            await a.directory.keep_alive(a.soon())
            assert etcd_server.keys(f"tenure/i/{session}") == [f"tenure/i/{session}"]

    run(scene)


def test_a_session_is_renewed_before_all_else(
    run: Run, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of a renewal goes before all that wait for their turn, also those for what outlives the session."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            sessions, gateway = a.directory._sessions, a.directory._gateway
            assert sessions.current is not None
            await sessions.block_lease(sessions.current, 1.0, a.soon())
            asked: list[bool] = []
            exchange = gateway.exchange

            async def note(*args: Any, first: bool = False, **options: Any) -> JsonObject:  # noqa: ANN401 - as it is
                asked.append(first)
                return await exchange(*args, first=first, **options)

            monkeypatch.setattr(gateway, "exchange", note)
            await a.directory.keep_alive(a.soon())
            assert asked == [True, True, True]

    run(scene)


def test_several_names_are_listed_at_once(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Each listing is that of its name, also of more names than a transaction reads, and of names without entries."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            names = [f"{name}-{number}" for number in range(LARGEST + 2)]
            for each in (names[0], names[-1]):
                await a.directory.join(each, contender("a"), a.soon())
                await b.directory.join(each, contender("b"), b.soon())
            listings = await a.directory.look_at_all(names, a.soon())
            assert [requests_of(listing) for listing in listings] == [
                ["a", "b"],
                *([] for _ in range(LARGEST)),
                ["a", "b"],
            ]
            assert await a.directory.look_at_all([], a.soon()) == []

    run(scene)


def test_a_guard_holds_for_as_long_as_its_contender(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """A transaction that compares it does nothing once the holding is over."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            entry, _ = await a.directory.join(name, contender("a"), a.soon())
            guard = a.directory.guard(name, "a", entry.token)
            assert (guard.create_revision, b64encode(guard.key).decode()) == (entry.position, guard.compare()["key"])
            assert a.directory.guard(name, "a", entry.token + 1023) == guard, (
                "each token of its range has the same guard"
            )
            write = [{"request_put": {"key": encoded("guarded"), "value": ""}}]
            assert etcd_server.command("kv/txn", compare=[guard.compare()], success=write).get("succeeded")
            assert await a.directory.withdraw_join(name, "a", entry, a.soon())
            assert not etcd_server.command("kv/txn", compare=[guard.compare()], success=write).get("succeeded")
            again, _ = await a.directory.join(name, contender("a"), a.soon())
            assert again.position > entry.position
            assert not etcd_server.command("kv/txn", compare=[guard.compare()], success=write).get("succeeded")

    run(scene)


def test_a_session_that_ends_is_told(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """At once, though nobody asks; the next join begins another, and the place in the queue is a new one."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            old, _ = await a.directory.join(name, contender("a"), a.soon())
            session = a.directory.session()
            _, listing = await b.directory.join(name, contender("b"), b.soon())
            assert await b.directory.watch(name, "b", listing.entries[:1], b.soon())
            etcd_server.revoke(str(int(session, 16)))
            await a.heard.wait_for("lost")
            await b.heard.wait_for("woken b")
            assert (a.directory.session(), a.directory.proved_at) == ("", float("-inf"))
            assert await a.directory.check([(name, old)], a.soon()) == [False]
            new, listing = await a.directory.join(name, contender("a"), a.soon())
            assert requests_of(listing) == ["b", "a"]
            assert new.session == a.directory.session() not in {"", session}
            assert a.heard.events == ["lost"]

    run(scene)


def test_the_end_of_a_session_that_was_not_heard_is_found(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """A keepalive, a check or a join finds it as well, and what an earlier session left goes first."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            sessions = a.directory._sessions
            for find in ("join", "keep_alive", "check"):
                entry, _ = await a.directory.join(name, contender("a"), a.soon())
                current = sessions.current
                assert current is not None
                assert current.watch is not None
                current.watch.close()
                etcd_server.revoke(str(current.lease))
                if find == "keep_alive":
                    await a.directory.keep_alive(a.soon())
                elif find == "check":
                    assert await a.directory.check([(name, entry)], a.soon()) == [False]
                else:
                    assert (await a.directory.join(name, contender("b"), a.soon()))[0].session != current.name
            assert a.heard.events == ["lost"] * 3

    run(scene)


def test_what_an_earlier_session_has_under_a_request_goes_first(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """The contender of a session that is given up, but not over, is not taken for that of the next one."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            old, _ = await a.directory.join(name, contender("a"), a.soon())
            current = a.directory._sessions.current
            assert current is not None
            a.directory._sessions.end(current)
            new, listing = await a.directory.join(name, contender("a"), a.soon())
            assert requests_of(listing) == ["a"]
            assert new.position > old.position
            etcd_server.revoke(str(current.lease))
            assert requests_of(await a.directory.look(name, a.soon())) == ["a"]

    run(scene)


def test_a_compaction_breaks_nothing(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """A watch goes on; one that would begin in what was forgotten tells, and the next look helps."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            first, _ = await a.directory.join(name, contender("a"), a.soon())
            _, listing = await b.directory.join(name, contender("b"), b.soon())
            assert await b.directory.watch(name, "early", listing.entries[:1], b.soon())
            for n in range(3):
                await a.directory.join(f"{name}{n}", contender("a"), a.soon())
            etcd_server.compact()
            await b.directory.watch(name, "late", listing.entries[:1], b.soon())
            await b.heard.wait_for("woken late")
            assert b.heard.events == ["woken late"]
            await a.directory.tell(b.directory.session(), "still heard", a.soon())
            await b.heard.wait_for("told still heard")
            assert await a.directory.withdraw_join(name, "a", first, a.soon())
            await b.heard.wait_for("woken early")

    run(scene)


def test_one_session_is_begun_however_many_need_one(etcd_server: EtcdServer) -> None:
    """Also if another thread begins it between a look and the decision to do so."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            sessions = a.directory._sessions
            assert sessions.current is not None
            sessions.end(sessions.current)
            others: list[object] = []
            sessions._beginning._mutex = Meanwhile(lambda: others.append(drive(sessions.ensure(a.soon()))))
            assert [await sessions.ensure(a.soon())] == others == [sessions.current]

    run_threads(scene)


def test_a_session_that_ends_while_its_channel_is_watched_again_leaves_no_watch(
    run: Run, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end closed the watch before, and cannot know the one that begins just then."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            sessions = a.directory._sessions
            session, begin, begun = sessions.current, sessions._watches.begin, list[EtcdWatch]()
            assert session is not None

            async def end_meanwhile(
                make: Callable[[], EtcdWatch], span: tuple[str, str], revision: int, until: float
            ) -> EtcdWatch:
                begun.append(await begin(make, span, revision, until))
                sessions.end(session)
                return begun[0]

            monkeypatch.setattr(sessions._watches, "begin", end_meanwhile)
            await sessions._hear_again(session)
            assert [watch.over for watch in begun] == [True]

    run(scene)


def test_a_closed_directory_says_so(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """It can be closed twice, also if it was never open."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            await a.directory.close()
            with pytest.raises(StoreUnavailable, match="closed"):
                await a.directory.join(name, contender("a"), a.soon())

    run(scene)


def test_a_server_that_is_not_there_is_told(run: Run) -> None:
    """The message names it and says what to look at."""

    async def scene(runtime: Runtime) -> None:
        with pytest.raises(StoreError, match=r"cannot reach the etcd server at 127.0.0.1:1 .*; check that it runs"):
            async with member(runtime, "etcd://127.0.0.1:1"):
                pass

    run(scene)


def test_a_watch_that_goes_on_costs_nothing(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Who looks again, and has to wait for the same, is woken by the stream that it has: no other one is begun."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            entry, _ = await a.directory.join(name, contender("a"), a.soon())
            await b.directory.join(name, contender("b"), b.soon())
            first = None
            for _ in range(2):
                seen = (await b.directory.look(name, b.soon())).entries[:1]
                assert await b.directory.watch(name, "b", seen, b.soon())
                first = first or b.directory._entry_watches._watched["b"]
            assert b.directory._entry_watches._watched["b"] is first
            await a.directory.withdraw_join(name, "a", entry, a.soon())
            await b.heard.wait_for("woken b")
            assert b.heard.events.count("woken b") == 1

    run(scene)


def test_names_are_listed_in_pages(
    run: Run, etcd_server: EtcdServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the keys of a name fall on pages, and whatever somebody else has put between them."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            wanted = [f"{name}/{each}" for each in ("a", "a/b", "é", "名", "%", "z")]
            for each in wanted:
                for request_id in ("1", "2"):
                    await a.directory.join(each, contender(request_id), a.soon())
            foreign = Keys("tenure").of(name, "")[:-1].encode() + b"%2Fa\xff\xfe"
            etcd_server.command("kv/put", key=b64encode(foreign).decode(), value="")
            for page in (1, 2, 3, 5, 1000):
                monkeypatch.setattr(reads, "PAGE", page)
                assert sorted([each async for each in names_of(a, name)]) == sorted(wanted)
                assert sorted([each async for each in names_of(a, f"{name}/a")]) == [f"{name}/a", f"{name}/a/b"]
            etcd_server.command("kv/deleterange", key=b64encode(foreign).decode())

    run(scene)
