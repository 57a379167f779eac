"""Why a name is not granted: one pure function of what the store says of it.

The rules, in the order in which they decide what counts most:

1.  A deadlock never ends by waiting. A quarantine and a paused job stop everything else.
2.  A name that is full keeps out whoever needs more than is free, whatever waits: its holders count before the queue.
3.  A lock delay keeps a name from everybody that would else be free. Beside holders it is told after them.
4.  The queue is strict, so a request for which there is room is kept out by the first waiter before it for whom there
    is none, or else by the waiter that is being granted just now.
5.  What the store does not tell is not claimed. A time of 0 in a holder without a ttl says nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from shlex import quote

from tenure.contracts.deadlines import seconds
from tenure.contracts.limits import EVERYBODY, describe_quarantine
from tenure.contracts.messages import HolderView, NameView, NotGranted, WaiterView
from tenure.contracts.owner_metadata import read_metadata
from tenure.contracts.store import Capabilities
from tenure.errors import Wait
from tenure.escaping import escape, shown
from tenure.explanation import Cause, Explanation, Life, NextStep, Party, Reason

NAMED = 5
"""The most holders, or names, that a sentence lists."""

NEAR = 5
"""The most names that are suggested."""

SLACK = 1.5
"""How many seconds a renewal may be late before its holder is called silent: some stores count whole seconds."""

UNDER_WAY = 0.2
"""For how many seconds a waiter of this client may be in its local queue before the first request has arrived."""

THIS_PROCESS = re.compile(r"(?P<host>[^/\s]+)/(?P<pid>\d{1,10})")
"""An owner that the program did not choose: host and process id."""


@dataclass(slots=True, frozen=True)
class ExplainedRequest:
    """The request for which the explanation is. Without values: a newcomer that asks for one permit."""

    weight: int = 1
    ahead: int | None = None
    """How many waiters of the view stand before it; None: all."""
    capacity: int = 0
    """The capacity with which it asks; 0: that of the name."""


NEWCOMER = ExplainedRequest()


@dataclass(slots=True, frozen=True)
class Around:
    """What else is known than the view of the name."""

    namespace: str = ""
    """The namespace of the client; names are shown without it."""
    circle: tuple[Wait, ...] = ()
    """A circle of waits in which a waiter of the name is."""
    paused: str | None = None
    """The title of the job of this name, if that is paused."""
    near: tuple[str, ...] = ()
    """Names in use that may have been meant, with their namespaces."""


ALONE = Around()


@dataclass(slots=True, frozen=True)
class _Scene:
    """All that an explanation is made of."""

    view: NameView
    able: Capabilities
    request: ExplainedRequest
    around: Around
    holders: Sequence[Party]
    before: Sequence[WaiterView]
    """The waiters before the request."""


def explain(
    view: NameView, able: Capabilities, request: ExplainedRequest = NEWCOMER, around: Around = ALONE
) -> Explanation:
    """Return what keeps a request for a name from being granted, who holds the name, who waits, and what to do.

    `able` says what the store can tell at all.
    """
    holders = tuple(_holder(holder, able) for holder in view.holders)
    before = view.waiters if request.ahead is None else view.waiters[: request.ahead]
    scene = _Scene(view, able, request, around, holders, before)
    reasons = tuple(_reasons(scene)) or (_nothing(scene),)
    return Explanation(
        _titled(view.name, around),
        reasons,
        holders,
        tuple(map(_waiter, view.waiters)),
        sum(waiter.alive for waiter in before) if request.ahead is None else request.ahead,
        tuple(_untold(view, able)),
        tuple(_next(scene, reasons[0].cause)),
        around.near,
    )


def _titled(full: str, around: Around) -> str:
    return full.removeprefix(f"{around.namespace}:") if around.namespace else full


# -- what counts ---------------------------------------------------------------------------------------------


def _reasons(scene: _Scene) -> Iterator[Reason]:
    view, around = scene.view, scene.around
    if around.circle:
        circle = "; ".join(map(str, around.circle))
        yield Reason(Cause.DEADLOCK, f"waiters wait for each other in a circle, and none of them ends: {circle}")
    if view.quarantined_for:
        since = f". The quarantine began {view.quarantined_since:.1f} s ago" if view.quarantined_since else ""
        yield Reason(Cause.QUARANTINE, f"{describe_quarantine(view.quarantined_for)}{since}")
    if around.paused is not None:
        yield Reason(Cause.PAUSED, f"the job {around.paused!r} is paused, and no run of it begins")
    if _is_evicted(scene):
        yield Reason(
            Cause.EVICTED,
            "the store has lost what it knew of the name, though there are waiters: it evicted the name, or somebody "
            "deleted it",
        )
        return
    full = _full(scene)
    if full is not None:
        yield full
    if view.blocked_for:
        yield Reason(
            Cause.LOCK_DELAY,
            "a lease of it ran out or was revoked, and its lock_delay keeps the name from everybody for another "
            f"{view.blocked_for:.1f} s",
        )
    if full is None and not view.blocked_for and not view.quarantined_for:
        yield from _queue(scene)


def _is_evicted(scene: _Scene) -> bool:
    """Tell whether a name has a queue, and no state: in a store with a queue, whoever waits found it held."""
    view = scene.view
    used = view.last_token or view.holders or view.quarantined_for or view.blocked_for
    return not used and scene.able.queue and any(waiter.waited_for > UNDER_WAY for waiter in view.waiters)


def _full(scene: _Scene) -> Reason | None:
    """Return that the holders leave too little room; None if they leave enough."""
    view, holders, request = scene.view, scene.holders, scene.request
    capacity = request.capacity or view.capacity
    free = max(0, capacity - sum(holder.weight or capacity for holder in view.holders))
    if not holders or request.weight <= free:
        return None
    if all(each.life is Life.RELEASED for each in holders):
        left = max(holder.expires_in for holder in view.holders)
        who = _list(holders)
        return Reason(Cause.MIN_HOLD, f"it was released, and the min_hold of {who} keeps it for another {left:.1f} s")
    if all(
        each.life is Life.SILENT and not holder.expires_in for each, holder in zip(holders, view.holders, strict=True)
    ):
        return Reason(
            Cause.DEAD,
            f"{_list(holders)} stands at the head of the queue and has not taken up its grant: its process is dead or "
            "stands still, and the waiters pass it over soon",
        )
    if free and capacity < EVERYBODY:
        return Reason(
            Cause.CAPACITY,
            f"{free} of {capacity} permits {'is' if free == 1 else 'are'} free, and {request.weight} are asked for: "
            f"the others are held by {_list(holders)}",
        )
    return Reason(Cause.HELD, f"it is held by {_list(holders)}")


def _queue(scene: _Scene) -> Iterator[Reason]:
    """Yield which earlier waiter keeps out a request for which there is room."""
    view, before = scene.view, scene.before
    free = view.capacity - sum(holder.weight for holder in view.holders)
    live = [waiter for waiter in before if waiter.alive]
    for waiter in live:
        if view.holders and waiter.weight > free:
            yield _behind(scene, waiter, free)
            return
        free -= waiter.weight
    if before and not before[0].alive:
        yield Reason(
            Cause.DEAD,
            f"the waiter at the head of the queue, {_waiter(before[0]).text}, is gone: it is dead, stands still or was "
            "cut off, and the next request of a live waiter skips it",
        )
    elif live:
        yield Reason(Cause.GRANTING, f"it is being granted to an earlier waiter, {_waiter(live[0]).text}")


def _behind(scene: _Scene, waiter: WaiterView, free: int) -> Reason:
    who, capacity, holders = _waiter(waiter).text, scene.view.capacity, _list(scene.holders)
    if capacity == EVERYBODY and waiter.weight == EVERYBODY:
        return Reason(
            Cause.WRITER,
            f"the writer {who} waits before, and later readers wait for it; until then it is held by {holders}",
        )
    return Reason(
        Cause.BEHIND,
        f"{who} waits before for {waiter.weight} permits, of which {free} of {capacity} are free, and a waiter "
        f"for many is not overtaken; the others are held by {holders}",
    )


def _nothing(scene: _Scene) -> Reason:
    if scene.holders:
        return Reason(Cause.FREE, f"there is room for it beside {_list(scene.holders)}")
    return Reason(Cause.FREE, "nobody holds it, and nothing keeps it from being granted")


# -- who -----------------------------------------------------------------------------------------------------


def _holder(holder: HolderView, able: Capabilities) -> Party:
    """Return a holder. One without a ttl is known by its owner alone."""
    times = holder.ttl > 0.0
    since = holder.held_for if times and able.records else None
    idle = (
        max(0.0, holder.ttl - holder.expires_in) if times and (able.shows_renewals or not holder.expires_in) else None
    )
    life = _life(holder, idle)
    thread = holder.actor.partition(" ")[2]
    known = [f"thread or task {shown(thread)}"] if thread else []
    if holder.reason:
        known.append(f"because: {shown(holder.reason)}")
    if holder.value:
        known.append(f"publishes {shown(holder.value)}")
    if since is not None:
        known.append(f"for {since:.1f} s")
    if life is Life.RENEWING:
        known.append("renewing")
    elif life is Life.SILENT:
        known.append(f"silent for {idle:.1f} s: its lease ends in {holder.expires_in:.1f} s")
    elif life is Life.DETACHED:
        known.append(f"detached: its lease ends in {holder.expires_in:.1f} s")
    elif life is Life.RELEASED:
        known.append("has released it")
    return Party(
        holder.owner,
        life,
        _with(holder.owner, known),
        *_process(holder.owner),
        thread,
        holder.token if able.tokens and times else None,
        holder.weight or None,
        since,
        idle,
        holder.expires_in if times and able.shows_renewals else None,
        holder.value,
    )


def _life(holder: HolderView, idle: float | None) -> Life:
    """Tell whether a holder renews its lease, which it does after a third of the time that is left."""
    if holder.released:
        return Life.RELEASED
    if holder.detached:
        return Life.DETACHED
    if idle is None:
        return Life.UNKNOWN
    late = max(holder.ttl / 2, holder.ttl / 3 + SLACK)
    return Life.SILENT if idle >= min(late, holder.ttl) else Life.RENEWING


def _waiter(waiter: WaiterView) -> Party:
    thread = waiter.actor.partition(" ")[2]
    known = [f"thread or task {shown(thread)}"] if thread else []
    known.append(f"for {waiter.waited_for:.1f} s")
    if not waiter.alive:
        known.append("gone")
    return Party(
        waiter.owner,
        Life.WAITING if waiter.alive else Life.GONE,
        _with(waiter.owner, known),
        *_process(waiter.owner),
        thread,
        weight=waiter.weight,
        lasted=waiter.waited_for,
    )


def _process(owner: str) -> tuple[str, int | None]:
    """Return the host and the process id of an owner that consists of them."""
    found = THIS_PROCESS.fullmatch(owner)
    return (found["host"], int(found["pid"])) if found else ("", None)


def _with(owner: str, known: Sequence[str]) -> str:
    return shown(owner) + (f" ({', '.join(known)})" if known else "")


def _list(parties: Sequence[Party]) -> str:
    """Return holders as text: each once, and the first NAMED of them."""
    texts = list(dict.fromkeys(each.text for each in parties))
    if len(texts) > NAMED:
        texts[NAMED:] = [f"{len(texts) - NAMED} others"]
    return " and ".join(texts)


def _untold(view: NameView, able: Capabilities) -> Iterator[str]:
    if not able.shows_waiters and not view.waiters:
        yield "This store does not tell who waits."
    if not able.shows_leases:
        yield "This store tells by which session a name is held, not by whom."
    elif not able.records:
        yield "This store does not tell since when a name is held, nor when its lease was renewed."
    elif not able.shows_renewals:
        yield "This store does not tell when a lease was renewed: it lasts as long as the session of its client."


# -- what to do ----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Commands:
    """Makes commands about a name."""

    name: str
    namespace: str

    def on(self, command: str, options: str = "", name: str | None = None) -> str:
        """Return `tenure COMMAND` on a name; a name that cannot be typed is left to the reader."""
        name = self.name if name is None else name
        space = f" --namespace {quote(self.namespace)}" if self.namespace else ""
        typed = "NAME" if escape(name) != name else f"-- {quote(name)}" if name.startswith("-") else quote(name)
        return f"tenure {command}{space}{options} {typed}"


def _next(scene: _Scene, cause: Cause) -> Iterator[NextStep]:
    view, around = scene.view, scene.around
    named = _Commands(_titled(view.name, around), around.namespace)
    if cause is Cause.PAUSED and around.paused is not None:
        yield NextStep(named.on("job resume", name=around.paused), "lets runs begin again")
        yield NextStep("tenure jobs", "shows its last runs")
    elif cause is Cause.QUARANTINE:
        yield NextStep(named.on("wait", f" --timeout {view.quarantined_for + 1:.0f}"), "waits for its end")
        yield NextStep("tenure quarantine end", "ends it, if no holder from before can still be at work")
    elif cause is Cause.EVICTED:
        yield NextStep("tenure ls", "shows what the store still knows: set it up so that it evicts nothing")
    elif cause is Cause.FREE and not view.holders:
        for full in around.near:
            yield NextStep(_why(full, around), "tells of a name that is in use: did you mean that?")
        yield NextStep("tenure ls", "lists all names in use")
    else:
        yield from _with_holders(scene, cause, named)


def _with_holders(scene: _Scene, cause: Cause, named: _Commands) -> Iterator[NextStep]:
    if cause in {Cause.LOCK_DELAY, Cause.MIN_HOLD}:
        left = scene.view.blocked_for or max(holder.expires_in for holder in scene.view.holders)
        yield NextStep(named.on("wait", f" --timeout {left + 1:.0f}"), "waits until that has passed")
    else:
        yield NextStep(named.on("wait"), "waits until nobody holds it, and joins no queue")
    holding = [each for each in scene.holders if each.life is not Life.RELEASED]
    if holding and scene.able.records and cause is not Cause.DEAD:
        yield NextStep(named.on("revoke"), "asks its holders to let go: nobody loses a lease")
    silent_first = sorted(holding, key=lambda each: each.life is not Life.SILENT)
    if token := next((each.token for each in silent_first if each.token), None):
        what = "takes the name from that holder at once; only a check of fencing tokens refuses its late writes"
        yield NextStep(named.on("release", f" --token {token}"), what)
    yield NextStep(named.on("show"), "shows all holders and waiters")


def _why(full: str, around: Around) -> str:
    """Return the command about another name, which may be in another namespace."""
    title = _titled(full, around)
    return _Commands(title, around.namespace if title != full else "").on("why")


# -- names that may have been meant --------------------------------------------------------------------------


def near_names(full: str, namespace: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return which names in use may have been meant instead of a name that nobody uses, with their namespaces.

    First those that differ by a namespace, then those that are spelled alike, then others of the same namespace.
    """
    prefix = f"{namespace}:" if namespace else ""
    short, others = full.removeprefix(prefix), [name for name in names if name != full]
    elsewhere = [name for name in others if name == short or name.endswith(f":{short}")]
    own = [name for name in others if name.startswith(prefix)]
    alike = get_close_matches(full, own, NEAR, 0.75)
    return tuple(list(dict.fromkeys([*elsewhere, *alike, *sorted(own)]))[:NEAR])


# -- a wait that timed out -----------------------------------------------------------------------------------


def seen_at_the_end(name: str, missed: NotGranted, view: NameView | None, capacity: int) -> NameView:
    """Return what kept a waiter from a name until its time was up: what the store told it then, and `view`, seen later.

    The view tells more, but by then the name may have another holder, who was not in the way.
    """
    seen = NameView(name, capacity or 1, 1) if view is None else view
    later = list(seen.holders)
    holders: list[HolderView] = []
    for text in missed.holders:
        owner = read_metadata(text).owner
        found = next((each for each in later if each.owner == owner), None)
        if found is not None:
            later.remove(found)
        holders.append(found or HolderView(owner, 0, 0, 0.0, 0.0, 0.0))
    return NameView(
        seen.name,
        seen.capacity,
        seen.last_token,
        holders or seen.holders,
        seen.waiters,
        seen.blocked_for or seconds(missed.blocked),
        max(seen.quarantined_for, seconds(missed.quarantine)),
        seen.quarantined_since,
    )
