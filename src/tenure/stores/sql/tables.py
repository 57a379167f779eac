"""What the databases of the contract have in common: they open their tables, and repeat what failed in passing."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tenure.contracts import forms
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable, UsageError
from tenure.outcome import Outcome
from tenure.runtimes.single import SingleFlight
from tenure.stores.sql.database import SqlSnapshot
from tenure.stores.sql.deployment import OFF, SqlDeployment
from tenure.stores.sql.errors import SqlServerError
from tenure.stores.sql.link import SqlLink

log = logging.getLogger("tenure")

D = TypeVar("D", bound=SqlDeployment)
L = TypeVar("L", bound=SqlLink[Any, Any, Any])
T = TypeVar("T")

SWEEP_AT_MOST = 500
"""How many rows one sweep looks at."""


class SqlChannel(Protocol):
    """The notification channel of one client."""

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Listen; return the channel ("": there is none)."""
        ...

    async def close(self) -> None:
        """Stop listening, and disconnect."""

    def abandon(self) -> None:
        """In a forked child: close its copy."""


class SqlTables(ABC, Generic[D, L]):
    """One client's access to the tables: see SqlDatabase.

    Somebody may drop the tables while a client goes on. The new ones have forgotten all grants. So the client also has
    the database doubt them: it grants nothing until the forgotten leases have run out, and their holders keep them by
    renewing them.
    """

    conflicts: ClassVar[frozenset[Any]]
    """Codes of conflicts with another transaction: nothing was done, and a retry helps at once."""
    missing: ClassVar[frozenset[Any]]
    """Codes of a server that lacks tables or functions of Tenure."""
    denied: ClassVar[frozenset[Any]]
    """Codes of a server on which the login may not make them."""
    may_not_make: ClassVar[str]
    """What is missing, and who may not make it, as the middle of a sentence."""

    _do: Any
    """The statements: `look` returns the mark of the stored form and the longest ttl, `raise_form` notes this client's
    form, and `doubt` has the tables forget which server wrote them."""

    def __init__(self, runtime: Runtime, deployment: D, link: L, channel: SqlChannel) -> None:
        self.link = self._link = link
        self._runtime = runtime
        self._deployment = deployment
        self._channel = channel
        self._unguarded = deployment.guard == OFF
        self._longest_ttl = 0 if self._unguarded else micros(deployment.max_ttl)
        self._tables_missing = False
        """Whether a request has found them missing since they were opened last."""
        self._opening = SingleFlight(runtime)

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, make the tables if there are none, and listen; return the channel."""
        await self._open_tables(until)
        return await self._channel.open(deliver, until)

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._channel.abandon()
        self._link.abandon()

    def send_release(
        self,
        name: str,  # noqa: ARG002
        request_id: str,  # noqa: ARG002
        told: Callable[[SqlSnapshot | Outcome | None], None],  # noqa: ARG002
    ) -> bool:
        """Return False: each reply has to be read before the next statement is sent."""
        return False

    def collect_replies(self) -> None:
        """Do nothing: no reply is owed."""

    @abstractmethod
    async def _query(self, statement: Any, until: float) -> Sequence[Sequence[Any]]:  # noqa: ANN401 - the database's
        """Run a statement; return its rows. Raises SqlServerError."""

    @abstractmethod
    async def _run_ddl(self, until: float, *, doubted: bool) -> None:
        """Make the tables. Of several clients that start at once one makes them, and the others find them."""

    @abstractmethod
    def _lengthen(self) -> Any:  # noqa: ANN401 - a statement
        """Return the statement that notes the longest ttl of this client."""

    def _to_store_error(self, error: SqlServerError) -> StoreError | UsageError:
        return self._link.to_store_error(self._deployment.title(), error)

    # -- statements ----------------------------------------------------------------------------------------

    async def _repeated(self, work: Callable[[], Coroutine[Any, Any, T]], until: float) -> T:
        """Carry out work; repeat it after a conflict with another transaction, for then nothing was done.

        Also repeat it, once, after the tables were missing and have been opened again.
        """
        opened = False
        while True:
            if self._tables_missing:
                await self._open_again(until)
            try:
                return await work()
            except SqlServerError as error:
                if error.code in self.missing and not opened:
                    opened = self._tables_missing = True
                    continue
                pause = 0.002 + 0.01 * self._runtime.random()
                if error.code not in self.conflicts or self._runtime.now() + pause >= until:
                    raise self._to_store_error(error) from error
            await self._runtime.sleep(pause)

    def _no_settings(self) -> StoreUnavailable:
        self._tables_missing = True
        return StoreUnavailable(f"{self._deployment.title()}: the table of the settings is empty; try again")

    # -- tables --------------------------------------------------------------------------------------------

    async def _open_tables(self, until: float, *, again: bool = False) -> None:
        """Look at the tables, make them if there are none, and note this client's form and longest ttl.

        With `again` a request has found a table or function missing. So whatever is missing is made, and the tables may
        have forgotten grants, whoever has made them: they begin with a quarantine, unless nobody wants one.
        """
        doubted = again and not self._unguarded
        rows: Sequence[Sequence[Any]] = ()
        try:
            rows = await self._query(self._do.look, until)
        except SqlServerError as error:
            if error.code not in self.missing:
                raise self._to_store_error(error) from error
        if rows:
            self._check(rows[0][0])  # first: nothing is made beside tables of a later form
            if doubted:  # before a table is made, which another client may use at once
                await self._execute(self._do.doubt, until)
        if again or not rows:
            await self._make_tables(until, doubted=doubted, needed=not rows)
            rows = await self._execute(self._do.look, until)
        if self._check(rows[0][0]) < forms.WRITES:
            await self._execute(self._do.raise_form, until)
        if int(rows[0][1]) < self._longest_ttl:
            await self._execute(self._lengthen(), until)

    async def _open_again(self, until: float) -> None:
        """Open the tables again, or wait for the request that does. Raises StoreError if they can't be opened."""

        async def work() -> None:
            log.warning(
                "tables or functions of Tenure are missing in %s, and this client has used them: making them again. "
                "The leases of a table that was missing are forgotten",
                self._deployment.title(),
            )
            await self._open_tables(until, again=True)
            self._tables_missing = False

        if not await self._opening.run(lambda: self._tables_missing, work, until):
            raise StoreUnavailable("the tables of Tenure are missing, and were not made again in time: try again")

    async def _make_tables(self, until: float, *, doubted: bool, needed: bool) -> None:
        try:
            await self._run_ddl(until, doubted=doubted)
        except SqlServerError as error:
            if error.code in self.denied and not needed:  # an administrator may have made what was missing
                return
            if error.code in self.denied:
                raise StoreError(
                    f"{self._deployment.title()}: {self.may_not_make} may not make them ({error}); have an "
                    f"administrator run the SQL that `tenure schema {self._deployment.kind.lower()}` prints"
                ) from error
            raise self._to_store_error(error) from error

    async def _execute(self, statement: Any, until: float) -> Sequence[Sequence[Any]]:  # noqa: ANN401
        try:
            return await self._query(statement, until)
        except SqlServerError as error:
            raise self._to_store_error(error) from error

    def _check(self, mark: bytes | str) -> int:
        """Refuse tables of a later form; return the form that they have."""
        return forms.check(mark if isinstance(mark, str) else bytes(mark).decode(), self._deployment.title())
