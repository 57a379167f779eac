"""One node of a quorum, as one client sees it: whether it votes, and which withdrawals it must still receive."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tenure.contracts.messages import Notification, WithdrawRequest
from tenure.contracts.runtime import Runtime, SpawnedTask
from tenure.contracts.store import Store, StoreSource
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.quorum.reasons import is_nobody_there
from tenure.transport.errors import TooLate, too_late

A = TypeVar("A")
T = TypeVar("T")

log = logging.getLogger("tenure")

FIRST_PAUSE = 0.1
"""The first pause before a node without a reply is tried again, in seconds; each next pause is twice as long."""

LONGEST_PAUSE = 2.0

MOST_DEBTS = 10_000
"""How many withdrawals are kept for a node that is away; older ones lapse by themselves."""

SILENCE = 10.0
"""For how many seconds the log does not repeat that a node does not vote."""

NOT_YET = "not connected yet"

PROBE = "tenure probe"
"""The name that is inspected to find out whether a node replies."""

WARM = 2
"""How many requests are made at once when a node is opened.

They open as many connections, because one connection may still wait for a reply when the next request is made.
"""


class Node:
    """A node of a quorum. A node that is away is opened again in the background, so that no request waits for it."""

    def __init__(self, runtime: Runtime, source: StoreSource, operation_timeout: float) -> None:
        self.title = source.title
        self.store: Store = source.make(runtime)
        self.channel = ""
        self.ailment = NOT_YET
        """The reason why the node does not vote now; empty if it votes."""
        self.refuses = False
        """Whether the node replied, but will refuse this client however often it tries."""
        self.nobody_there = False
        """Whether opening failed at once, so that it is useless to wait for a reply."""
        self._runtime = runtime
        self._operation_timeout = operation_timeout
        self._deliver: Callable[[Notification], None] = _ignore
        self._pause = FIRST_PAUSE
        self._told_at = -SILENCE
        self._task: SpawnedTask | None = None
        self._at_work = False
        self._mutex = runtime.mutex()
        self._tell: Callable[[Node], None] = _tell_nobody
        self._is_open = False
        self._debts: deque[WithdrawRequest] = deque(maxlen=MOST_DEBTS)
        self._hurry = runtime.event()
        self._closed = False

    def begin(self, deliver: Callable[[Notification], None], changed: Callable[["Node"], None]) -> None:
        """Open the node in the background until it is open; call `changed` after each success and failure.

        `changed` may set `ailment` to exclude the node.
        """
        self._deliver = deliver
        self._tell = changed
        self.nobody_there = False  # unknown until the next attempt
        if self._at_work:  # its task may be in a pause
            self._hurry.set()
        self._work()

    def _work(self) -> None:
        """Start the background task, unless it runs."""
        with self._mutex:
            if self._closed or self._at_work:
                return
            self._at_work = True
        try:
            self._task = self._runtime.spawn(self._open, f"node {self.title}", again=True)
        except RuntimeError:  # the interpreter exits
            self._at_work = False

    def _is_done(self) -> bool:
        """Return whether the background task may end; later work must then start another one."""
        with self._mutex:
            self._at_work = bool(self._debts or self.ailment)
            return not self._at_work

    async def _open(self) -> None:
        """Run the background task: open the node, and send it the outstanding withdrawals."""
        while not self._closed:
            try:
                if self.ailment:
                    await self._connect()
                await self._pay()
            except Exception as error:  # the task must survive every error
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
                    self._pause = FIRST_PAUSE
                    if self._is_done():
                        return
                    continue
            await self._hurry.wait(self._runtime.now() + self._pause * (0.5 + self._runtime.random()))
            self._hurry.clear()
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _connect(self) -> None:
        until = self._runtime.now() + self._operation_timeout
        if not self._is_open:
            self.channel = await self.store.open(self._deliver, until)
            self._is_open = True
        await self._send([self.store.inspect(PROBE, until) for _ in range(WARM)])

    def owe(self, *leaves: WithdrawRequest) -> None:
        """Have the node forget requests as soon as it replies: it may have carried out requests that got no reply."""
        self._debts.extend(leaves)
        self._work()

    async def _pay(self) -> None:
        while self._debts:
            try:
                await self._send([self.store.withdraw(self._debts[0], self._runtime.now() + self._operation_timeout)])
            except StoreUnavailable:
                raise
            except StoreError as error:  # it concerns this name alone, and would not change the next time
                log.debug("the node %s could not withdraw a request: %s", self.title, error)
            with contextlib.suppress(IndexError):
                self._debts.popleft()

    async def _send(self, works: list[Coroutine[Any, Any, T]]) -> None:
        """Send requests to this node alone, through the same fan-out that the node set uses."""
        replies: list[T | Exception | None] = [None] * len(works)
        await self._runtime.race(works, replies, len(works) + 1, _never)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def refuse(self, why: str) -> None:
        """Exclude the node from voting, although it replies."""
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
        """Send a request to this node. If the node gives no reply, it gets no more requests until it is open again.

        Before it votes again it receives `leaves`. A refusal, or a timeout before the request is sent, does not exclude
        the node.
        """
        try:
            self._check_time(until)
            return await operation(argument, until)
        except TooLate:  # here or in the link, which looks at the clock again
            if leaves:
                self.owe(*leaves)
            raise
        except StoreUnavailable as error:
            self._note(str(error))
            self.owe(*leaves)
            raise

    def _check_time(self, until: float) -> None:
        if self._runtime.now() >= until:
            raise too_late(self.title)

    async def close(self, until: float) -> None:
        """Stop the background task and disconnect."""
        self._closed = True
        self._hurry.set()
        if self._task is not None:
            await self._task.join(until)
        await self.store.close()


def _ignore(notification: Notification) -> None: ...


def _tell_nobody(node: Node) -> None: ...


def _never() -> bool:
    return False
