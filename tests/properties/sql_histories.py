"""Short histories of the SQL store: each meets a case that random histories of a real server seldom come to.

A history is told to a machine, which compares each reply and each notification with the grant table's. The planted bugs
of the SQL name the history that notices them.
"""

# ruff: noqa: D103 - a history is told by its name and its steps

from collections.abc import Callable

from tenure.contracts.messages import AcquireRequest, ReleaseRequest, RenewRequest, WithdrawRequest
from tenure.stores.tabled import RETENTION
from tenure.table.times import CROWD
from tests.properties.sql_machine import SqlMachine
from tests.properties.store_machine import NAMES, SECOND

MINUTE = 60 * SECOND
FAR_AHEAD = 2**52
"""A proposal beyond every bound."""
SPAN = 1_000
"""So many tokens that the counter is ahead of the clock."""


class Teller:
    """Tells a machine what its clients do. All of them use one name, unless another is said."""

    def __init__(self, machine: SqlMachine, guard: str) -> None:
        """Choose the guard."""
        self.machine = machine
        machine.choose_the_guard(guard)

    def ask(
        self,
        client: int = 0,
        *,
        name: str = NAMES[0],
        ttl: int = MINUTE // 2,
        waiter_ttl: int = MINUTE,
        share: int = 1,
        delay: int = 0,
        proposal: int = 0,
        wait: bool = False,
        span: int = 1,
        reachable: bool = True,
    ) -> AcquireRequest:
        """Ask for a name: with a `share` of 3 for the whole of 3, which no plain row keeps."""
        self.machine.ask(client, name, ttl, waiter_ttl, share, share, delay, proposal, wait, span, reachable)
        return self.machine.requests[-1]

    def ask_again(self) -> None:
        """Repeat the last request."""
        self.machine.ask_again(0, 0)

    def ask_for_all(self) -> None:
        """Ask for all names at once."""
        self.machine.ask_for_several(0, [*NAMES], len(NAMES), SECOND, 1, 1, False, 1)

    def release(self, request: AcquireRequest, *, request_id: str = "") -> None:
        """Release the lease of a request, or pretend to have another request."""
        token = self.machine.token(request)
        self.machine.let_go(0, ReleaseRequest(request.name, request_id or request.request_id, token))

    def renew(self, request: AcquireRequest, ttl: int, *, request_id: str = "", ahead: int = 0) -> None:
        """Renew the lease of a request, or pretend to have another request, or another token."""
        token = self.machine.token(request) + ahead
        self.machine.keep(0, [RenewRequest(request.name, request_id or request.request_id, token, ttl)])

    def withdraw(self, request_id: str, name: str = NAMES[0]) -> None:
        """Withdraw a request that may still be under way: this always takes a step."""
        self.machine.give_up(0, WithdrawRequest(name, request_id, unsure=True))

    def be_faster(self, what: str, pick: int = 0) -> None:
        """Do something by another client before the next write."""
        self.machine.another_client_will_be_faster(1, what, pick)

    def wait(self, by: int) -> None:
        """Let time go by."""
        self.machine.time_goes_by(by)

    def fail_over(self) -> None:
        """Promote a standby."""
        self.machine.the_server_is_another_one(promoted=True)

    def restart(self) -> None:
        """Restart the server."""
        self.machine.the_server_is_another_one(promoted=False)

    def look(self) -> None:
        """Look at all names."""
        self.machine.look(0)


History = Callable[[SqlMachine], None]

# -- acquire -----------------------------------------------------------------------------------------------


def tokens(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.release(they.ask())
    they.release(they.ask(span=SPAN))
    they.release(they.ask())
    they.ask(proposal=FAR_AHEAD, span=7)
    they.ask(1, proposal=1, wait=True)
    they.release(machine.requests[-2])
    they.look()


def what_is_over_is_not_granted(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.release(they.ask())
    they.ask_again()


def what_was_withdrawn_is_not_granted(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.withdraw(they.ask().request_id)
    they.ask_again()


def a_lease_lasts_to_its_end(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND)
    they.wait(SECOND - 1)
    they.ask()
    they.wait(1)
    they.ask()


def a_lock_delay_is_kept(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND, delay=SECOND)
    they.wait(SECOND)
    they.ask(wait=True)
    they.ask()


def a_waiter_joins_behind_a_lock_delay(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND, delay=SECOND)
    they.wait(SECOND)
    they.ask(1, ttl=4 * SECOND, wait=True)


def a_lock_delay_is_that_of_the_last_holder(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.release(they.ask(delay=SECOND))
    they.ask(ttl=SECOND)
    they.wait(SECOND)
    they.ask()


def nobody_is_faster_than_a_lock(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.release(they.ask())
    they.be_faster("ask")
    they.ask(share=3, wait=True)
    they.look()


# -- the queue ---------------------------------------------------------------------------------------------


def a_waiter_polls(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=8 * SECOND)
    they.ask(ttl=8 * SECOND, wait=True, reachable=False)


def waiters_join_and_are_served(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(span=7)
    first = they.ask(1, wait=True)
    they.ask_again()
    second = they.ask(2, wait=True)
    they.ask()
    they.look()
    they.release(holder)
    they.look()
    they.release(first)
    they.release(second)
    they.look()


def the_last_waiter_learns_that_it_is_the_first(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask()
    for client in (1, 2):
        they.ask(client, ttl=SECOND, wait=True)
    they.release(holder)


def a_waiter_without_a_channel_joins_by_a_step(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=SECOND)
    for client in (1, 2):
        they.ask(client, wait=True, reachable=client == 1)
    they.ask(0, wait=True, reachable=False)
    they.look()
    they.release(holder)
    they.look()
    they.wait(MINUTE)
    they.look()


def a_waiter_that_fell_silent_joins_anew(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask()
    for client in (1, 2, 0):
        they.ask(client, waiter_ttl=SECOND if client == 1 else MINUTE, wait=True)
    they.wait(2 * SECOND)
    machine.ask_again(1, 2)
    they.look()
    they.release(holder)
    they.look()


def a_waiter_asks_again(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=4 * SECOND, span=7)
    for client in (1, 2):
        they.ask(client, waiter_ttl=2 * SECOND, wait=True)
    they.wait(SECOND)
    they.ask_again()
    they.look()
    they.wait(SECOND + 1)
    they.release(holder)
    they.look()


def a_long_queue(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask()
    for after in (0, SECOND):  # the last waiter joins, or asks again; a third of the others have been silent too long
        for client in range(2 * CROWD + 1):
            they.ask(client, waiter_ttl=2 * SECOND, wait=True)
        they.wait(after)
        if after:
            they.ask_again()
        they.wait(5 * SECOND + after // 2)
        they.release(holder)
        they.look()
        holder = machine.requests[-1]


def a_waiter_asks_again_when_the_lease_is_over(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND)
    they.ask(1, wait=True)
    they.wait(SECOND)
    they.ask_again()


def a_waiter_falls_silent(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask()
    they.ask(1, waiter_ttl=SECOND, wait=True)
    they.wait(SECOND + 1)
    they.release(holder)
    they.look()
    machine.ask_again(0, 1)  # the holder, whose release a step has written
    they.look()


def a_waiter_goes_away(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    for share in (1, 3):
        name = NAMES[share // 2]
        holder = they.ask(name=name, share=share)
        they.ask(1, name=name, share=share, wait=True)
        machine.a_client_comes_anew(1)
        they.release(holder)
        they.look()


def those_who_share_are_served(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=SECOND // 2, share=3)
    they.ask(1, share=3, wait=True)
    they.look()
    they.be_faster("renew")
    they.release(holder)
    they.look()


def a_lock_delay_comes_with_a_lease_that_was_pushed(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND)
    they.ask(1, ttl=SECOND, delay=SECOND, waiter_ttl=MINUTE, wait=True)
    they.wait(SECOND)
    they.ask(2)
    they.wait(SECOND)
    they.ask(2)


# -- release, renew and write ------------------------------------------------------------------------------


def only_the_holder_releases(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=SECOND)
    they.release(holder, request_id="another")
    they.ask(1)
    they.wait(SECOND)
    they.release(holder)


def only_the_holder_renews(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=2 * SECOND)
    they.renew(holder, MINUTE, request_id="another")
    they.renew(holder, MINUTE, ahead=1)
    they.look()
    they.wait(2 * SECOND)
    they.renew(holder, MINUTE)


def a_holder_renews_while_others_wait(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=MINUTE)
    they.ask(1, waiter_ttl=2 * SECOND, wait=True)
    they.renew(holder, MINUTE)
    machine.step_back(5 * SECOND)
    they.renew(holder, MINUTE)
    they.wait(3 * SECOND)
    they.look()


def waiters_leave(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=SECOND)
    waiters = [they.ask(client, wait=True) for client in (1, 2, 0)]
    they.withdraw(waiters[1].request_id)
    they.withdraw(waiters[0].request_id)
    for pick in (1, 2):
        machine.ask_again(1, pick)
    they.look()
    they.withdraw(waiters[2].request_id)
    they.look()
    they.release(holder)
    they.look()


def a_waiter_leaves_when_the_lease_is_over(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND)
    waiters = [they.ask(client, wait=True) for client in (1, 2)]
    they.wait(SECOND)
    they.withdraw(waiters[0].request_id)
    they.look()


def a_renewal_prolongs(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=2 * SECOND)
    they.renew(holder, MINUTE)
    they.look()
    they.renew(holder, SECOND)
    they.look()


def a_renewal_after_the_clock_stepped_back(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    holder = they.ask(ttl=SECOND)
    machine.the_clock_steps_back(50 * SECOND)
    they.renew(holder, SECOND)
    they.wait(SECOND)
    they.ask(1)


def a_release_is_faster_than_a_write(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask()
    they.be_faster("release")
    they.withdraw("another")
    they.look()


def a_renewal_is_faster_than_a_write(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND // 10)
    they.be_faster("renew")
    they.withdraw("another")
    they.look()


def all_or_none_are_written(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    for name in NAMES:
        they.release(they.ask(name=name))
    they.be_faster("ask")
    they.ask_for_all()
    they.look()


# -- servers that may have forgotten -----------------------------------------------------------------------


def a_standby_grants_nothing_for_a_while(machine: SqlMachine) -> None:
    they = Teller(machine, "observed")
    they.release(they.ask())
    they.fail_over()
    they.ask()
    they.wait(SECOND)
    they.ask()
    they.look()


def a_standby_is_looked_at(machine: SqlMachine) -> None:
    they = Teller(machine, "observed")
    they.release(they.ask())
    they.fail_over()
    they.look()
    they.wait(SECOND)
    they.look()
    machine.the_clock_steps_back(100 * SECOND)
    they.look()


def a_restart_is_doubted(machine: SqlMachine) -> None:
    they = Teller(machine, "strict")
    they.release(they.ask())
    they.restart()
    they.ask()


def a_restart_is_looked_at(machine: SqlMachine) -> None:
    they = Teller(machine, "strict")
    they.restart()
    they.look()


def a_waiter_is_told_of_pushes_that_were_forgotten(machine: SqlMachine) -> None:
    they = Teller(machine, "observed")
    holder = they.ask()
    they.fail_over()
    they.look()
    they.wait(20 * SECOND)
    they.renew(holder, 30 * SECOND)
    they.wait(10 * SECOND)
    they.ask(1, wait=True)


def a_failover_is_faster_than_a_write(machine: SqlMachine) -> None:
    they = Teller(machine, "observed")
    they.ask()
    they.be_faster("fail over")
    they.withdraw("another")
    they.wait(SECOND)
    they.look()


# -- old rows ----------------------------------------------------------------------------------------------


def old_rows_leave_their_tokens(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.release(they.ask(name=NAMES[0], proposal=FAR_AHEAD, span=SPAN))
    they.release(they.ask(name=NAMES[1]))
    they.release(they.ask(name=NAMES[2]))
    machine.old_rows_are_deleted(by=SECOND)
    machine.old_rows_are_deleted(by=RETENTION - SECOND + 1)
    for name in NAMES:
        they.release(they.ask(name=name))


def rows_that_were_in_use_of_late_stay(machine: SqlMachine) -> None:
    they = Teller(machine, "off")
    they.ask(ttl=SECOND)
    machine.old_rows_are_deleted(by=2 * SECOND)


HISTORIES: tuple[History, ...] = (
    tokens,
    what_is_over_is_not_granted,
    what_was_withdrawn_is_not_granted,
    a_lease_lasts_to_its_end,
    a_lock_delay_is_kept,
    a_waiter_joins_behind_a_lock_delay,
    a_lock_delay_is_that_of_the_last_holder,
    nobody_is_faster_than_a_lock,
    waiters_join_and_are_served,
    the_last_waiter_learns_that_it_is_the_first,
    a_waiter_without_a_channel_joins_by_a_step,
    a_waiter_that_fell_silent_joins_anew,
    a_waiter_asks_again,
    a_long_queue,
    a_waiter_asks_again_when_the_lease_is_over,
    a_waiter_polls,
    a_waiter_falls_silent,
    a_waiter_goes_away,
    those_who_share_are_served,
    a_lock_delay_comes_with_a_lease_that_was_pushed,
    only_the_holder_releases,
    only_the_holder_renews,
    a_holder_renews_while_others_wait,
    waiters_leave,
    a_waiter_leaves_when_the_lease_is_over,
    a_renewal_prolongs,
    a_renewal_after_the_clock_stepped_back,
    a_release_is_faster_than_a_write,
    a_renewal_is_faster_than_a_write,
    all_or_none_are_written,
    a_standby_grants_nothing_for_a_while,
    a_standby_is_looked_at,
    a_restart_is_doubted,
    a_restart_is_looked_at,
    a_waiter_is_told_of_pushes_that_were_forgotten,
    a_failover_is_faster_than_a_write,
    old_rows_leave_their_tokens,
    rows_that_were_in_use_of_late_stay,
)

NOTICED_BY: dict[History, tuple[str, ...]] = {
    tokens: (
        "acquire: takes what is held",
        "acquire: the clock makes no token",
        "acquire: any proposal is taken",
        "acquire: one token for all",
        "acquire: the counter goes on from nowhere",
        "release: hands over an old token",
        "release: does not wake the waiter",
        "a lease that has not ended is taken",
        "a token is used twice",
    ),
    what_is_over_is_not_granted: (
        "acquire: what was released is granted",
        "release: it is not remembered",
        "a released request is granted again",
    ),
    what_was_withdrawn_is_not_granted: (
        "acquire: what was withdrawn is granted",
        "write: the tombstones are forgotten",
        "a withdrawn request is granted",
    ),
    a_lease_lasts_to_its_end: ("acquire: a lease ends a microsecond late",),
    a_lock_delay_is_kept: (
        "acquire: a lock delay is no matter",
        "acquire: the lock delay is forgotten",
        "acquire: overtakes the queue",
        "write: whoever waits is forgotten",
        "a lock delay is forgotten",
    ),
    a_waiter_joins_behind_a_lock_delay: ("acquire: joins behind a lease that ran out",),
    a_lock_delay_is_that_of_the_last_holder: ("acquire: the holder before keeps its delay",),
    nobody_is_faster_than_a_lock: (
        "acquire: the version stays",
        "write: whatever is there",
        "a row is written whatever it was",
    ),
    waiters_join_and_are_served: (
        "acquire: the last to come is the first",
        "release: passes over all who wait",
        "release: whoever is granted the name goes on waiting",
        "read: nobody listens",
    ),
    the_last_waiter_learns_that_it_is_the_first: ("release: the last of two learns nothing of its place",),
    a_waiter_without_a_channel_joins_by_a_step: (
        "write: whoever joins is forgotten",
        "write: whoever joins is the first",
    ),
    a_waiter_asks_again: (
        "acquire: a waiter that asks again counts twice",
        "acquire: a waiter that asks again does not stay alive",
        "acquire: a waiter that asks again keeps the first alive",
        "acquire: a waiter that asks again learns a wrong place",
        "acquire: a waiter that asks again does not tell the holder",
    ),
    a_long_queue: (
        "acquire: the last of a long queue is dead early",
        "acquire: the last of a long queue asks again and is dead early",
    ),
    a_waiter_falls_silent: (
        "release: hands over to a dead waiter",
        "write: the last release is forgotten",
        "write: whoever has left goes on waiting",
    ),
    a_waiter_goes_away: (
        "write: whoever listens is forgotten",
        "read: everybody listens",
        "silent clients seem to listen",
    ),
    those_who_share_are_served: (
        "write: no notification",
        "write: notifications whatever is written",
    ),
    a_lock_delay_comes_with_a_lease_that_was_pushed: ("write: the lock delay is forgotten",),
    only_the_holder_releases: (
        "release: of anybody",
        "release: of a lease that ran out",
        "an ended lease is released",
        "any request releases",
    ),
    only_the_holder_renews: (
        "renew: of a lease that ran out",
        "renew: by any token",
        "renew: of anybody",
        "an ended lease is renewed",
    ),
    a_holder_renews_while_others_wait: (
        "renew: nobody seems to wait",
        "renew: a clock that stepped back is no matter",
    ),
    waiters_leave: (
        "withdraw: the place is forgotten",
        "withdraw: nobody learns that it is the first",
        "withdraw: it leaves no tombstone",
        "withdraw: a tombstone ends the others",
        "withdraw: the last one leaves a queue",
    ),
    a_waiter_leaves_when_the_lease_is_over: ("withdraw: from a lease that ran out",),
    a_renewal_prolongs: (
        "renew: it may shorten",
        "renew: the shorter ttl counts",
        "a renewal shortens a lease",
    ),
    a_renewal_after_the_clock_stepped_back: ("renew: what the clock stretched stays",),
    a_release_is_faster_than_a_write: ("release: the version stays",),
    a_renewal_is_faster_than_a_write: ("renew: the version stays",),
    all_or_none_are_written: ("write: the rows one by one",),
    a_standby_grants_nothing_for_a_while: (
        "acquire: another timeline is no matter",
        "acquire: a quarantine is no matter",
        "quarantine: it ends at once",
        "a quarantine is not kept",
        "a promoted replica is not noticed",
    ),
    a_standby_is_looked_at: (
        "read: no quarantine on another timeline",
        "read: a quarantine is stretched",
    ),
    a_restart_is_doubted: ("acquire: a restart is no matter",),
    a_restart_is_looked_at: ("read: a restart begins no quarantine",),
    a_waiter_is_told_of_pushes_that_were_forgotten: ("acquire: a push of a forgotten grant is no matter",),
    a_failover_is_faster_than_a_write: ("write: at a server that forgot",),
    old_rows_leave_their_tokens: (
        "acquire: the floor is forgotten",
        "sweep: the floor is forgotten",
        "sweep: the floor falls",
        "sweep: the least counter is the floor",
    ),
    rows_that_were_in_use_of_late_stay: ("sweep: whatever is unused",),
}
"""The bugs of PostgreSQL's and MySQL's statements that a history notices."""


def history_of(bug: str) -> History:
    """Return the history that notices a bug."""
    return next(history for history, bugs in NOTICED_BY.items() if bug in bugs)


def play(history: History, machine: type[SqlMachine]) -> None:
    """Tell a history to a new machine."""
    told = machine()
    try:
        history(told)
    finally:
        told.teardown()
