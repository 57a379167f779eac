"""The SQL is what MySQL 8 and MariaDB have in common, and its values change nothing of what it means."""

import re

import pytest
import sqlglot
from sqlglot import exp

from tenure.contracts.messages import AcquireRequest, RenewRequest
from tenure.stores.mysql import get_lock_sql
from tenure.stores.mysql.channel import SLEEPING
from tenure.stores.mysql.link import BEGIN, COMMIT, GREETING, IMPATIENT, PATIENT, ROLLBACK, STARTED
from tenure.stores.mysql.schema import ddl, ddl_statements, expand, grants
from tenure.stores.mysql.statements import MySqlStatements, end_sleep, note_written, text
from tenure.stores.sql.rows import SqlRow

DO = MySqlStatements("locks_")
ROW = SqlRow("na'me\\", 3, 4, plain=False, state='["é"]', heads="a b")
LONG_ROW = SqlRow("name", 3, 4, plain=False, state="[\n" + ",\n".join(['["r0"]'] * 1000) + "\n]")
REQUEST = AcquireRequest("na'me\0", "r1", "channel", "owner", 10, 1, 10)
PATCH = DO.write(LONG_ROW, 0, LONG_ROW.state.replace("r0", "r1", 1))
assert "CONCAT" in PATCH

STATEMENTS = (
    *ddl_statements("locks_"),
    *GREETING,
    *STARTED.values(),
    *(BEGIN, COMMIT, ROLLBACK, IMPATIENT, PATIENT),
    SLEEPING % 7,
    DO.read(["a", "é"], 7),
    DO.acquire(REQUEST),
    DO.make("a", 5),
    DO.release("a", "r1"),
    DO.renew(RenewRequest("a", "r1", 5, 10)),
    DO.write(ROW, 0),
    DO.write(ROW, 0, "", 2),
    PATCH,
    DO.lock(["a", "b"]),
    DO.lock_all([ROW, SqlRow("b")]),
    note_written(1),
    DO.send("channel", b"'", 1),
    DO.names("a", "b", 10),
    DO.next("a", 10),
    DO.old("a", "z", 5, 10),
    DO.raise_floor(5),
    DO.forget(["a", "b"], 5, 6),
    DO.forget_messages(5, 10),
    DO.read_cell("a"),
    DO.make_cell("a", 5),
    DO.write_cell("a", b"'", 0, 0),
    DO.write_cell("a", b"", 5, 10),
    DO.next_cell("a", 10),
    DO.old_cells("a", "z", 10),
    DO.forget_cells(["a", "b"], 6),
    DO.lengthen(5),
    *DO.begin_quarantine(5),
    DO.sleep("channel", 1.0),
    DO.messages("channel", 5),
    DO.delete_messages([1, 2]),
    *(DO.look, DO.clock, DO.end_quarantine),
    *get_lock_sql.SERVER,
    get_lock_sql.set_timeout(5),
    get_lock_sql.lock("tenure:a", 0.0, 7),
    get_lock_sql.holder("tenure:a"),
    get_lock_sql.describe(7),
    *get_lock_sql.unlock("tenure:a"),
    *(each.replace("KILL QUERY", "SELECT") for each in (end_sleep("channel"), end_sleep("channel", 1))),
    f"SELECT {get_lock_sql.kill_operand('tenure:a', 7)}",  # the parser knows no KILL of an expression; servers do
)

ONLY_ONE_HAS = (
    *("RETURNING", "SEQUENCE", "NEXTVAL", "NEXT VALUE", "LASTVAL", "SETVAL", "EXECUTE IMMEDIATE", "WAIT", "NOWAIT"),
    *("OF", "FOR SHARE", "LATERAL", "JSON_TABLE", "JSON_VALUE", "JSON_DETAILED", "EXCEPT", "INTERSECT", "OVER"),
    *("SYSTEM VERSIONING", "CREATE OR REPLACE", "DELETE HISTORY", "MAX_STATEMENT_TIME", "MAX_EXECUTION_TIME"),
    *("TX_ISOLATION", "TRANSACTION_ISOLATION", "SERVER_UUID", "SERVER_UID", "INVISIBLE", "UUID_TO_BIN", "TO_CHAR"),
    *("REGEXP_LIKE", "NATURAL_SORT_KEY", "ANY_VALUE", "MEMBER", "VALUE", "CHECK", "STATEMENT FOR", "SKIP LOCKED"),
    *("INET6", "UUID", "DUAL", "TABLE STATEMENT", "KILL HARD", "KILL SOFT", "SYS_GUID", "ROWNUM", "SYSDATE"),
)
"""Words that one of MySQL 8 and MariaDB 10.5 lacks, or for which the two differ in meaning or place."""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_statement_is_sql_of_mysql(statement: str) -> None:
    """A parser for MySQL understands every statement as one statement."""
    parsed = sqlglot.parse(statement, dialect="mysql")
    assert len(parsed) == 1
    assert parsed[0] is not None
    assert not isinstance(parsed[0], exp.Command) or statement.startswith(("SET", "START", "ROLLBACK", "COMMIT"))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_uses_what_only_one_of_the_two_has(statement: str) -> None:
    """No statement has a word that MySQL or MariaDB lacks."""
    without_texts = re.sub(r"'[^']*'|`[^`]*`", "''", statement).upper()
    assert [word for word in ONLY_ONE_HAS if re.search(rf"\b{word}\b", without_texts)] == []


def test_a_word_of_only_one_of_the_two_would_be_noticed() -> None:
    """The list of words finds a word in a statement."""
    assert re.search(r"\bRETURNING\b", "UPDATE T SET A = 1 RETURNING A")


@pytest.mark.parametrize("value", ["a'b", 'a"b', "a\\", "a%sb", "é", "\0", "a\nb", "a'; DROP TABLE x; --"])
def test_a_text_is_ascii_and_ends_where_it_should(value: str) -> None:
    """Whatever a name contains, its literal has no quote, backslash or byte that a character set or mode changes."""
    literal = text(value)
    assert literal.isascii()
    assert re.fullmatch(r"X'[0-9a-f]*'|'[^'\\%]*'", literal)
    parsed = sqlglot.parse_one(f"SELECT {literal}", dialect="mysql")
    assert isinstance(parsed, exp.Select)


def test_no_expression_reads_a_column_that_another_sets() -> None:
    """MySQL assigns the columns of an UPDATE of two tables in no certain order, and each sees the values before it."""
    for statement in (DO.acquire(REQUEST), DO.write(ROW, 0), PATCH, DO.release("a", "r1")):
        parsed = sqlglot.parse_one(statement, dialect="mysql")
        assert isinstance(parsed, exp.Update)
        assignments = parsed.expressions
        names = {each.this.name for each in assignments}
        for each in assignments:
            read = {column.name for column in each.expression.find_all(exp.Column)}
            assert read & names <= {each.this.name}


def test_the_schema_names_the_database_and_the_prefix() -> None:
    """The DDL and the GRANTs that are printed are for the chosen database, prefix and user."""
    assert "`billing`.`locks_names`" in ddl("billing", "locks_")
    assert grants("billing", "locks_", "app").splitlines()[0] == (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `billing`.`locks_names` TO 'app'@'%';"
    )
    assert expand("$names", "a`b", "") == "`a``b`.`names`"
