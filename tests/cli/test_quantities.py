"""`tenure counter`, `limit` and `stock`: what they show, and what they change when it is confirmed."""

import io
import json
from collections.abc import Callable

import pytest

import tenure
from tests.cli.conftest import Done

Here = Callable[..., Done]


def test_a_counter_is_shown_added_to_and_set(here: Here, client: tenure.Client) -> None:
    """Each change tells the number before, so that no count is lost."""
    made = client.counter("orders\x1b[2J")
    made.add(5)
    assert here("counter", made.name).output == "orders\\x1b[2J\t5\n"
    assert here("counter", made.name, "--add", "-7", "--yes").output == "orders\\x1b[2J\t-2\t5\n"
    done = here("counter", made.name, "--set", "3", "--yes", "--json")
    assert json.loads(done.output) == {"name": made.name, "value": 3, "before": -2}
    assert here("counter", made.name, "--reset", "-y").output.endswith("\t0\t3\n")
    assert made.get() == 0


def test_a_stock_is_shown_and_changed(here: Here, client: tenure.Client) -> None:
    """With the segments that it has, which its users need not tell; a look makes no stock."""
    for change in ((), ("--take", "1", "--yes")):
        nothing = here("stock", "seats", *change)
        assert (nothing.status, nothing.output) == (1, "")
        assert nothing.errors.startswith("tenure: there is no stock 'seats': `tenure stock seats --restock N`")
    made = client.stock("seats", segments=3)
    made.restock(10)
    assert made.reserve(2, 60) is not None
    assert here("stock", "seats").output == "seats\t8\t2\n"
    assert here("stock", "seats", "--restock", "5", "--yes").output == "seats\t13\t2\n"
    taken = here("stock", "seats", "--take", "12", "--yes", "--json")
    assert json.loads(taken.output) == {"name": "seats", "left": 1, "reserved": 2}
    short = here("stock", "seats", "--take", "2", "--yes")
    assert (short.status, short.output) == (1, "")
    assert "fewer than 2 units left" in short.errors
    assert made.total() == 1
    assert here("stock", "vouchers", "--restock", "4", "--segments", "2", "--yes").status == 0
    assert client.stock("vouchers", segments=2).total() == 4


def test_a_limit_is_shown_and_reset(here: Here, client: tenure.Client) -> None:
    """Whatever its rate; each key by itself."""
    made = client.limit("mails", 2, 3600.0)
    assert here("limit", "mails").output == "mails\t0.0\n"
    assert made.try_acquire(2)
    assert made.try_acquire(key="ann")
    name, busy_for = here("limit", "mails").output.split()
    assert name == "mails"
    assert 3500 < float(busy_for) <= 3600
    done = json.loads(here("limit", "mails", "--reset", "--yes", "--json").output)
    assert done["busy_for"] == 0
    assert 3500 < done["before"] <= 3600
    assert made.try_acquire(2)
    assert 3500 < json.loads(here("limit", "mails", "--key", "ann", "--json").output)["busy_for"] <= 3600


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 64), ("", 64), (None, 64)])
def test_a_change_is_confirmed(
    here: Here, client: tenure.Client, monkeypatch: pytest.MonkeyPatch, answer: str | None, status: int
) -> None:
    """At a terminal by an answer, anywhere by --yes; else nothing is changed, and that is said."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return answer is not None

    client.counter("orders").add(5)
    client.stock("seats").restock(5)
    assert client.limit("mails", 1, 3600.0).try_acquire()
    for arguments in (
        ("counter", "orders", "--reset"),
        ("stock", "seats", "--take", "5"),
        ("limit", "mails", "--reset"),
    ):
        monkeypatch.setattr("sys.stdin", Terminal("y\n" if answer is None else answer))
        done = here(*arguments)
        assert done.status == status
        assert ("[y/N]" in done.errors) == (answer is not None)
        assert ("nothing was changed" in done.errors) == (status != 0)
    assert (client.counter("orders").get() == 0) == (status == 0)
    assert (client.stock("seats").total() == 0) == (status == 0)
    assert client.limit("mails", 1, 3600.0).try_acquire() == (status == 0)


def test_a_terminal_gets_a_sentence(here: Here, client: tenure.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the unit."""
    monkeypatch.setattr("tenure.cli.output.is_terminal", lambda: True)
    client.stock("seats").restock(5)
    assert here("counter", "orders").output == "counter 'orders': 0\n"
    assert here("limit", "mails").output == "limit 'mails': idle, or not in use\n"
    assert here("stock", "seats").output == "stock 'seats': 5 left, 0 reserved\n"
