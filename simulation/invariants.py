"""The invariants: what must hold in every run, by name. A holder "believes in" a lease that is valid by its own clock.

EXCLUSION     No two holders of a name believe in their leases at the same time, unless their weights fit together.
BACKED        A holder that believes in its lease is right: the store keeps the lease at least that long, in true time.
TOKENS        Fencing tokens strictly increase in the order of the grants of a name.
FENCE         A resource whose fence each holder raises before its first read loses no accepted update.
FIFO          No waiter is granted while an earlier waiter, which stayed in the queue, still waits. While another client
              waits, a client hands on only to those that already waited when its turn began, and to
              `fairness_count` of them at most.
ONCE          However often a request is repeated, it holds at most once, and does not wait while it holds.
DELAY         After an expiry nobody is granted before the lock delay of the expired lease is over.
LOSS          A holder is notified of a loss exactly once, not later than its local deadline, and at once when the
              store refuses a renewal; it never believes in a lost lease again.
OVERHELD      No holder believes in a lease, or renews it, for longer than its max_hold.
MIN_HOLD      A name that was released is not free before the min_hold of its lease is over.
KEPT          No lease is lost before its deadline; where nothing goes wrong, none is lost at all.
GUARD         A guarded Redis that may have forgotten grants grants nobody for the longest ttl; holders take up their
              leases again only in that time.
PUSH          A grant by notification goes to a waiter that sent its request not long ago.
SHARED        A lease that leaves room for others is never refused while it is valid, whatever a guarded Redis has
              forgotten.
WHOLE         A grant is for the whole ttl, in a reply or by a notification.
PROMPT        A free name has no live waiter, and a waiter that was granted knows it: where nothing goes wrong, within
              milliseconds; where wake-ups may be lost, within two re-poll intervals.
CLEAN         The request of an acquisition that ended without a lease was withdrawn. Once the withdrawal is
              acknowledged (or a release that knows of an unanswered request), nothing of the request appears again
              for as long as the store remembers it: 30 s by its own clock. A release that was told to be carried out
              was, where nothing goes wrong.
JOB           Of a window (or key) of a job at most one run is done, no more runs begin than it has attempts, and none
              begins after one was done; it is said to be done only if a run was. An operator may let it run again, and
              pause it: then none begins. A run is given up only after its lock was lost.
HANDOVER      A lease that is detached is neither trusted nor renewed by its client any more. Its successor has a larger
              token, and another request. An adoption is refused only if the lease has ended or another client has
              adopted it, and adopts it once.
QUANTITY      Every addition to a counter counts once. No window of a limit has more units than it lets pass. No unit of
              a stock is taken twice or lost, and none is refused while enough are certainly left.
DRAINED       Once the faults stop, every waiter is granted, and in the end nothing is left in the store.
NO_ERRORS     No operation raises an error that it does not document; where nothing goes wrong, none fails; and no
              background task dies.

`at_store` checks the state of the store after each of its steps. `at_clients` checks what holders believe after every
event of the world.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Invariant(StrEnum):
    """The invariants by name."""

    EXCLUSION = "exclusion"
    BACKED = "backed"
    TOKENS = "tokens"
    FENCE = "fence"
    FIFO = "fifo"
    ONCE = "once"
    DELAY = "delay"
    LOSS = "loss"
    OVERHELD = "overheld"
    MIN_HOLD = "min_hold"
    KEPT = "kept"
    GUARD = "guard"
    PUSH = "push"
    SHARED = "shared"
    WHOLE = "whole"
    PROMPT = "prompt"
    CLEAN = "clean"
    JOB = "job"
    HANDOVER = "handover"
    QUANTITY = "quantity"
    DRAINED = "drained"
    NO_ERRORS = "no errors"


@dataclass(slots=True)
class Violation:
    """One breach of an invariant."""

    invariant: Invariant
    time: float
    text: str


Tell = Callable[[Invariant, str], None]
"""Reports a violation of an invariant."""

Trace = Callable[[str, str], None]
"""Adds a line to the trace: the actor, and the event."""
