"""Tasks of Celery under a lock, driven message by message: no worker runs, so a test says what is delivered when."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any

import celery
import pytest
from celery import Celery
from celery.app.trace import build_tracer

import tenure
import tenure.celery
from tenure import Client, LeaseLost, OutcomeUnknown, StoreUnavailable, UsageError
from tenure.primitives.counter import Counter
from tests.hazards.helpers import eventually
from tests.planting import module_with
from tests.servers import RedisServer

NUMBERS = count()


class Broker:
    """An app whose messages stay in the broker until the test delivers them."""

    def __init__(self, module: ModuleType = tenure.celery, store: str = "memory://") -> None:
        self.app = Celery("shop", task_cls=module.Task, broker="memory://", backend="cache+memory://")
        self.app.conf.tenure_backend = store
        self.app.conf.tenure_namespace = self.app.conf.task_default_queue = f"celery-{next(NUMBERS)}"
        self.asked: list[int] = []
        """What callers have asked for, in order."""
        self.runs: list[list[int]] = []
        """What each run has seen when it began."""
        self.inside: Callable[[], object] = lambda: None
        """Called in each run."""

    def task(self, **options: Any) -> Any:
        """Make a task of the app as a worker does, at once: else two threads may use one that Celery has half made."""

        @self.app.task(lock="import:{customer}", lazy=False, bind=True, max_retries=0, shared=False, **options)
        def import_customer(task: Any, customer: int) -> int:
            self.runs.append(list(self.asked))
            self.inside()
            return int(task.lease.token)

        return import_customer

    def ask(self, task: Any) -> Any:
        """Send a message, and note what was asked for."""
        self.asked.append(len(self.asked))
        return task.delay(customer=7)

    def waiting(self) -> int:
        """Return how many messages are in the broker."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue(self._queue()) as queue:
            return int(queue.qsize())

    def deliver(self, *, redelivered: bool = False) -> None:
        """Deliver the oldest message, at once even if it has a countdown, and wait for its end."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue(self._queue()) as queue:
            assert queue.qsize(), "no message is left in the broker"
            message = queue.get(block=False)
            message.ack()
            self.message = message
        task = self.app.tasks[message.headers["task"]]
        args, kwargs, _ = message.payload
        request = {**message.headers, "delivery_info": {"redelivered": redelivered, "routing_key": self._queue()}}
        build_tracer(task.name, task, app=self.app)(message.headers["id"], args, kwargs, {**request, "exchange": ""})

    def _queue(self) -> str:
        return str(self.app.conf.task_default_queue)

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock in another process, as far as the app can tell."""
        url, namespace = self.app.conf.tenure_backend, self.app.conf.tenure_namespace
        with Client(url, namespace=namespace) as other, other.lock("import:7"):
            yield

    @contextmanager
    def running(self) -> Generator[None]:
        """Deliver the oldest message in a thread, and stay within its run."""
        began, end = threading.Event(), threading.Event()

        def stay() -> None:
            began.set()
            end.wait(30)

        self.inside = stay
        thread = threading.Thread(target=self.deliver)
        thread.start()
        try:
            assert began.wait(30)
            self.inside = lambda: None
            yield
        finally:
            end.set()
            thread.join()


def check_retry(module: ModuleType) -> None:
    """Send a message back with a countdown, as often as it must, though the task allows no retry."""
    broker = Broker(module)
    result = broker.ask(broker.task())
    with broker.held():
        for _ in range(3):
            broker.deliver()
            assert (result.state, broker.runs, broker.waiting()) == ("RETRY", [], 1)
            assert result.id in str(broker.app.backend.get_key_for_task(result.id))
    broker.deliver()
    assert broker.message.headers["eta"], "it went back without a countdown"
    assert (result.state, len(broker.runs), broker.message.headers["retries"]) == ("SUCCESS", 1, 0)


def check_drop(module: ModuleType) -> None:
    """Drop a message that finds the lock held; its result says so."""
    broker = Broker(module)
    result = broker.ask(broker.task(busy="drop"))
    with broker.held():
        broker.deliver()
    assert (result.get(timeout=1), broker.runs, broker.waiting()) == ({"dropped": "import:7"}, [], 0)


def check_redelivered(module: ModuleType) -> None:
    """Drop no message that comes again after its worker died: its own lock may be what it finds held."""
    broker = Broker(module)
    result = broker.ask(broker.task(busy="drop"))
    with broker.held():
        broker.deliver(redelivered=True)
        broker.deliver()
        assert (result.state, broker.waiting()) == ("RETRY", 1)
    broker.deliver()
    assert (result.state, len(broker.runs)) == ("SUCCESS", 1)


def check_coalesce(module: ModuleType) -> None:
    """Fold all but one into one that is queued; what runs last has seen all that was asked before."""
    broker = Broker(module)
    task = broker.task(busy="coalesce")
    broker.ask(task)
    for _ in range(2):
        with broker.running():
            results = [broker.ask(task) for _ in range(5)]
            for _ in range(5):
                broker.deliver()
            states = [each.state for each in results]
            assert (states, broker.waiting()) == (["RETRY", *["SUCCESS"] * 4], 1)
            assert results[4].get(timeout=1) == {"folded": "import:7"}
            broker.deliver()  # the queued one comes too early: it stays the queued one
            assert (results[0].state, broker.waiting()) == ("RETRY", 1)
    broker.deliver()
    assert (len(broker.runs), broker.runs[-1]) == (3, broker.asked)


def check_lost_mark(module: ModuleType) -> None:
    """Fold nobody any more into a message that the broker has lost, once the next run has begun."""
    broker = Broker(module)
    task = broker.task(busy="coalesce")
    broker.ask(task)
    with broker.running():
        broker.ask(task)
        broker.deliver()
    with broker.app.connection_for_read() as connection, connection.SimpleQueue(broker._queue()) as queue:
        queue.clear()
    broker.ask(task)
    with broker.running():
        broker.ask(task)
        broker.deliver()
        assert broker.waiting() == 1
    broker.deliver()
    assert broker.runs[-1] == broker.asked


def check_killed_before_it_went_back(module: ModuleType) -> None:
    """Fold no message into itself, though its worker died between its mark and its way back."""
    broker = Broker(module)
    task = broker.task(busy="coalesce")
    broker.ask(task)
    with broker.running():
        result = broker.ask(task)
        broker.app.tasks[task.name].apply_async(task_id=result.id, kwargs={"customer": 7})  # the same message again
        broker.deliver()
        broker.deliver(redelivered=True)
        assert (result.state, broker.waiting()) == ("RETRY", 2)


def check_broker_away(module: ModuleType) -> None:
    """Fold nobody into a message that cannot be sent back, and fail."""
    broker = Broker(module)
    task = broker.task(busy="coalesce")
    broker.ask(task)
    with broker.running():
        failed = broker.ask(task)
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(Celery, "send_task")
            broker.deliver()
        assert failed.state == "FAILURE"
        queued = broker.ask(task)
        broker.deliver()
        assert queued.state == "RETRY"


def check_store_away_at_the_mark(module: ModuleType) -> None:
    """Send a message back if the store does not answer when it is marked, or when a mark is ended."""
    broker = Broker(module)
    task = broker.task(busy="coalesce")

    def fail(*_args: int) -> bool:
        raise OutcomeUnknown("the store does not answer")

    broker.ask(task)
    with broker.running():
        marked, unmarked = broker.ask(task), broker.ask(task)
        broker.deliver()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Counter, "compare_and_set", fail)
            broker.deliver()
            assert (unmarked.state, broker.waiting()) == ("RETRY", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counter, "compare_and_set", fail)
        broker.deliver()
        assert (marked.state, broker.waiting(), len(broker.runs)) == ("RETRY", 2, 1)
    broker.deliver()
    broker.deliver()
    assert (marked.state, unmarked.state) == ("SUCCESS", "SUCCESS")


def check_lost(module: ModuleType) -> None:
    """Fail a run whose lease is lost, when it ends; it can tell before. The next message runs."""
    broker = Broker(module)
    task = broker.task()
    lost, after = broker.ask(task), broker.ask(task)
    seen: list[bool] = []

    def lose() -> None:
        module.client_of(broker.app).revoke("import:7", force=True)
        seen.append(task.lease.lost.wait(30))

    broker.inside = lose
    broker.deliver()
    broker.inside = lambda: None
    broker.deliver()
    assert seen == [True]
    assert isinstance(lost.result, LeaseLost)
    assert after.state == "SUCCESS"


CHECKS = (
    check_retry,
    check_drop,
    check_redelivered,
    check_coalesce,
    check_lost_mark,
    check_killed_before_it_went_back,
    check_broker_away,
    check_store_away_at_the_mark,
    check_lost,
)

BUGS = [
    (check_retry, "retries=request.retries", "retries=request.retries + 1"),
    (check_retry, "countdown=countdown, ", ""),
    (check_drop, 'return {"dropped": name}', "return None"),
    (check_redelivered, 'delivery.get("redelivered")', "False"),
    (check_redelivered, "RETURNED: True", ""),
    (check_coalesce, "self._begin(client", "(client"),
    (check_coalesce, "not queued.compare_and_set(0, mark) and", ""),
    (check_coalesce, 'return {"folded": name}', "self._send_back(why)"),
    (check_lost_mark, "compare_and_set(marked, 0)", "compare_and_set(_mark(self.request.id), 0)"),
    (check_killed_before_it_went_back, " and queued.get() != mark", ""),
    (check_broker_away, "queued.compare_and_set(mark, 0)\n", "pass\n"),
    (check_store_away_at_the_mark, "if began or not returns:", "if began or name:"),
    (check_lost, "request.tenure_lease = lease", "pass"),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_policy(check: Callable[[ModuleType], None]) -> None:
    """Each policy does what its docstring says."""
    check(tenure.celery)


@pytest.mark.parametrize(("check", "right", "wrong"), BUGS, ids=lambda part: None)
def test_a_planted_bug_in_a_policy_is_found(
    check: Callable[[ModuleType], None], right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a maintainer may get it wrong."""
    monkeypatch.setattr(celery.Task, "on_bound", vars(celery.Task)["on_bound"])
    module = module_with(tenure.celery, (right, wrong))
    with pytest.raises(AssertionError):
        check(module)


@pytest.mark.parametrize("busy", ["retry", "coalesce", "wait"])
def test_a_call_without_a_message_waits(busy: str) -> None:
    """Neither an eager task nor a plain call can go back: both wait, and run under the lock."""
    broker = Broker()
    task, done = broker.task(busy=busy), list[int]()
    with broker.held():
        threads = [
            threading.Thread(target=lambda: done.append(task.apply(kwargs={"customer": 7}).get())),
            threading.Thread(target=lambda: done.append(task(7))),
        ]
        for thread in threads:
            thread.start()
        with Client("memory://", namespace=broker.app.conf.tenure_namespace) as other:
            eventually(lambda: other.inspect("import:7").waiters, "the calls wait")
        assert not done
    for thread in threads:
        thread.join()
    assert len(set(done)) == 2
    broker.app.conf.task_always_eager = True
    assert broker.ask(task).get() > max(done)


def test_a_store_that_does_not_answer_loses_no_message(redis_server: RedisServer) -> None:
    """The message goes back, or the task fails: it never runs without the lock."""
    broker = Broker(store=f"{redis_server.url}?guard=off")
    results = [broker.ask(broker.task(name=busy, busy=busy)) for busy in ("retry", "coalesce", "drop")]
    redis_server.pause()
    for _ in results:
        broker.deliver()
    assert [each.state for each in results] == ["RETRY", "RETRY", "FAILURE"]
    assert isinstance(results[2].result, StoreUnavailable)
    assert not broker.runs
    redis_server.resume()
    broker.deliver()
    broker.deliver()
    assert [each.state for each in results[:2]] == ["SUCCESS", "SUCCESS"]


def import_customer(customer: int) -> int:
    """Be a task."""
    return customer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lock": "import:{costumer}"}, "use one of customer"),
        ({"lock": "import", "busy": "skip"}, "busy must be one of 'retry', 'drop', 'coalesce', 'wait', not 'skip'"),
        ({"lock": "import", "busy_countdwn": 3}, "busy_countdwn is no option of a task: busy and busy_countdown are"),
        ({"busy": "drop"}, "give it lock='name', too"),
        ({"lock": 7}, "lock is the name to lock"),
        ({"lock": ""}, "lock is the name to lock, such as 'import:{customer}', not ''"),
        ({"lock": "import:{customer}", "base": celery.Task}, "task_cls='tenure.celery:Task'"),
    ],
)
def test_a_wrong_option_is_refused_when_the_task_is_made(options: dict[str, Any], message: str) -> None:
    """Nothing that a user writes about a lock is ignored."""
    with pytest.raises(UsageError, match=message):
        Broker().app.task(lazy=False, shared=False, **options)(import_customer)


def test_an_app_without_the_class_is_refused() -> None:
    """An option of a task that Celery does not know would be ignored."""
    with pytest.raises(UsageError, match="make the app with task_cls="):
        Celery("plain").task(lazy=False, shared=False, lock="import:{customer}")(import_customer)


def test_a_call_without_an_argument_of_the_name_fails_at_once() -> None:
    """With the error of Python for it, where it is sent and where it runs."""
    broker = Broker()
    task = broker.task()
    with pytest.raises(TypeError, match="customer"):
        task.delay()
    broker.app.send_task(task.name)
    broker.deliver()
    assert "customer" in str(broker.app.AsyncResult(broker.message.headers["id"]).result)


def test_classes_and_bases_take_the_lock() -> None:
    """A task that is a class, one that inherits `run`, and one that is retried for certain errors."""
    broker = Broker()

    class Import(tenure.celery.Task):
        name = "import"
        lock = "import:{customer}"
        autoretry_for = (ZeroDivisionError,)

        def run(self, customer: int) -> str:
            return self.lease.name

    class Other(Import):
        name = "other"
        lock = "other:{customer}"

    for task, name in ((Import, "import:7"), (Other, "other:7")):
        assert broker.app.register_task(task()).apply((7,)).get() == name
    with pytest.raises(UsageError, match="does not run under a lock now"):
        _ = broker.app.tasks["import"].lease
