"""A table that takes conditions and ignores them is refused before it can lose a lock."""

import pytest

from tenure import Client, StoreError
from tenure.stores.rows import access, row_source
from tests.planting import module_with
from tests.rows.tables import DictTable, Rows


class Careless(DictTable):
    """A table behind something that removes conditions."""

    def __init__(self, rows: Rows, ignores: str) -> None:
        super().__init__(rows)
        self._ignores = ignores

    def write(self, key: str, value: bytes, version: object, timeout: float) -> int | None:
        """Write a row, whatever is there."""
        if self._ignores == ("new" if version is None else "unchanged"):
            version = self.read(key, timeout).version
        return super().write(key, value, version, timeout)


def is_refused(ignores: str) -> bool:
    """Tell whether a client refuses the table, and writes nothing of a lock; the doctor must find the same."""
    rows = Rows()
    with Client(store=row_source("a careless table", lambda: Careless(rows, ignores))) as client:
        doctor = [finding.id for finding in client.examine().findings]
        try:
            client.lock("name").acquire(timeout=0).release()
        except StoreError as error:
            assert "a careless table: It takes the condition" in str(error)  # noqa: PT017 - it may raise none
            assert not any(key.startswith("lock.") for key in rows.rows)
            assert doctor == ["table-conditions"]
            return True
    assert doctor == []
    return False


def test_only_what_ignores_conditions_is_refused() -> None:
    """Whichever of the two it ignores."""
    assert is_refused("new")
    assert is_refused("unchanged")
    assert not is_refused("nothing")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("await write(None) is not None and await write(None) is not None", "False"),
        ("await write(seen) is not None and await write(seen) is not None", "False"),
        ("await write(seen) is not None and await write(seen)", "await write(seen)"),
    ],
)
def test_a_planted_bug_is_found(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that does not look, or refuses a good table."""
    wrong_proof = module_with(access, (right, wrong)).ignored_condition
    monkeypatch.setattr("tenure.stores.rows.access.ignored_condition", wrong_proof)
    with pytest.raises(AssertionError):
        test_only_what_ignores_conditions_is_refused()


def test_those_who_only_look_write_nothing() -> None:
    """A client that may not write lists and inspects names."""
    rows = Rows()
    with Client(store=row_source("a dict", lambda: DictTable(rows))) as client:
        assert client.names() == []
        assert not client.inspect("name").holders
    assert not rows.writes
