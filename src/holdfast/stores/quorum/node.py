"""One of the independent stores that vote, as one client sees it: is it there, and what does it still have to hear."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.contracts.messages import Notification, WithdrawRequest
from holdfast.contracts.runtime import Runtime, Task
from holdfast.contracts.store import Store, StoreSource
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.quorum.reasons import is_nobody_there

A = TypeVar("A")
T = TypeVar("T")

log = logging.getLogger("holdfast")

FIRST_REST = 0.1
"""How long a node that did not answer is left alone at first, in seconds; then twice as long each time."""

LONGEST_REST = 2.0

MOST_DEBTS = 10_000
"""How many requests a node that is not there is to forget at most; older ones lapse by themselves."""

SILENCE = 10.0
"""For how many seconds the log is not told again of a node that does not vote."""

NOT_YET = "not connected yet"

PROBE = "holdfast probe"
"""The name that is looked at to see whether a node is there."""

WARM = 2
"""How many requests are made at once when a node is opened, so that as many connections are there: one may still owe a
reply when the next is needed."""


class Node:
    """A node. One that is not there is opened again in the background, so that nobody has to wait for it."""

    def __init__(self, runtime: Runtime, source: StoreSource, operation_timeout: float) -> None:
        """Prepare; nothing is connected yet."""
        self.title = source.title
        self.store: Store = source.make(runtime)
        self.channel = ""
        self.ailment = NOT_YET
        """Why it does not vote just now; empty if it does."""
        self.refuses = False
        """Whether it is there, and will not be used by us however often it is asked."""
        self.nobody_there = False
        """Whether that was known at once when it was to be opened, and waiting for an answer is in vain."""
        self._runtime = runtime
        self._operation_timeout = operation_timeout
        self._deliver: Callable[[Notification], None] = _ignore
        self._rest = FIRST_REST
        self._told_at = -SILENCE
        self._task: Task | None = None
        self._at_work = False
        self._mutex = runtime.mutex()
        self._tell: Callable[[Node], None] = _tell_nobody
        self._is_open = False
        self._debts: deque[WithdrawRequest] = deque(maxlen=MOST_DEBTS)
        self._hurry = runtime.event()
        self._closed = False

    def begin(self, deliver: Callable[[Notification], None], changed: Callable[["Node"], None]) -> None:
        """Open it in the background, again and again until it is open; call `changed` when it is, or was not.

        `changed` may set `ailment`, if it does not want the node.
        """
        self._deliver = deliver
        self._tell = changed
        self.nobody_there = False  # as far as is known now
        if self._at_work:  # or rather at rest
            self._hurry.set()
        self._work()

    def _work(self) -> None:
        """Have a task see to it, if none does."""
        with self._mutex:
            if self._closed or self._at_work:
                return
            self._at_work = True
        try:
            self._task = self._runtime.spawn(self._open, f"node {self.title}")
        except RuntimeError:  # the interpreter shuts down
            self._at_work = False

    def _is_done(self) -> bool:
        """Tell whether there is nothing left to do; then who has something has to start another task."""
        with self._mutex:
            self._at_work = bool(self._debts or self.ailment)
            return not self._at_work

    async def _open(self) -> None:
        """Get it to vote, and have it hear what it still has to."""
        while not self._closed:
            try:
                if self.ailment:
                    await self._connect()
                await self._pay()
            except Exception as error:  # it must go on trying, whatever went wrong
                if not isinstance(error, StoreError):
                    log.exception("the node %s could not be opened", self.title)
                self.refuses = not isinstance(error, StoreUnavailable)
                self.nobody_there = is_nobody_there(error)
                self._note(str(error) or type(error).__name__)
                self._tell(self)
            else:
                if self.ailment:
                    self.ailment = ""
                    self._tell(self)
                if not self.ailment:
                    self._rest = FIRST_REST
                    if self._is_done():
                        return
                    continue
            await self._hurry.wait(self._runtime.now() + self._rest * (0.5 + self._runtime.random()))
            self._hurry.clear()
            self._rest = min(self._rest * 2, LONGEST_REST)

    async def _connect(self) -> None:
        until = self._runtime.now() + self._operation_timeout
        if not self._is_open:
            self.channel = await self.store.open(self._deliver, until)
            self._is_open = True
        await self._run([self.store.inspect(PROBE, until) for _ in range(WARM)])

    def owe(self, *leaves: WithdrawRequest) -> None:
        """Have it forget requests, as soon as it answers: it may have carried out what it did not answer."""
        self._debts.extend(leaves)
        self._work()

    async def _pay(self) -> None:
        while self._debts:
            try:
                await self._run([self.store.withdraw(self._debts[0], self._runtime.now() + self._operation_timeout)])
            except StoreUnavailable:
                raise
            except StoreError as error:  # it concerns this name alone, and would be the same next time
                log.debug("the node %s cannot forget a request: %s", self.title, error)
            with contextlib.suppress(IndexError):
                self._debts.popleft()

    async def _run(self, works: list[Coroutine[Any, Any, T]]) -> None:
        """Ask it alone, in the way of those that are asked side by side."""
        replies: list[T | Exception | None] = [None] * len(works)
        await self._runtime.race(works, replies, len(works) + 1, _never)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def refuse(self, why: str) -> None:
        """Do not let it vote, though it is there."""
        self._note(why)

    def _note(self, ailment: str) -> None:
        if not self.ailment:
            often = self._runtime.now() < self._told_at + SILENCE
            log.log(logging.DEBUG if often else logging.WARNING, "the node %s does not vote: %s", self.title, ailment)
            if not often:
                self._told_at = self._runtime.now()
        self.ailment = ailment

    async def attempt(
        self,
        operation: Callable[[A, float], Coroutine[Any, Any, T]],
        argument: A,
        until: float,
        *leaves: WithdrawRequest,
    ) -> T:
        """Have this node carry out an operation. If it fails, the node is not asked until it is there again.

        It then hears `leaves` first. A refusal, or a lack of time, says nothing of the node.
        """
        if self._runtime.now() >= until:
            if leaves:
                self.owe(*leaves)
            raise StoreUnavailable(f"no time was left to ask {self.title}; allow more")
        try:
            return await operation(argument, until)
        except StoreUnavailable as error:
            self._note(str(error))
            self.owe(*leaves)
            raise

    async def close(self, until: float) -> None:
        """Disconnect."""
        self._closed = True
        self._hurry.set()
        if self._task is not None:
            await self._task.join(until)
        await self.store.close()


def _ignore(notification: Notification) -> None: ...


def _tell_nobody(node: Node) -> None: ...


def _never() -> bool:
    return False
