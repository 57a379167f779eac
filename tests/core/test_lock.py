"""The public API of a lock: decorator, limits, errors and repr."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure import AsyncClient, Client, Fence, LeaseLost, LockTimeout, Outcome, StaleTokenError, UsageError
from tenure.contracts.limits import LONGEST
from tenure.stores.memory import MemoryTable, memory_source


@pytest.fixture
def client() -> Client:
    """Return a client of a table of its own."""
    return Client(store=memory_source(MemoryTable()), owner="test")


class Order:
    """An object with an attribute that a name is formatted from."""

    def __init__(self, number: int) -> None:
        self.number = number


def held_names(client: Client) -> list[str]:
    """Return the held names."""
    return client.names()


def test_a_decorated_function_runs_under_the_lock_of_its_arguments(client: Client) -> None:
    """The name is formatted from positional, keyword and default arguments and their attributes."""

    @client.lock("order:{order.number}:{part}:{items[0]}", ttl=5)
    def work(order: Order, part: str = "all", *, items: tuple[int, ...] = (7,)) -> list[str]:
        """Work."""
        return held_names(client)

    assert work(Order(1)) == ["order:1:all:7"]
    assert work(order=Order(2), part="b", items=(9,)) == ["order:2:b:9"]
    assert work.__doc__ == "Work."
    assert held_names(client) == []
    client.close()


def _plain(order: int) -> int:
    return order


async def _coroutine(order: int) -> int:
    return order


def _generator(order: int) -> Any:  # noqa: ANN401 - only its kind matters
    yield order


@pytest.mark.parametrize("name", ["{missing}", "{}", "{0}", "{order", "order}"])
def test_a_name_that_cannot_be_formatted_is_refused_at_decoration(client: Client, name: str) -> None:
    """A mistake in the name of a decorator raises when it is applied, not when the function is called."""
    with pytest.raises(UsageError):
        client.lock(name)(_plain)


class _Handler:
    """A class with a method, as the views of Django have."""

    def get(self, request: str, order: int = 1) -> str:
        return f"{request} {order}"


def _bound_as_django_does() -> Callable[..., str]:
    """Return a partial of a method that says it wraps the function of the class, as `method_decorator` makes it."""
    return functools.wraps(_Handler.get)(functools.partial(_Handler().get))


def test_a_partial_that_wraps_its_function_gives_the_rest_of_its_arguments(client: Client) -> None:
    """The name is filled from what a call gives, not from the parameters of what it says it wraps."""
    seen: list[str] = []

    def work(part: str, order: int, **rest: int) -> None:
        seen.extend(client.names())

    client.lock("{request}:{order}")(_bound_as_django_does())("a", order=2)
    client.lock("{order}")(functools.update_wrapper(functools.partial(work, "a"), work))(3)
    client.lock("{customer}:{rest[customer]}")(work)("a", 1, customer=4)  # a function with **rest may get any name
    client.lock("{order}")(client.lock("{part}")(work))("b", 5)
    assert seen == ["3", "4:4", "5", "b"]
    with pytest.raises(UsageError, match="use one of request, order"):
        client.lock("{self}")(_bound_as_django_does())
    with pytest.raises(UsageError, match="type shows no parameters"):
        client.lock("{x}")(type)
    with pytest.raises(TypeError, match=r"'\{customer\}' cannot be filled from this call of .*work \('customer'\)"):
        client.lock("{customer}")(work)("a", 1)


def _with_a_directory(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function one more argument, as `mock.patch` and many fixtures do."""

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*args, "directory", **kwargs)

    return wrapper


def test_a_decorator_may_supply_arguments_below_a_fixed_name(client: Client) -> None:
    """A name without fields needs no argument; one with fields cannot know what the decorator supplies."""

    def work(order: int, directory: str) -> list[str]:
        return [directory, str(order), *client.names()]

    assert client.lock("a{{b}}")(_with_a_directory(work))(7) == ["directory", "7", "a{b}"]
    assert client.lock("n")(min)(2, 1) == 1
    with pytest.raises(TypeError, match=r"'directory'.*put the lock below that decorator"):
        client.lock("order:{order}")(_with_a_directory(work))(7)
    assert _with_a_directory(client.lock("order:{order}")(work))(7) == ["directory", "7", "order:7"]


@pytest.mark.parametrize(
    "function", [_coroutine, _generator, functools.partial(_coroutine, 1)], ids=["async", "generator", "partial"]
)
def test_a_function_of_the_wrong_kind_is_refused(client: Client, function: Callable[..., Any]) -> None:
    """A coroutine function or a generator would run outside of its lock."""
    with pytest.raises(UsageError):
        client.lock("name")(function)


@pytest.mark.parametrize("function", [_plain, _generator])
def test_an_async_lock_refuses_a_plain_function(function: Callable[..., Any]) -> None:
    """A lock of an AsyncClient decorates async functions only."""
    with pytest.raises(UsageError):
        AsyncClient("memory://").lock("name")(function)


async def _async_generator(order: int) -> Any:  # noqa: ANN401 - only its kind matters
    yield order


@pytest.mark.parametrize("function", [_generator, _async_generator])
@pytest.mark.parametrize("client_type", [Client, AsyncClient])
def test_the_error_for_a_generator_says_to_acquire_the_lock_inside(
    client_type: type[Client | AsyncClient], function: Callable[..., Any]
) -> None:
    """Both clients name both kinds of generator: neither client can decorate them."""
    with pytest.raises(UsageError, match="is a generator: take the lock inside it"):
        client_type("memory://").lock("name")(function)


def test_a_decorated_coroutine_makes_a_task() -> None:
    """A decorated async function returns a coroutine, also for type checkers: create_task accepts nothing else."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:

            @client.lock("job", ttl=5)
            async def work(number: int) -> int:
                return number

            assert await asyncio.create_task(work(3)) == 3

    asyncio.run(main())


def test_a_loss_that_the_body_found_is_reported_once(client: Client) -> None:
    """LeaseLost from the body's own `check` gets no note that repeats it."""

    def body() -> None:
        with client.lock("name") as lease:
            client.revoke("name", force=True)
            lease.check()

    with pytest.raises(LeaseLost) as found:
        body()
    assert found.value.__notes__ == LeaseLost("alone").__notes__
    client.close()


def test_a_decorated_coroutine_runs_under_the_lock() -> None:
    """The same for async functions."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:

            @client.lock("job:{number}", ttl=5)
            async def work(number: int) -> list[str]:
                return await client.names()

            assert await work(3) == ["job:3"]
            assert await client.names() == []

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "x" * 513, "\u00e9" * 257, "\ud800", None, 5, b"x"])
def test_a_name_that_no_store_can_keep_is_refused(client: Client, name: Any) -> None:  # noqa: ANN401 - wrong on purpose
    """A name is a non-empty str of up to 512 bytes of UTF-8."""
    with pytest.raises(UsageError):
        client.lock(name)


@pytest.mark.parametrize("name", ["x" * 512, " ", "\0", "\n", "{}", "%s", "\U0001f512", "'; DROP TABLE names; --"])
def test_every_other_name_is_a_name(client: Client, name: str) -> None:
    """A name of any characters is locked, shown and freed under exactly that name."""
    with client.lock(name):
        assert client.names() == [name]
        assert client.inspect(name).holders[0].owner == "test"
        assert client.lock(name).try_acquire() is None
    client.close()


@pytest.mark.parametrize("value", [0, -1, 0.01, LONGEST + 1, float("nan"), float("inf"), "5", True, 10**400])
def test_a_ttl_that_cannot_be_right_is_refused(client: Client, value: Any) -> None:  # noqa: ANN401 - wrong on purpose
    """A ttl is a number of seconds that the store can keep."""
    with pytest.raises(UsageError):
        client.lock("name", ttl=value)


@pytest.mark.parametrize("value", [-1, -1.0, -0.001, float("nan"), "5", True, LONGEST * 2])
def test_a_timeout_that_cannot_be_right_is_refused(client: Client, value: Any) -> None:  # noqa: ANN401 - on purpose
    """A timeout is None or a number of seconds from 0, wherever it is given."""
    with pytest.raises(UsageError):
        client.lock("name", timeout=value)
    with pytest.raises(UsageError):
        client.lock("name").acquire(timeout=value)
    client.close()


def test_errors_are_one_tree() -> None:
    """Every error is a TenureError, and what the standard library would call it."""
    errors = [each for each in vars(tenure).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) >= 9
    assert all(issubclass(each, tenure.TenureError | Warning) for each in errors)
    assert issubclass(tenure.BlockedEventLoop, RuntimeWarning)
    assert issubclass(LockTimeout, TimeoutError)
    assert issubclass(UsageError, ValueError)
    assert issubclass(tenure.OutcomeUnknown, tenure.StoreUnavailable)


def test_an_outcome_tells_whether_the_lease_was_kept() -> None:
    """Only these allow that all work was done under the lock."""
    assert {each for each in Outcome if each.kept} == {Outcome.RELEASED, Outcome.UNKNOWN, Outcome.DETACHED}


def test_a_fence_accepts_tokens_that_are_not_older() -> None:
    """A fence accepts equal and larger tokens, and never again a smaller one."""
    fence = Fence(5)
    for token in (5, 5, 9, 9):
        fence.touch(token)
    for token in (8, 0, -1):
        with pytest.raises(StaleTokenError, match="stale"):
            fence.touch(token)
    assert fence.highest == 9


def test_a_bodys_own_error_is_not_masked_by_a_loss(client: Client) -> None:
    """A body that fails after the loss of its lease raises its own error, with a note about the loss."""

    def body() -> None:
        client.revoke("name", force=True)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught, client.lock("name"):
        body()
    assert any("is lost" in note for note in caught.value.__notes__)
    client.close()


def test_extend_after_a_loss_raises(client: Client) -> None:
    """A lost or released lease cannot be extended."""
    lease = client.lock("name").acquire()
    client.revoke("name", force=True)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.release() is Outcome.TAKEN_OVER
    lease = client.lock("name").acquire()
    lease.release()
    with pytest.raises(LeaseLost, match="released"):
        lease.extend()
    client.close()
