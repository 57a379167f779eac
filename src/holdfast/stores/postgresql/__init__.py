"""The PostgreSQL store: the grant table in a database, over psycopg's libpq."""

from functools import partial
from urllib.parse import SplitResult

from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Capabilities, Store, StoreSource
from holdfast.stores.postgresql.options import ADVISORY, OFF, PgDeployment, deployment_of, deployment_of_pool

__all__ = ["postgresql_source", "postgresql_url_source"]


def postgresql_source(pool: object) -> StoreSource:
    """Return the source of stores in the database of a psycopg pool or a SQLAlchemy engine, sync or asyncio.

    Its servers, its login and its TLS settings are used. Its connections are not, and it may be closed.

    Raises UsageError if `pool` is neither.
    """
    return _source(deployment_of_pool(pool))


def postgresql_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a PostgreSQL URL. Raises UsageError if the URL can't be understood."""
    return _source(deployment_of(parts))


def capabilities_of(deployment: PgDeployment) -> Capabilities:
    """Return the capabilities of a store with these rules."""
    if deployment.mode == ADVISORY:
        return Capabilities(
            min_ttl=0.05,
            queue=False,
            weights=False,
            local=False,
            span=1,
            shows_waiters=False,
            tokens=bool(deployment.sequence),
            records=False,
        )
    return Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        local=False,
        max_ttl=float("inf") if deployment.guard == OFF else deployment.max_ttl,
        multi_acquire=True,
    )


def _source(deployment: PgDeployment) -> StoreSource:
    return StoreSource(deployment.title(), capabilities_of(deployment), partial(_make, deployment))


def _make(deployment: PgDeployment, runtime: Runtime) -> Store:
    from holdfast.stores.postgresql.aio import PgAsyncLink
    from holdfast.stores.postgresql.database import PgDatabase
    from holdfast.stores.postgresql.threads import PgThreadLink
    from holdfast.stores.sql.store import SqlStore

    link = PgThreadLink if runtime.form == "threads" else PgAsyncLink
    if deployment.mode == ADVISORY:
        from holdfast.stores.postgresql.advisory import PgAdvisoryLocks
        from holdfast.stores.sql.session_locks import SessionLockStore

        locks = PgAdvisoryLocks(runtime, deployment, link)
        return SessionLockStore(deployment.title(), runtime, locks, capabilities_of(deployment))
    database = PgDatabase(runtime, deployment, link)
    return SqlStore(deployment.title(), runtime, database, capabilities_of(deployment))
