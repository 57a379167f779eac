"""The SQL that `tenure schema` prints: what Tenure keeps in a database, for those who may not create tables."""

from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from tenure.errors import UsageError
from tenure.fencing.schema import fences_ddl, fences_grants, fences_table


class SchemaKind(StrEnum):
    """A database for which there is a schema."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"


def schema_sql(database: SchemaKind, schema: str, prefix: str, role: str) -> str:
    """Return the statements that make all tables, and those that give a role the least rights on them."""
    if database is SchemaKind.SQLITE and (schema or role):
        raise UsageError("SQLite has no schemas, roles or rights: leave --schema and --role out.")
    table = fences_table(schema, prefix)
    made, granted = _of_the_store(database, schema, prefix, role)
    if table.rpartition(".")[2] not in made:
        made = "\n".join(filter(None, [made, fences_ddl(database, table)]))
        granted += fences_grants(database, table, role) if role else ""
    return "\n".join(filter(None, [made, granted]))


def _of_the_store(database: SchemaKind, schema: str, prefix: str, role: str) -> tuple[str, str]:
    """Return what the store in this database needs. A lock file of SQLite makes its own tables."""
    package = f"tenure.stores.{database}"
    if database is SchemaKind.SQLITE or find_spec(package) is None:
        return "", ""
    store = import_module(f"{package}.schema")
    return cast("str", store.ddl(schema, prefix)), cast("str", store.grants(schema, prefix, role)) if role else ""
