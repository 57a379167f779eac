"""The PostgreSQL store: the grant table in a database, over psycopg's libpq."""

from dataclasses import replace
from functools import partial
from urllib.parse import SplitResult

from tenure.contracts.limits import MAX_TTL
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, Store, StoreSource
from tenure.stores.postgresql.options import ADVISORY, PgDeployment, deployment_of
from tenure.stores.postgresql.pools import deployment_of_pool
from tenure.stores.sql.deployment import CONNECTIONS, OBSERVED, PREFIX

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

    Tenure connects as it does, and uses none of its connections; it may be closed. A pool with `configure=` or a
    `connection_class=` of your own, or an engine of psycopg with `creator=` or a listener for `do_connect`, makes the
    connections itself: for a Client it must be a blocking one, for an AsyncClient one for asyncio, and its own
    `connect_timeout` bounds how long it takes to connect.

    Args:
        pool: the pool or the engine.
        schema: the schema of Tenure's tables; empty: the first one of the role's search path.
        prefix: the prefix of the names of the tables and functions.
        connections: how many connections carry requests, at most; one more listens.
        guard: what a server that may have forgotten grants may grant before `max_ttl` has passed: "observed": nothing,
            if it was promoted or restored from a backup; "strict": nothing, after any restart; "off": everything.
        max_ttl: the longest ttl that a lock may have, in seconds, and the least time for which such a server grants
            nothing.

    Raises UsageError if `pool` is neither, if it has settings that cannot be taken over, or if a value is not valid.
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
    return deployment.capabilities()


def _source(deployment: PgDeployment) -> StoreSource:
    return StoreSource(deployment.title(), capabilities_of(deployment), partial(_make, deployment))


def _make(deployment: PgDeployment, runtime: Runtime) -> Store:
    from tenure.stores.postgresql.aio import PgAsyncLink
    from tenure.stores.postgresql.database import PgDatabase
    from tenure.stores.postgresql.examining import PgExaminer
    from tenure.stores.postgresql.threads import PgThreadLink
    from tenure.stores.sql.store import SqlStore

    link = PgThreadLink if runtime.form == "threads" else PgAsyncLink
    if deployment.mode == ADVISORY:
        from tenure.stores.postgresql.advisory import PgAdvisoryLocks
        from tenure.stores.sql.session_locks import SessionLockStore

        locks = PgAdvisoryLocks(runtime, deployment, link)
        examiner = PgExaminer(runtime, deployment, link, locks.link)
        return SessionLockStore(deployment.title(), runtime, locks, capabilities_of(deployment), examiner)
    database = PgDatabase(runtime, deployment, link)
    examiner = PgExaminer(runtime, deployment, link, database.link)
    return SqlStore(deployment.title(), runtime, database, capabilities_of(deployment), examiner)
