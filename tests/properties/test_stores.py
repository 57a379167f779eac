"""Every store answers as the grant table does: the same replies, the same notices, the same views, in any history."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.core.state import NameState
from holdfast.core.table import Step
from holdfast.stores import memory, tabled
from holdfast.stores.sqlite import codec
from holdfast.stores.sqlite import database as sqlite_database
from holdfast.testing.simulation.redis import server as redis_server
from holdfast.testing.simulation.redis.lua import source_of
from tests.properties import mutants, thorough
from tests.properties.redis_machine import RedisMachine
from tests.properties.store_machine import MemoryMachine, SqliteMachine, StoreMachine

RETENTION = "TOMBSTONE, RETENTION = 30000000, 3600000000"
"""What the scripts say."""

MACHINES = [MemoryMachine, SqliteMachine, RedisMachine]
IDS = ["memory", "sqlite", "redis"]
TABLED = MACHINES[:2]
"""Those that run the grant table itself."""


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the oracle keeps: names that nobody uses, which a store may forget but for their counters."""
    for module in (memory, sqlite_database):
        monkeypatch.setattr(module, "RETENTION", 2**60)
    monkeypatch.setattr(redis_server, "source_of", _keeping_for_ever)


def _keeping_for_ever(text: str) -> str:
    """Return a script that lets its keys live for years."""
    found = source_of(text)
    assert RETENTION in found
    return found.replace(RETENTION, f"{RETENTION[: -len('3600000000')]}{10**14}")


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_a_store_answers_as_the_grant_table_does(machine: type[StoreMachine]) -> None:
    """In any history a store gives the table's replies, sends its notices and shows its views."""
    run_state_machine_as_test(machine, settings=thorough(100, 40))


HUNT = settings(thorough(2_000, 40), derandomize=True, phases=[Phase.generate])


def _fails(machine: type[StoreMachine]) -> AbstractContextManager[Any]:
    return pytest.raises(AssertionError)


@pytest.mark.parametrize("mutant", [mutants.LastComesFirst, mutants.TombstonesAreIgnored, mutants.PushesAreForgotten])
@pytest.mark.parametrize("machine", TABLED, ids=IDS[:2])
def test_a_store_with_a_wrong_table_is_noticed(
    machine: type[StoreMachine], mutant: type[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes wrong steps does not answer as the table does."""
    for module in (tabled, memory, sqlite_database):
        monkeypatch.setattr(module, "Step", mutant)
    with _fails(machine):
        run_state_machine_as_test(machine, settings=HUNT)


def _without_tombstones(state: NameState) -> None:
    state.tombstones = {}


def _without_last_release(state: NameState) -> None:
    state.last_released = ""


def _without_delay(state: NameState) -> None:
    state.blocked_until = 0


@pytest.mark.parametrize("forget", [_without_tombstones, _without_last_release, _without_delay])
def test_a_file_that_forgets_is_noticed(forget: Callable[[NameState], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file that loses a part of a state does not answer as the table does."""
    true_load = codec.load

    def load(name: str, counter: int, text: str) -> NameState:
        state = true_load(name, counter, text)
        forget(state)
        return state

    monkeypatch.setattr(codec, "load", load)
    with _fails(SqliteMachine):
        run_state_machine_as_test(SqliteMachine, settings=HUNT)
