"""The PostgreSQL store: the grant table in a database, over psycopg's libpq."""

from dataclasses import replace
from functools import partial
from urllib.parse import SplitResult

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, Store, StoreSource
from tenure.stores.postgresql.options import (
    ADVISORY,
    CONNECTIONS,
    MAX_TTL,
    OBSERVED,
    OFF,
    PREFIX,
    PgDeployment,
    deployment_of,
    deployment_of_pool,
)

__all__ = ["postgresql_source", "postgresql_url_source"]


def postgresql_source(
    pool: object,
    *,
    schema: str = "",
    prefix: str = PREFIX,
    connections: int = CONNECTIONS,
    guard: str = OBSERVED,
    max_ttl: float = MAX_TTL,
) -> StoreSource:
    """Return the source of stores in the database of a psycopg pool or a SQLAlchemy engine, sync or asyncio.

    Its servers, its login and its TLS settings are used. Its connections are not, and it may be closed.

    Args:
        pool: the pool or the engine.
        schema: the schema of Tenure's tables; empty: the first one of the role's search path.
        prefix: the prefix of the names of the tables and functions.
        connections: how many connections carry requests, at most; one more listens.
        guard: what a server that may have forgotten grants may grant before `max_ttl` has passed: "observed": nothing,
            if it was promoted or restored from a backup; "strict": nothing, after any restart; "off": everything.
        max_ttl: the longest ttl in use, in seconds.

    Raises UsageError if `pool` is neither, or a value is not valid.
    """
    options = {"schema": schema, "prefix": prefix, "connections": connections, "guard": guard, "max_ttl": max_ttl}
    return _source(deployment_of_pool(pool, options))


def postgresql_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a PostgreSQL URL. Raises UsageError if the URL can't be understood."""
    return _source(deployment_of(parts))


def capabilities_of(deployment: PgDeployment) -> Capabilities:
    """Return the capabilities of a store with these rules."""
    if deployment.mode == ADVISORY:
        from tenure.stores.sql.sessions import CAPABILITIES

        return replace(CAPABILITIES, tokens=bool(deployment.sequence))
    return Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        local=False,
        max_ttl=float("inf") if deployment.guard == OFF else deployment.max_ttl,
        multi_acquire=True,
        barging=True,
        cells=True,
    )


def _source(deployment: PgDeployment) -> StoreSource:
    return StoreSource(deployment.title(), capabilities_of(deployment), partial(_make, deployment))


def _make(deployment: PgDeployment, runtime: Runtime) -> Store:
    from tenure.stores.postgresql.aio import PgAsyncLink
    from tenure.stores.postgresql.database import PgDatabase
    from tenure.stores.postgresql.threads import PgThreadLink
    from tenure.stores.sql.store import SqlStore

    link = PgThreadLink if runtime.form == "threads" else PgAsyncLink
    if deployment.mode == ADVISORY:
        from tenure.stores.postgresql.advisory import PgAdvisoryLocks
        from tenure.stores.sql.session_locks import SessionLockStore

        locks = PgAdvisoryLocks(runtime, deployment, link)
        return SessionLockStore(deployment.title(), runtime, locks, capabilities_of(deployment))
    database = PgDatabase(runtime, deployment, link)
    return SqlStore(deployment.title(), runtime, database, capabilities_of(deployment))
