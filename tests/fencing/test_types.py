"""The types of `lease.guard`: a checker knows which form is awaited, and refuses a connection of the other form."""

from typing import TYPE_CHECKING, assert_type

import pytest

import tenure

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Coroutine
    from typing import Any

    import psycopg
    from pymysql import Connection
    from sqlalchemy import Connection as CoreConnection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

    def check_blocking(
        lease: tenure.Lease,
        connection: (
            sqlite3.Connection
            | psycopg.Connection[tuple[Any, ...]]
            | Connection
            | CoreConnection
            | Session
            | scoped_session[Session]
        ),
    ) -> None:
        """Check that each blocking connection is accepted, and nothing is returned."""
        assert_type(lease.guard(), tenure.Guard)
        assert_type(lease.guard(connection), None)
        assert_type(lease.guard(connection, table="app.fences"), None)

    async def check_asyncio(
        lease: tenure.AsyncLease,
        connection: psycopg.AsyncConnection[tuple[Any, ...]] | AsyncSession | AsyncConnection,
    ) -> None:
        """Check that each connection for asyncio is accepted, and the guard is awaited."""
        assert_type(lease.guard(), tenure.Guard)
        guarding = assert_type(lease.guard(connection), Coroutine[Any, Any, None])
        assert_type(await guarding, None)
        assert_type(await lease.guard(connection, table="app.fences"), None)

    async def check_refusals(
        lease: tenure.Lease, other: tenure.AsyncLease, session: Session, async_session: AsyncSession
    ) -> None:
        """Check that a connection of the other form is refused."""
        lease.guard(async_session)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
        await other.guard(session)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("lease", [tenure.Lease, tenure.AsyncLease])
def test_both_forms_have_a_guard(lease: type[object]) -> None:
    """The checks of types above are about methods that are there."""
    assert callable(getattr(lease, "guard", None))
