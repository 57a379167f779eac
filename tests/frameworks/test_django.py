"""The adapter for Django: clients from the settings, checks, views under a lock, `cache.lock`, `manage.py tenure`."""

import asyncio
import inspect
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

import tenure
from tenure import LockTimeout, UsageError
from tenure.core.events import EventKind, LockEvent
from tests.cli.conftest import until
from tests.planting import planted

django: Any = import_module("django")  # it has no types
settings: Any = import_module("django.conf").settings
if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

adapter: Any = import_module("tenure.django")
checks: Any = import_module("tenure.django.checks")
command: Any = import_module("tenure.django.management.commands.tenure")
connections: Any = import_module("django.db").connections
transaction: Any = import_module("django.db.transaction")
http: Any = import_module("django.http")
management: Any = import_module("django.core.management")
override_settings: Any = import_module("django.test").override_settings
requests: Any = import_module("django.test").RequestFactory()
Handler: Any = import_module("django.core.handlers.base").BaseHandler

events: list[LockEvent] = []


def hear(event: LockEvent) -> None:
    """Note an event."""
    events.append(event)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Have the settings name a lock file; yield its URL."""
    made = f"sqlite://{tmp_path}/locks.db"
    events.clear()
    with override_settings(TENURE={"default": {"URL": made, "NAMESPACE": "shop", "ON_EVENT": hear}}):
        yield made


@pytest.fixture
def other(url: str) -> Iterator[tenure.Client]:
    """Yield a client of another process."""
    with tenure.Client(url, namespace="shop") as client:
        yield client


def test_clients_are_made_when_they_are_needed(url: str) -> None:
    """One of each form for an alias; with other settings another one, and the one before is closed."""
    with override_settings(TENURE={"default": {"URL": url, "TTL": 7}, "second": {"URL": "memory://second"}}):
        client = adapter.locks["default"]
        assert client is adapter.locks["default"]
        assert (client.ttl, list(adapter.locks)) == (7, ["default", "second"])
        assert isinstance(adapter.async_locks["second"], tenure.AsyncClient)
        with pytest.raises(UsageError, match="no store 'third', only: default, second"):
            adapter.locks["third"]
    assert adapter.locks["default"] is not client
    with pytest.raises(UsageError, match="closed"):
        client.lock("x").acquire()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"default": {"URL": "redis://u:hunter2@localhost", "TTL": 10}}, []),
        ({"default": {"URL": "memory://"}}, ["tenure.W002"]),
        ({"default": {"url": "redis://localhost"}}, ["tenure.E002"]),
        ({"default": {"URL": "redis://u:hunter2@localhost", "TLL": 10}}, ["tenure.E002"]),
        ({"default": {"URL": "radis://u:hunter2@localhost"}}, ["tenure.E002"]),
        ({"other": {}}, ["tenure.E001"]),
        ("redis://u:hunter2@localhost", ["tenure.E001"]),
        ({"default": "redis://u:hunter2@localhost"}, ["tenure.E001"]),
    ],
)
def test_a_check_finds_wrong_settings(given: object, found: list[str]) -> None:
    """Without a store to ask, and without telling a password."""
    with override_settings(TENURE=given, DEBUG=False):
        messages = checks.check_settings()
        assert [each.id for each in messages] == found
        assert "hunter2" not in str(messages)
    with override_settings(TENURE=given, DEBUG=True):
        assert [each.id for each in checks.check_settings()] == [each for each in found if each != "tenure.W002"]


def test_a_check_warns_if_nothing_names_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each machine has locks of its own."""
    monkeypatch.delenv("TENURE_URL", raising=False)
    assert [each.id for each in checks.check_settings()] == ["tenure.W001"]
    monkeypatch.setenv("TENURE_URL", "redis://localhost")
    assert checks.check_settings() == []


# -- views ---------------------------------------------------------------------------------------------------


def test_a_view_holds_its_lock_and_says_if_it_is_busy(other: tenure.Client) -> None:
    """A view answers 409, a function raises; the name is filled from the arguments of the call."""
    seen: list[list[str]] = []

    def pay(request: object, order: int) -> Any:  # noqa: ANN401 - of Django
        seen.append(other.names())
        return http.HttpResponse("paid")

    pay = adapter.lock("orders:{order}", timeout=0)(pay)
    assert pay(requests.get("/"), 42).content == b"paid"
    assert (seen, other.names()) == ([["orders:42"]], [])
    with other.lock("orders:42"):
        busy = pay(requests.get("/"), order=42)
        assert (busy.status_code, busy.headers["Retry-After"], seen) == (409, "1", [["orders:42"]])
        assert pay(requests.get("/"), 43).status_code == 200
        with pytest.raises(LockTimeout):
            pay("no request", 42)


def test_a_view_says_that_the_store_is_away() -> None:
    """With 503, and so that nothing of the store is told."""
    with override_settings(TENURE={"default": {"URL": "redis://u:hunter2@localhost:1", "RETRY_FOR": 0.1}}):
        view = adapter.lock("x", timeout=0.1)(http.HttpResponse)
        answer = view(requests.get("/"))
    assert answer.status_code == 503
    assert b"localhost" not in answer.content


def test_a_wrong_decorator_is_refused_when_the_view_is_defined() -> None:
    """Not with the first request."""
    with pytest.raises(UsageError, match=r"uses \{pk\}"):
        adapter.lock("orders:{pk}")(hear)
    with pytest.raises(UsageError, match="non-empty str"):
        adapter.lock("")(hear)
    with pytest.raises(UsageError, match="busy="):
        adapter.lock("orders", busy="skip")


@pytest.mark.parametrize("name", ["x-{pk}", "x-{kwargs[pk]}"])
def test_a_class_of_views_holds_its_lock(other: tenure.Client, name: str) -> None:
    """By Django's `method_decorator`, whose function has the parameters of the method; a client's lock as well."""
    method_decorator: Any = import_module("django.utils.decorators").method_decorator
    view: Any = import_module("django.views").View

    def get(_self: object, _request: object, pk: int) -> Any:  # noqa: ANN401 - of Django
        return http.HttpResponse(f"{pk} {other.names()}")

    for locks in (adapter.lock(name), [adapter.lock("a"), adapter.lock(name)], adapter.locks["default"].lock(name)):
        pay: Any = method_decorator(locks, name="dispatch")(type("Pay", (view,), {"get": get}))
        held = ["a", "x-4"] if isinstance(locks, list) else ["x-4"]
        assert pay.as_view()(requests.get("/"), pk=4).content.decode() == f"4 {held}"
    if "kwargs" not in name:
        pay = type("Pay", (view,), {"get": method_decorator(adapter.lock(name))(get)})
        assert pay.as_view()(requests.get("/"), pk=4).content == b"4 ['x-4']"


def test_an_async_view_holds_its_lock_in_any_event_loop(other: tenure.Client) -> None:
    """Each request of WSGI has an event loop of its own."""

    async def report(request: object) -> Any:  # noqa: ANN401 - of Django
        held = await asyncio.to_thread(other.names)
        return http.HttpResponse(",".join(held))

    report = adapter.lock("report", timeout=0)(report)
    assert inspect.iscoroutinefunction(report)
    for _ in range(2):
        assert asyncio.run(report(requests.get("/"))).content == b"report"
        assert other.names() == []
    with other.lock("report"):
        assert asyncio.run(report(requests.get("/"))).status_code == 409


def check_the_commit_before_the_release(folder: Path, left_out: str = "", *, two: bool = False) -> None:
    """Check that with ATOMIC_REQUESTS what a view writes is committed when the lock is released, and not before."""
    path = str(folder / "data.db")
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "ATOMIC_REQUESTS": True}
    connections.settings["orders"] = connections.configure_settings({"default": {}, "orders": database})["orders"]
    visible: list[tuple[EventKind | str, int]] = []

    def count() -> int:
        with sqlite3.connect(path) as reader:
            (found,) = reader.execute("SELECT count(*) FROM orders").fetchone()
        reader.close()
        return int(found)

    def look(event: LockEvent) -> None:
        if event.event == EventKind.RELEASED:
            visible.append(("released", count()))

    try:
        with connections["orders"].cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
            cursor.execute("DELETE FROM orders")

        def pay(request: object) -> Any:  # noqa: ANN401 - of Django
            with connections["orders"].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (1)")
            visible.append(("in the view", count()))
            return http.HttpResponse("paid")

        def locked(view: Callable[..., object]) -> Callable[..., object]:
            second: Callable[..., object] = adapter.lock("second", timeout=0)(view) if two else view
            return cast("Callable[..., object]", adapter.lock("orders", timeout=0)(second))

        leave_out = transaction.non_atomic_requests(using="orders")
        with override_settings(TENURE={"default": {"URL": f"sqlite://{folder}/locks.db", "ON_EVENT": look}}):
            view = locked(leave_out(pay) if left_out == "inside" else pay)
            view = Handler().make_view_atomic(leave_out(view) if left_out == "outside" else view)
            assert view(requests.get("/")).content == b"paid"
        assert visible == [("in the view", int(left_out != "")), *[("released", 1)] * (1 + two)]
    finally:
        connections["orders"].close()
        del connections["orders"], connections.settings["orders"]


@pytest.mark.parametrize("two", [False, True], ids=["one lock", "two locks"])
@pytest.mark.parametrize("left_out", ["", "inside", "outside"])
def test_a_view_commits_before_its_lock_is_released(tmp_path: Path, left_out: str, two: bool) -> None:
    """Else the next holder would read what was there before. A database that the view leaves out stays left out."""
    check_the_commit_before_the_release(tmp_path, left_out, two=two)


PLANTED = {
    "the transaction is around the lock": ("_AllDatabases", "__contains__", "return True", "return False"),
    "there is no transaction": ("_Adapter", "_in_transactions", 'database["ATOMIC_REQUESTS"]', "False"),
    "a view is taken for a function": ("_Adapter", "_is_view", "isinstance(args[0], HttpRequest)", "False"),
}


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check of the commit."""
    kind, name, right, wrong = PLANTED[bug]
    owner = getattr(adapter, kind, adapter)
    found: Callable[..., object] = getattr(owner, name)
    holder = type("Holder", (), {name: found, "__module__": adapter.__name__})
    monkeypatch.setattr(owner, name, planted(holder, name, right, wrong))
    with pytest.raises((AssertionError, UsageError)):
        check_the_commit_before_the_release(tmp_path)


def test_a_call_within_a_transaction_is_refused(url: str) -> None:
    """Its lock would be released before the commit. The blocks around a test of TestCase are not the user's."""
    function = adapter.lock("x")(lambda: "done")
    block = transaction.atomic()
    with block:
        with pytest.raises(UsageError, match="before the commit"):
            function()
        block._from_testcase = True
        assert function() == "done"
    assert function() == "done"


def test_a_migration_writes_nothing_once_its_lease_is_lost(other: tenure.Client) -> None:
    """Another process may migrate by then: each further statement is refused, and the transaction is rolled back."""
    wrapper = import_module("tenure.django.management.commands.migrate_once")._while_held
    connection = connections["default"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS migrated (id INTEGER)")

    def migrate() -> None:
        with (
            adapter.locks["default"].lock("x") as lease,
            connection.execute_wrapper(wrapper(lease)),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute("INSERT INTO migrated VALUES (1)")
            other.revoke("x", force=True)
            until(lambda: lease.lost, "the loss is known")
            cursor.execute("INSERT INTO migrated VALUES (2)")

    with pytest.raises(tenure.LeaseLost):
        migrate()
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM migrated").fetchone() == (0,)


def test_a_cache_makes_locks_as_django_redis_does(other: tenure.Client) -> None:
    """The key has the prefix and the version of the cache, and the timeout is the ttl."""
    kind: Any = type("Cache", (import_module("tenure.django.cache").LockMixin, _LocMemCache), {})
    cache = kind("locks", {"KEY_PREFIX": "site", "VERSION": 3})
    with cache.lock("report", timeout=17, blocking_timeout=0):
        assert other.names() == ["cache:site:3:report"]
        assert other.inspect("cache:site:3:report").holders[0].ttl == 17
        with pytest.raises(LockTimeout):
            cache.lock("report", blocking_timeout=0).acquire()


_LocMemCache: Any = import_module("django.core.cache.backends.locmem").LocMemCache


# -- processes and commands ----------------------------------------------------------------------------------

FORKED = """
import os
import sys

from django.conf import settings

settings.configure(TENURE={"default": {"URL": sys.argv[1]}})

from tenure.django import locks

with locks["default"].lock("parent"):
    child = os.fork()
    if not child:  # as a worker of gunicorn with --preload, which has used its client before
        with locks["default"].lock("child"):
            (view,) = locks["default"].inspect("child").holders
            assert view.owner.endswith(f"/{os.getpid()}"), view.owner
        locks["default"].lock("left").acquire()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(locks["default"].names()) == ["parent"]
"""


def test_a_forked_worker_has_a_client_of_its_own(url: str) -> None:
    """What it holds at its end is released, and its parent keeps what it holds."""
    subprocess.run([sys.executable, "-W", "error", "-c", FORKED, url], check=True, timeout=60)


def test_the_command_looks_at_the_store_of_an_alias(other: tenure.Client, capfd: pytest.CaptureFixture[str]) -> None:
    """In its namespace, and it exits with the status of the command."""
    with other.lock("orders"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENURE_URL", "redis://elsewhere")
        management.call_command(command.Command(), "ls", "--json")
        assert '"name": "orders"' in capfd.readouterr().out
        with pytest.raises(SystemExit, match="75"):
            management.call_command(command.Command(), "--using", "default", "run", "orders", "-n", "--", "true")
        with pytest.raises(management.CommandError, match="no store 'nowhere'"):
            management.call_command(command.Command(), "--using", "nowhere", "ls")


def test_the_command_tells_no_password(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when the store is away nor when the call is wrong, and the command under a lock gets none."""
    monkeypatch.setenv("TENURE_URL", "")
    with override_settings(TENURE={"default": {"URL": "redis://u:hunter2@localhost:1?timeout=0.1"}}):
        for arguments in (("ls",), ("show", "x", "y"), ("doctor",), ("run", "x", "-w", "0.1", "--", "env")):
            with pytest.raises(SystemExit):
                management.call_command(command.Command(), *arguments)
    said = capfd.readouterr()
    assert said.err
    assert "hunter2" not in said.out + said.err
