"""A client uses the keys of its contenders again, and no late request meets a later contender under the same key."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown
from tenure.stores.etcd import requests
from tenure.stores.etcd.changes import EtcdChanges
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import Keys
from tenure.stores.ordered import Entry, Kind, Record
from tests.etcd.scenes import Member, Run, contender, member, run_threads
from tests.servers import EtcdServer, Proxy
from tests.simulated.mutants import replaced


async def join(one: Member, name: str, request_id: str) -> Entry:
    """Add a contender."""
    return (await one.directory.join(name, contender(request_id), one.soon()))[0]


async def withdraw(one: Member, name: str, entry: Entry) -> bool:
    """Remove a contender."""
    return await one.directory.withdraw_join(name, entry.request_id, entry, one.soon())


async def positions(one: Member, name: str) -> list[int]:
    """Return the positions of the contenders that are there."""
    return [entry.position for entry in (await one.directory.look(name, one.soon())).entries]


def test_a_name_costs_the_same_after_many_acquisitions(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Contenders that follow each other have one key, however they end; etcd would keep each other key for long."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            keys: list[str] = []
            for number in range(4):
                entry = await join(a, name, f"a-1/{number}")
                keys.append(entry.key)
                assert entry.request_id == f"a-1/{number}"
                if number % 2:
                    kept = Record(Kind.PLACEHOLDER, entry.request_id, counts_for=60.0, place=entry.order)
                    assert await a.directory.change(name, [entry], [kept], a.soon())
                else:
                    assert await withdraw(a, name, entry)
            assert set(keys) == {f"c{a.directory.session()}-0"}

    run(scene)


def test_contenders_at_once_have_keys_of_their_own(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Of one name or of several, and of several clients; a key is used again for whatever name comes next."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            first, second = await join(a, name, "a-1/0"), await join(a, name, "a-1/1")
            other, foreign = await join(a, f"{name}-other", "a-1/0"), await join(b, name, "b-1/0")
            assert len({first.key, second.key, other.key, foreign.key}) == 4
            again, _ = await a.directory.join(name, contender("a-1/1"), a.soon())
            assert (again.key, again.position) == (second.key, second.position)
            assert await withdraw(a, name, first)
            assert (await join(a, f"{name}-other", "a-1/2")).key == first.key

    run(scene)


async def late_removals_meet_nobody(runtime: Runtime, url: str, name: str) -> None:
    """Check that whatever removed a contender does nothing if it comes again, when its key is used again."""
    async with member(runtime, url) as a:
        directory = a.directory
        entry = await join(a, name, "a-1/0")
        assert await withdraw(a, name, entry)
        later = await join(a, name, "a-1/1")
        assert later.key == entry.key
        assert not await withdraw(a, name, entry)
        assert not await directory.change(name, [entry], [], a.soon())
        assert await directory.rewrite([(name, entry, "text")], a.soon()) == [False]
        assert await directory.check([(name, entry), (name, later)], a.soon()) == [False, True]
        assert await positions(a, name) == [later.position]


def test_a_late_removal_removes_no_later_contender(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """It is meant for the contender of one position."""
    run(lambda runtime: late_removals_meet_nobody(runtime, etcd_server.url, name))


async def late_joins_add_nobody(runtime: Runtime, server: EtcdServer, proxy: Proxy, name: str) -> None:
    """Check that a join that was given up adds nothing when it comes, whatever joined and ended since."""
    host, port = proxy.address
    async with member(runtime, f"etcd://{host}:{port}") as a:
        sent: list[JsonObject] = []
        exchange = a.directory._gateway.exchange

        async def note(path: str, body: JsonObject, until: float, **options: Any) -> JsonObject:  # noqa: ANN401 - as it is
            sent.append(body)
            return await exchange(path, body, until, **options)

        a.directory._gateway.exchange = note  # type: ignore[method-assign]
        proxy.lose(containing=b"kv/txn")
        with pytest.raises(OutcomeUnknown):
            await a.directory.join(name, contender("a-1/0"), a.soon())
        late = sent[-1]
        assert not await a.directory.withdraw_join(name, "a-1/0", None, a.soon())
        for request_id in ("a-1/0", "a-1/1"):
            assert await withdraw(a, name, await join(a, name, request_id))
        server.command("kv/txn", **late)
        assert await positions(a, name) == []


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(etcd_server.address) as running:
        yield running


def test_a_late_join_adds_no_contender(run: Run, etcd_server: EtcdServer, proxy: Proxy, name: str) -> None:
    """Its key is not used again, and has a tombstone."""
    run(lambda runtime: late_joins_add_nobody(runtime, etcd_server, proxy, name))


def test_a_key_that_a_removal_may_yet_meet_is_not_used_again(
    run: Run, etcd_server: EtcdServer, proxy: Proxy, name: str
) -> None:
    """A removal without a position, which came and was not answered, might come again."""

    async def scene(runtime: Runtime) -> None:
        host, port = proxy.address
        async with member(runtime, f"etcd://{host}:{port}") as a:
            entry = await join(a, name, "a-1/0")
            proxy.lose(containing=b"kv/txn")
            with pytest.raises(OutcomeUnknown):
                await a.directory.withdraw_join(name, "a-1/0", None, a.soon())
            assert await withdraw(a, name, entry)
            assert (await join(a, name, "a-1/1")).key != entry.key

    run(scene)


def test_a_contender_is_removed_though_its_key_is_forgotten(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """An interrupt may come between the reply to a join and the caller's note of it: then the entries are listed."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a:
            await join(a, name, "a-1/0")
            assert a.directory._changes._contender_keys.find((name, "a-1/0")) is None
            assert await a.directory.withdraw_join(name, "a-1/0", None, a.soon())
            assert not await a.directory.withdraw_join(name, "a-1/0", None, a.soon())
            assert etcd_server.keys(Keys("tenure").of(name, "")) == []

    run(scene)


def test_a_contender_taken_by_force_leaves_no_key_behind(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """The client forgets the key with the entry, and a request that joins again is another contender."""

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as judge:
            entry = await join(a, name, "a-1/0")
            assert await judge.directory.change(name, [entry], [], judge.soon())
            again = await join(a, name, "a-1/0")
            assert not await withdraw(a, name, entry)
            assert await positions(judge, name) == [again.position]
            assert await withdraw(a, name, again)
            del entry, again
            assert not a.directory._changes._contender_keys._known

    run(scene)


async def bury_nothing(*_: object) -> list[JsonObject]:
    """Write no tombstone."""
    return []


def any_position(key: str, revision: int) -> JsonObject:
    """Compare nothing but that a key exists."""
    return {**requests.changed(key, 0), "result": "GREATER" if revision else "EQUAL"}


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        (late_removals_meet_nobody, replaced(requests, "created", any_position)),
        (late_joins_add_nobody, replaced(EtcdChanges, "_tombstone", bury_nothing)),
    ],
    ids=["a removal compares no position", "no tombstone is written"],
)
def test_a_planted_bug_is_found(
    etcd_server: EtcdServer,
    proxy: Proxy,
    name: str,
    check: Callable[..., Awaitable[None]],
    plant: Callable[[], AbstractContextManager[Any]],
) -> None:
    """The tests above find a removal of a later contender, and a join that comes after its end."""
    place = (etcd_server.url, name) if check is late_removals_meet_nobody else (etcd_server, proxy, name)

    async def scene(runtime: Runtime) -> None:
        await check(runtime, *place)

    with plant(), pytest.raises(AssertionError):
        run_threads(scene)
