"""What a lock file may meet on a disk: rights, foreign content, removal, a full disk, odd paths."""

import contextlib
import gc
import logging
import os
import shutil
import socket
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, Client, Lease, LeaseLost, StoreError, StoreUnavailable, UsageError
from tenure.contracts.messages import AcquireRequest, Granted, ReleaseRequest
from tenure.core.requests import MIN_REQUEST_TIME
from tenure.runtimes import clocks
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sqlite import machine, opening
from tenure.stores.sqlite.database import SWEEP_EVERY, Database
from tenure.stores.sqlite.errors import to_store_error
from tenure.stores.sqlite.opening import open_file
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.tabled import RETENTION
from tenure.stores.urls import default_file, store_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually
from tests.planting import module_with


def url(path: Path) -> str:
    """Return the URL of a lock file."""
    return f"sqlite://{path}"


def mode(path: Path) -> int:
    """Return the rights of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_may_read_a_lock_file(tmp_path: Path, umask: int) -> None:
    """The file, what SQLite puts beside it, and the channel are closed to other users under any umask."""
    path = tmp_path / "locks.db"
    before = os.umask(umask)
    try:
        with Client(url(path)) as client, client.lock("name"):
            for suffix in ("", "-wal", "-shm"):
                assert mode(path.with_name(path.name + suffix)) == 0o600
            folder = path.with_name("locks.db.channel")
            assert mode(folder) == 0o700
            assert [mode(each) for each in folder.iterdir()] == [0o600]
    finally:
        os.umask(before)


def test_stale_sockets_are_swept_and_live_ones_kept(tmp_path: Path) -> None:
    """A client that opens removes the sockets of the dead, and no others."""
    path = tmp_path / "locks.db"
    with Client(url(path)) as first:
        first.names()
        folder = path.with_name("locks.db.channel")
        (live,) = folder.iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(folder / "1-dead"))
        with Client(url(path)) as second:
            second.names()
            left = set(folder.iterdir())
            assert live in left
            assert len(left) == 2
            assert folder / "1-dead" not in left
    assert not list(folder.iterdir())


@pytest.mark.parametrize("depth", ["deep", "no sockets"])
def test_a_hand_over_reaches_odd_places(tmp_path: Path, depth: str) -> None:
    """Waiters in folders too deep for a socket's address are woken; where no socket can be, they poll."""
    folder = tmp_path / ("d" * 100) / ("e" * 100) if depth == "deep" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "locks.db"
    if depth == "no sockets":
        (folder / "locks.db.channel").write_text("not a folder")
    with Client(url(path)) as client:
        client.names()
        assert bool(client.session().channel) == (depth == "deep")
        lease = client.lock("name", ttl=20).acquire()
        script = Script(
            "import sys, tenure\nwith tenure.Client(sys.argv[1]) as c, c.lock('name', timeout=30): print('got')",
            url(path),
        )
        eventually(lambda: client.inspect("name").waiters, "a waiter")
        lease.release()
        assert script.end() == ("got\n", "")


def _foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text)")
        database.commit()


def _torn(path: Path) -> None:
    with Client(url(path)) as client:
        client.names()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996
    path.write_bytes(content)


def _text(path: Path) -> None:
    path.write_text("no database " * 100)


def _no_folder(path: Path) -> None:
    path.parent.rmdir()


def _linked(path: Path) -> None:
    with Client(url(path)) as client:
        client.names()
    path.with_name("second.db").hardlink_to(path)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (_text, "not a lock file"),
    "foreign": (_foreign, "another program"),
    "torn": (_torn, "damaged"),
    "linked": (_linked, "second name"),
    "folder": (Path.mkdir, "is not a regular file|is a folder"),
    "no folder": (_no_folder, "does not exist"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_words_and_left_alone(tmp_path: Path, kind: str) -> None:
    """What is no lock file of ours is refused with a sentence that says so, and not a byte of it is changed."""
    path = tmp_path / "folder" / "locks.db"
    path.parent.mkdir()
    spoil, words = BAD[kind]
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    client = Client(url(path), retry_for=0.1)
    with pytest.raises(StoreError, match=words):
        client.lock("name").acquire(timeout=0)
    client.close()
    gc.collect()  # a socket or connection that was left open warns
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_replaced_under_use_loses_its_leases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the file goes, so do its leases, which is logged; a new file serves from then on."""
    path = tmp_path / "locks.db"
    with Client(url(path)) as client:
        lease = client.lock("name").acquire()
        with caplog.at_level(logging.ERROR, "tenure"):
            for each in tmp_path.glob("locks.db*"):
                if each.is_file():
                    each.unlink()
            eventually(partial(lost_when_renewed, client, lease), "the loss is found")
        assert "removed or replaced" in caplog.text
        with Client(url(path)) as other, other.lock("name", timeout=TEST_TIMEOUT) as again:
            assert again.token > lease.token
            assert client.lock("name").try_acquire() is None
        lease.release()


def test_a_file_replaced_by_a_copy_loses_its_leases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As it says: for who holds them may go on in the file that was there. But nobody gets the name before they end."""
    path, copy = tmp_path / "locks.db", tmp_path / "copy.db"
    with Client(url(path)) as client, Client(url(path)) as second:
        leases = [client.lock("name", ttl=3).acquire(), second.rwlock("shared", ttl=3).read().acquire()]
        store = client.session().store
        assert isinstance(store, SqliteStore)
        connection = store._database._connection
        assert connection is not None
        with contextlib.closing(sqlite3.connect(copy)) as target:
            connection.backup(target)
        copy.rename(path)
        with caplog.at_level(logging.WARNING, "tenure"):
            for holder, lease in zip((client, second), leases, strict=True):
                eventually(partial(lost_when_renewed, holder, lease), "the loss is found")
                with pytest.raises(LeaseLost, match="the store no longer knows it"):
                    lease.check()
        assert "removed or replaced" in caplog.text
        assert "is a copy of a lock file" in caplog.text
        with Client(url(path)) as other:
            (kept,) = other.inspect("name").holders
            assert other.lock("name").try_acquire() is None or kept.expires_in < 1
            with (
                other.lock("name", timeout=TEST_TIMEOUT) as again,
                other.rwlock("shared", timeout=TEST_TIMEOUT).write(),
            ):
                assert again.token > leases[0].token
        for lease in leases:
            lease.release()
    with Client(url(path)) as other, other.lock("name", timeout=0):  # opened again it is a copy no more
        pass


def test_an_old_copy_of_a_file_does_not_give_its_cells_the_versions_that_it_forgot(tmp_path: Path) -> None:
    """Who has read a cell before the copy was put back does not write it after others have."""
    path, copy = tmp_path / "locks.db", tmp_path / "copy.db"
    until = ThreadsRuntime().now() + TEST_TIMEOUT

    def opened() -> SqliteStore:
        store = SqliteStore(ThreadsRuntime(), path)
        drive(store.open(lambda _: None, until))
        return store

    store = opened()
    first = drive(store.write_cell("count", b"5", 0, 0, until))
    drive(store.close())
    shutil.copy(path, copy)
    store = opened()
    known = drive(store.write_cell("count", b"6", first.version, 0, until))
    drive(store.close())
    copy.rename(path)
    store = opened()
    assert drive(store.write_cell("count", b"7", first.version, 0, until)).version > known.version
    late = drive(store.write_cell("count", b"8", known.version, 0, until))
    assert (late.written, late.value) == (False, b"7")
    drive(store.close())


def test_a_disk_without_room_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says no more than "disk I/O error" of a disk on which not even its index has room."""
    path = tmp_path / "locks.db"
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    free = os.statvfs(tmp_path)
    assert free.f_bavail * free.f_frsize > 8 * 2**20, "this test needs some room itself"
    with pytest.raises(StoreUnavailable, match=r"SQLITE_IOERR_SHMSIZE.*failure of the disk"):
        raise to_store_error(path, error)
    full = os.statvfs_result((4096, 4096, 16, 4, 4, 16, 4, 4, 0, 255))

    def statvfs(_folder: Path) -> os.statvfs_result:
        return full

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(StoreUnavailable, match=r"the disk is full.*8 MB are ample"):
        raise to_store_error(path, error)


def lost_when_renewed(client: Client, lease: Lease) -> bool:
    """Have a lease renewed, and tell whether it is lost."""
    client.session().renewer.hurry(0.0)
    return lease.lost.is_set()


def test_a_file_that_could_not_be_reopened_is_tried_again(tmp_path: Path) -> None:
    """A client whose file is missing for a while is not dead for ever: it works again when the file can be made."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with Client(url(folder / "locks.db"), retry_for=0.1) as client:
        client.lock("name").acquire().release()
        shutil.rmtree(folder)
        eventually(lambda: _fails(client), "the removal is seen")
        folder.mkdir()
        with client.lock("name", timeout=TEST_TIMEOUT):
            pass


def _fails(client: Client) -> bool:
    try:
        client.lock("name").acquire(timeout=0).release()
    except StoreError as error:
        assert "does not exist" in str(error)  # noqa: PT017 - the condition is that it fails like this
        return True
    return False


def test_held_leases_survive_a_full_disk(tmp_path: Path) -> None:
    """On a full disk acquiring fails in words; what is held stays held, and all is well when space returns."""
    path = tmp_path / "locks.db"
    with Client(url(path), retry_for=0.05) as client:
        lease = client.lock("name").acquire()
        store = client.session().store
        assert isinstance(store, SqliteStore)
        connection = store._database._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

        def fill() -> None:
            for number in range(200):
                client.lock(f"{number}".ljust(500, "x")).acquire().release()

        with pytest.raises(StoreError, match="disk is full"):
            fill()
        lease.extend()
        connection.execute("PRAGMA max_page_count = 100000")
        with client.lock("space again"):
            lease.check()
        lease.release()


SCARCE = """
import os, resource, sys, tenure
from tenure.stores.sqlite import machine
for room in range(14):
    client, kept = tenure.Client(sys.argv[1], retry_for=0), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True: kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError: [os.close(kept.pop()) for _ in range(room)]
    try: print(client.lock("name").try_acquire())
    except tenure.StoreError as error: print(type(error).__name__, error)
    [os.close(each) for each in kept]
    client.close()
"""
"""Opens the lock file with more and more file descriptors left."""


def open_with_few_descriptors(path: Path, code: str) -> list[str]:
    """Have a process open a file in which a name is leased; return what it got each time."""
    with Client(url(path)) as client, client.lock("name", ttl=20) as lease:
        got, _warnings = Script(code, url(path)).end()  # of a socket whose pair could not be opened
        lease.extend()
    return got.splitlines()


def test_a_process_without_file_descriptors_is_told_so_and_ends_no_lease(tmp_path: Path) -> None:
    """Whichever file it cannot open, it may try again; if it cannot read the id of the boot, it voids nothing."""
    got = open_with_few_descriptors(tmp_path / "locks.db", SCARCE)
    assert got[-1] == "None"
    failures = [each for each in got if each != "None"]
    assert all(each.startswith("StoreUnavailable") for each in failures)
    assert len([each for each in failures if "raise `ulimit -n`" in each]) > 2


def test_a_boot_id_that_could_not_be_read_for_a_while_and_is_taken_for_another_is_noticed(tmp_path: Path) -> None:
    """Then who opens the file with the last descriptor voids the leases of all others."""
    bug = SCARCE.replace("for room", "machine.SHORTAGES = {}\nfor room", 1)
    with pytest.raises(LeaseLost):
        open_with_few_descriptors(tmp_path / "locks.db", bug)


class Clock:
    """A clock that stands still until told."""

    def __init__(self, now: int = 10_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        """Return the time."""
        return self.now


def ask(name: str, request_id: str) -> AcquireRequest:
    """Make a request for a second."""
    return AcquireRequest(name, request_id, "", "test", 1_000_000, 100_000, 100_000)


def acquire(database: Database, name: str, request_id: str) -> int:
    """Acquire what must be free; return the token."""
    reply = database.step(name, lambda step: step.acquire(ask(name, request_id)))[0]
    assert isinstance(reply, Granted)
    return reply.token


@pytest.fixture
def clock() -> Clock:
    """Return a boot clock."""
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[Database]:
    """Open a lock file with injected clocks."""
    database = Database(tmp_path / "locks.db", clock, lambda: 5, lambda _channel: True)
    database.open()
    yield database
    database.close()


def test_idle_names_are_swept_and_tokens_keep_increasing(database: Database, clock: Clock) -> None:
    """The row of a name that nobody uses goes, and the name's next token is larger all the same."""
    token = acquire(database, "old", "first")
    database.step("old", lambda step: step.release(ReleaseRequest("old", "first", token)))
    clock.now += RETENTION + SWEEP_EVERY + 2_000_000
    acquire(database, "new", "second")
    assert database._connection is not None
    assert database._connection.execute("SELECT name FROM names").fetchall() == [("new",)]
    assert acquire(database, "old", "third") > token


def test_a_wall_clock_that_steps_back_lowers_no_token(tmp_path: Path, clock: Clock) -> None:
    """Tokens of one name increase although the wall clock was set back by years."""
    wall = Clock(10**15)
    database = Database(tmp_path / "locks.db", clock, wall, lambda _channel: True)
    database.open()
    first = acquire(database, "name", "first")
    database.step("name", lambda step: step.release(ReleaseRequest("name", "first", first)))
    wall.now = 0
    assert acquire(database, "name", "second") > first
    database.close()


def test_a_reboot_voids_leases_and_keeps_tokens(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot nobody holds anything, and tokens go on from where they were."""

    def opened() -> Database:
        database = Database(tmp_path / "locks.db", clock, lambda: 5, lambda _channel: True)
        database.open()
        return database

    database = opened()
    token = acquire(database, "name", "first")
    database.close()
    monkeypatch.setattr(machine, "boot_id", lambda: "the next boot")
    clock.now = 1
    database = opened()
    assert acquire(database, "name", "second") > token
    database.close()


def test_two_clients_of_one_process_keep_each_others_file_locks(tmp_path: Path) -> None:
    """A client that opens and closes beside another does not drop the locks that the kernel keeps for the process."""
    path = tmp_path / "locks.db"
    with Client(url(path)) as first, first.lock("name", ttl=20):
        for _ in range(3):
            with Client(url(path)) as second:
                assert second.lock("name").try_acquire() is None
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
        assert any(f" {os.getpid()} " in line and f":{inode} " in line for line in locks)
        script = Script(
            "import sys, tenure\nwith tenure.Client(sys.argv[1]) as c: print(c.lock('name').try_acquire())",
            url(path),
        )
        assert script.end() == ("None\n", "")
        assert path.with_name("locks.db-wal").exists()


def test_many_processes_may_make_a_file_at_once(tmp_path: Path) -> None:
    """Processes that open a new file at the same moment make one file, and all can lock."""
    code = """
import sys, tenure
print("ready", flush=True); sys.stdin.readline()
with tenure.Client(sys.argv[1]) as client, client.lock("name", timeout=30) as lease: print(lease.token)
"""
    scripts = [Script(code, url(tmp_path / "locks.db")) for _ in range(4)]
    for script in scripts:
        assert script.hear() == "ready"
    for script in scripts:
        script.say()
    tokens = [script.end() for script in scripts]
    assert not [errors for _, errors in tokens if errors]
    assert len({out for out, _ in tokens}) == 4


def test_who_finds_the_file_locked_tries_at_once_and_then_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries within a millisecond; then ever less, or hundreds who try would keep each other out; and to the end."""
    path, tried = tmp_path / "locks.db", list[float]()
    step = Database.step

    def counting(self: Database, name: str, work: Callable[..., Any]) -> Any:  # noqa: ANN401
        tried.append(clocks.steady())
        return step(self, name, work)

    async def main() -> None:
        async with AsyncClient(url(path), operation_timeout=5.0, retry_for=0.0) as client:
            await client.inspect("name")
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                monkeypatch.setattr(Database, "step", counting)
                with pytest.raises(StoreUnavailable, match="kept the file locked"):
                    await client.lock("name").acquire(timeout=0)
                tried.append(clocks.steady())
                monkeypatch.undo()

    virtual.run(main)
    *tried, last, ended = [each - tried[0] for each in tried]
    assert len([each for each in tried if each < 0.001]) >= 3
    assert len(tried) < 150
    assert 5.0 in [pytest.approx(each) for each in tried], "the last try is at the end of the time, not before or after"
    assert last == ended == pytest.approx(5.0 + MIN_REQUEST_TIME)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that other machines may share is refused with a sentence that says why."""

    def network(_path: Path) -> tuple[str, str]:
        return "/", "nfs4"

    monkeypatch.setattr(machine, "mount_of", network)
    with Client(url(tmp_path / "locks.db")) as client, pytest.raises(UsageError, match="nfs4 file system"):
        client.lock("name").acquire()
    assert not (tmp_path / "locks.db").exists()


def mount_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system tell that a file is mounted, as `docker run -v FILE:FILE` mounts it."""
    table = path.with_name("mountinfo")
    where = os.fsencode(path).replace(b" ", b"\\040")
    table.write_bytes(b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:1 /x/a.db " + where + b" rw - ext4 /dev/a rw\n")
    monkeypatch.setattr(machine, "_MOUNTS", table)


def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the container its log has another name. A link to it is refused as well, and another file is not."""
    path, link = tmp_path / "its locks.db", tmp_path / "link.db"
    mount_alone(path, monkeypatch)
    link.symlink_to(path)
    for each in (path, link):
        with Client(url(each)) as client, pytest.raises(StoreError, match="mount its folder"):
            client.lock("name").acquire(timeout=0)
    with Client(url(tmp_path / "its locks.db2")) as client, client.lock("name"):
        pass


@pytest.mark.parametrize("bug", ["found.st_nlink > 1", "mount == os.path.realpath(path)"])
def test_a_second_name_that_is_not_looked_for_is_noticed(
    tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without either check, a file with two names is opened."""
    path = tmp_path / "locks.db"
    if "nlink" in bug:
        _linked(path)
    else:
        mount_alone(path, monkeypatch)
    with pytest.raises(StoreError):
        open_file(path)
    connection, _file = module_with(opening, (bug, "False")).open_file(path)
    connection.close()


def test_links_to_a_file_share_its_channel(tmp_path: Path) -> None:
    """Whichever link a client gives, its waiters hear, and others see that they live and keep their turn."""
    path, link = tmp_path / "locks.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Client(url(path)) as client, Client(url(link)) as linked:
        for each in (client, linked):
            each.names()
        assert not link.with_name("link.db.channel").exists()
        stores = [each.session().store for each in (client, linked)]
        for store, other in (stores, stores[::-1]):
            assert isinstance(store, SqliteStore)
            assert isinstance(other, SqliteStore)
            assert store._channel.listening(other._channel._name)


def test_mount_points_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of a file system is found whatever bytes its mount point is called by."""
    table = tmp_path / "mountinfo"
    where = os.fsencode(tmp_path / "caf\u00e9 de nuit").replace(b" ", b"\\040")
    table.write_bytes(
        b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /mnt/\xff rw - tmpfs t rw\n"
        b"3 1 0:5 / " + where + b" rw - nfs4 server:/x rw\n"
    )
    monkeypatch.setattr(machine, "_MOUNTS", table)
    assert machine.mount_of(tmp_path / "caf\u00e9 de nuit" / "folder")[1] == "nfs4"
    assert machine.mount_of(tmp_path)[1] == "ext4"


def test_a_time_namespace_is_reckoned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a boot clock of its own, the machine's time is what counts."""
    offsets = tmp_path / "offsets"
    offsets.write_text("monotonic           0         0\nboottime        86400    500000000\n")
    monkeypatch.setattr(machine, "_TIME_OFFSETS", offsets)
    assert machine.clock_offset() == 86_400_500_000
    inside = machine.BootClock()()
    monkeypatch.setattr(machine, "_TIME_OFFSETS", tmp_path / "none")
    assert 86_400_400_000 < machine.BootClock()() - inside < 86_400_600_000


GOOD = {
    "sqlite:///abs/locks.db": "/abs/locks.db",
    "sqlite:////abs/locks.db": "/abs/locks.db",
    "sqlite:///a%20b/c%3Fd": "/a b/c?d",
}


@pytest.mark.parametrize("given", GOOD)
def test_a_url_names_a_file(given: str) -> None:
    """The forms of a lock file's URL lead to the file that they say."""
    assert store_source(given).title == f"sqlite://{GOOD[given]}"


def test_relative_and_home_urls_name_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts from the working folder, `~` from home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store_source("sqlite:rel/x.db").title == f"sqlite://{tmp_path}/rel/x.db"
    assert store_source("sqlite:///~/x.db").title == f"sqlite://{tmp_path}/home/x.db"


@pytest.mark.parametrize(
    "given",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x",
        "sqlite:///a?x=1",
        "sqlite:///a#b",
        "nonsense",
        "x://y",
        "sqlite:///a%00b",
        "sqlite:///~nobody-of-that-name/x",
    ],
)
def test_a_url_that_cannot_be_right_is_refused(given: str) -> None:
    """A URL that names no file is refused at once, with a sentence."""
    with pytest.raises(UsageError):
        store_source(given)


def test_an_error_about_a_url_keeps_its_secret() -> None:
    """A password never appears in an error about the URL that it is part of."""
    with pytest.raises(UsageError) as caught:
        store_source("redis://user:hunter\u2100two@host/0")
    assert "hunter" not in str(caught.value)


def test_the_default_is_a_file_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL the environment decides, else the password database, whatever HOME says."""
    entry = type("Entry", (), {"pw_dir": str(tmp_path / "mine")})

    def getpwuid(_uid: int) -> object:
        return entry

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    monkeypatch.setenv("HOME", str(tmp_path / "not mine"))
    monkeypatch.delenv("TENURE_URL", raising=False)
    assert default_file() == tmp_path / "mine" / ".local" / "state" / "tenure" / "locks.db"
    assert mode(default_file().parent) == 0o700
    with Client() as client, client.lock("name"):
        assert default_file().exists()
    monkeypatch.setenv("TENURE_URL", "memory://from-the-environment")
    assert store_source().title == "memory://from-the-environment"


def test_a_datagram_that_is_no_notice_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No content of a datagram can stop a channel."""
    monkeypatch.chdir(tmp_path)  # a relative path fits into a socket address
    path = tmp_path / "locks.db"
    with Client(url(path)) as client, Client(url(path)) as other:
        client.names()
        (channel,) = path.with_name("locks.db.channel").iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for junk in (b"", b"5", b"\xff", b"[" * 4000, b'["granted"]', b'["x","y",1,2]', b'["granted","y",1,2]'):
                sender.sendto(junk, str(channel.relative_to(tmp_path)))
        lease = client.lock("name").acquire()
        lease.on_lost(lambda _error: None)
        other.revoke("name", force=True)
        assert lease.lost.wait(TEST_TIMEOUT)
        with pytest.raises(LeaseLost):
            lease.check()
        lease.release()


def test_a_store_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    """Closing an unopened store closes its sockets."""
    store = SqliteStore(ThreadsRuntime(), tmp_path / "locks.db")
    drive(store.close())
    gc.collect()
