"""Clients that wait for many names at once: how many sockets they need, and that nobody is forgotten."""

import random
import resource
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tenure.contracts.runtime import Runtime
from tenure.stores.etcd.gateway import AT_ONCE
from tenure.stores.etcd.keys import Keys, after
from tenure.stores.etcd.options import PREFIX
from tenure.stores.ordered import Entry, Kind
from tenure_testing.conformance.check import API_FORMS
from tenure_testing.conformance.kit import Kit
from tests.etcd.scenes import Member, Run, contender, member
from tests.faults.scenes import client_at, play
from tests.servers import EtcdServer, Proxy
from tests.servers.etcd import encoded

CROWD = 300
"""More names than the process of the test may have files: four times as many."""

SOME = 40

TTL = 60.0
"""A ttl, and a session, that outlive every test."""

AMPLE = 60.0
"""How long all of them together may take, in seconds."""

SPARE = 40
"""How many files a client may have besides one for each of its requests, each of which has one at the server, too."""

KEYS = Keys(PREFIX)


class Held:
    """Names that somebody else holds."""

    def __init__(self, server: EtcdServer, space: str, count: int) -> None:
        """Hold them."""
        self.names = [f"{number}" for number in range(count)]
        self._server = server
        self._space = space
        self._in_steps(self.names, lambda key: {"request_put": {"key": key, "value": encoded("{}")}})

    def let_go(self, names: Sequence[str]) -> None:
        """Release some."""
        self._in_steps(names, lambda key: {"request_delete_range": {"key": key}})

    async def all_wanted(self, kit: Kit) -> None:
        """Wait until somebody waits for each of them: then there is one key more of each."""
        until = kit.now() + AMPLE
        while self._count() < 2 * len(self.names):
            assert kit.now() < until, f"of {2 * len(self.names)} keys there are {self._count()}"
            await kit.pause(0.05)

    def _count(self) -> int:
        begins = KEYS.of(f"{self._space}:", "").removesuffix("/")
        ends = encoded(after(begins))
        found = self._server.command("kv/range", key=encoded(begins), range_end=ends, count_only=True)
        return int(found.get("count", 0))

    def _in_steps(self, names: Sequence[str], step: Callable[[str], object]) -> None:
        keys = [encoded(KEYS.of(f"{self._space}:{name}", Kind.CONTENDER + "0")) for name in names]
        for start in range(0, len(keys), 100):
            self._server.command("kv/txn", success=[step(key) for key in keys[start : start + 100]])


@contextmanager
def few_files(more: int) -> Generator[None]:
    """Let this process open only so many files more."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = max(map(int, (each.name for each in Path("/proc/self/fd").iterdir())))
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + more, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_client_waits_for_more_names_than_it_may_have_files(etcd_server: EtcdServer, form: str) -> None:
    """Each waiter gets its lock when that is released; the client needs a few sockets, however many wait."""

    async def scene(kit: Kit) -> None:
        held = Held(etcd_server, kit.space, CROWD)
        with few_files(AT_ONCE + SPARE):
            client = client_at(kit, f"{etcd_server.url}?session_timeout=60", operation_timeout=AMPLE)
            await client.inspect("0")

            async def once(name: str) -> int:
                lease = await client.lock(name, ttl=TTL, timeout=AMPLE).acquire()
                await lease.release()
                return lease.token

            waiting = [kit.start(partial(once, name)) for name in held.names]
            await held.all_wanted(kit)
            held.let_go(random.sample(held.names, CROWD))
            tokens = [await each.result(AMPLE) for each in waiting]
        assert len(set(tokens)) == CROWD

    play(form, etcd_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("harm", ["connections", "server"])
def test_no_waiter_is_forgotten_when_its_watch_breaks(etcd_server: EtcdServer, form: str, harm: str) -> None:
    """Half of the names are released while the connections are cut, or the server is dead; the others afterwards."""

    async def scene(kit: Kit) -> None:
        held = Held(etcd_server, kit.space, SOME)
        client = client_at(kit, f"{url}?session_timeout=60", operation_timeout=AMPLE)

        async def acquire(name: str) -> object:
            return await client.lock(name, ttl=TTL, timeout=AMPLE).acquire()

        waiting = [kit.start(partial(acquire, name)) for name in held.names]
        await held.all_wanted(kit)
        if harm == "connections":
            proxy.refuse()
            proxy.cut()
            held.let_go(held.names[::2])
            proxy.accept()
        else:
            held.let_go(held.names[::2])
            etcd_server.kill()
            etcd_server.start()
        for each in waiting[::2]:
            await each.result(AMPLE)
        held.let_go(held.names[1::2])
        for each in waiting[1::2]:
            await each.result(AMPLE)

    with Proxy(etcd_server.address) as proxy:
        url = "etcd://{}:{}".format(*proxy.address)
        play(form, etcd_server.url, scene)


@dataclass(slots=True)
class Waits:
    """What one request waits for."""

    name: str
    request_id: str
    entries: list[Entry]


async def some_waits(a: Member, b: Member, name: str, chance: random.Random) -> list[Waits]:
    """Have one of two contend for names, some twice, and the other watch them."""
    waits: list[Waits] = []
    for number in range(60):
        of = f"{name}{number}"
        _, listing = await a.directory.join(of, contender(f"a{number}"), a.soon())
        if chance.random() < 0.3:
            _, listing = await a.directory.join(of, contender(f"other{number}", capacity=2), a.soon())
        assert await b.directory.watch(of, f"b{number}", listing.entries, b.soon())
        waits.append(Waits(of, f"b{number}", listing.entries))
    return waits


async def change_something(a: Member, b: Member, waits: Waits, chance: random.Random) -> bool:
    """Do something that concerns a name; tell whether it has to wake who watches it."""
    name, entry = waits.name, chance.choice(waits.entries)
    match chance.choice(["withdraw", "stir", "rewrite", "join", "look away"]):
        case "withdraw":
            return await a.directory.withdraw_join(name, entry.request_id, entry, a.soon())
        case "stir":
            await a.directory.stir(name, [entry], a.soon())
            return True
        case "rewrite":
            return all(await a.directory.rewrite([(name, entry, "new")], a.soon()))
        case "join":
            await a.directory.join(name, contender("newcomer"), a.soon())
            return False
        case _:
            await b.directory.watch(name, waits.request_id, (), b.soon())
            await a.directory.withdraw_join(name, entry.request_id, entry, a.soon())
            return False


def test_just_those_are_woken_that_wait_for_what_went(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """Each once, while entries of many names go and change, others come, and some look away before that."""
    chance = random.Random(name)

    async def scene(runtime: Runtime) -> None:
        async with member(runtime, etcd_server.url) as a, member(runtime, etcd_server.url) as b:
            waits = await some_waits(a, b, name, chance)
            expected = [
                f"woken {each.request_id}"
                for each in chance.sample(waits, 50)
                if await change_something(a, b, each, chance)
            ]
            for event in expected:
                await b.heard.wait_for(event)
            await a.directory.tell(b.directory.session(), "that was all", a.soon())
            await b.heard.wait_for("told that was all")
            assert sorted(b.heard.events) == sorted([*expected, "told that was all"])

    run(scene)
