"""The pictures of the protocol in docs/: timelines in SVG of what clients and stores did.

`python -m scripts.pictures` writes them anew. The clients are those that ship. They run in the virtual time of the
simulation, where a message takes a millisecond, so the same code draws the same pictures. The lane of a client shows
the events of that client; the lane of a store shows what the store keeps after each of its steps.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TypeVar

from bench.plots import DOCS, WIDTH, framed
from simulation.checker import Checker
from simulation.faults import Faults
from simulation.network import Link
from simulation.node import Node
from simulation.quorum import Quorum, SimulatedQuorumStore, VotingNode
from simulation.runtime import Process, SimRuntime, World
from simulation.table_stores import RemoteStore
from tenure.contracts.deadlines import NEVER, micros
from tenure.contracts.messages import Notification
from tenure.core.events import EventKind, LockEvent
from tenure.core.lease import CoreLease
from tenure.core.requests import Settings
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import StaleTokenError
from tenure.fencing import MemoryGuard
from tenure.outcome import Outcome
from tenure.table.step import Step

T = TypeVar("T")

NAME = "orders"
LATENCY = 0.001
"""For how long a message is under way, in seconds."""

STORE, DATA = "store", "data"

LEFT, RIGHT, TOP, LANE, BAR, DIGIT = 70, 14, 60, 36, 16, 8.3
"""In pixels: the margins at the left, at the right and above the lanes; the height of a lane and of a bar; the width of
a character."""

NEAR = 60
"""The height of a lane between whose neighbours messages are drawn."""

ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="note" d="M0 0L8 4L0 8z"/></marker></defs>'
)

STYLE = (
    ".axis{stroke:#d0d7de}.wait{stroke:#57606a;stroke-width:2;stroke-dasharray:2 4}.in{fill:#fff}.next{fill:#8250df}"
    ".gone{fill:none;stroke:#cf222e;stroke-dasharray:4 3}.bad{fill:#cf222e}.message{stroke:#57606a}"
    "@media(prefers-color-scheme:dark){.axis{stroke:#3d444d}.wait,.message{stroke:#9da7b3}.in{fill:#0d1117}"
    ".next{fill:#bc8cff}.gone{stroke:#ff7b72}.bad{fill:#ff7b72}}"
)


@dataclass
class Span:
    """A part of a lane: a lease, a "wait", or a time in which the client or node did not run ("gone").

    The look of a lease is "tenure" or "next": every other client has the second colour.
    """

    lane: str
    look: str
    begin: float
    text: str = ""
    end: float = NEVER


@dataclass
class Sign:
    """What happened in a lane at an instant: a mark, and what it means."""

    lane: str
    at: float
    mark: str
    text: str
    look: str = "note"


@dataclass
class Stage:
    """A run of some clients at a store, or at a quorum of nodes, and what was recorded of it."""

    quorum_of: int = 0
    spans: list[Span] = field(default_factory=list[Span])
    signs: list[Sign] = field(default_factory=list[Sign])
    messages: list[tuple[str, float, str, float, str]] = field(default_factory=list[tuple[str, float, str, float, str]])
    """From which lane, when, to which lane, when, and what it says."""
    clients: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        """Start the nodes, without clients."""
        self.world = World("pictures")
        self.checker = Checker(self.world, lambda _who, _text: None)
        self.nodes = [VotingNode(self.world, self, 1.0, 0.0, 0.0) for _ in range(self.quorum_of or 1)]
        self.lanes = [f"node {number}" for number in range(1, self.quorum_of + 1)] or [STORE]
        self.quorum = Quorum(self.checker, self.nodes, self.quorum_of // 2 + 1)

    def after_step(self, node: Node, name: str) -> None:
        """Record which leases a node keeps."""
        if name != NAME:
            return
        lane = self.lanes[self.nodes.index(node)]  # type: ignore[arg-type]
        kept = {f"{each.owner}: {shown(each.token)}": each.owner for each in node.state(name).holders}
        for span in self._open(lane):
            if kept.pop(span.text, None) is None:
                span.end = self.world.time
        self.spans += [Span(lane, self._look(owner), self.world.time, text) for text, owner in kept.items()]

    def failed(self, text: str) -> None:
        """Raise an error: nothing fails that is not part of the story."""
        raise AssertionError(text)

    def client(self, name: str) -> tuple[SimRuntime, Session]:
        """Start a client."""
        self.clients.append(name)
        process = Process(self.world, name)
        runtime, wire = SimRuntime(process), partial(Wire, process, Faults(), Counter[str](), self.checker.trace)
        wires = [wire() for _ in self.nodes]
        quorum = SimulatedQuorumStore(runtime, self.quorum, wires) if self.quorum_of else None
        store = quorum or Observed(self, runtime, wires[0])
        return runtime, Session(runtime, store, Settings(name, listeners=[partial(self._hear, name)]))

    def stop(self, lane: str, text: str, until: float = NEVER) -> None:
        """Record that a client or a node does nothing until an instant."""
        for span in self._open(lane):
            span.end = self.world.time
        self.spans.append(Span(lane, "gone", self.world.time, text, until))

    def kill(self, lane: str) -> None:
        """Let a node die for ever."""
        self.nodes[self.lanes.index(lane)].down_until = NEVER
        self.stop(lane, "dead")

    def _look(self, owner: str) -> str:
        return ("tenure", "next")[self.clients.index(owner) % 2]

    def _open(self, lane: str) -> list[Span]:
        return [span for span in self.spans if (span.lane, span.end) == (lane, NEVER)]

    def _hear(self, lane: str, event: LockEvent) -> None:
        """Record an event of a client."""
        now = self.world.time
        if event.event is EventKind.CONTENDED:
            self.spans.append(Span(lane, "wait", now))
        elif event.event is EventKind.ACQUIRED:
            for span in self._open(lane):
                span.end = now
            self.spans.append(Span(lane, self._look(lane), now, shown(event.token)))
        elif event.event in (EventKind.RELEASED, EventKind.LOST):
            for span in self._open(lane):
                span.end = now
            if event.event is EventKind.LOST:
                self.signs.append(Sign(lane, now, "\u2715", "lease lost", "bad"))


class Wire(Link):
    """A network without faults, in which each message takes the same time."""

    def delay(self) -> float:
        """Return the delay of a message, in seconds."""
        return LATENCY


class Observed(RemoteStore):
    """A client's store, whose messages are recorded."""

    def __init__(self, stage: Stage, runtime: SimRuntime, link: Link) -> None:
        """Use the only node of `stage`."""
        super().__init__(runtime, stage.nodes[0], link, stage.checker)
        self._stage = stage

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Send a request, and record when it left, when it arrived, and when its reply came back."""
        world, lane, sent, arrived = self._link.world, self._runtime.process.name, self._link.world.time, list[float]()

        def observed(step: Step) -> T:
            arrived.append(world.time)
            return work(step)

        result = await super().step(name, observed, until)
        request = "release" if isinstance(result, Outcome) else "request"
        reply = result.value if isinstance(result, Outcome) else "reply"
        self._stage.messages += [(lane, sent, STORE, arrived[0], request), (STORE, arrived[0], lane, world.time, reply)]
        return result

    def _push(self, notification: Notification) -> None:
        lane, now = self._runtime.process.name, self._link.world.time
        self._stage.messages.append((STORE, now, lane, now + LATENCY, notification.kind.value))
        super()._push(notification)


def shown(token: int) -> str:
    """Return the last digits of a token: the first ones are the same in all pictures."""
    return f"\u2026{token % 10_000_000:07}"


async def acquired(session: Session, ttl: float) -> CoreLease:
    """Acquire the name, however long that takes."""
    lease = await session.acquire(LockSpec(NAME, micros(ttl)), None, [])
    if not isinstance(lease, CoreLease):
        raise TypeError("an acquisition without a timeout ended without a lease")
    return lease


async def hold(runtime: SimRuntime, session: Session, begin: float, held: float, ttl: float = 30.0) -> None:
    """Acquire the name at an instant, hold it for some seconds, and release it."""
    await runtime.sleep(begin)
    lease = await acquired(session, ttl)
    await runtime.sleep(held)
    await session.release(lease)


def queue() -> str:
    """Draw a queue of five."""
    stage, clients = Stage(), [f"client {letter}" for letter in "ABCDE"]
    for place, name in enumerate(clients):
        runtime, session = stage.client(name)
        runtime.process.start(hold(runtime, session, 0.2 * place, 1.0), name)
    stage.world.run(6.0)
    return draw(
        "Five clients in one queue",
        "Each bar is a lease with its token, each dotted line a wait. The clients are granted the name in the order in "
        "which they came, one after the other, with rising tokens.",
        stage,
        clients,
        (0.0, 5.3),
    )


def hand_off() -> str:
    """Draw one release that grants the next waiter."""
    stage, released = Stage(), 0.5
    for place, name in enumerate(("client A", "client B")):
        runtime, session = stage.client(name)
        runtime.process.start(hold(runtime, session, 0.1 * place, released - 2 * LATENCY), name)
    stage.world.run(1.0)
    return draw(
        "A release that grants the next waiter",
        "Client A sends its release. One step of the store ends the lease of A and grants the name to client B, so the "
        "name is free at no instant. The store notifies B, which holds the name one message later.",
        stage,
        ["client A", STORE, "client B"],
        (released - LATENCY, released + 3.4 * LATENCY),
        origin=released,
    )


def lost_lease() -> str:
    """Draw a holder that is paused for longer than its lease lasts."""
    stage, data = Stage(), MemoryGuard("", title="data")
    paused, wakes = 2.5, 10.0

    def pause(process: Process) -> None:
        stage.stop(process.name, "paused", wakes)
        process.pause(wakes - paused)

    def write(lease: CoreLease) -> None:
        try:
            data.write(lease.token, "new")
            stage.signs.append(Sign(DATA, stage.world.time, "\u2713", shown(lease.token)))
        except StaleTokenError:
            stage.signs.append(Sign(DATA, stage.world.time, "\u2715", f"{shown(lease.token)} is refused", "bad"))

    async def work(runtime: SimRuntime, session: Session, begin: float) -> None:
        await runtime.sleep(begin)
        lease = await acquired(session, 6.0)
        await runtime.sleep(1.0)
        write(lease)
        await runtime.sleep(4.0)
        if not begin:
            write(lease)
        await session.release(lease)

    for begin, name in enumerate(("client A", "client B")):
        runtime, session = stage.client(name)
        runtime.process.start(work(runtime, session, begin), name)
        if not begin:
            stage.world.after(paused, partial(pause, runtime.process))
    stage.world.run(20.0)
    return draw(
        "A lease that its holder loses",
        "Client A writes, and is paused. Its lease runs out, and the store grants the name to client B with a larger "
        "token. When A runs again, its late write is refused because of its token; then A learns of the loss.",
        stage,
        ["client A", STORE, "client B", DATA],
        (0.0, 13.4),
    )


def quorum() -> str:
    """Draw a lock on five nodes of which two die."""
    stage, clients = Stage(5), ["client A", "client B"]
    for name, begin, held in zip(clients, (0.0, 1.0), (5.0, 3.0), strict=True):
        runtime, session = stage.client(name)
        runtime.process.start(hold(runtime, session, begin, held, ttl=6.0), name)
    for lane in stage.lanes[3:]:
        stage.world.after(3.0, partial(stage.kill, lane))
    stage.world.run(10.0)
    return draw(
        "A lock on five nodes, of which two die",
        "All five nodes vote for client A. Nodes 4 and 5 die. Three votes are a majority: A keeps the name, and client "
        "B is granted it after A by the votes of nodes 1, 2 and 3, with a larger token.",
        stage,
        [*clients, *stage.lanes],
        (0.0, 9.3),
    )


PICTURES = {"queue": queue, "hand-off": hand_off, "lost-lease": lost_lease, "quorum": quorum}


def pictures() -> dict[str, str]:
    """Return all pictures as SVG, by the names of their files."""
    return {f"picture-{name}.svg": made() for name, made in PICTURES.items()}


def draw(
    title: str,
    told: str,
    stage: Stage,
    lanes: Sequence[str],
    window: tuple[float, float],
    *,
    origin: float | None = None,
) -> str:
    """Return what was recorded in a window of time, a lane for each of `lanes`.

    With `origin` it has the messages, too, and milliseconds since then; else seconds.
    """
    frame = _Frame(lanes, *window, origin)
    lines = [f'<text x="10" y="21" class="head">{escape(title)}</text>', *frame.axis()]
    for span in stage.spans:
        lines += frame.span(span)
    if origin is not None:
        lines.append(ARROW)
        for message in stage.messages:
            lines += frame.message(*message)
    for sign in stage.signs:
        lines += frame.sign(sign)
    return framed(title, lines, frame.bottom + 8, told, STYLE)


class _Frame:
    """Where instants and lanes are drawn."""

    def __init__(self, lanes: Sequence[str], begin: float, end: float, origin: float | None) -> None:
        height = LANE if origin is None else NEAR
        self._top = {lane: TOP + height * place for place, lane in enumerate(lanes)}
        self.bottom = TOP + height * (len(lanes) - 1) + LANE
        self._begin, self._end = begin, end
        self._origin = origin

    def _x(self, at: float) -> float:
        part = (min(max(at, self._begin), self._end) - self._begin) / (self._end - self._begin)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def axis(self) -> Iterator[str]:
        """Yield a line and a number for each second, or millisecond, and the names of the lanes."""
        start, unit, name = (0.0, 1.0, "s") if self._origin is None else (self._origin, 1e-3, "ms")
        every = unit if (self._end - self._begin) / unit < 8 else 2 * unit  # noqa: PLR2004 - so many numbers fit
        yield f'<text x="10" y="{TOP - 18}" class="note">{name}</text>'
        tick = 0
        while (at := start + tick * every) <= self._end:
            x = self._x(at)
            yield f'<line x1="{x}" x2="{x}" y1="{TOP - 12}" y2="{self.bottom}" class="axis"/>'
            yield f'<text x="{x}" y="{TOP - 18}" text-anchor="middle" class="note">{round(tick * every / unit)}</text>'
            tick += 1
        for lane, top in self._top.items():
            yield f'<text x="10" y="{top + 28}">{escape(lane)}</text>'

    def span(self, span: Span) -> Iterator[str]:
        """Yield a bar or a dotted line, and what it says."""
        y, x, end = self._top.get(span.lane, 0) + 16, self._x(span.begin), self._x(span.end)
        if span.lane not in self._top or end - x < 1:  # for so short a time a name is kept for a waiter of a quorum
            return
        if span.look == "wait":
            yield f'<line x1="{x}" x2="{end}" y1="{y + 8}" y2="{y + 8}" class="wait"/>'
            return
        size = f'width="{end - x:.1f}" height="{BAR}"'
        yield f'<rect class="{span.look}" x="{x}" y="{y}" {size} rx="2"><title>{escape(span.text)}</title></rect>'
        fits = [text for text in (span.text, span.text.split(": ")[-1]) if len(text) * DIGIT < end - x]
        if fits:
            place = f'x="{(x + end) / 2:.1f}" y="{y + 12}" text-anchor="middle"'
            yield f'<text {place} class="{"bad" if span.look == "gone" else "in"}">{escape(fits[0])}</text>'

    def message(self, lane: str, sent: float, to: str, arrived: float, text: str) -> Iterator[str]:
        """Yield an arrow from lane to lane."""
        if sent < self._begin or arrived > self._end:
            return
        down = self._top[to] > self._top[lane]
        y1, y2 = self._top[lane] + 16 + BAR * down, self._top[to] + 16 + BAR * (not down)
        x1, x2 = self._x(sent), self._x(arrived)
        yield f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}" class="message" marker-end="url(#arrow)"/>'
        x, y = (x1 + x2) / 2 + 8, (y1 + y2) / 2 + (-2 if down else 10)
        yield f'<text x="{x:.1f}" y="{y:.1f}" class="note">{text}</text>'

    def sign(self, sign: Sign) -> Iterator[str]:
        """Yield what happened at an instant."""
        x, y = self._x(sign.at), self._top[sign.lane] + (12 if sign.look == "bad" or sign.lane != DATA else 28)
        late = x > WIDTH - RIGHT - len(sign.text) * DIGIT
        text = f"{sign.text} {sign.mark}" if late else f"{sign.mark} {sign.text}"
        anchor = f'text-anchor="{"end" if late else "start"}"'
        yield f'<text x="{x + (5 if late else -5)}" y="{y}" {anchor} class="{sign.look}">{escape(text)}</text>'


def main(folder: Path = DOCS) -> None:
    """Write all pictures into docs/."""
    logging.getLogger("tenure").addHandler(logging.NullHandler())  # the dead nodes are part of the story
    for name, drawn in pictures().items():
        (folder / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
