"""What a client gave up while it was cut off is removed when it is back, though nobody asks for it again."""

from collections.abc import Callable

import pytest

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest, Granted, ReleaseRequest, WithdrawRequest
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.ordered.store import OrderedStore
from tests.servers import Proxy, ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, World, proxied

TTL = micros(60.0)


def ask_of(name: str, request_id: str) -> AcquireRequest:
    """Return a request by whoever waits."""
    return AcquireRequest(name, request_id, "", "somebody", TTL, TTL, micros(60.0))


@pytest.mark.parametrize(
    ("world", "fault"),
    [("threads", Proxy.swallow), ("asyncio", Proxy.lose)],
    ids=["carried out", "lost"],
    indirect=["world"],
)
@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "vanishes"])
def test_who_gave_up_while_cut_off_leaves_nothing(
    world: World,
    member: MakeMember,
    zookeeper_server: ZooKeeperServer,
    fault: Callable[..., None],
    leaves: bool,
) -> None:
    """A contender whose join was not answered, and whose removal failed, goes after the next connect."""
    name = f"given-up-{leaves}-{fault.__name__}"
    two = member()
    two.join(name, "first")
    with proxied(zookeeper_server) as (proxy, url):
        one = Member(world, url, session_timeout="60")
        store = OrderedStore(world.runtime, one.directory)
        world.run(store.open(lambda _: None, one.until))
        session = one.directory.session()
        proxy.refuse()
        fault(proxy, containing=b"c_a1_")
        with pytest.raises(OutcomeUnknown):
            world.run(store.acquire(ask_of(name, "a1"), one.until))
        assert two.requests(name) == ["first", "a1"][: 2 if fault is Proxy.swallow else 1]
        if leaves:
            with pytest.raises(StoreUnavailable):
                world.run(store.withdraw(WithdrawRequest(name, "a1", unsure=True), one.soon(0.5)))
        else:
            store._contenders.live["a1"].ends_at = 0.0  # nobody is heard of it for long enough
            store._caretaker._signal.set()
        proxy.heal()
        two.wait_for(lambda: two.directory.look(name, two.until), lambda found: len(found.entries) == 1)
        assert one.directory.session() == session
        world.run(store.close())


def test_a_release_that_failed_while_cut_off_is_carried_out(
    world: World, member: MakeMember, zookeeper_server: ZooKeeperServer
) -> None:
    """Nobody has to ask for it again."""
    two = member()
    with proxied(zookeeper_server) as (proxy, url):
        one = Member(world, url, session_timeout="60")
        store = OrderedStore(world.runtime, one.directory)
        world.run(store.open(lambda _: None, one.until))
        granted = world.run(store.acquire(ask_of("released", "a1"), one.until))
        assert isinstance(granted, Granted)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            world.run(store.release(ReleaseRequest("released", "a1", granted.token), one.soon(0.5)))
        assert two.requests("released") == ["a1"]
        proxy.heal()
        two.wait_for(lambda: two.directory.look("released", two.until), lambda found: not found.entries)
        world.run(store.close())
