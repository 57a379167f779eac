"""The codec of a name's state and of notifications: compact JSON that a person can read with the sqlite3 shell.

Request ids and channels are identifiers that Tenure makes (hex digits and dashes), so only the owner needs quoting.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from tenure.contracts import forms
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind
from tenure.errors import StoreError
from tenure.table.state import Holder, NameState, Queue, Waiter

_quote = json.encoder.encode_basestring
_TRUTH = ("false", "true")
_REQUEST = [each.name for each in fields(AcquireRequest)].index("fair_after")
"""The number of fields of a request that are encoded: all after the name, up to this one."""
_decoder = json.JSONDecoder()
_decode = _decoder.decode

_BEGIN, _BETWEEN, _END = "[\n", ",\n", "\n]"
"""Around and between the lines of a packed queue. No text in a state has a line break: JSON escapes it."""

PACKED_FROM = 8
"""So few waiters cost less in objects than in a text."""

NEVER = 2**63
"""Later than any instant."""

_FRESH_UNTIL = re.compile(r"\n\[-?\d+,(-?\d+)")
_CHANNEL = re.compile(r'\n\[-?\d+,-?\d+,"[^"]*","([^"]+)"')


def dump(state: NameState) -> str:
    """Encode a state without its counter. The encoder is written by hand because every acquisition runs it."""
    holders = ",".join(map(_dump_holder, state.holders)) if state.holders else ""
    queue = _dump_waiters(state.queue) if state.queue.order else "[]"
    tombstones = ", ".join([f'"{request_id}": {until}' for request_id, until in state.tombstones.items()])
    return (
        f"[{state.capacity},[{holders}],{queue},{state.blocked_until},{state.block},{{{tombstones}}},"
        f'"{state.last_released}",{state.used_at}]'
    )


def dump_queue(waiters: Iterable[Waiter]) -> str:
    """Encode waiters."""
    return f"[{','.join(map(_dump_waiter, waiters))}]"


def dump_request(request: AcquireRequest) -> str:
    """Encode the request of a waiter, without the name: the end of the list that `dump_queue` makes of a waiter."""
    return (
        f'"{request.request_id}","{request.channel}",{_quote(request.owner)},{request.ttl},'
        f"{request.interval},{request.waiter_ttl},{request.weight},{request.capacity},"
        f"{request.lock_delay},{request.proposal},{_TRUTH[request.wait]},{request.span},{_TRUTH[request.votes]}"
    )


def split_queue(text: str) -> dict[str, tuple[str, str, str, str, str]]:
    """Return the waiters in what `dump_queue` has made, in their order.

    By request id: that, the channel, when the waiter joined, until when it counts as alive, and its `dump_request`.
    """
    waiters: dict[str, tuple[str, str, str, str, str]] = {}
    at = 1
    while at < len(text):
        (_, _, request_id, channel, *_), end = _decoder.raw_decode(text, at)
        joined_at, fresh_until, waiter = text[at + 1 : end - 1].split(",", 2)
        waiters[request_id] = (request_id, channel, joined_at, fresh_until, waiter)
        at = end + 1
    return waiters


def load_queue(name: str, text: str) -> Queue:
    """Decode waiters."""
    return Queue(_load_waiter(name, *waiter) for waiter in _decode(text))


def load(name: str, counter: int, text: str, idle_after: int = NEVER) -> NameState:
    """Decode the state of a name. Raises StoreError if it begins with the mark of a later form, or is none of Tenure's.

    `idle_after` is what it says of itself, or later.
    """
    try:
        before, packed, after = text.partition(_BEGIN)
        lines, _, after = after.rpartition(_END)
        capacity, holders, queue, *rest = _decode(f"{before}[]{after}" if packed else text)
        return NameState(
            counter,
            capacity,
            [Holder(*row) for row in holders],
            PackedQueue(name, lines, idle_after) if packed else Queue(_load_waiter(name, *waiter) for waiter in queue),
            *rest,
        )
    except (ValueError, TypeError) as error:
        forms.check(str(text), f"the state of {name!r}")
        raise foreign(name) from error


def foreign(name: str) -> StoreError:
    """Return the error of a row that Tenure has not written, or not so."""
    return StoreError(
        f"the row of {name!r} is none of Tenure's: something else has written it, or changed it. Stop the programs "
        "that use the name, and remove the row."
    )


def _dump_holder(holder: Holder) -> str:
    """Encode a holder as a list in the order of its fields."""
    return (
        f'["{holder.request_id}","{holder.channel}",{_quote(holder.owner)},{holder.token},{holder.weight},{holder.ttl},'
        f"{holder.lock_delay},{holder.granted_at},{holder.expires_at},{_TRUTH[holder.notify_contended]}]"
    )


def _dump_waiter(waiter: Waiter) -> str:
    """Encode a waiter and its request, without the name, as a list. Only one that may be passed has all fields."""
    fair_after = waiter.request.fair_after
    barging = f",{fair_after},{waiter.quiet_until}" if fair_after else ""
    return f"[{waiter.joined_at},{waiter.fresh_until},{dump_request(waiter.request)}{barging}]"


def _dump_waiters(queue: Queue) -> str:
    """Encode waiters: each in a line of its own, if `PackedQueue` can keep them."""
    lines = queue.lines() if isinstance(queue, PackedQueue) else ""
    if not lines:
        waiters = list(queue)
        if len(waiters) < PACKED_FROM or not all(_is_packable(each.request) for each in waiters):
            return dump_queue(waiters)
        lines = _BETWEEN.join(map(_dump_waiter, waiters))
    return f"{_BEGIN}{lines}{_END}"


def _is_packable(request: AcquireRequest) -> bool:
    return request.weight == 1 and not request.votes and not request.fair_after


def _load_waiter(name: str, joined_at: int, fresh_until: int, *rest: Any) -> Waiter:  # noqa: ANN401 - as in the text
    request, quiet_until = rest[:_REQUEST], rest[_REQUEST:]
    return Waiter(AcquireRequest(name, *request), joined_at, fresh_until, *quiet_until)


class PackedQueue(Queue):
    """The waiters of a state as its text has them, a line each: waiters that never share or pass.

    A waiter is decoded when somebody looks at it, and all of them when something needs all. So a step of one waiter
    costs little more where six hundred wait. While it is packed, `order` tells only whether somebody waits.
    """

    __slots__ = ("_idle_after", "_lines", "_name", "_seen")

    def __init__(self, name: str, lines: str, idle_after: int) -> None:
        """Keep lines as `dump` makes them; at least one. No waiter counts as alive after `idle_after`.

        Whoever looks at a line that nobody of Tenure has written gets StoreError.
        """
        if not lines:
            raise ValueError("a packed queue has no line")
        self.order = [(0, "")]
        self._idle_after = idle_after
        self._name = name
        self._lines = lines
        """Empty if this is packed no more."""
        self._seen: dict[str, tuple[Waiter, str]] = {}
        """Waiters that were decoded, each with its line: they may have changed since."""

    def lines(self) -> str:
        """Return the lines of all waiters; empty if this is packed no more."""
        for request_id, (waiter, before) in self._seen.items():
            if (line := _dump_waiter(waiter)) != before:
                start, end = self._span(request_id)
                self._lines = self._lines[:start] + line + self._lines[end:]
                self._seen[request_id] = waiter, line
        return self._lines

    def __len__(self) -> int:
        return self._lines.count("\n") + 1 if self._lines else super().__len__()

    def __iter__(self) -> Iterator[Waiter]:
        self._unpack()
        return super().__iter__()

    def __getitem__(self, place: int) -> Waiter:
        if self._lines and not place and (head := self.find(self.head)) is not None:
            return head
        self._unpack()
        return super().__getitem__(place)

    @property
    def head(self) -> str:
        """The request id of the first waiter."""
        if not self._lines:
            return super().head
        _, _, rest = self._lines.partition('"')
        return rest.partition('"')[0]

    @property
    def lightest(self) -> int:
        """The smallest weight."""
        return 1 if self._lines else super().lightest

    @property
    def fair_after(self) -> int:
        """The shortest bound."""
        return 0 if self._lines else super().fair_after

    def fresh_until(self, least: int) -> int:
        """Return when the last waiter counts as dead, or `least` if that is later."""
        if not self._lines:
            return super().fresh_until(least)
        latest = max(least, max((waiter.fresh_until for waiter, _ in self._seen.values()), default=0))
        if latest >= self._idle_after:
            return latest
        return max(least, *map(int, _FRESH_UNTIL.findall("\n" + self.lines())))

    def channels(self, most: int) -> list[str]:
        """Return the channels of the clients that wait first."""
        if not self._lines:
            return super().channels(most)
        return list(dict.fromkeys(_CHANNEL.findall("\n" + self.lines())))[:most]

    def find(self, request_id: str) -> Waiter | None:
        """Return the waiter of a request."""
        if not self._lines:
            return super().find(request_id)
        if request_id not in self._seen:
            start, end = self._span(request_id)
            if start == end:
                return None
            line = self._lines[start:end]
            self._seen[request_id] = self._load(line)[0], line
        return self._seen[request_id][0]

    def place(self, request_id: str) -> int:
        """Return the number of waiters ahead of a request."""
        if not self._lines:
            return super().place(request_id)
        start, end = self._span(request_id)
        return self._lines.count("\n", 0, start) if start < end else len(self)

    def join(self, waiter: Waiter) -> None:
        """Add a waiter at the tail."""
        if not self._lines or not _is_packable(waiter.request):
            self._unpack()
            super().join(waiter)
            return
        line = _dump_waiter(waiter)
        self._lines += _BETWEEN + line
        self._seen[waiter.request.request_id] = waiter, line

    def replace(self, waiter: Waiter, request: AcquireRequest) -> None:
        """Replace the request of a waiter."""
        if self._lines and _is_packable(request):
            waiter.request = request
            return
        self._unpack()
        super().replace(waiter, request)

    def drop(self, request_id: str) -> None:
        """Remove the waiter of a request."""
        if not self._lines:
            super().drop(request_id)
            return
        start, end = self._span(request_id)
        if start == end:
            return
        self._seen.pop(request_id, None)
        self._lines = (self._lines[:start] + self._lines[end + len(_BETWEEN) :]).removesuffix(_BETWEEN)
        if not self._lines:
            self.order = []

    def _span(self, request_id: str) -> tuple[int, int]:
        """Return where the line of a request begins and ends; twice the length of all lines if there is none."""
        lines, quoted, at = self._lines, f'"{request_id}"', -1
        while (at := lines.find(quoted, at + 1)) >= 0:
            start = lines.rfind("\n", 0, at) + 1
            if lines.find('"', start) == at:  # else somebody else's owner is called like the request
                end = lines.find(_BETWEEN, at)
                return start, end if end >= 0 else len(lines)
        return len(lines), len(lines)

    def _unpack(self) -> None:
        """Decode all waiters."""
        if self._lines:
            waiters = self._load(self._lines)
            self._lines, self._seen = "", {}
            super().__init__(waiters)

    def _load(self, lines: str) -> list[Waiter]:
        """Decode lines, but no waiter twice."""
        try:
            return [
                self._seen[waiter[2]][0] if waiter[2] in self._seen else _load_waiter(self._name, *waiter)
                for waiter in _decode(f"[{lines}]")
            ]
        except (ValueError, TypeError, LookupError) as error:
            raise foreign(self._name) from error


def dump_notification(notification: Notification) -> bytes:
    """Encode a notification as a datagram."""
    told = notification
    text = f'["{told.kind}","{told.request_id}",{told.token},{told.after},{_TRUTH[told.contended]}]'
    return text.encode()


def load_notification(channel: str, datagram: bytes) -> Notification:
    """Decode a notification. Raises ValueError or TypeError if the datagram is no notification."""
    kind, request_id, token, after, contended = _decode(datagram.decode())
    if not (isinstance(request_id, str) and isinstance(token, int) and isinstance(after, int)):
        raise TypeError("not a notification")
    return Notification(channel, NotificationKind(kind), request_id, token, after, bool(contended))
