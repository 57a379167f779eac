"""Clients use a lock file while somebody removes its log or the index of the log.

SQLite does not notice the removal: each process that comes later begins a log of its own, and grants what others hold.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenure import Client, StoreError
from tenure.runtimes import clocks
from tenure.stores.sqlite.database import LOOK_EVERY, Database
from tenure.stores.sqlite.opening import LockFiles
from tests.hazards.helpers import TEST_TIMEOUT, Script
from tests.planting import planted
from tests.sqlite.test_files import url

CONTENDER = """
import sys, tenure
with tenure.Client(sys.argv[1], retry_for=0.1) as client, client.lock("name", timeout=0): pass
"""


def remove_the_log(path: Path, suffixes: Sequence[str]) -> None:
    """Have two holders if the removal of the log or its index under use is not noticed; fail then."""
    with Client(url(path), retry_for=0.1) as client, Client(url(path)) as second:
        for each in (client, second):  # SQLite gives all connections of a process one index
            each.names()
        for suffix in suffixes:
            path.with_name(path.name + suffix).unlink()
        time.sleep(LOOK_EVERY / 1e6)
        with client.lock("name"):
            assert "LockTimeout" in Script(CONTENDER, url(path)).end()[1], "the name has two holders"
            assert second.lock("name").try_acquire() is None


REMOVED = [("-wal", "-shm"), ("-wal",), ("-shm",)]


@pytest.mark.parametrize("suffixes", REMOVED, ids="".join)
def test_a_log_that_is_removed_under_use_is_noticed(
    tmp_path: Path, suffixes: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As a removed file is: all clients of the process go on with the log that others see."""
    remove_the_log(tmp_path / "locks.db", suffixes)
    assert "its log was removed or replaced" in caplog.text


BUGS = {
    "two holders": (LockFiles, "are_in_place", "found == self.inodes if connected else ", ""),
    "I/O error": (Database, "_open", "if not all", "if False and not all"),
}


@pytest.mark.parametrize("words", BUGS)
def test_a_client_that_goes_on_in_a_removed_log_is_noticed(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grants what others do not see, or reads a new log by the index of the old one."""
    owner, method, right, wrong = BUGS[words]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises((AssertionError, StoreError), match=words):
        remove_the_log(tmp_path / "locks.db", ("-wal", "-shm"))


def leave_a_removed_log(path: Path) -> None:
    """Have a client notice a removed log when another one has come and gone; fail if it undoes what that one did."""
    with Client(url(path)) as client:
        client.counter("count").add(1)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink()
        code = "import sys, tenure\nwith tenure.Client(sys.argv[1]) as client: print(client.counter('other').add(1))"
        assert Script(code, url(path)).end() == ("1\n", "")
        time.sleep(LOOK_EVERY / 1e6)
        assert client.counter("other").get() == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no such option before Python 3.12")
def test_a_removed_log_is_not_copied_over_what_others_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves it leaves alone what was granted since."""
    leave_a_removed_log(tmp_path / "locks.db")
    bug = planted(LockFiles, "others_began_a_log", "return any(", "return False and any(")
    monkeypatch.setattr(LockFiles, "others_began_a_log", bug)
    with pytest.raises(AssertionError):
        leave_a_removed_log(tmp_path / "planted.db")


COMES_AND_GOES = """
import sys, tenure
from tenure.stores.sqlite import database
database.LOOK_EVERY = -1
for turn in range(60):
    with tenure.Client(sys.argv[1]) as client, client.lock(sys.argv[2]), client.lock(sys.argv[2] + "again"): pass
"""


def test_a_log_that_sqlite_removes_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that open and close all the time make and remove the log: none takes that for a removal under use."""
    path = tmp_path / "locks.db"
    monkeypatch.setattr("tenure.stores.sqlite.database.LOOK_EVERY", -1)
    scripts = [Script(COMES_AND_GOES, url(path), name) for name in ("one", "two")]
    for _ in range(60):
        with Client(url(path)) as client, client.lock("name"):
            client.names()
    assert [script.end() for script in scripts] == [("", "")] * 2
    assert not caplog.text


def rest(path: Path) -> None:
    """Have a database without other clients rest for a fork, so that SQLite removes its log, and go on."""
    database = Database(path, clocks.steady_micros, clocks.wall_micros, lambda _channel: True)
    database.open()
    assert database.quiesce(TEST_TIMEOUT)
    database.go_on()
    database.look("name")
    database.close()


def test_a_log_that_goes_while_a_client_rests_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client without a connection does not miss its log; one that did would be noticed."""
    rest(tmp_path / "locks.db")
    assert not caplog.text
    bug = planted(LockFiles, "are_in_place", "if connected", "if True")
    monkeypatch.setattr(LockFiles, "are_in_place", bug)
    rest(tmp_path / "locks.db")
    assert "removed or replaced" in caplog.text
