"""What a request sees whose route holds a lock, and what the background tasks of several workers do."""

import asyncio
import inspect
import threading
import time
import types
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send

import tenure.fastapi
import tenure.starlette
from tenure import AsyncClient, AsyncLease, LeaseLost, UsageError
from tenure.contracts.store import StoreSource
from tenure.fastapi import Held, every, lifespan, only_one
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.planting import module_with
from tests.servers import RedisServer
from tests.virtual import micros

AWAY = "redis://login:password@127.0.0.1:1"
"""A store that does not answer."""


@asynccontextmanager
async def started(app: Starlette) -> AsyncGenerator[dict[str, Any]]:
    """Run an app's lifespan, and yield its state."""
    async with app.router.lifespan_context(app) as state:
        yield dict(state or {})


class Visit:
    """A browser, and whether the name of each request was held when its response began."""

    def __init__(self, app: Starlette, state: dict[str, Any], look: AsyncClient) -> None:
        self._app, self._state, self._look = app, state, look
        self.held_at_response: list[bool] = []
        transport = httpx.ASGITransport(self, raise_app_exceptions=False)
        self.browser = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def looking(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.held_at_response.append(bool(await self._look.names()))
            await send(message)

        await self._app({**scope, "state": self._state.copy()}, receive, looking)


@asynccontextmanager
async def visiting(app: Starlette, source: StoreSource) -> AsyncGenerator[tuple[Visit, AsyncClient]]:
    """Serve an app; yield a visit, and another client of the store."""
    async with AsyncClient(store=source, owner="host-7/4242") as other, started(app) as state:
        visit = Visit(app, state, other)
        async with visit.browser:
            yield visit, other


class App(FastAPI):
    """Routes that hold a lock."""

    def __init__(self, source: StoreSource, **dependency: Any) -> None:  # noqa: ANN401 - arguments of Depends
        super().__init__(lifespan=lifespan(lambda: AsyncClient(store=source)))
        self.inside, self.loop = asyncio.Event(), asyncio.get_running_loop()
        self.in_thread = threading.Event()
        self.seen: list[object] = []
        order, report = Held("orders:{order}:{part}", ttl=20), Held("report", status=423, timeout=0.05)
        if dependency:
            order = Depends(order.dependency, **dependency)

        @self.get("/orders/{order}/{part}")
        async def pay(lease: Annotated[AsyncLease, order], order: int) -> str:  # pyright: ignore[reportUnusedFunction]
            lease.check()
            return f"{lease.name} {order} {lease.ttl:g}"

        @self.get("/report", dependencies=[report])
        async def write() -> str:  # pyright: ignore[reportUnusedFunction]
            self.inside.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise
            return "written"

        @self.get("/threaded/{order}")
        def threaded(lease: Annotated[AsyncLease, Held("threaded:{order}")]) -> str:  # pyright: ignore[reportUnusedFunction]
            self.loop.call_soon_threadsafe(self.inside.set)
            self.in_thread.wait()
            try:
                lease.check()
            except LeaseLost as error:
                self.seen.append(error)
                raise
            return lease.name


def test_a_route_holds_the_lock_that_its_path_names_until_the_response() -> None:
    """A caller that has the response finds the name free."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        async with visiting(App(source), source) as (visit, _):
            answers = [await visit.browser.get("/orders/7/ab") for _ in range(3)]
            assert [each.json() for each in answers] == ["orders:7:ab 7 20"] * 3
            assert visit.held_at_response == [False] * 3

    asyncio.run(main())


def test_a_release_after_the_response_is_found() -> None:
    """Planted: the default scope of a dependency."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        async with visiting(App(source, scope="request"), source) as (visit, _):
            await visit.browser.get("/orders/7/ab")
            assert visit.held_at_response == [True]

    asyncio.run(main())


@pytest.mark.parametrize(("path", "name", "status"), [("/orders/7/ab", "orders:7:ab", 409), ("/report", "report", 423)])
def test_a_busy_lock_is_answered_with_the_time_to_come_again(path: str, name: str, status: int) -> None:
    """The route is not called, and strangers do not learn which process holds the lock."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        app = App(source)
        async with visiting(app, source) as (visit, other), other.lock(name):
            answer = await visit.browser.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")
            assert answer.json() == {"detail": f"{name} is busy: try again later"}
            assert not app.inside.is_set()

    asyncio.run(main())


def test_an_absent_store_is_answered_503(caplog: pytest.LogCaptureFixture) -> None:
    """Within the timeout. The log says why, the answer does not, and neither has a password."""

    async def main() -> None:
        app = FastAPI(lifespan=lifespan(AWAY))

        @app.get("/", dependencies=[Held("x", timeout=0.2)])
        async def index() -> None:  # pyright: ignore[reportUnusedFunction]
            raise AssertionError

        async with started(app) as state, Visit(app, state, AsyncClient("memory://")).browser as browser:
            answer = await browser.get("/")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "127.0.0.1" not in answer.text

    asyncio.run(main())
    assert "127.0.0.1:1" in caplog.text
    assert "password" not in caplog.text


def test_a_store_in_quarantine_is_answered_503(tmp_path: Path) -> None:
    """It grants nothing: 409 would say that another request has the name."""

    async def main(url: str) -> None:
        app = FastAPI(lifespan=lifespan(url))

        @app.get("/", dependencies=[Held("x", timeout=0.2)])
        async def index() -> None:  # pyright: ignore[reportUnusedFunction]
            raise AssertionError

        async with started(app) as state, Visit(app, state, AsyncClient("memory://")).browser as browser:
            assert (await browser.get("/")).status_code == 503

    with RedisServer(tmp_path) as server:  # it is new
        asyncio.run(main(f"{server.url}?guard=strict"))


def test_a_path_that_is_too_long_is_the_fault_of_the_caller() -> None:
    """It fills no log with errors of the server."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        async with visiting(App(source), source) as (visit, _):
            assert (await visit.browser.get(f"/orders/7/{'é' * 300}")).status_code == 422

    asyncio.run(main())


def test_a_route_whose_lease_is_lost_is_cancelled_and_answered_500() -> None:
    """503 would say that nothing was done. The app may answer LeaseLost as it likes."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        app = App(source)
        app.add_exception_handler(LeaseLost, lambda _, error: PlainTextResponse(str(error), 500))
        async with visiting(app, source) as (visit, other):
            request = asyncio.create_task(visit.browser.get("/report"))
            await app.inside.wait()
            await other.revoke("report", force=True)
            answer = await request
            assert answer.status_code == 500
            assert "revoke" in answer.text
            assert app.seen == ["cancelled"]

    asyncio.run(main())


def test_a_route_in_a_thread_is_answered_500_and_learns_of_the_loss_by_a_check() -> None:
    """No thread can be stopped; without a loss it is a route as any other."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        app = App(source)
        async with visiting(app, source) as (visit, other):
            request = asyncio.create_task(visit.browser.get("/threaded/1"))
            await app.inside.wait()
            await other.revoke("threaded:1", force=True)
            answer = await request
            assert answer.status_code == 500
            app.in_thread.set()
            while not app.seen:  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.001)
            assert isinstance(app.seen[0], LeaseLost)
            assert (await visit.browser.get("/threaded/1")).json() == "threaded:1"

    asyncio.run(main())


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_lifespan_keeps_that_of_the_app_with_its_state(kind: type[FastAPI] | type[Starlette]) -> None:
    """The client is there before it, and closed after it; tasks run within it. The app can be started again."""
    source, said = memory_source(MemoryTable()), list[str]()

    async def beside() -> None:
        said.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            said.append("ends")

    @asynccontextmanager
    async def own(_: object) -> AsyncGenerator[dict[str, object]]:
        said.append("starts")
        await asyncio.sleep(0)
        yield {"pool": "a pool"}
        said.append("stops")

    async def main() -> None:
        app = kind(lifespan=lifespan(lambda: AsyncClient(store=source), own, tasks=[beside]))

        async def index(request: Request) -> PlainTextResponse:
            async with request.state.tenure.lock("x"):
                return PlainTextResponse(str(request.state.pool))

        app.add_route("/", index)

        for _ in range(2):
            async with visiting(app, source) as (visit, _):
                assert (await visit.browser.get("/")).text == "a pool"
            assert said == ["starts", "begins", "ends", "stops"]
            said.clear()

    asyncio.run(main())


def test_wrong_use_is_told() -> None:
    """Without the lifespan, in a route and in a task; and a name that the path cannot fill."""

    async def main() -> None:
        app = FastAPI()

        @app.get("/", dependencies=[Held("x")])
        async def index() -> None:  # pyright: ignore[reportUnusedFunction]
            raise AssertionError

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
            with pytest.raises(UsageError, match=r"lifespan=lifespan\(url\)"):
                await browser.get("/")
        with pytest.raises(UsageError, match="not a format string"):
            Held("orders:{")
        with pytest.raises(UsageError, match="no such parameter"):
            only_one("{part}")(main)
        with pytest.raises(UsageError, match="tasks="):
            await only_one("x")(main)()

        app = FastAPI(lifespan=lifespan("memory://"))

        @app.get("/{part}", dependencies=[Held("orders:{order}")])
        async def order(part: int) -> None:  # pyright: ignore[reportUnusedFunction]
            raise AssertionError(part)

        async with started(app) as state, AsyncClient("memory://") as look:
            visit = Visit(app, state, look)
            transport = httpx.ASGITransport(visit)
            async with visit.browser, httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
                with pytest.raises(UsageError, match="has the parameters part"):
                    await browser.get("/7")

    asyncio.run(main())


@asynccontextmanager
async def leading(source: StoreSource, owner: str, said: list[str], fail: asyncio.Event) -> AsyncGenerator[None]:
    """Run a worker with a task that runs on one worker, and fails once for each `fail`."""

    @only_one("sched{suffix}")
    async def lead(suffix: str = "uler") -> None:
        said.append(f"{owner} leads")
        try:
            await fail.wait()
            fail.clear()
            raise ValueError(owner)
        finally:
            said.append(f"{owner} ends")

    async with started(FastAPI(lifespan=lifespan(lambda: AsyncClient(store=source, owner=owner), tasks=[lead]))):
        await asyncio.sleep(0.5)
        yield


@pytest.mark.parametrize("end", ["loss", "failure"])
def test_only_one_worker_runs_a_task_and_stands_again(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """After a loss, by which the task is cancelled, and after an error, which is logged, the other one takes over."""
    said: list[str] = []

    async def main() -> None:
        source, fail = memory_source(MemoryTable(micros)), asyncio.Event()
        async with (
            AsyncClient(store=source) as other,
            leading(source, "a", said, fail),
            leading(source, "b", said, fail),
        ):
            for _ in range(2):
                if end == "loss":
                    await other.revoke("scheduler", force=True)
                else:
                    fail.set()
                await asyncio.sleep(5)

    virtual.run(main)
    assert [each for each in said if "leads" in each] == ["a leads", "b leads", "a leads"]
    assert [each for each in said if "ends" in each] == ["a ends", "b ends", "a ends"]
    assert ("ValueError: b" in caplog.text) == (end == "failure")


@pytest.mark.parametrize("skew", [0.0, 7.0, -3.0])
def test_every_tick_runs_once_on_one_of_the_workers(
    skew: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the clock of the workers shows; a tick that fails is logged, and the next one comes."""
    said, late = list[int](), list[float]()

    async def main() -> None:
        source = memory_source(MemoryTable(micros, wall=micros))
        await asyncio.sleep(1.3)

        @every(10, "tick")
        async def tick() -> None:
            said.append(micros() // 10_000_000)
            late.append(micros() % 10_000_000 / 1e6)
            if len(said) % 3 == 0:
                raise ValueError(said)

        def worker() -> FastAPI:
            return FastAPI(lifespan=lifespan(lambda: AsyncClient(store=source), tasks=[tick]))

        async with started(worker()), started(worker()), started(worker()):
            await asyncio.sleep(200)

    monkeypatch.setattr(time, "time", lambda: micros() / 1e6 + skew)
    virtual.run(main)
    assert said == [*range(said[0], said[0] + len(said))]
    assert len(said) >= 20
    assert max(late[1:]) <= (2.5 if skew else 1.0)
    assert "ValueError: [" in caplog.text


def test_ticks_end_with_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """A task that outlives the app raises that the client is closed, and does not log so at each tick."""
    ticking: list[asyncio.Task[None]] = []

    @every(10, "tick")
    async def tick() -> None:
        """Do nothing."""

    @asynccontextmanager
    async def own(_: object) -> AsyncGenerator[None]:
        ticking.append(asyncio.create_task(tick()))
        yield

    async def main() -> None:
        source = memory_source(MemoryTable(micros, wall=micros))
        async with started(FastAPI(lifespan=lifespan(lambda: AsyncClient(store=source), own))):
            await asyncio.sleep(20)
        done, _ = await asyncio.wait(ticking, timeout=100)
        assert [type(each.exception()) for each in done] == [UsageError]

    virtual.run(main)
    assert not caplog.text


BUGS: dict[str, tuple[types.ModuleType, str, str, Callable[..., None], tuple[object, ...]]] = {
    "a task goes on when its lease is lost": (
        tenure.starlette,
        "async with lease:",
        "if lease:",
        test_only_one_worker_runs_a_task_and_stands_again,
        ("loss",),
    ),
    "a worker stands once": (
        tenure.starlette,
        "await asyncio.sleep(pause)",
        "raise",
        test_only_one_worker_runs_a_task_and_stands_again,
        ("failure",),
    ),
    "each worker ticks": (
        tenure.starlette,
        "await job.run(function)",
        "await function()",
        test_every_tick_runs_once_on_one_of_the_workers,
        (0.0,),
    ),
    "ticks are late": (
        tenure.starlette,
        "seconds - time.time() % seconds + apart, ",
        "",
        test_every_tick_runs_once_on_one_of_the_workers,
        (0.0,),
    ),
    "ticks outlive the client": (
        tenure.starlette,
        "client.session()",
        "pass",
        test_ticks_end_with_the_client,
        (),
    ),
    "a tick that fails is the last": (
        tenure.starlette,
        'log.exception("%r has failed", job)',
        "raise",
        test_every_tick_runs_once_on_one_of_the_workers,
        (0.0,),
    ),
    "the state of the app is lost": (
        tenure.starlette,
        "**(state or {}), ",
        "",
        test_a_lifespan_keeps_that_of_the_app_with_its_state,
        (FastAPI,),
    ),
    "tasks outlive the app": (
        tenure.starlette,
        "await asyncio.gather(*started, return_exceptions=True)",
        "pass",
        test_a_lifespan_keeps_that_of_the_app_with_its_state,
        (FastAPI,),
    ),
    "an answer tells why the store is away": (
        tenure.fastapi,
        '"locks are not available: try again later"',
        "str(error)",
        test_an_absent_store_is_answered_503,
        (),
    ),
}
"""By what is wrong: the module, what is right there and what is wrong, the test that finds it, and its parameters."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In the adapters, as a maintainer could get them wrong."""
    module, right, wrong, test, parameters = BUGS[bug]
    broken = module_with(module, (right, wrong))
    for name in ("Held", "every", "lifespan", "only_one"):
        if hasattr(broken, name):
            monkeypatch.setitem(globals(), name, getattr(broken, name))
    fixtures = {"monkeypatch": monkeypatch, "caplog": caplog}
    used = {name: fixtures[name] for name in fixtures if name in inspect.signature(test).parameters}
    with pytest.raises(AssertionError):
        test(*parameters, **used)
