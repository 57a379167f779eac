"""One of the independent stores that vote, as one client sees it: is it there, and what did it say last."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.core.messages import Leave, Notice
from holdfast.errors import StoreError
from holdfast.runtimes.runtime import Runtime, Task
from holdfast.stores.store import Store, StoreSource

log = logging.getLogger("holdfast")

FIRST_REST = 0.1
"""How long a node that did not answer is left alone at first, in seconds; then twice as long each time."""

LONGEST_REST = 2.0

MOST_DEBTS = 10_000
"""How many requests a node that is not there is to forget at most; older ones lapse by themselves."""

PROBE = "holdfast probe"
"""The name that is looked at to see whether a node is there again."""


class Node:
    """A node. One that is not there is opened again in the background, so that nobody has to wait for it."""

    def __init__(self, runtime: Runtime, source: StoreSource, operation_timeout: float) -> None:
        """Prepare; nothing is connected yet."""
        self.title = source.title
        self.store: Store = source.make(runtime)
        self.inbox = ""
        self.trouble = "not connected yet"
        """Why it does not vote just now; empty if it does."""
        self._runtime = runtime
        self._operation_timeout = operation_timeout
        self._deliver: Callable[[Notice], None] = _ignore
        self._rest = FIRST_REST
        self._task: Task | None = None
        self._tell: Callable[[], None] = _do_nothing
        self._is_open = False
        self._debts: deque[Leave] = deque(maxlen=MOST_DEBTS)
        self._changed = runtime.event()
        self._closed = False

    def begin(self, deliver: Callable[[Notice], None], changed: Callable[[], None]) -> None:
        """Open it in the background, again and again until it is open; call `changed` when it is, or was not."""
        self._deliver = deliver
        self._tell = changed
        if (self._task is None or self._task.ended()) and not self._closed:
            self._task = self._runtime.spawn(self._open, f"node {self.title}")

    async def _open(self) -> None:
        while not self._closed:
            until = self._runtime.now() + self._operation_timeout
            try:
                if not self._is_open:
                    self.inbox = await self.store.open(self._deliver, until)
                    self._is_open = True
                await self._ask(self.store.inspect(PROBE, until))  # from now on there is a connection for requests
            except StoreError as error:
                self._note(str(error))
                self._tell()
            else:
                if not self._debts:
                    self.trouble, self._rest = "", FIRST_REST
                    self._tell()
                    return
                await self._pay()
                continue
            await self._changed.wait(self._runtime.now() + self._rest * (0.5 + self._runtime.random()))
            self._rest = min(self._rest * 2, LONGEST_REST)

    def owe(self, leave: Leave) -> None:
        """Have it forget a request, as soon as it is there again: it may have carried out what it did not answer."""
        self._debts.append(leave)

    async def _pay(self) -> None:
        with contextlib.suppress(StoreError):
            while self._debts:
                await self._ask(self.store.leave(self._debts[0], self._runtime.now() + self._operation_timeout))
                self._debts.popleft()

    async def _ask(self, work: Coroutine[Any, Any, object]) -> None:
        """Ask it alone, in the way of those that are asked side by side."""
        (reply,) = await self._runtime.race([work], lambda _: False)
        if isinstance(reply, Exception):
            raise reply

    def _note(self, trouble: str) -> None:
        if not self.trouble:
            log.warning("the node %s does not vote: %s", self.title, trouble)
        self.trouble = trouble

    def failed(self, error: Exception) -> None:
        """Note that it did not answer: it is not asked until it is there again."""
        self._note(str(error))
        self.begin(self._deliver, self._tell)

    async def close(self, until: float) -> None:
        """Disconnect."""
        self._closed = True
        self._changed.set()
        if self._task is not None:
            await self._task.join(until)
        await self.store.close()


def _ignore(notice: Notice) -> None: ...


def _do_nothing() -> None: ...
