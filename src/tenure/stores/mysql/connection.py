"""One connection to MySQL, over a driver's: several statements in one round trip, each ended by a deadline.

`threads.py` and `aio.py` have the two forms. What they share is here: nothing of it waits.
"""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tenure.stores.mysql.errors import MySqlResult, of_driver
from tenure.stores.sql.errors import SqlBroken

SHORTEST = 0.001
"""The shortest timeout that a socket is given, in seconds: 0 would mean that it never waits."""

MULTI_STATEMENTS = 1 << 16
"""The flag of a client that sends several statements at once."""


class MySqlConnection(ABC):
    """One connection. Used by one caller at a time."""

    def __init__(self, raw: Any, place: str, *, several: bool) -> None:  # noqa: ANN401 - of any driver
        """Use a driver's connection. `several` tells whether it takes several statements at once."""
        self.place = place
        """The server, for messages."""
        self.used = 0.0
        self.session = 0
        """The id of its session, once it has greeted the server."""
        self.examined = False
        """Whether its server is known to be fit for named locks."""
        self._raw = raw
        self._several = several

    async def run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Run statements one after another, up to the first that fails; return their results.

        Raises MySqlServerError with the results before, or SqlBroken.
        """
        results: list[MySqlResult] = []
        texts = ["; ".join(statements)] if self._several else statements
        try:
            for text in texts:
                await self._execute(text, results, until)
        except TimeoutError as error:
            raise SqlBroken("timed out") from error
        except Exception as error:
            if not is_of_driver(error):
                raise
            raise of_driver(error, results) from error
        return results

    @abstractmethod
    async def _execute(self, text: str, results: list[MySqlResult], until: float) -> None:
        """Run a text of one or several statements, and append the result of each to `results`."""

    @abstractmethod
    def send(self, statements: Sequence[str]) -> None:
        """Send statements, whose reply `receive` reads. Raises SqlBroken. Only for connections to a URL's hosts."""

    @abstractmethod
    async def receive(self, until: float) -> list[MySqlResult]:
        """Return the results of the statements that were sent.

        Raises TimeoutError if the reply has not come in time: then it is still due, and the connection goes on. Raises
        MySqlServerError or SqlBroken as `run` does.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it, without a word to the server. A reply that is due is never read."""

    @abstractmethod
    def interrupt(self) -> None:
        """Break it, while another thread may wait for a reply on it: that thread fails then, and closes it."""

    @abstractmethod
    def is_stale(self) -> bool:
        """Tell whether the server has closed the connection."""

    @abstractmethod
    def _fileno(self) -> int:
        """Return the descriptor of the socket; -1 if there is none, or the driver does not show it."""

    def thread_id(self) -> int:
        """Return the id of the session that the greeting named; 0 if the driver does not say."""
        known = getattr(self._raw, "thread_id", None)
        number: Any = known() if callable(known) else 0
        return int(number[0]) if isinstance(number, tuple) else int(number)  # pyright: ignore[reportUnknownArgumentType]

    def abandon(self) -> None:
        """In a forked child: close this copy, without a word to the server."""
        with suppress(OSError), socket.socket() as blank:
            if (descriptor := self._fileno()) >= 0:
                os.dup2(blank.fileno(), descriptor, inheritable=False)


def result_of(cursor: Any) -> MySqlResult:  # noqa: ANN401 - of any driver
    """Return the result of a statement that is not a query; `rows` of a query are fetched by the caller."""
    return MySqlResult((), int(cursor.rowcount), int(cursor.lastrowid or 0))


def is_of_driver(error: Exception) -> bool:
    """Tell whether an exception is one that drivers raise: all of them have one base, which DB-API calls Error."""
    return isinstance(error, OSError) or any(each.__name__ in {"Error", "MySQLError"} for each in type(error).__mro__)
