"""The MySQL store: the grant table in a database of MySQL or MariaDB, over PyMySQL and asyncmy."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from tenure.contracts.limits import MAX_TTL
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, Store, StoreSource
from tenure.errors import UsageError
from tenure.stores.mysql.options import AUTO, GET_LOCK, MySqlDeployment, deployment_of, deployment_of_engine

if TYPE_CHECKING:
    from tenure.stores.mysql.link import MakeMySqlLink
from tenure.stores.sql.deployment import CONNECTIONS, OBSERVED, PREFIX

__all__ = ["mysql_source", "mysql_url_source", "source_of_engine"]


def mysql_source(
    connect: Callable[[], Any],
    *,
    prefix: str = PREFIX,
    connections: int = CONNECTIONS,
    max_ttl: float = MAX_TTL,
    guard: str = OBSERVED,
    notify: str = AUTO,
) -> StoreSource:
    """Return the source of stores over connections that `connect` makes, for `Client(store=...)`.

    `connect` returns a new connection of PyMySQL or a driver with the same calls; for an AsyncClient it returns a
    coroutine of one of asyncmy or aiomysql. The other arguments are what the options of the URL of this name are.
    """
    if not callable(connect):
        raise UsageError("connect must be a function that returns a new connection, as lambda: pymysql.connect(...).")
    deployment = MySqlDeployment([], prefix=prefix, connections=connections, max_ttl=max_ttl, guard=guard)
    return _source(replace(deployment, notify=notify, connect=connect))


def source_of_engine(engine: object) -> StoreSource:
    """Return the source of stores in the database of a SQLAlchemy engine, sync or asyncio.

    Tenure connects as it does, and uses none of its connections; it may be disposed of. An engine of PyMySQL, asyncmy
    or aiomysql with `creator=`, with a listener for `do_connect` or with unusual arguments makes the connections: for a
    Client it must be a blocking one, for an AsyncClient one for asyncio, and waiters poll.

    Raises UsageError if `engine` is no engine for MySQL or MariaDB, or has settings that cannot be taken over.
    """
    return _source(deployment_of_engine(engine))


def mysql_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a MySQL URL. Raises UsageError if the URL can't be understood."""
    return _source(deployment_of(parts))


def capabilities_of(deployment: MySqlDeployment) -> Capabilities:
    """Return the capabilities of a store with these rules."""
    if deployment.mode == GET_LOCK:
        from tenure.stores.sql.sessions import CAPABILITIES

        return replace(CAPABILITIES, min_ttl=1.0, shows_leases=False)
    return deployment.capabilities()


def _source(deployment: MySqlDeployment) -> StoreSource:
    return StoreSource(deployment.title(), capabilities_of(deployment), partial(_make, deployment))


def _make(deployment: MySqlDeployment, runtime: Runtime) -> Store:
    from tenure.stores.mysql.database import MySqlDatabase
    from tenure.stores.mysql.examining import MySqlExaminer
    from tenure.stores.sql.store import SqlStore

    link: MakeMySqlLink
    if runtime.form == "threads":
        from tenure.stores.mysql.threads import MySqlThreadLink

        link = MySqlThreadLink
    else:
        if find_spec("asyncmy") is None and deployment.connect is None:
            raise UsageError("AsyncClient needs asyncmy for MySQL, which is not installed: pip install 'tenure[mysql]'")
        from tenure.stores.mysql.aio import MySqlAsyncLink

        link = MySqlAsyncLink
    if deployment.mode == GET_LOCK:
        from tenure.stores.mysql.get_lock import MySqlNamedLocks
        from tenure.stores.sql.session_locks import SessionLockStore

        locks = MySqlNamedLocks(runtime, deployment, link)
        examiner = MySqlExaminer(runtime, deployment, link, locks.link)
        return SessionLockStore(deployment.title(), runtime, locks, capabilities_of(deployment), examiner)
    database = MySqlDatabase(runtime, deployment, link)
    examiner = MySqlExaminer(runtime, deployment, link, database.link)
    return SqlStore(deployment.title(), runtime, database, capabilities_of(deployment), examiner)
