"""What loses a lock in memcached (a restart, a flush, an eviction, a full memory, another list of servers), and how."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from tenure import LeaseLost, LockTimeout, Outcome, StoreError, StoreUnavailable
from tenure.contracts.messages import AcquireRequest, Granted, RenewRequest
from tenure.runtimes.threads import drive
from tenure.stores.memcached import items
from tenure.stores.memcached.items import Items, ItemVersion, SeenItem
from tenure.stores.memcached.protocol import MetaReply
from tenure.stores.memcached.renewing import MemcachedRenewals
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import client_at, play
from tests.memcached.imitation import Clock, FaultyLink, Imitation, VirtualRuntime, store_at
from tests.memcached.scenes import LONG, both_forms, extend, fill, key_of_name, stats, url_of
from tests.planting import planted
from tests.servers import MemcachedServer

AMPLE = 10.0
"""How long a request may take, in seconds, where no server is at fault, however busy the machine is."""

OOM = b"SERVER_ERROR out of memory storing object\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Generator[MemcachedServer, None, None]:
    """Run a server that forgets."""
    with MemcachedServer(tmp_path / "memcached", megabytes=2) as running:
        yield running


@both_forms
def test_a_forgotten_lease_is_restored_by_its_holder(server: MemcachedServer, form: str) -> None:
    """After a restart or a flush the next renewal takes the name again, with the same token, if it is free."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        for forget in (server.flush, server.restart):
            lease = await here.lock("name", ttl=LONG).acquire()
            forget()
            await extend(lease)
            lease.check()
            assert [each.token for each in (await there.inspect("name")).holders] == [lease.token]
            assert await there.lock("name", ttl=LONG).try_acquire() is None
            assert await lease.release() is Outcome.RELEASED

    play(form, server.url, scene)


@both_forms
def test_a_lease_that_a_late_copy_has_restored_is_not_lost(
    server: MemcachedServer, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the first restoration was lost, and its request arrives when the second has found no item."""
    add = Items.add

    async def late(self: Items, *args: Any) -> ItemVersion | SeenItem:  # noqa: ANN401
        await add(self, *args)
        return await add(self, *args)

    async def scene(kit: Kit) -> None:
        here = kit.client()
        lease = await here.lock("name", ttl=LONG).acquire()
        monkeypatch.setattr(Items, "add", late)
        server.flush()
        await extend(lease)
        lease.check()
        assert await lease.release() is Outcome.RELEASED

    play(form, server.url, scene)


def test_a_planted_bug_is_found(server: MemcachedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that takes the item of its own lease for another's."""
    wrong = planted(MemcachedRenewals, "_renew_one", "seen = found", "return _refusal(found, renewal)")
    monkeypatch.setattr(MemcachedRenewals, "_renew_one", wrong)
    with pytest.raises(LeaseLost):
        test_a_lease_that_a_late_copy_has_restored_is_not_lost(server, "threads", monkeypatch)


@both_forms
def test_a_forgotten_lease_whose_name_was_taken_is_lost(server: MemcachedServer, form: str) -> None:
    """The next renewal tells the first holder, takes nothing from the second, and the token of that one is larger."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        for forget in (server.flush, server.restart):
            lease = await here.lock("name", ttl=LONG).acquire()
            forget()
            theirs = await there.lock("name", ttl=LONG).acquire(timeout=LONG / 4)
            assert theirs.token > lease.token
            with pytest.raises(LeaseLost):
                await extend(lease)
            assert await lease.release() is Outcome.TAKEN_OVER
            theirs.check()
            assert await theirs.release() is Outcome.RELEASED

    play(form, server.url, scene)


@both_forms
def test_a_cas_value_from_before_a_restart_counts_for_nothing(server: MemcachedServer, form: str) -> None:
    """A client that remembers a free item does not take the name from whoever has the same CAS value now."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        await (await here.lock("name", ttl=LONG).acquire()).release()  # CAS values 1 and 2
        server.restart()
        first = await there.lock("other", ttl=LONG).acquire(timeout=LONG / 4)
        lease = await there.lock("name", ttl=LONG).acquire()
        key = key_of_name(there, "name")
        assert server.command(b"mg %b c\r\n" % key) == b"HD c2\r\n"
        assert await here.lock("name", ttl=LONG).try_acquire() is None
        lease.check()
        assert [each.token for each in (await here.inspect("name")).holders] == [lease.token]
        for each in (first, lease):
            assert await each.release() is Outcome.RELEASED

    play(form, server.url, scene)


@pytest.fixture
def flat_server(tmp_path: Path) -> Generator[MemcachedServer, None, None]:
    """Run a server that evicts the oldest item first."""
    with MemcachedServer(tmp_path / "memcached", megabytes=2, options=["-o", "no_lru_maintainer"]) as running:
        yield running


@both_forms
def test_an_evicted_lease_is_noticed(flat_server: MemcachedServer, form: str) -> None:
    """A server whose memory is full of other items evicts a lock; the next renewal restores it."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        lease = await here.lock("name", ttl=LONG).acquire()
        key = key_of_name(here, "name")
        size = int(flat_server.command(b"mg %b s\r\n" % key).split(b"s")[1])
        fill(flat_server, size, lambda _said: stats(flat_server)["evictions"] > 1000, len(key))
        assert flat_server.command(b"mg %b\r\n" % key) == b"EN\r\n"
        assert not (await there.inspect("name")).holders
        await extend(lease)
        assert [each.token for each in (await there.inspect("name")).holders] == [lease.token]
        assert await lease.release() is Outcome.RELEASED

    play(form, flat_server.url, scene)


@pytest.fixture
def full_server(tmp_path: Path) -> Generator[MemcachedServer, None, None]:
    """Run a server that evicts nothing, and refuses to store when its memory is full."""
    with MemcachedServer(tmp_path / "memcached", megabytes=2, options=["-M"]) as running:
        yield running


def _fill_up(server: MemcachedServer) -> None:
    """Leave no memory for an item of any size that a record may have."""
    for size in (900, 500, *range(400, 40, -20)):
        fill(server, size, lambda said: OOM in said)


@both_forms
def test_a_full_server_loses_no_lock_to_an_attempt(full_server: MemcachedServer, form: str) -> None:
    """Such a server deletes what it cannot replace; so an attempt on a held name stores nothing. The error says why."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), client_at(kit, full_server.url, retry_for=0.3)
        lease = await here.lock("name", ttl=LONG).acquire()
        _fill_up(full_server)
        for _ in range(3):
            assert await there.lock("name", ttl=LONG).try_acquire() is None
        assert [each.token for each in (await there.inspect("name")).holders] == [lease.token]
        with pytest.raises(StoreUnavailable, match=r"has no memory left .* give it more memory"):
            await there.lock("other", ttl=LONG).acquire()
        assert await lease.release() is Outcome.RELEASED
        assert not (await there.inspect("name")).holders

    play(form, full_server.url, scene)


@both_forms
def test_a_full_server_renews_a_lease(full_server: MemcachedServer, form: str) -> None:
    """It deletes the item that it cannot replace; there is room for it then, and the holder adds it again."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        lease = await here.lock("name", ttl=LONG).acquire()
        _fill_up(full_server)
        for _ in range(3):
            await extend(lease)
        assert [each.token for each in (await there.inspect("name")).holders] == [lease.token]
        assert await lease.release() is Outcome.RELEASED

    play(form, full_server.url, scene)


def test_a_renewal_for_which_there_is_no_memory_ends_the_lease() -> None:
    """If the room is taken meanwhile, the holder is told at once that the lock is gone, and why."""

    class Full(Imitation):
        def carry_out(self, packed: bytes) -> list[MetaReply]:
            if not packed.startswith(b"ms"):
                return super().carry_out(packed)
            self.evict()
            full = MetaReply(b"SERVER_ERROR", b"out of memory storing object")
            return [full, MetaReply(b"EN")] if b"\nmg " in packed else [full]

    clock = Clock()
    link = FaultyLink(Imitation(clock))
    runtime = VirtualRuntime(clock)
    store = store_at(link, runtime)
    request = AcquireRequest("name", "r-1", "", "owner", 20_000_000, 20_000, 4_000_000, proposal=7)
    assert drive(store.acquire(request, clock.now + 9)) == Granted(7, 20_000_000)
    link.imitation = Full(clock)
    renewal = RenewRequest("name", "r-1", 7, 20_000_000, request)
    assert drive(store.renew([renewal], clock.now + 9)) == [Outcome.EXPIRED]
    assert "no memory left" in renewal.refused_because


# -- several servers -------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Generator[tuple[MemcachedServer, MemcachedServer], None, None]:
    """Run two servers."""
    with MemcachedServer(tmp_path / "one") as one, MemcachedServer(tmp_path / "other") as other:
        yield one, other


NAMES = [f"name-{number}" for number in range(12)]


def _names_at(server: MemcachedServer) -> list[str]:
    keys = server.keys()
    return [name for name in NAMES if any(key.endswith(name) for key in keys)]


@both_forms
def test_a_server_that_is_down_concerns_its_own_names(two: tuple[MemcachedServer, MemcachedServer], form: str) -> None:
    """No name moves to the other server: its users get an error. The leases at the other server go on."""
    one, other = two

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), client_at(kit, url_of(one, other), retry_for=0.3, operation_timeout=AMPLE)
        leases = {name: await here.lock(name, ttl=LONG).acquire() for name in NAMES}
        mine, theirs = _names_at(one), _names_at(other)
        assert mine
        assert theirs
        assert sorted(mine + theirs) == sorted(NAMES)
        assert await there.names() == sorted(NAMES)
        other.kill()
        group = here.multilock([f"group {number}" for number in range(8)], ttl=LONG)
        with pytest.raises(StoreUnavailable):
            await group.acquire(timeout=0)
        with pytest.raises(StoreUnavailable):  # the connection of before breaks
            await there.lock(theirs[0], ttl=LONG).acquire(timeout=0)
        for name in theirs:
            with pytest.raises(StoreUnavailable, match="not moved to another server"):
                await there.lock(name, ttl=LONG).acquire(timeout=0)
        for name in mine:
            await extend(leases[name])
            assert await there.lock(name, ttl=LONG).try_acquire() is None
            assert await leases[name].release() is Outcome.RELEASED
        other.start()

    play(form, url_of(one, other), scene)


@both_forms
def test_a_silent_server_costs_no_lease_at_another(two: tuple[MemcachedServer, MemcachedServer], form: str) -> None:
    """One batch renews leases at both: while one server stands still, those at the other are renewed in time."""
    one, other = two

    async def scene(kit: Kit) -> None:
        here = client_at(kit, url_of(one, other), operation_timeout=0.4)
        leases = {name: await here.lock(name, ttl=2.0).acquire() for name in NAMES}
        mine, theirs = _names_at(one), _names_at(other)
        other.pause()

        async def lost() -> bool:
            return all(leases[name].lost.is_set() for name in theirs)

        await kit.until(lost, "the loss of the leases at the server that stands still")
        for name in mine:
            leases[name].check()
        other.resume()
        for lease in leases.values():
            await lease.release()

    play(form, url_of(one, other), scene)


@both_forms
def test_another_list_of_servers_loses_the_locks_that_move(
    two: tuple[MemcachedServer, MemcachedServer], form: str
) -> None:
    """Clients with different lists exclude each other on the names that stay, and on no others."""
    one, other = two

    async def scene(kit: Kit) -> None:
        urls = (url_of(one, other), url_of(other, one), url_of(one))
        here, same, shorter = (client_at(kit, url, operation_timeout=AMPLE) for url in urls)
        leases = {name: await here.lock(name, ttl=LONG).acquire() for name in NAMES}
        stay, move = _names_at(one), _names_at(other)
        for name in NAMES:
            assert await same.lock(name, ttl=LONG).try_acquire() is None
        for name in stay:
            assert await shorter.lock(name, ttl=LONG).try_acquire() is None
        for name in move:
            assert await shorter.lock(name, ttl=LONG).try_acquire() is not None
        for lease in leases.values():
            assert await lease.release() is Outcome.RELEASED

    play(form, url_of(one, other), scene)


# -- items that are not ours -----------------------------------------------------------------------------------


@both_forms
def test_an_item_of_another_program_is_left_alone(memcached_server: MemcachedServer, form: str) -> None:
    """The error names the remedy; a listing passes over such an item."""

    async def scene(kit: Kit) -> None:
        here = kit.client()
        key = key_of_name(here, "theirs")
        memcached_server.command(b"set %b 0 60 5\r\nhello\r\n" % key)
        for attempt in (here.lock("theirs", ttl=LONG).acquire, lambda: here.inspect("theirs")):
            with pytest.raises(StoreError, match=r"not written by Tenure.*prefix of its own"):
                await attempt()
        assert memcached_server.command(b"get %b\r\n" % key, b"END\r\n").splitlines()[1] == b"hello"
        lease = await here.lock("ours", ttl=LONG).acquire()
        assert await here.names() == ["ours"]
        await lease.release()
        memcached_server.command(b"delete %b\r\n" % key)

    play(form, memcached_server.url, scene)


@both_forms
def test_names_with_one_key_are_not_confused(
    memcached_server: MemcachedServer, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two digests were the same, the second name would be refused, and not take the lock of the first."""

    async def scene(kit: Kit) -> None:
        def same_key(prefix: str, _name: str) -> bytes:
            return f"{prefix}:#{kit.space}".encode()

        monkeypatch.setattr(items, "key_of", same_key)
        here = kit.client()
        lease = await here.lock("名", ttl=LONG).acquire()
        with pytest.raises(StoreError, match="belongs to another name"):
            await here.lock("名 2", ttl=LONG).acquire()
        await lease.release()

    play(form, memcached_server.url, scene)


@both_forms
def test_hundreds_of_names_are_listed(memcached_server: MemcachedServer, form: str) -> None:
    """Page by page, long and odd names too, each once; a free name is not listed."""
    names = sorted([f"name {number}" for number in range(130)] + [f"plain-{number}" for number in range(130)])

    async def scene(kit: Kit) -> None:
        here = kit.client()
        leases = [await here.lock(name, ttl=LONG).acquire() for name in names]
        await (await here.lock("free", ttl=LONG).acquire()).release()
        assert await here.names() == names
        assert await here.names("plain-1?") == [f"plain-{number}" for number in range(10, 20)]
        for lease in leases:
            await lease.release()
        assert await here.names() == []

    play(form, memcached_server.url, scene)


@both_forms
def test_limits_are_told(memcached_server: MemcachedServer, form: str) -> None:
    """What memcached cannot do is refused when a lock is made or acquired, with what to do instead."""

    async def scene(kit: Kit) -> None:
        here = kit.client()
        for options, why in (
            ({"ttl": 1.9}, "ttl must be a number of seconds from 2"),
            ({"linger": 1.0}, "linger is not available"),
            ({"detect_deadlock": True}, "does not know who waits"),
        ):
            with pytest.raises(ValueError, match=why):
                cast("Any", here).lock("name", **options)
        with pytest.raises(ValueError, match="keeps no semaphores"):
            here.semaphore("name", 2)
        with pytest.raises(StoreError, match="shorter lock_delay"):
            await here.lock("name", lock_delay=30 * 86_400.0).acquire()
        lease = await here.lock("name", ttl=366 * 86_400.0).acquire()
        assert 29 * 86_400 < lease.remaining() < 30 * 86_400
        with pytest.raises(LockTimeout):
            await kit.client().lock("name").acquire(timeout=0)
        assert await lease.release() is Outcome.RELEASED

    play(form, memcached_server.url, scene)
