"""What the tests of hazards share: a store that can be disturbed, bounded waits, and scripts in processes."""

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Store, StoreSource
from holdfast.outcome import Outcome

T = TypeVar("T")

TEST_TIMEOUT = 30.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""

Hook = Callable[[str, bool], Coroutine[Any, Any, None]]
"""Called with the name of an operation, and whether it was carried out by now."""


class DisturbedStore:
    """A store with a hook before and after every operation."""

    def __init__(self, store: Store, hook: Hook, *, local: bool) -> None:
        self._store = store
        self._hook = hook
        self.capabilities = dataclasses.replace(store.capabilities, local=local)

    def identity(self) -> str:
        """Pass on."""
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
        """Pass on."""
        return await self._around("open", self._store.open(deliver, until))

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Pass on."""
        return await self._around("acquire", self._store.acquire(request, until))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Pass on."""
        return await self._around("acquire", self._store.acquire_many(requests, until))

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Pass on."""
        return await self._around("release", self._store.release(release, until))

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Pass on."""
        return await self._around("renew", self._store.renew(renewals, until))

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Pass on."""
        return await self._around("adjust", self._store.adjust(adjust, until))

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Pass on."""
        return await self._around("withdraw", self._store.withdraw(withdraw, until))

    async def inspect(self, name: str, until: float) -> NameView:
        """Pass on."""
        return await self._store.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Pass on."""
        return await self._store.names(prefix, until, rest)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Pass on."""
        return await self._around("request_revocation", self._store.request_revocation(name, until))

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Pass on."""
        return await self._around("resize", self._store.resize(name, before, after, until))

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Pass on."""
        return await self._store.revoke(name, until, token)

    async def close(self) -> None:
        """Pass on."""
        await self._around("close", self._store.close())

    def abandon(self) -> None:
        """Pass on."""
        self._store.abandon()


def disturbed(source: StoreSource, hook: Hook, *, local: bool = True) -> StoreSource:
    """Return `source` with `hook` around every operation; `local=False`: as if it were across a network."""

    def make(runtime: Runtime) -> Store:
        return DisturbedStore(source.make(runtime), hook, local=local)

    return StoreSource(source.title, dataclasses.replace(source.capabilities, local=local), make)


def eventually(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait for a condition, blocking."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"{what}: not within {within:g} s"
        time.sleep(0.002)


async def soon(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait for a condition, in a loop."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"{what}: not within {within:g} s"
        await asyncio.sleep(0.002)


class Script:
    """A Python process that talks over its standard input and output, a line a message."""

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-W", "error", "-c", code, *arguments]
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

    def send(self, signal: int) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(signal)

    def end(self) -> tuple[str, str]:
        """Wait for its end; return the rest of what it printed."""
        try:
            return self._process.communicate(timeout=TEST_TIMEOUT)
        finally:
            self.kill()

    @property
    def status(self) -> int | None:
        """The exit status."""
        return self._process.returncode

    def kill(self) -> None:
        """Kill it, if it lives, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
