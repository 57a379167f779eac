"""What must hold in every run, by name.

EXCLUSION     No two leases of a name whose holders both believe them valid, each by its own clock, unless they fit
              beside each other.
BACKED        Who believes in a lease is right: the store keeps it for them at least that long, in true time.
TOKENS        Fencing tokens strictly increase in the order of the grants of a name.
FENCE         A resource that is fenced at the first touch loses no accepted update.
FIFO          No waiter is granted while another one that joined before it, and stayed, still waits.
ONCE          However often a request is asked, it holds at most once, and does not wait while it holds.
DELAY         After an expiry nobody is granted before the lock delay of the lease that expired is over.
LOSS          A loss is told exactly once, not later than the local deadline, and at once when the store refuses;
              a lost lease is never believed in again.
OVERHELD      No lease is believed in, or renewed, for longer than its max_hold.
MIN_HOLD      A name that was released is not free before the min_hold of its lease is over.
KEPT          No lease is lost before its deadline; where nothing goes wrong, none is lost at all.
GUARD         A Redis that may have forgotten grants, and is guarded, grants nobody for the longest ttl; only then are
              leases taken up again.
PUSH          A grant by push goes to a waiter that asked not long ago.
SHARED        A lease that others fit beside is never refused while it is valid, whatever a guarded Redis has forgotten.
WHOLE         A grant is for the whole ttl, in a reply or by a push.
PROMPT        A name that is free has no live waiter, and a waiter that was granted knows it: where nothing goes
              wrong, within milliseconds; where wake-ups may be lost, within two intervals of asking.
CLEAN         An acquisition that ended without a lease has left. Once its leave (or a release that knows of a request
              without an answer) is acknowledged, nothing of it is seen again for as long as the store remembers it:
              30 s by its own clock.
DRAINED       Once the faults stop, everybody gets what they wait for, and in the end nothing is left in the store.
NO_ERRORS     No operation raises anything but what it documents, where nothing goes wrong none fails, and no
              background task dies.

`at_store` checks after every step of the store what can be seen there, `at_clients` what holders believe, after
every event of the world.
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
    DRAINED = "drained"
    NO_ERRORS = "no errors"


@dataclass(slots=True)
class Violation:
    """One breach of an invariant."""

    invariant: Invariant
    time: float
    text: str


Tell = Callable[[Invariant, str], None]
"""How a check says that an invariant is broken."""

Trace = Callable[[str, str], None]
"""How anybody says what happens: who, and what."""
