"""The guard of a lease for a transaction in a SQL database.

The guard raises the fence of the lock's name in the user's own transaction, as its first statement. The database keeps
the row locked until that transaction ends. So of two holders that write, the one with the greater token waits for the
end of the other's transaction, and the one with the smaller token is refused if it comes later. The fence is raised
before anything is read, because a check at the time of the write alone still loses updates (models/fence.pml).
"""

from collections.abc import Mapping

from tenure.errors import StaleTokenError, UsageError
from tenure.escaping import quoted
from tenure.fencing.dialects import DEADLOCK, Dialect, Meaning
from tenure.fencing.schema import checked_table, fences_ddl, quoted_table
from tenure.fencing.users import UserTransaction, transaction_of

MOST_DEADLOCKS = 20
"""How often a guard begins again after a deadlock, if its transaction has done nothing else."""


async def raise_fence(connection: object, form: str, name: str, token: int, table: str) -> None:
    """Raise the fence of a name to a token, in the transaction of a connection.

    Raises StaleTokenError if the fence is above the token already, and UsageError if the connection cannot be used.
    """
    checked_table(table)
    transaction = await transaction_of(connection, form)
    dialect = transaction.dialect
    values = {"name": dialect.stored(name), "token": token}
    try:
        await transaction.begin()
        seen = await _raised(transaction, table, values)
    except Exception as error:
        _explain(error, dialect, name, table)
        raise
    if seen > token:
        raise StaleTokenError(
            f"the token {token} of {name!r} is stale: the fence in {table} has seen token {seen}, of a later holder. "
            "Nothing of this transaction may be kept: roll it back."
        )


async def _raised(transaction: UserTransaction, table: str, values: Mapping[str, object]) -> int:
    """Raise the fence, and return the greatest token that it has seen."""
    for _ in range(MOST_DEADLOCKS):
        fresh = transaction.is_fresh()
        try:
            return await _raise_once(transaction, table, values)
        except Exception as error:
            # MySQL ends the transaction of a deadlock. That is no loss if the transaction had done nothing before.
            if not fresh or transaction.dialect.code(error) != DEADLOCK:
                raise
    return await _raise_once(transaction, table, values)


async def _raise_once(transaction: UserTransaction, table: str, values: Mapping[str, object]) -> int:
    dialect = transaction.dialect
    quoted_name = quoted_table(dialect.name, table)
    seen = await transaction.run(dialect.raise_fence.replace("{table}", quoted_name), values)
    if dialect.read_fence:
        seen = await transaction.run(dialect.read_fence.replace("{table}", quoted_name), values)
    return int(seen)


def _explain(error: Exception, dialect: Dialect, name: str, table: str) -> None:
    """Raise a UsageError for an error of the driver whose cause is known; add a note to one that a retry may help."""
    match dialect.meaning(error):
        case Meaning.MISSING:
            raise UsageError(
                f"there is no table {table} for the fences of locks: run what `tenure schema {dialect.name}` prints: "
                f"{' '.join(fences_ddl(dialect.name, table).split())}"
            ) from error
        case Meaning.READ_ONLY:
            raise UsageError(
                f"the fence of {name!r} cannot be raised, for the connection, its transaction or its server is "
                f"read-only ({quoted(error)}): guard a transaction that can write."
            ) from error
        case Meaning.DENIED:
            raise UsageError(
                f"the database user may not raise fences in {table} ({quoted(error)}): it needs the rights SELECT, "
                f"INSERT and UPDATE; `tenure schema {dialect.name} --role NAME` prints the statement."
            ) from error
        case Meaning.TO_RETRY:
            error.add_note(
                f"The guard of the lock {name!r} met another transaction that raised its fence. Roll back, and run the "
                "whole transaction again in a new one, with lease.guard() first: it says whether the lease is stale."
            )
        case _:
            pass
