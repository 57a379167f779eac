"""A console in virtual time, its store, and the browsers that visit it."""

import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from starlette.types import ASGIApp

from tenure import AsyncClient, AsyncLease
from tenure.console import Access, Console, console
from tenure.contracts.findings import Finding, Report, Unseen
from tenure.contracts.messages import NameView, Page
from tenure.contracts.store import Store, StoreSource
from tenure.errors import StoreUnavailable
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual

FULL_HOUR = 1_790_000_000 // 3600 * 3600 * 1_000_000
"""A full hour, from which the wall clock of the store goes on, in microseconds."""

HERE = "http://console.test"
ACT = Access("ann", act=True)


@dataclass
class Looks:
    """What the console asks its store, and whether the store answers."""

    listed: list[float] = field(default_factory=list[float])
    """When the names were listed."""
    examined: list[float] = field(default_factory=list[float])
    """When the settings were examined."""
    findings: list[Finding] = field(default_factory=list[Finding])
    down: bool = False
    slow: float = 0.0
    """How long the names take to be listed, in seconds."""
    slow_names: float = 0.0
    """How long each takes to be inspected."""


def watched(source: StoreSource, looks: Looks) -> StoreSource:
    """Return a source whose stores count looks, and can be down."""

    def make(runtime: Any) -> Store:  # noqa: ANN401 - whichever runtime there is
        store = source.make(runtime)
        names, inspect = store.names, store.inspect

        async def count_names(prefix: str, until: float, rest: object = None) -> Page:
            looks.listed.append(runtime.now())
            await runtime.sleep(looks.slow)
            if looks.down:
                raise StoreUnavailable("the store at <b>10.0.0.1</b> is down")
            return await names(prefix, until, rest)

        async def inspect_unless_down(name: str, until: float) -> NameView:
            await runtime.sleep(looks.slow_names)
            if looks.down:
                raise StoreUnavailable("the store is down")
            return await inspect(name, until)

        async def examine(_ttl: float, _timeout: float) -> Report:
            looks.examined.append(runtime.now())
            if looks.down:
                raise StoreUnavailable("the store at <b>10.0.0.1</b> is down")
            return Report("", looks.findings, [Unseen("<i>here</i>", "the version", "it was refused")])

        store.names, store.inspect = count_names, inspect_unless_down  # type: ignore[method-assign]
        store.examine, store.on_findings = examine, None  # type: ignore[attr-defined]
        return store

    return StoreSource(source.title, source.capabilities, make)


class Site:
    """A console, its store, and clients of the store."""

    def __init__(self, client: AsyncClient, other: AsyncClient, looks: Looks, source: StoreSource) -> None:
        self.client = client
        """The client of the console."""
        self.other = other
        """A client that holds and waits."""
        self.looks = looks
        self.source = source
        self.held: list[AsyncLease] = []
        self.app: ASGIApp = self.console()

    async def hold(self, name: str, **options: Any) -> AsyncLease:  # noqa: ANN401 - those of a lock
        """Acquire a name, and hold it until the end of the test."""
        lease = await self.other.lock(name, **options).acquire()
        self.held.append(lease)
        return lease

    def console(self, **options: Any) -> Console:  # noqa: ANN401 - those of `console`
        """Make the console, or another one."""
        made = console(self.client, **cast("dict[str, Any]", {"access": ACT, **options}))
        self.app = made
        return made

    def browser(self, app: ASGIApp | None = None, **options: Any) -> httpx.AsyncClient:  # noqa: ANN401
        """Return a browser without cookies."""
        transport = httpx.ASGITransport(app or self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=HERE, **options)

    async def get(self, path: str) -> httpx.Response:
        """Return what a new browser gets."""
        async with self.browser() as browser:
            return await browser.get(path)

    async def act(self, page: str, action: str, **fields: str) -> httpx.Response:
        """Load a page, and send a form of it."""
        async with self.browser() as browser:
            await browser.get(page)
            data = {"reason": "it hangs", "csrf": browser.cookies["tenure_csrf"], **fields}
            return await browser.post(action, data=data, headers={"origin": HERE}, follow_redirects=True)


def csrf_of(page: str) -> str:
    """Return the token in the forms of a page."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]


@asynccontextmanager
async def site() -> AsyncGenerator[Site]:
    """Yield a console on a store in memory."""
    looks, source = Looks(), memory_source(MemoryTable(virtual.micros, wall=lambda: FULL_HOUR + virtual.micros()))
    async with AsyncClient(store=watched(source, looks), owner="console") as client, AsyncClient(store=source) as other:
        yield Site(client, other, looks, source)


Check = Callable[[Site], Coroutine[Any, Any, None]]


def visit(check: Check) -> None:
    """Run a check at a site of its own."""

    async def main() -> None:
        async with site() as made:
            await check(made)

    virtual.run(main)
