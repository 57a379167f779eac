"""Of those who have read one version of a row one writes, whatever stands still, dies, or hears no reply."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure import Client
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.folder.table import KEPT, FolderTable
from tenure.stores.rows import Row, bounded
from tenure.stores.rows.bounded import BoundedTable
from tests.planting import planted

LINK, LIST = os.link, os.listdir


@pytest.fixture
def table(tmp_path: Path) -> FolderTable:
    """Make a table with a row of one version."""
    made = FolderTable(tmp_path)
    assert made.write("lock.a", b"1", None, 9) == 1
    return made


def late(table: FolderTable, patch: pytest.MonkeyPatch, others: int) -> None:
    """Others write while a writer stands still between its file and its name."""

    def link(mine: Path, target: Path) -> None:
        patch.setattr(os, "link", LINK)
        for number in range(1, others + 1):
            assert FolderTable.write(table, "lock.a", b"theirs", number, 9) == number + 1
        LINK(mine, target)

    patch.setattr(os, "link", link)
    try:
        assert table.write("lock.a", b"mine", 1, 9) is None
    except OutcomeUnknown:
        assert others > KEPT
    assert table.read("lock.a", 9) == Row(b"theirs", others + 1)


def whoever_is_late_has_not_written(table: FolderTable, patch: pytest.MonkeyPatch) -> None:
    """However many versions were written, and removed, in between."""
    for others in (1, KEPT, KEPT + 1, 3 * KEPT):
        late(FolderTable(table._folder), patch, others)
        for each in table._folder.glob("*/*"):
            each.unlink()
        table.write("lock.a", b"1", None, 9)


def a_lost_reply_is_no_refusal(table: FolderTable, patch: pytest.MonkeyPatch) -> None:
    """Take a link that was sent twice for the writer's own."""

    def link(mine: Path, target: Path) -> None:
        LINK(mine, target)
        LINK(mine, target)

    patch.setattr(os, "link", link)
    assert table.write("lock.a", b"2", 1, 9) == 2


def little_is_left(table: FolderTable, patch: pytest.MonkeyPatch) -> None:
    """Keep a few versions, and the files of those who write, but not those of writers that died an hour ago."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = table._folder / "lock.a"
    (folder / ",new-dead").write_bytes(b"")
    (folder / ",new-alive").write_bytes(b"")
    os.utime(folder / ",new-dead", (0, 0))
    newest = 2 * KEPT
    for number in range(1, newest):
        table.write("lock.a", b"", number, 9)
    with patch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space"):
            table.write("lock.a", b"", newest, 9)
    versions = {f",{number}" for number in range(newest - KEPT + 1, newest + 1)}
    assert {each.name for each in folder.iterdir()} == {*versions, ",new-alive"}


def keys_stay_apart(table: FolderTable, patch: pytest.MonkeyPatch) -> None:
    """Also where `A` and `a` are one name of a file; and long ones have room."""
    keys = ["lock.a", "lock.A", "lock.=C3", f"lock.{'x' * 300}", f"lock.{'x' * 115}", f"lock.{'x' * 116}", "cell.1"]
    for key in keys[1:]:
        assert table.write(key, key.encode(), None, 9) == 1
    assert all(table.read(key, 9).value == key.encode() for key in keys[1:])
    names = [each.name for each in table._folder.rglob("*")]
    assert names == [name.lower() for name in names]
    assert max(map(len, names)) <= 120
    found = table.keys("lock.", "", 99, 9)
    assert found == sorted(found)
    assert {key for key in found if table.read(key, 9).version} == set(keys[:-1])


GUARANTEES: tuple[Callable[[FolderTable, pytest.MonkeyPatch], None], ...] = (
    whoever_is_late_has_not_written,
    a_lost_reply_is_no_refusal,
    little_is_left,
    keys_stay_apart,
)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_guarantee(
    guarantee: Callable[[FolderTable, pytest.MonkeyPatch], None], table: FolderTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds."""
    guarantee(table, monkeypatch)


PLANTED: dict[str, tuple[str, str, str]] = {
    "a name that is there is replaced": ("_link", "os.link(mine, target)", "os.replace(mine, target)"),
    "nobody looks whether it came late": ("_settle", "if newest >= number + KEPT:", "if False:"),
    "the bound is one too far": ("_settle", "newest >= number + KEPT", "newest > number + KEPT"),
    "one version too many is removed": ("_settle", "each <= newest - KEPT", "each <= newest - KEPT + 1"),
    "a name that is there is another's": ("_link", "os.path.samefile(mine, target)", "False"),
    "files of the dead stay": ("_settle", "if name.startswith(", "if not name and name.startswith("),
    "files of the living go": ("_settle", "- LITTER_AFTER", "+ LITTER_AFTER"),
    "a failed write leaves its file": ("write", "mine.unlink()", "mine.stat()"),
    "capitals are kept": ("_row", '"[A-Z]"', '"[]]"'),
    "a long key is cut": ("_row", "range(0, len(name), LONGEST)", "range(0, 1)"),
    "a long key is not listed": ("_keys", "if len(name) == LONGEST:", "if False:"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, table: FolderTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the guarantees at least."""
    method, right, wrong = PLANTED[bug]
    monkeypatch.setattr(FolderTable, method, planted(FolderTable, method, right, wrong))
    found = False
    for guarantee in GUARANTEES:
        for each in table._folder.rglob("*,*"):
            each.unlink()
        table.write("lock.a", b"1", None, 9)
        with monkeypatch.context() as patch:
            try:
                guarantee(table, patch)
            except Exception:  # noqa: BLE001 - whatever it is, it is noticed
                found = True
    assert found


def test_writers_side_by_side_lose_nothing(tmp_path: Path) -> None:
    """Threads that add to one row, each as often as it is refused, add all they should."""

    def add() -> None:
        mine = FolderTable(tmp_path)
        for _ in range(20):
            while True:
                row = mine.read("cell.a", 60)
                try:
                    if mine.write("cell.a", str(int(row.value or b"0") + 1).encode(), row.version, 60):
                        break
                except OutcomeUnknown:
                    unknown.append(1)
                    break

    unknown: list[int] = []
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = int(FolderTable(tmp_path).read("cell.a", 60).value)
    assert 80 - len(unknown) <= total <= 80


def test_an_old_listing_is_refused(table: FolderTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that still sees the folder as it was writes nothing on top of that."""

    def old(_folder: object) -> list[str]:
        return [",1"]

    assert table.write("lock.a", b"2", 1, 9) == 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", old)
        seen = table.read("lock.a", 9)
        assert seen == Row(b"1", 1)
        assert table.write("lock.a", b"3", seen.version, 9) is None
    assert table.read("lock.a", 9) == Row(b"2", 2)


@pytest.mark.parametrize(
    ("failed", "error", "says"),
    [
        (errno.EPERM, StoreError, "hard links"),
        (errno.EOPNOTSUPP, StoreError, "hard links"),
        (errno.EIO, OutcomeUnknown, "Input/output"),
        (errno.ETIMEDOUT, OutcomeUnknown, "timed out"),
    ],
)
def test_errors_of_a_link(
    table: FolderTable, monkeypatch: pytest.MonkeyPatch, failed: int, error: type[StoreError], says: str
) -> None:
    """They say whether it may have been done, and what is missing."""

    def link(_mine: Path, _target: Path) -> None:
        raise OSError(failed, os.strerror(failed))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match=says) as raised:
        table.write("lock.a", b"2", 1, 9)
    assert type(raised.value) is error


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """Where a volume is not mounted a new folder would be this machine's own."""
    with Client(f"file://{tmp_path}/missing", retry_for=0) as client, pytest.raises(StoreUnavailable, match="mounted"):
        client.lock("a").acquire(timeout=0)
    assert not (tmp_path / "missing").exists()
    with Client(f"file://{tmp_path}") as client, client.lock("a", timeout=0) as lease:
        assert lease.token


def test_a_volume_that_stands_still_stops_nobody(table: FolderTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call ends in time, and no more of them stand still than a bound."""
    monkeypatch.setattr(bounded, "MOST", 2)
    stuck, goes_on = BoundedTable("a folder", table), threading.Event()

    def listdir(_folder: object) -> list[str]:
        goes_on.wait()
        return []

    monkeypatch.setattr(os, "listdir", listdir)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            stuck.read("lock.a", 0.01)
    with pytest.raises(StoreUnavailable, match="have not ended"):
        stuck.read("lock.a", 0.01)
    assert threading.active_count() == before + 2
    goes_on.set()
