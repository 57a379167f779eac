"""Why a name is not granted: collects what the store says of it, for `Client.why`."""

from typing import Any

from tenure.contracts.cells import cell_name
from tenure.contracts.messages import NameView
from tenure.core.deadlocks import deadlock_at
from tenure.core.explaining import NEWCOMER, Around, ExplainedRequest, explain, near_names
from tenure.core.session import Session
from tenure.errors import StoreError, UsageError
from tenure.explanation import Explanation
from tenure.primitives.once import escaped

JOB = "job:"
"""What the name of the lock of a job begins with, after the namespace."""

MOST_PAGES = 20
"""The most pages of names that are looked through for a name that may have been meant."""


async def why(session: Session, namespace: str, name: str, *, weight: int, owner: str | None) -> Explanation:
    """Return why `name` is not granted. See `Client.why`."""
    prefix = f"{namespace}:" if namespace else ""
    view = await session.inspect(prefix + name)
    request = NEWCOMER if weight == 1 else ExplainedRequest(weight)
    if owner is not None:
        request = _of_waiter(view, owner)
    used = bool(view.holders or view.waiters or view.blocked_for)
    circle = await deadlock_at(session, view.name) if any(waiter.actor for waiter in view.waiters) else ()
    paused = await _paused_job(session, prefix, name, used=used)
    near = () if used or paused is not None else await _near(session, view.name, namespace)
    return explain(view, session.store.capabilities, request, Around(namespace, circle, paused, near))


def _of_waiter(view: NameView, owner: str) -> ExplainedRequest:
    """Return the request of the first waiter of an owner. Raises UsageError if none waits."""
    for place, waiter in enumerate(view.waiters):
        if waiter.owner == owner:
            return ExplainedRequest(waiter.weight, place)
    raise UsageError(f"{owner!r} does not wait for this name: see its waiters with `tenure show`")


async def _paused_job(session: Session, prefix: str, name: str, *, used: bool) -> str | None:
    """Return the title of the job of a name, if it is paused.

    The name is that of the lock of a job; or, if nobody uses the name, that of the job itself.
    """
    if not session.store.capabilities.cells or (used and not name.startswith(JOB)):
        return None
    if not name.startswith(JOB):
        return name if await session.cells.read(cell_name("job", prefix, escaped(name)), _is_paused) else None
    record = name.removeprefix(JOB).partition(":")[0]  # a key may follow
    title = record.replace("%3A", ":").replace("%25", "%")
    return title if await session.cells.read(cell_name("job", prefix, record), _is_paused) else None


def _is_paused(state: dict[str, Any] | None, _now: int) -> bool:
    return state is not None and bool(state.get("paused"))


async def _near(session: Session, full: str, namespace: str) -> tuple[str, ...]:
    """Return names in use that may have been meant; none if the store does not list names."""
    found: list[str] = []
    rest: object = None
    try:
        for _ in range(MOST_PAGES):
            page = await session.page("", rest)
            found += page.names
            if (rest := page.rest) is None:
                break
    except StoreError:
        return ()
    return near_names(full, namespace, found)
