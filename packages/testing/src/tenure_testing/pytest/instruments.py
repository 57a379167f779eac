"""The replacements in Tenure and asyncio during one test, which record its leases and the points of their loss."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from tenure.core.lease import CoreLease
from tenure.core.multi_acquire import LeaseGroup
from tenure.core.session import Session
from tenure.lease import LeaseBase
from tenure.primitives.multilock import AsyncMultiLease, MultiLease
from tenure.primitives.reentrant import AsyncReentrantLease, ReentrantLease
from tenure_testing.pytest.places import is_called_by_tenure
from tenure_testing.pytest.points import Points
from tenure_testing.pytest.stores import ForcedStore, TestStore, TestTable

Method = Callable[..., Any]

LOOKS = ("check", "is_lost", "state")
"""The methods by which code checks its lease, except `remaining`: Tenure itself calls that after a check, too."""


@contextmanager
def instrumented(table: TestTable, points: Points) -> Generator[None, None, None]:
    """Record every lease that is acquired from `table` and every check of one; if points are counted, every await."""
    instruments = _Instruments(table, points)
    with ExitStack() as patches:
        patches.enter_context(_replaced(LeaseBase, "__init__", instruments.noting))
        for multilease in (MultiLease, AsyncMultiLease):
            patches.enter_context(_replaced(multilease, "__init__", instruments.noting_all))
        for kind in (CoreLease, LeaseGroup):
            for look in LOOKS:
                patches.enter_context(_replaced(kind, look, instruments.looking))
        for face in (LeaseBase, ReentrantLease, AsyncReentrantLease, MultiLease, AsyncMultiLease):
            patches.enter_context(_replaced(face, "remaining", instruments.looking_at_what_remains))
        if points.counted:
            patches.enter_context(_replaced(asyncio.BaseEventLoop, "create_task", instruments.following))
        yield


class _Instruments:
    """The replacements. Each method takes the original method and returns the one that replaces it."""

    def __init__(self, table: TestTable, points: Points) -> None:
        self._table = table
        self._points = points

    def noting(self, original: Method) -> Method:
        def construct(face: object, session: Session, held: CoreLease, *arguments: object) -> None:
            original(face, session, held, *arguments)
            self._note(session, (held,), face)

        return construct

    def noting_all(self, original: Method) -> Method:
        def construct(face: object, group: LeaseGroup, *arguments: object) -> None:
            original(face, group, *arguments)
            self._note(group.session, group.leases, face)

        return construct

    def looking(self, original: Method) -> Method:
        def look(held: CoreLease | LeaseGroup) -> object:
            self._points.look((held,) if isinstance(held, CoreLease) else held.leases)
            return original(held)

        return look

    def looking_at_what_remains(self, original: Method) -> Method:
        def remaining(face: object) -> object:
            if not is_called_by_tenure():
                every = self._points.leases.all()
                self._points.look([held for each in every if each.face() is face for held in each.held])
            return original(face)

        return remaining

    def following(self, original: Method) -> Method:
        def create_task(loop: object, coroutine: object, **options: Any) -> object:  # noqa: ANN401 - as asyncio's
            return original(loop, self._points.follow(coroutine, options.get("name")), **options)

        return create_task

    def _note(self, session: Session, held: tuple[CoreLease, ...], face: object) -> None:
        store = session.store
        if isinstance(store, TestStore) and store.table is self._table and not isinstance(store, ForcedStore):
            self._points.freshen(self._points.leases.note(session, held, face))
            self._points.must_see()


@contextmanager
def _replaced(owner: type, name: str, make: Callable[[Method], Method]) -> Generator[None, None, None]:
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
