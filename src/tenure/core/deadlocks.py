"""Deadlock detection: it finds threads and tasks, of one process or of many, that wait for each other in a circle.

Only locks made with `detect_deadlock=True` take part. Each request of such a lock names its thread or task (its actor),
and the request of a waiter also lists the names that its actor holds. So a waiter can follow the waits from name to
name, without a list of all locks: from the names that its actor holds to their waiters, from the names that those
waiters hold to their waiters, and so on. A waiter looks when it begins to wait, and then about every second.

A waiter waits for a holder if their weights do not fit into the capacity together, or if the waiter stands behind such
a waiter, because the queue is strict. A waiter for a semaphore that fits beside each single holder is not taken to
wait for any of them: others could make room for it.

The names are inspected one after another, and an actor may release one name and then wait for the next. So a circle
counts only if a second look, at once, finds it again. A waiter that is seen both times has waited all the time; and
because the queue is strict, its holders have held their names all the time.

One waiter of the circle gets the error: that with the greatest actor, so that all who look choose the same one. It
leaves its queue, and mostly releases what it holds. The others go on waiting.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from tenure.contracts.messages import NameView
from tenure.contracts.owner_metadata import OwnerMetadata
from tenure.core.access import StoreAccess
from tenure.core.actor import Actor
from tenure.core.spec import LockSpec
from tenure.errors import DeadlockDetected, StoreError, Wait

log = logging.getLogger("tenure")

LOOK_EVERY = 0.9
"""How many seconds a waiter waits at least between two looks for a deadlock."""

MOST_NAMES = 200
"""The most names that one look inspects."""


class Actors:
    """The threads or tasks of one client that take part in deadlock detection."""

    def __init__(self, access: StoreAccess) -> None:
        """Start without actors."""
        self._access = access
        self._actors: WeakKeyDictionary[object, Actor] = WeakKeyDictionary()

    def with_actor(self, spec: LockSpec) -> LockSpec:
        """Return the spec with the calling thread or task, and the names that this holds, in its owner metadata."""
        who, title = self._access.runtime.caller()
        actor = self._actors.get(who)
        if actor is None:
            actor = self._actors[who] = Actor(f"{self._access.runtime.new_id()} {title}")
        metadata = OwnerMetadata(self._access.owner, actor=actor.identity, holds=actor.holds())
        return replace(spec, metadata=metadata.text(), actor=actor)


async def refuse_deadlock(access: StoreAccess, actor: Actor, name: str) -> None:
    """Raise DeadlockDetected if `actor`, which waits for `name`, is in a circle of waits and is the one to give up."""
    holds = actor.holds()
    if not holds:
        return  # nobody can wait for an actor that holds nothing
    names = [name, *holds]
    try:
        circle = await _circle_to_break(access, actor, names)
        again = await _circle_to_break(access, actor, names) if circle else ()
    except StoreError as error:
        log.debug("the waits for %r could not be checked for deadlocks: %s", name, error)
        return
    if circle and circle == again:
        raise DeadlockDetected(circle)


async def _circle_to_break(access: StoreAccess, actor: Actor, names: Iterable[str]) -> tuple[Wait, ...]:
    """Return a circle that the actor is in and in which it is the one to give up; empty if there is none."""
    views = [view async for view in _views(access, names)]
    circle = circle_through(actor.identity, waits(views, access.prefix))
    return circle if circle and max(wait.waiting for wait in circle) == actor.identity else ()


async def _views(access: StoreAccess, names: Iterable[str]) -> AsyncIterator[NameView]:
    """Inspect names, then the names that their waiters hold, and so on."""
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


async def deadlock_at(access: StoreAccess, name: str) -> tuple[Wait, ...]:
    """Return a circle of waits in which a waiter of a name is, and which a second look finds again; empty if none."""
    circle = await _circle_at(access, name)
    return circle if circle and circle == await _circle_at(access, name) else ()


async def _circle_at(access: StoreAccess, name: str) -> tuple[Wait, ...]:
    views = [view async for view in _views(access, [name])]
    here = name.removeprefix(access.prefix)
    return next((circle for circle in circles(waits(views, access.prefix)) if any(w.name == here for w in circle)), ())


async def find_deadlocks(access: StoreAccess) -> list[tuple[Wait, ...]]:
    """Return the circles of waits in which at least one name is of this client's namespace."""
    views = [view async for view in _views(access, await access.names(access.prefix))]
    return list(circles(waits(views, access.prefix)))


# -- graphs ------------------------------------------------------------------------------------------------


def waits(views: Iterable[NameView], prefix: str = "") -> list[Wait]:
    """Return which waiters wait for which holders. The `prefix` is taken off the names."""
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
    """Yield circles of waits, each once."""
    found, told = list(found), set[str]()
    for actor in dict.fromkeys(wait.waiting for wait in found):
        if actor not in told and (circle := circle_through(actor, found)):
            told.update(wait.waiting for wait in circle)
            yield circle


def circle_through(actor: str, found: Iterable[Wait]) -> tuple[Wait, ...]:
    """Return a shortest circle of waits that begins and ends with the actor; empty if there is none."""
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
