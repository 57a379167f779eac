"""Bugs to plant in the store over a directory, one at a time, to see that the simulation notices."""

# ruff: noqa: ANN401, D103 - each function is told by the bug that it plants, and replaces a method of any type
from collections.abc import Callable, Sequence
from typing import Any

from simulation.ensemble import Ensemble
from simulation.ordered import SimulatedDirectory
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import Granted, Reply
from tenure.core.lease import CoreLease
from tenure.stores.ordered import acquiring, entries, granting, store
from tenure.stores.ordered.acquiring import Acquirer
from tenure.stores.ordered.contenders import Contender, ContenderRegistry
from tenure.stores.ordered.entries import Entry, Kind
from tenure.stores.ordered.granting import Decision
from tenure.stores.ordered.inspector import Inspector
from tenure.stores.ordered.releasing import EntryRemover, Releaser
from tenure.stores.ordered.renewing import LeaseRenewals, SessionTrust
from tenure.stores.ordered.store import OrderedStore
from tests.planting import planted
from tests.simulated.mutants import Mutant, both, replaced, wrapped


def trust_from_now(self: SessionTrust, entry: Entry, sent: float) -> int:
    return micros(self._directory.trust)


def trust_the_ttl(self: SessionTrust, entry: Entry, sent: float) -> int:
    return 10**12


def hold_if_the_first_fits(decision: Decision, lighter: dict[str, int]) -> None:
    """Let whoever fits hold, whoever stands before it."""
    taken = 0
    for entry in decision.line:
        fits = entry.kind is Kind.CONTENDER and taken + entry.weight <= decision.capacity
        taken += entry.weight if fits or entry.kind is not Kind.CONTENDER else 0
        if entry.kind is Kind.CONTENDER:
            (decision.holders if fits else decision.waiters).append(entry)


def forget_what_is_kept(original: Callable[..., None], decision: Decision, *args: Any) -> None:
    decision.line = [entry for entry in decision.line if entry.kind is Kind.CONTENDER]
    original(decision, *args)


def watch_the_first(decision: Decision, waiter: Entry) -> list[Entry]:
    return decision.line[:1]


def watch_one(original: Callable[..., list[Entry]], *args: Any) -> list[Entry]:
    return original(*args)[:1]


def never_silent(self: ContenderRegistry, now: float) -> list[Contender]:
    return []


def always_sure(original: Callable[..., Any], self: EntryRemover, place: Contender, *args: Any, **options: Any) -> Any:
    place.unsure = False
    return original(self, place, *args, **options)


def alone(original: Callable[..., bool], self: Ensemble, *args: Any) -> bool:
    return original(self, *args[:4])


def no_block(listing: Any, request_id: str) -> bool:
    return True


async def renewed_unseen(self: Any, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
    self.proved_at = self._runtime.now()
    return [True] * len(entries)


def never_wake(self: OrderedStore, request_id: str) -> None:
    """Take no notification."""


async def tell_no_holder(self: Inspector, name: str, decision: Decision, until: float) -> bool:
    """Tell no holder that somebody waits."""
    return True


async def grant_quietly(original: Callable[..., Any], self: Acquirer, *args: Any) -> Reply | None:
    """Tell no grant of the waiters behind it."""
    reply: Reply | None = await original(self, *args)
    if isinstance(reply, Granted):
        reply.contended = False
    return reply


async def confirm_nothing(self: LeaseRenewals, *args: Any) -> None:
    """Leave the grants that are renewed unconfirmed."""


def one_token_each(position: int) -> int:
    return position


def module(name: str, wrapper: Callable[..., Any]) -> Callable[[], Any]:
    """Return a way to replace a function of `granting.py`, wherever it is used, by `wrapper(original, ...)`."""
    original = getattr(granting, name)

    def function(*args: Any) -> Any:
        return wrapper(original, *args)

    if hasattr(acquiring, name):
        return both(replaced(granting, name, function), replaced(acquiring, name, function))
    return replaced(granting, name, function)


def sent(right: str, wrong: str) -> Callable[[], Any]:
    """Return a way to send all releases without a wait, by a method with a change."""
    return both(
        replaced(CoreLease, "awaited", False), replaced(Releaser, "send", planted(Releaser, "send", right, wrong))
    )


def _of(scenario: str) -> tuple[str, ...]:
    return (f"ordered_{scenario}",)


ORDERED_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a session is trusted from whenever it is needed",
        replaced(SessionTrust, "trusted", trust_from_now),
        _of("wire"),
    ),
    Mutant(
        "a lease is trusted for longer than its session", replaced(SessionTrust, "trusted", trust_the_ttl), _of("wire")
    ),
    Mutant("newcomers hold if they fit", replaced(granting, "_fill", hold_if_the_first_fits), _of("weights")),
    Mutant("what is kept takes no room", module("_fill", forget_what_is_kept), _of("calm")),
    Mutant("waiters watch who came first", replaced(acquiring, "to_watch", watch_the_first), _of("calm")),
    Mutant("waiters watch one where several may make room", module("to_watch", watch_one), _of("calm")),
    Mutant("who is silent is never ended", replaced(ContenderRegistry, "silent", never_silent), _of("wire")),
    Mutant("an unanswered join is not withdrawn for good", wrapped(EntryRemover, "remove", always_sure), _of("wire")),
    Mutant(
        "a release that was not answered counts",
        sent("if not removed and listing is None:", "if False:"),
        _of("wire"),
    ),
    Mutant("a late block comes into force alone", wrapped(Ensemble, "change", alone), _of("weights")),
    Mutant("no lock delay is noted", replaced(acquiring, "_has_block", no_block), _of("calm")),
    Mutant("a renewal asks nobody", replaced(SimulatedDirectory, "check", renewed_unseen), _of("wire")),
    Mutant("a renewal confirms no grant", replaced(LeaseRenewals, "_confirm", confirm_nothing), _of("wire")),
    Mutant(
        "the tokens of a range overlap those of the next grant",
        replaced(entries, "first_token", one_token_each),
        _of("calm"),
    ),
    Mutant("the holder is not told of a waiter", replaced(Inspector, "tell_contended", tell_no_holder), _of("calm")),
    Mutant("a holder does not take the message of a waiter", replaced(store, "MESSAGES", ()), _of("calm")),
    Mutant("a grant does not tell of the waiters behind it", wrapped(Acquirer, "_granted", grant_quietly), _of("calm")),
    Mutant("wake-ups are not passed on", replaced(OrderedStore, "woken", never_wake), _of("calm")),
)
