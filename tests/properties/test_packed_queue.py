"""Waiters that stand in a text are the same queue as waiters in objects, and a step decodes few of them."""

# ruff: noqa: D102 - a rule's name says what happens

from collections.abc import Callable
from unittest.mock import Mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tenure.contracts.messages import AcquireRequest, ReleaseRequest
from tenure.stores import table_codec
from tenure.table.state import NameState, Waiter
from tenure.table.step import Step
from tests.planting import module_with
from tests.properties import hunt, thorough

IDS = ("a", "b", "c", "aa", "d")
OWNERS = ("a", '"b"', '],\n[1,2,"c"', "\\", "é", "")
"""The owner is a text of the user's: nothing in it is taken for a request, a line or an end."""

PACKED = ("PACKED_FROM = 8", "PACKED_FROM = 1")
"""Short queues stand in a text, too."""

ids = st.sampled_from(IDS)
instants = st.sampled_from((-3, 0, 7, 500_000, 10**6))


def make_request(request_id: str, channel: str, owner: str, weight: int, bound: int) -> AcquireRequest:
    """Return a request of a waiter."""
    return AcquireRequest("name", request_id, channel, owner, 10, 5, 20, weight, 3, fair_after=bound)


requests = st.builds(
    make_request,
    ids,
    st.sampled_from(("", "one", "other", "third")),
    st.sampled_from(OWNERS),
    st.sampled_from((1, 1, 1, 1, 1, 2)),
    st.sampled_from((0, 0, 0, 0, 0, 7)),
)


class PackedMachine(RuleBasedStateMachine):
    """A queue in a text beside one in objects, to which the same happens."""

    codec = module_with(table_codec, PACKED)

    def __init__(self) -> None:
        super().__init__()
        self.told, self.oracle = NameState(), NameState()

    @rule()
    def it_is_stored_and_loaded(self) -> None:
        self.told = self.codec.load("name", 0, self.codec.dump(self.told), self.told.idle_after())

    @rule(request=requests, at=instants)
    def somebody_asks(self, request: AcquireRequest, at: int) -> None:
        for queue in (self.told.queue, self.oracle.queue):
            waiter = queue.find(request.request_id)
            if waiter is None:
                waiter = Waiter(request, at, 0)
                queue.join(waiter)
            else:
                queue.replace(waiter, request)
            waiter.fresh_until = at + 1
            assert queue.find(request.request_id) is waiter

    @rule(request_id=ids)
    def somebody_leaves(self, request_id: str) -> None:
        for queue in (self.told.queue, self.oracle.queue):
            queue.drop(request_id)

    @rule(at=instants)
    def the_clock_steps_back(self, at: int) -> None:
        for queue in (self.told.queue, self.oracle.queue):
            for waiter in queue:
                waiter.step_back(10**6, at)

    @rule(at=instants)
    def the_head_is_looked_at(self, at: int) -> None:
        assert bool(self.told.queue) == bool(self.oracle.queue)
        if self.oracle.queue:
            assert self.told.queue[0] == self.oracle.queue[0]
            for queue in (self.told.queue, self.oracle.queue):
                queue[0].fresh_until = at

    @rule(request_id=ids)
    def a_waiter_is_looked_for(self, request_id: str) -> None:
        assert self.told.queue.find(request_id) == self.oracle.queue.find(request_id)

    @invariant()
    def they_are_the_same(self) -> None:
        told, oracle = self.told.queue, self.oracle.queue
        assert bool(told.order) == bool(told) == bool(oracle)
        assert (len(told), told.head, told.channels(2)) == (len(oracle), oracle.head, oracle.channels(2))
        assert [told.place(each) for each in IDS] == [oracle.place(each) for each in IDS]
        if oracle:
            assert (told.lightest, told.fair_after) == (oracle.lightest, oracle.fair_after)
        for least in (0, 500_000, 2 * 10**6):
            assert told.fresh_until(least) == oracle.fresh_until(least)
        text = self.codec.dump(self.told)
        assert table_codec.load("name", 0, text) == self.oracle
        assert list(table_codec.load("name", 0, text).queue) == list(oracle)


def test_waiters_in_a_text_are_the_same_queue() -> None:
    """Whatever is done to them, and whenever they are stored and loaded."""
    run_state_machine_as_test(PackedMachine, settings=thorough(150, 25))


BUGS = (
    ("lines.find('\"', start) == at", "True"),
    ("if start < end else len(self)", "if True else 0"),
    ("self._seen[waiter[2]][0] if waiter[2] in self._seen else _load_waiter", "_load_waiter"),
    ("self._seen.pop(request_id, None)", "pass"),
    (".removesuffix(_BETWEEN)", ""),
    ("            self.order = []\n", "            pass\n"),
    ("request.weight == 1 and", "True and"),
    ("and not request.fair_after", ""),
    ("if latest >= self._idle_after:", "if True:"),
    ('_CHANNEL.findall("\\n" + self.lines())', '_CHANNEL.findall("\\n" + self._lines)'),
    ("(waiter.fresh_until for waiter, _ in self._seen.values())", "()"),
    ("[:most]", ""),
    ("(line := _dump_waiter(waiter)) != before", "(line := before) != before"),
    ("self._seen[request_id] = waiter, line\n", "pass\n"),
)


@pytest.mark.parametrize(("right", "wrong"), BUGS)
def test_a_planted_bug_is_found(right: str, wrong: str) -> None:
    """Each of them makes another queue of it."""
    codec = module_with(table_codec, PACKED, (right, wrong))
    machine = type("Machine", (PackedMachine,), {"codec": codec})
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError, TypeError)):
        hunt(machine, 2000, 25, f"packed: {right}")


def asked(number: int) -> AcquireRequest:
    """Return the request of one of many."""
    return AcquireRequest("name", f"r{number}", f"c{number}", "owner", 10**6, 10**5, 10**6)


def crowd(waiters: int) -> NameState:
    """Return a state as a store loads it, with a holder and so many waiters."""
    step = Step(NameState(), 1, 1, lambda _: True)
    for number in range(waiters + 1):
        step.acquire(asked(number))
    return table_codec.load("name", step.state.counter, table_codec.dump(step.state), step.state.idle_after())


@pytest.mark.parametrize("waiters", [20, 600])
def test_a_step_decodes_few_waiters(waiters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer, a waiter that asks again and a release look at the head and at one more at most."""
    decode = Mock(wraps=vars(table_codec)["_load_waiter"])
    monkeypatch.setattr(table_codec, "_load_waiter", decode)
    state = NameState()

    def take(work: Callable[[Step], object]) -> None:
        nonlocal state
        state = crowd(waiters)
        decode.reset_mock()
        work(Step(state, 2, 2, lambda _: True))
        state.idle_after()
        state.queue.channels(8)
        table_codec.dump(state)
        assert decode.call_count <= 2

    take(lambda step: step.acquire(asked(1000)))
    take(lambda step: step.acquire(asked(waiters // 2)))
    take(lambda step: step.release(ReleaseRequest("name", "r0", 0)))
    assert state.holders[0].request_id == "r1"
