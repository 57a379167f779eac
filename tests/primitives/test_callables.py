"""Functions whose call returns before they have run: none runs outside its lock, and none counts as a job that ran."""

import asyncio
import contextlib
import functools
import itertools
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, Client, JobStatus, UsageError, callables
from tenure.fencing import MemoryGuard
from tenure.stores.memory import MemoryTable, memory_source
from tests.planting import module_with

Function = Callable[..., Any]


async def is_async() -> int:
    """Return a number."""
    return 1


def generates() -> Generator[int, None, None]:
    """Yield a number."""
    yield 1


async def generates_async() -> AsyncGenerator[int, None]:
    """Yield a number."""
    yield 1


class CallsAsync:
    """An object whose call is async."""

    async def __call__(self) -> int:  # noqa: D102
        return 1

    async def method(self) -> int:  # noqa: D102
        return 1


class CallGenerates:
    """An object whose call is a generator."""

    def __call__(self) -> Iterator[int]:  # noqa: D102
        yield 1


def passes_on(function: Function) -> Function:
    """Wrap a function without running what it returns."""

    @functools.wraps(function)
    def wrapper() -> object:
        return function()

    return wrapper


def runs(function: Function) -> Function:
    """Wrap an async function by a plain one that runs it."""

    @functools.wraps(function)
    def wrapper() -> object:
        return asyncio.run(function())

    return wrapper


def exhausts(function: Function) -> Function:
    """Wrap a generator by a plain function that runs it to its end."""

    @functools.wraps(function)
    def wrapper() -> object:
        return list(function())

    return wrapper


async def starts_a_task() -> object:
    """Return a task."""
    return asyncio.ensure_future(is_async())


async def returns_a_coroutine() -> object:
    """Return a coroutine."""
    return is_async()


async def returns_a_generator() -> object:
    """Return a generator."""
    return generates()


ASYNC: dict[str, Function] = {
    "an async function": is_async,
    "a partial": functools.partial(is_async),
    "an object": CallsAsync(),
    "a partial of an object": functools.partial(CallsAsync()),
    "a method": CallsAsync().method,
    "an async function in a context": contextlib.contextmanager(generates)()(is_async),
}
"""What shows that it is async."""

LAZY: dict[str, Function] = {
    "a generator": generates,
    "an async generator": generates_async,
    "an object that generates": CallGenerates(),
    "a context manager": contextlib.contextmanager(generates),
    "an async context manager": contextlib.asynccontextmanager(generates_async),
    "a partial of a context manager": functools.partial(contextlib.contextmanager(generates)),
}
"""What shows that it returns something that no await runs."""

HIDDEN: dict[str, Function] = {
    "a lambda": lambda: is_async(),  # noqa: PLW0108 - hides what it is  # noqa: PLW0108 - hides what it is
    "a wrapper": passes_on(is_async),
    "a cached async function": functools.lru_cache(is_async),
    "a lambda that generates": lambda: iter(generates()),
    "a lambda that generates async": lambda: generates_async().__aiter__(),
    "a wrapper of a generator": passes_on(generates),
    "a lambda of a context manager": lambda: contextlib.contextmanager(generates)(),  # noqa: PLW0108
    "a lambda of an async context manager": lambda: contextlib.asynccontextmanager(generates_async)(),  # noqa: PLW0108
}
"""What shows only by what it returns that it has not run."""

PLAIN: dict[str, Function] = {
    "a function": lambda: [1],
    "a wrapper that runs an async function": runs(is_async),
    "a wrapper that runs a generator": exhausts(generates),
    "a class": dict,
    "an open file": lambda: Path(__file__).open(),  # noqa: SIM115 - the tests close it
    "a function in a context": contextlib.contextmanager(generates)()(lambda: 1),
}
"""What has run when it returns."""

HIDDEN_ASYNC: dict[str, Function] = {
    "a task": starts_a_task,
    "a coroutine": returns_a_coroutine,
    "a generator that was made": returns_a_generator,
}
"""Async functions that return something that still has to run."""


def close(value: Any) -> None:  # noqa: ANN401 - of any kind
    """Close a coroutine, a generator or a file."""
    if hasattr(value, "close"):
        value.close()


def refused(call: Callable[[], object]) -> bool:
    """Tell whether a call raises UsageError."""
    try:
        call()
    except UsageError:
        return True
    return False


def check(module: types.ModuleType) -> None:
    """Check every kind of function by the functions of `module`."""
    for kind, function in {**ASYNC, **LAZY}.items():
        assert refused(lambda f=function: module.refuse_async(f)), kind  # type: ignore[misc]
    for kind, function in {**HIDDEN, **PLAIN}.items():
        assert not refused(lambda f=function: module.refuse_async(f)), kind  # type: ignore[misc]
    for kind, function in {**ASYNC, "a wrapper": passes_on(is_async)}.items():
        assert not refused(lambda f=function: module.refuse_sync(f)), kind  # type: ignore[misc]
    for kind, function in {**LAZY, **PLAIN, "a wrapper": passes_on(generates)}.items():
        if kind != "a wrapper that runs an async function":
            assert refused(lambda f=function: module.refuse_sync(f)), kind  # type: ignore[misc]
    for kind, function in HIDDEN.items():
        value = function()
        try:
            assert refused(lambda f=function, v=value: module.finished(f, v)), kind  # type: ignore[misc]
        finally:
            close(value)
    for kind, function in PLAIN.items():
        value = function()
        try:
            assert module.finished(function, value) is value, kind
        finally:
            close(value)
    for callback in (is_async, CallsAsync()):
        assert refused(lambda f=callback: module.refuse_async_callback(f, "on_lost"))  # type: ignore[misc]
    assert not refused(lambda: module.refuse_async_callback(None, "on_lost"))
    assert refused(lambda: module.awaitable(len, 1))


def test_every_kind_of_function_is_told_apart() -> None:
    """What returns before it has run is refused, and nothing else."""
    check(callables)


WRONG = {
    "the call of an object is not looked at": ('type(function), "__call__"', 'type(function), "none"'),
    "what contextlib has wrapped is not looked at": ('!= "contextlib"', '!= "none"'),
    "what any wrapper has wrapped counts": ('!= "contextlib"', '== "none"'),
    "a partial is not looked through": ("    yield function\n    if", "    yield None\n    if"),
    "an async generator is no generator": (" or inspect.isasyncgenfunction(part)", ""),
    "a wrapper of an async function is not async": ("(*_parts(function), *_wrapped(function))", "_parts(function)"),
    "a result is not looked at": ("if value is None or", "if True or"),
    "a coroutine has run": ('    (Coroutine, "a coroutine"),\n    (Awaitable, "an awaitable"),\n', ""),
    "a generator has run": ('    (Generator, "a generator"),\n', ""),
    "an async generator has run": ('    (AsyncGenerator, "an async generator"),\n', ""),
    "a context manager has run": ('    (ContextDecorator, "a context manager"),', ""),
    "an open file has not run": ("(ContextDecorator,", "(__import__('contextlib').AbstractContextManager,"),
    "what is not awaitable is awaited": ("if not inspect.isawaitable(result)", "if False"),
}
"""What callables.py says, and what it says then."""


@pytest.mark.parametrize("bug", sorted(WRONG))
def test_a_planted_bug_is_found(bug: str) -> None:
    """By the kinds of functions above."""
    wrong = module_with(callables, WRONG[bug], everywhere=True)
    with pytest.raises((AssertionError, TypeError, AttributeError, UsageError)):
        check(wrong)


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a client of a store of its own."""
    with Client(store=memory_source(MemoryTable())) as client:
        yield client


NUMBERS = itertools.count()


def made(client: Client | AsyncClient) -> dict[str, Any]:
    """Return one of each that decorates."""
    return {
        "lock": client.lock("name"),
        "skipping lock": client.lock("name", busy="skip"),
        "reentrant lock": client.lock("name", reentrant=True),
        "semaphore": client.semaphore("permits", 2),
        "reader": client.rwlock("shared").read(),
        "writer": client.rwlock("shared").write(),
        "multilock": client.multilock(["a", "b"]),
        "job": client.once("job", key=str(next(NUMBERS))),
    }


DECORATORS = ["lock", "skipping lock", "reentrant lock", "semaphore", "reader", "writer", "multilock", "job"]


@pytest.mark.parametrize("kind", DECORATORS)
def test_nothing_is_decorated_in_vain(client: Client, kind: str) -> None:
    """Each decorator of a Client refuses what is async or lazy, and the result that still has to run."""
    decorate = made(client)[kind]
    for function in (*ASYNC.values(), *LAZY.values()):
        with pytest.raises(UsageError, match=r"is async|is a generator"):
            decorate(function)
    for function in HIDDEN.values():
        with pytest.raises(UsageError, match="still has to run"):
            made(client)[kind](function)()
    assert not client.names()


@pytest.mark.parametrize("kind", DECORATORS)
def test_nothing_is_decorated_in_vain_in_asyncio(kind: str) -> None:
    """Each decorator of an AsyncClient takes what is async, and refuses the rest and results that still have to run."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            decorate = made(client)[kind]
            for function in (*LAZY.values(), *PLAIN.values()):
                if function is not PLAIN["a wrapper that runs an async function"]:
                    with pytest.raises(UsageError, match=r"is not async|is a generator"):
                        decorate(function)
            for function in HIDDEN_ASYNC.values():
                with pytest.raises(UsageError, match="still has to run"):
                    await made(client)[kind](function)()
            with pytest.raises(UsageError, match="is not async"):
                await decorate(functools.wraps(is_async)(lambda: 1))()  # it only says that it wraps an async function

    asyncio.run(main())


def test_a_run_of_an_async_function_does_not_begin(client: Client) -> None:
    """Of a Client: the job is not noted as done, and no attempt is spent."""
    job = client.once("migrate", key="17")
    with pytest.raises(UsageError, match="is async: give it to a job of an AsyncClient"):
        job.run(is_async)
    assert not client.jobs()
    result = job.run(lambda: 2)
    assert (result.status, result.value) == (JobStatus.RAN, 2)


def test_a_run_whose_result_has_not_run_has_failed(client: Client) -> None:
    """It counts as an attempt, and its error says what to do."""
    job = client.once("migrate", key="17")
    with pytest.raises(UsageError, match="run it inside the function"):
        job.run(HIDDEN["a lambda"])
    result = client.once("migrate", key="17", busy="skip").run(lambda: 2)
    assert (result.status, result.attempts) == (JobStatus.FAILED, 1)
    assert "returned a coroutine" in result.error


def test_a_plain_function_does_not_run_in_asyncio() -> None:
    """`run` of an AsyncClient refuses it before, and no attempt is spent."""
    ran = []

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            with pytest.raises(UsageError, match="is not async: give it to a job of a Client"):
                await client.once("job", window="daily").run(lambda: ran.append(1))  # type: ignore[arg-type,return-value]
            assert not await client.jobs()
            assert (await client.once("job", window="daily").run(is_async)).value == 1

    asyncio.run(main())
    assert not ran


def test_an_async_callback_is_refused(client: Client) -> None:
    """Nobody would await it: of the options, of leases, and of a client."""
    callback: Any = is_async
    for option in ("on_lost", "on_revoke"):
        with pytest.raises(UsageError, match=f"is async, and {option} calls a plain function"):
            client.lock("name", **{option: callback})
    with pytest.raises(UsageError, match="on_event"):
        Client("memory://", on_event=callback)
    for lock in (client.lock("name"), client.lock("other", reentrant=True), client.multilock(["a", "b"])):
        with lock.acquire() as lease, pytest.raises(UsageError, match="on_lost"):
            lease.on_lost(callback)


def test_a_guard_keeps_no_value_that_has_not_run(client: Client) -> None:
    """An async `change` of a guard leaves the value as it was."""
    guard = MemoryGuard[Any](7)
    with client.lock("name") as lease:
        with pytest.raises(UsageError, match="still has to run"):
            guard.update(lease, lambda _: is_async())
        assert guard.read(lease) == 7
