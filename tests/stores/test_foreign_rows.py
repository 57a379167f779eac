"""A row that something else has written, or changed, is told as such: no error of a decoder, and nothing is hung up."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure import Client, Outcome, StoreError
from tenure.contracts.messages import AcquireRequest
from tenure.stores import table_codec
from tenure.stores.sql.rows import SqlRow, state_of
from tenure.table.state import NameState, Queue, Waiter

FOREIGN = "the row of 'name' is none of Tenure's"

Change = Callable[[str], str | bytes]

CHANGES: dict[str, Change] = {
    "another text": lambda _: "locked",
    "no text": lambda _: "",
    "bytes": lambda text: text.encode() + b"\xff",
    "null": lambda _: "null",
    "a short list": lambda _: "[]",
    "a part": lambda text: text[: len(text) // 2],
    "no end of the queue": lambda text: text.replace("\n]", "", 1),
    "no waiter": lambda text: f'{text[: text.index("[") + 1]}1,[],[\n\n],0,0,{{}},"",0]',
    "words before a waiter": lambda text: text.replace("\n[", "\nlocked[", 1),
    "a waiter without quotes": lambda text: text.replace('"', "", 2),
    "a waiter of one number": lambda text: text.replace("\n[", "\n[1],\n[", 1),
}


def _packed() -> str:
    requests = [AcquireRequest("name", f"{number:032x}", "channel", "owner", 1, 1, 1) for number in range(20)]
    return table_codec.dump(NameState(1, queue=Queue(Waiter(each, 0, 1) for each in requests)))


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_is_told_as_foreign(change: str) -> None:
    """When it is loaded, or when somebody looks at the waiter that is none."""
    text = CHANGES[change](_packed())
    with pytest.raises(StoreError, match=FOREIGN):
        list(table_codec.load("name", 1, text).queue)  # type: ignore[arg-type]  # bytes, too, as a column may have


@pytest.mark.parametrize(
    "row",
    [
        SqlRow("name", 1, plain=False, state="locked"),
        SqlRow("name", 1, plain=False, queue="[locked]"),
        SqlRow("name", 1, tombstones="locked"),
        SqlRow("name", 1, request_id="locked", holder="locked"),
        SqlRow("name", 1, request_id="locked", holder="[1]"),
    ],
)
def test_a_row_of_a_database_is_told_as_foreign(row: SqlRow) -> None:
    """Whichever of its columns was changed."""
    with pytest.raises(StoreError, match=FOREIGN):
        state_of(row, 0)


@pytest.mark.parametrize("change", ["another text", "no text", "bytes", "a part", "no end of the queue"])
def test_a_client_says_so_and_goes_on(change: str, tmp_path: Path) -> None:
    """The holder leaves its `with`, other names are not concerned, and the name is free when the row is removed."""
    file = tmp_path / "locks.db"
    with Client(f"sqlite:///{file}") as client, Client(f"sqlite:///{file}") as other:
        with client.lock("name") as lease:
            with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
                text = CHANGES[change](_packed())
                database.execute("UPDATE names SET state = ?, version = version + 1 WHERE name = 'name'", (text,))
            for call in (lambda: client.inspect("name"), lease.extend, lambda: other.lock("name").acquire(timeout=9)):
                with pytest.raises(StoreError, match=FOREIGN):
                    call()
        assert lease.release() is Outcome.UNKNOWN
        with client.lock("another"):
            pass
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute("DELETE FROM names WHERE name = 'name'")
        with client.lock("name", timeout=0) as later:
            assert later.token > lease.token
