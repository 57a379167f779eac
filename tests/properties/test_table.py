"""The grant table keeps its rules in every history."""

from dataclasses import replace

from hypothesis.stateful import run_state_machine_as_test

from tests.properties import thorough
from tests.properties.table_machine import TableMachine


def test_every_step_of_every_history_is_right() -> None:
    """Whatever clients do and clocks show, each step keeps capacity, order, tokens, delays and promises."""
    run_state_machine_as_test(TableMachine, settings=thorough(200, 50))


def test_a_downgraded_lease_may_be_restored_by_an_old_renewal() -> None:
    """Then a later lease that shares the name removes it: its holder restores the lighter one by its next renewal."""
    machine = TableMachine()
    machine.ask("a", 300, 300, 3, 3, 0, 0, wait=True, span=1)
    machine.a_crowd_comes(weight=1, lock_delay=0, ttl=300)
    machine.a_holder_makes_room(pick=0, weight=1, off=0)
    assert [holder.weight for holder in machine.state.holders] == [1, 1, 1]
    machine.whoever_holds_takes_it_up_again()
    assert [holder.request_id for holder in machine.state.holders] == ["r1", "r2"]
    machine.keep(replace(machine.requests[0], weight=1), 300)
    assert [holder.request_id for holder in machine.state.holders] == ["r1", "r2", "r0"]


def test_a_store_may_come_back_with_more_held_than_there_is() -> None:
    """It has forgotten that the leases were revoked, and not that the capacity was made smaller before."""
    machine = TableMachine()
    machine.a_crowd_comes(weight=1, lock_delay=0, ttl=300)
    machine.resize(after=1, before=3)
    machine.a_copy_is_taken()
    machine.revoke()
    machine.the_store_forgets(pick=1, quarantine=30)
    assert len(machine.state.holders) > machine.state.capacity
    machine.request_revocation()
