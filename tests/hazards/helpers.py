"""The common part of the hazard tests: a store that can be disturbed, waits with deadlines, scripts in processes."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.outcome import Outcome
from tenure.runtimes.threads import ThreadsRuntime

T = TypeVar("T")

TEST_TIMEOUT = 30.0
"""How long to wait for a condition, in seconds. Only a failure uses it up."""

Hook = Callable[[str, bool], Coroutine[Any, Any, None]]
"""Called with the name of an operation, and whether the operation was carried out already."""


class DisturbedStore:
    """A store with a hook before and after every operation."""

    def __init__(self, store: Store, hook: Hook, *, local: bool) -> None:
        self._store = store
        self._hook = hook
        self.capabilities = dataclasses.replace(store.capabilities, runs_in_caller=local)

    def identity(self) -> str:
        """Return the identity of the store."""
        return self._store.identity()

    async def _around(self, operation: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            await self._hook(operation, False)
        except BaseException:
            work.close()
            raise
        result = await work
        await self._hook(operation, True)
        return result

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the store."""
        return await self._around("open", self._store.open(deliver, until))

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Acquire a name."""
        return await self._around("acquire", self._store.acquire(request, until))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Acquire several names in one step."""
        return await self._around("acquire", self._store.acquire_many(requests, until))

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release a lease."""
        return await self._around("release", self._store.release(release, until))

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew leases."""
        return await self._around("renew", self._store.renew(renewals, until))

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Adjust a lease."""
        return await self._around("adjust", self._store.adjust(adjust, until))

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Withdraw a request."""
        return await self._around("withdraw", self._store.withdraw(withdraw, until))

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the view of a name."""
        return await self._store.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return the names in use."""
        return await self._store.names(prefix, until, rest)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request."""
        return await self._around("request_revocation", self._store.request_revocation(name, until))

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        return await self._around("resize", self._store.resize(name, before, after, until))

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke a name by force."""
        return await self._store.revoke(name, until, token)

    async def close(self) -> None:
        """Close the store."""
        await self._around("close", self._store.close())

    def abandon(self) -> None:
        """Abandon the store after a fork."""
        self._store.abandon()


def disturbed(source: StoreSource, hook: Hook, *, local: bool = True) -> StoreSource:
    """Return `source` with `hook` around every operation. With `local=False` it acts as a store across a network."""

    def make(runtime: Runtime) -> Store:
        return DisturbedStore(source.make(runtime), hook, local=local)

    return StoreSource(source.title, dataclasses.replace(source.capabilities, runs_in_caller=local), make)


def eventually(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait for a condition in a thread."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"{what}: not within {within:g} s"
        time.sleep(0.002)


async def soon(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait for a condition in an event loop."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"{what}: not within {within:g} s"
        await asyncio.sleep(0.002)


async def cancel_all(*but: asyncio.Task[Any]) -> None:
    """Cancel all other tasks of this loop, until there is none, and wait for their end."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task(), *but}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class ObservedMutex:
    """A mutex that shows whether a thread waits for it."""

    def __init__(self) -> None:
        self.waited_for = threading.Event()
        self._mutex = threading.RLock()

    def __enter__(self) -> None:
        if not self._mutex.acquire(blocking=False):
            self.waited_for.set()
            self._mutex.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mutex.release()


class ObservedRuntime(ThreadsRuntime):
    """A runtime that shows whether a thread waits for one of its mutexes."""

    def __init__(self) -> None:
        super().__init__()
        self._mutexes: list[ObservedMutex] = []

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a mutex."""
        self._mutexes.append(ObservedMutex())
        return self._mutexes[-1]

    def is_waited_for(self) -> bool:
        """Return whether a thread has waited for a mutex."""
        return any(each.waited_for.is_set() for each in self._mutexes)


class Script:
    """A Python process that exchanges messages over its standard input and output, a line each."""

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def hear(self) -> str:
        """Read a line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, line: str = "go") -> None:
        """Write a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def send(self, number: int) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(number)

    def end(self, within: float = TEST_TIMEOUT) -> tuple[str, str]:
        """Wait for the end of the process; return the rest of its output, with the stacks of one that did not end."""
        try:
            return self._process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGABRT)
            return self._process.communicate(timeout=within)
        finally:
            self.kill()

    @property
    def status(self) -> int | None:
        """The exit status."""
        return self._process.returncode

    def kill(self) -> None:
        """Kill the process if it is alive, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
