"""The shared record of the demo refuses late holders from the first touch of a later one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.record import SharedRecord
from demo.tally import Tally
from tenure.errors import StaleTokenError


@pytest.fixture
def record(tmp_path: Path) -> Iterator[SharedRecord]:
    """Yield a fresh record."""
    with SharedRecord.create(tmp_path / "record.db") as made:
        yield made


def test_a_touch_shuts_out_older_holders(record: SharedRecord) -> None:
    """The later holder has only touched, not written yet: the earlier one's write is refused all the same."""
    record.touch(1)
    record.touch(2)
    with pytest.raises(StaleTokenError, match="token 1 is stale: a holder with token 2"):
        record.write(Tally(malformed=1), 1)
    with pytest.raises(StaleTokenError):
        record.touch(1)
    record.write(Tally(malformed=2), 2)
    assert record.read().malformed == 2


def test_a_holder_may_touch_and_write_again(record: SharedRecord) -> None:
    """An equal token is let in."""
    for malformed in (1, 2):
        record.touch(7)
        record.write(Tally(malformed=malformed), 7)
    assert record.read().malformed == 2
