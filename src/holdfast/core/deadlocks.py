"""Deadlocks: threads and tasks, of one process or of many, that wait for each other in a circle.

Only those are looked at who ask for it (`detect_deadlock=True`). Each of their requests says which thread or task it
is of (its actor), and a waiting one also what its actor holds. So whoever waits can follow, from name to name, who
waits for whom, without a list of all locks: from the names that it holds to those who wait for them, from the names
that those hold to those who wait for these, and so on. It looks when it begins to wait, and about every second.

A waiter waits for a holder if the two do not fit into the name together, or if it stands behind such a waiter: the
queue is strict. For a semaphore that is not so as long as others could make room, and then nothing is said.

The names are looked at one after another, and somebody may let go of one and then wait for the next. So a circle counts
only if it is found again at once: who waits at both times waited all the time, and as a queue is strict, so did those
that it waits for hold all the time.

Of all that wait in a circle one is told, the same one whoever looks: that with the greatest actor. The others go on
to wait, for it gives up its place, and mostly what it holds.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from holdfast.contracts.messages import NameView
from holdfast.contracts.owner_metadata import OwnerMetadata
from holdfast.core.access import StoreAccess
from holdfast.core.actor import Actor
from holdfast.core.spec import LockSpec
from holdfast.errors import DeadlockDetected, StoreError, Wait

log = logging.getLogger("holdfast")

LOOK_EVERY = 0.9
"""How long, in seconds, a waiter that has looked for a deadlock does not look again."""

MOST_NAMES = 200
"""How many names one look follows at most."""


class Actors:
    """The threads or tasks of one client."""

    def __init__(self, access: StoreAccess) -> None:
        """Start without any."""
        self._access = access
        self._actors: WeakKeyDictionary[object, Actor] = WeakKeyDictionary()

    def speak_for(self, spec: LockSpec) -> LockSpec:
        """Have a request say which thread or task it is for, the one that calls, and what that one holds."""
        who, title = self._access.runtime.caller()
        actor = self._actors.get(who)
        if actor is None:
            actor = self._actors[who] = Actor(f"{self._access.runtime.new_id()} {title}")
        metadata = OwnerMetadata(self._access.owner, actor=actor.identity, holds=actor.holds())
        return replace(spec, metadata=metadata.text(), actor=actor)


async def refuse_deadlock(access: StoreAccess, actor: Actor, name: str) -> None:
    """Raise DeadlockDetected if an actor that waits for `name` is the one to give up of those who wait in a circle."""
    holds = actor.holds()
    if not holds:
        return  # nobody waits for it
    names = [name, *holds]
    try:
        circle = await _circle_to_break(access, actor, names)
        again = await _circle_to_break(access, actor, names) if circle else ()
    except StoreError as error:
        log.debug("could not look for deadlocks: %s", error)
        return
    if circle and circle == again:
        raise DeadlockDetected(circle)


async def _circle_to_break(access: StoreAccess, actor: Actor, names: Iterable[str]) -> tuple[Wait, ...]:
    """Look for a circle that an actor is in and is the one to give up of; empty if there is none."""
    views = [view async for view in _views(access, names)]
    circle = circle_through(actor.identity, waits(views, access.prefix))
    return circle if circle and max(wait.waiting for wait in circle) == actor.identity else ()


async def _views(access: StoreAccess, names: Iterable[str]) -> AsyncIterator[NameView]:
    """Look at names, and at all that those hold who wait for them."""
    ahead, seen = list(names), set[str]()
    most = max(MOST_NAMES, len(ahead))
    while ahead and len(seen) < most:
        name = ahead.pop(0)
        if name in seen:
            continue
        seen.add(name)
        view = await access.inspect(name)
        ahead += [lease for waiter in view.waiters if waiter.alive for lease in waiter.holds]
        yield view


async def find_deadlocks(access: StoreAccess) -> list[tuple[Wait, ...]]:
    """Return who waits in a circle for names of which at least one is of this client's namespace."""
    views = [view async for view in _views(access, await access.names(access.prefix))]
    return list(circles(waits(views, access.prefix)))


# -- graphs ------------------------------------------------------------------------------------------------


def waits(views: Iterable[NameView], prefix: str = "") -> list[Wait]:
    """Return who waits for whom; of names without a prefix that all have."""
    found: list[Wait] = []
    for view in views:
        name = view.name.removeprefix(prefix)
        for holder in view.holders:
            blocked = False
            for waiter in view.waiters:
                blocked = blocked or (waiter.alive and waiter.weight + holder.weight > view.capacity)
                if blocked and waiter.alive and waiter.actor and holder.actor:
                    found.append(Wait(waiter.owner, name, holder.owner, waiter.actor, holder.actor))
    return found


def circles(found: Iterable[Wait]) -> Iterator[tuple[Wait, ...]]:
    """Return circles of waits, none of them twice."""
    found, told = list(found), set[str]()
    for actor in dict.fromkeys(wait.waiting for wait in found):
        if actor not in told and (circle := circle_through(actor, found)):
            told.update(wait.waiting for wait in circle)
            yield circle


def circle_through(actor: str, found: Iterable[Wait]) -> tuple[Wait, ...]:
    """Return a shortest circle of waits that begins and ends with an actor; empty if there is none."""
    by_waiting: dict[str, list[Wait]] = {}
    for wait in found:
        by_waiting.setdefault(wait.waiting, []).append(wait)
    reached = {actor}
    paths: list[tuple[Wait, ...]] = [()]
    while paths:
        path = paths.pop(0)
        for wait in by_waiting.get(path[-1].holding if path else actor, ()):
            if wait.holding == actor:
                return (*path, wait)
            if wait.holding not in reached:
                reached.add(wait.holding)
                paths.append((*path, wait))
    return ()
