"""What looks at the settings of a database server, apart from what each kind of server tells."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tenure.contracts.findings import Facts, Finding, Report, Rule, Unseen, clock_ahead, judge
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.escaping import quoted
from tenure.stores.sql.deployment import OFF, SqlDeployment
from tenure.stores.sql.link import C, D, F, SqlLink

T = TypeVar("T")


class SqlExaminer(ABC, Generic[C, D, F]):
    """Looks at the server of one client. Nothing is written."""

    rules: ClassVar[Sequence[Rule[Any]]]

    def __init__(
        self,
        runtime: Runtime,
        deployment: D,
        make_link: Callable[[Runtime, D], SqlLink[C, D, F]],
        link: SqlLink[C, D, F],
    ) -> None:
        """Look through links of its own; `link` is that of the client."""
        self._runtime = runtime
        self._deployment = deployment
        self._make_link = make_link
        self._clients_link = link
        self._timeout = 1.0

    def at_opening(self) -> list[Finding]:
        """Return what the server has shown when the client opened, without a further request."""
        facts = self._clients_link.facts
        return [] if facts is None else judge(facts, self.rules)

    async def report(self, ttl: float, timeout: float) -> Report:
        """Look at the server, on a connection of its own, each request within `timeout` seconds. Raises StoreError."""
        self._timeout = timeout
        link = self._make_link(self._runtime, self._deployment)
        try:
            connection = await self._connect(link)
            try:
                facts = link.facts or link.begin_facts(connection.place)
                await self._look(link, connection, facts, ttl)
            finally:
                connection.close()
        finally:
            await link.close()
        report = Report("")
        report.add(facts, self.rules)
        return report

    @abstractmethod
    async def _look(self, link: Any, connection: C, facts: F, ttl: float) -> None:  # noqa: ANN401 - the database's
        """Fill the facts of the server; `ttl` is the longest one of the program, in seconds."""

    def _until(self) -> float:
        return self._runtime.now() + self._timeout

    async def _connect(self, link: SqlLink[C, D, F]) -> C:
        """Connect to the primary; if there is none, to a standby, to say that it is one."""
        try:
            return await link.dial(self._until())
        except StoreError:
            link.takes_standbys = True
            try:
                return await link.dial(self._until())
            except StoreError:
                pass
            raise

    async def _ahead(self, facts: F, query: Callable[[], Coroutine[Any, Any, Sequence[Sequence[Any]]]]) -> float | None:
        """Return by how many seconds the server's clock is ahead, which is what `query` brings."""
        before = self._runtime.wall()
        if (found := await seen(facts, ("ahead",), query)) is None:
            return None
        return clock_ahead(float(found[0][0]), before / 1e6, self._runtime.wall() / 1e6)


AnyExaminer = SqlExaminer[Any, Any, Any]


async def examine(examiner: AnyExaminer | None, ttl: float, timeout: float) -> Report:
    """Look at a server, if there is an examiner: a database of the simulation has none."""
    if examiner is None:
        return Report("", unseen=[Unseen("the database", "its settings", "nothing looks at them")])
    return await examiner.report(ttl, timeout)


async def seen(facts: Facts, names: tuple[str, ...], look: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Return what a look brings. If it is refused, note why the facts of these names are unknown, and return None."""
    try:
        return await look()
    except StoreError as error:
        facts.unseen.update(dict.fromkeys(names, quoted(error)))
        return None


def quarantine_of(deployment: SqlDeployment, since: int, until: int, now: int, *, other: bool) -> tuple[float, str]:
    """Return how many seconds a quarantine lasts, and why. Instants are microseconds of the database's clock.

    `other` tells that the server is not the one that granted before: then a quarantine begins with the next request.
    """
    if deployment.guard == OFF:
        return 0.0, ""
    if other:
        because = "it is not the server that granted before, and its quarantine begins with the next request"
        return deployment.max_ttl, because
    if until <= now:
        return 0.0, ""
    return (until - now) / 1e6, f"it was promoted, restored or restarted {max(0.0, (now - since) / 1e6):.0f} s ago"
