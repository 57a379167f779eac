"""What `tenure doctor` finds at real servers: each is wrongly set in one way, and the finding names it.

A server that is set well has none, and everything there was looked at.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, UsageError
from tenure.cli import run_app
from tenure.contracts.findings import Report
from tenure.doctor.redis import RedisFacts
from tenure.stores.redis import examining
from tests.doctor.conftest import FORMS
from tests.hazards.helpers import eventually
from tests.planting import module_with
from tests.servers import (
    EtcdServer,
    MariaDbServer,
    MemcachedServer,
    PgBouncer,
    PostgresServer,
    RedisServer,
    SentinelGroup,
    Standby,
    ZooKeeperServer,
)
from tests.servers.clock import Clock

SLOW = 5.0
"""The `operation_timeout` of the clients, for a machine that stands still now and then."""


def look(url: str, ttl: float | None = None, form: str = "threads") -> Report:
    """Look at a store."""
    if form == "threads":
        with Client(url, operation_timeout=SLOW) as client:
            return client.examine(ttl)

    async def main() -> Report:
        async with AsyncClient(url, operation_timeout=SLOW) as client:
            return await client.examine(ttl)

    return asyncio.run(main())


def ids(report: Report) -> list[str]:
    """Return the names of what weighs."""
    return [each.id for each in report.findings if each.severity != "note"]


# -- set well ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["redis", "postgresql", "mysql", "memcached", "sqlite"])
def sound_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a store that is set well."""
    with ExitStack() as stack:
        kind = request.param
        if kind == "redis":
            yield stack.enter_context(RedisServer(tmp_path, options=("--appendonly", "yes"))).url
        elif kind == "postgresql":
            yield stack.enter_context(PostgresServer(tmp_path / "pg", options=("fsync=on",))).url
        elif kind == "mysql":
            options = ("--innodb-flush-log-at-trx-commit=1",)
            server = stack.enter_context(MariaDbServer(tmp_path / "my", options=options))
            server.execute("GRANT PROCESS ON *.* TO 'tenure'@'%'")
            yield server.url
        elif kind == "memcached":
            yield stack.enter_context(MemcachedServer(tmp_path)).url
        else:
            yield f"sqlite://{tmp_path}/locks.db"


def test_a_store_that_is_set_well_passes(sound_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 0, nothing of weight is found, and there is nothing that was not looked at: before and in use."""
    assert run_app(["doctor", sound_url, "--timeout", "5"]) == 0
    with Client(sound_url, operation_timeout=SLOW) as client, client.lock("in use"):
        assert run_app(["doctor", sound_url, "--timeout", "5"]) == 0
        for each in FORMS:
            report = look(sound_url, form=each)
            assert (ids(report), report.unseen) == ([], []), each
        report = client.examine()
        assert (ids(report), report.unseen) == ([], [])
    assert "unseen" not in capsys.readouterr().out


def test_looking_writes_nothing(tmp_path: Path) -> None:
    """Neither a key nor a table nor a file is there afterwards."""
    with RedisServer(tmp_path / "redis") as redis, PostgresServer(tmp_path / "pg") as postgres:
        for form in FORMS:
            look(redis.url, form=form)
            look(postgres.url, form=form)
        assert redis.command("DBSIZE") == 0
        assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    with MariaDbServer(tmp_path / "my") as mariadb, EtcdServer(tmp_path / "etcd") as etcd:
        for form in FORMS:
            look(mariadb.url, form=form)
            look(etcd.url, form=form)
        assert mariadb.execute("SHOW TABLES") == []
        assert etcd.keys() == []
    look(f"sqlite://{tmp_path}/no/locks.db")
    assert not (tmp_path / "no").exists()


# -- Redis ---------------------------------------------------------------------------------------------------


def test_redis_that_evicts(tmp_path: Path, form: str) -> None:
    """An eviction policy that takes locks."""
    with RedisServer(tmp_path, options=("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")) as server:
        assert ids(look(server.url, form=form)) == ["redis-eviction"]


def test_redis_without_memory(tmp_path: Path, form: str) -> None:
    """A memory that is nearly full."""
    with RedisServer(tmp_path) as server:
        server.command("CONFIG", "SET", "maxmemory", int(server.info("memory")["used_memory"]) + 1000)
        assert ids(look(server.url, form=form)) == ["redis-memory"]


def test_redis_without_connections(tmp_path: Path, form: str) -> None:
    """A server of whose connections hardly one is left."""
    with RedisServer(tmp_path) as server, server.connect() as wire:
        wire.command("CONFIG", "SET", "maxclients", 2)
        assert ids(look(server.url, form=form)) == ["redis-connections"]


def test_redis_master_and_replica(tmp_path: Path, form: str) -> None:
    """A master that needs no replica for a write, one that waits too long for it, and the replica itself."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(tmp_path / "master"))
        options = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer(tmp_path / "replica", options=options) as replica:
            eventually(lambda: replica.follows(master), "a replica")
            report = look(master.url, form=form)
            assert (ids(report), report.unseen) == (["redis-old-primary"], [])
            assert ids(look(f"{master.url}?guard=off", form=form))[0] == "redis-guard"
            assert "redis-role" in ids(look(replica.url, form=form))
            master.command("CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 60)
            assert ids(look(master.url, form=form)) == ["redis-replica-lag"]
            master.command("CONFIG", "SET", "min-replicas-max-lag", 5)
            assert ids(look(master.url, form=form)) == []


def test_redis_that_forgets(tmp_path: Path, form: str) -> None:
    """A server that keeps nothing on disk: a note, and an error without a guard."""
    with RedisServer(tmp_path) as server:
        report = look(server.url, form=form)
        assert (ids(report), [each.id for each in report.findings]) == ([], ["redis-persistence"])
        assert ids(look(f"{server.url}?guard=off", form=form)) == ["redis-persistence"]


def test_redis_in_quarantine(tmp_path: Path, form: str) -> None:
    """A server that restarted: until when it grants nothing, and why."""
    with RedisServer(tmp_path, options=("--appendonly", "yes", "--appendfsync", "always")) as server:
        with Client(server.url, operation_timeout=SLOW) as client, client.lock("it was in use"):
            pass
        server.kill()
        server.start()
        before = look(server.url, form=form)
        assert ids(before) == ["redis-quarantine"]
        assert "begins with the next request" in before.findings[0].what
        with Client(server.url, operation_timeout=SLOW) as client:
            assert not client.lock("it was in use").try_acquire()
            (during,) = look(server.url, form=form).findings
            assert (during.id, "it restarted" in during.what) == ("redis-quarantine", True)
            client.end_quarantine()
        assert ids(look(server.url, form=form)) == []


def test_redis_whose_max_ttl_is_too_short(tmp_path: Path, form: str) -> None:
    """A ttl of this program, or the max_ttl of another client, that is longer."""
    with RedisServer(tmp_path) as server:
        assert ids(look(f"{server.url}?max_ttl=10", 30.0, form)) == ["redis-max-ttl"]
        assert ids(look(f"{server.url}?max_ttl=10", 10.0, form)) == []
        with Client(f"{server.url}?max_ttl=60", operation_timeout=SLOW) as client, client.lock("long", ttl=60):
            assert ids(look(f"{server.url}?max_ttl=10", 10.0, form)) == ["redis-max-ttl"]


def test_redis_whose_clock_is_wrong(tmp_path: Path, form: str) -> None:
    """A clock that is ahead."""
    with Clock(tmp_path / "clock") as clock, RedisServer(tmp_path / "server", clock=clock) as server:
        clock.step(60.0)
        (found,) = [each for each in look(server.url, form=form).findings if each.severity != "note"]
        assert (found.id, "60." in found.what or "59." in found.what) == ("redis-clock", True)


LEAST = (
    "~tenure:* &tenure:* +eval +evalsha +time +get +set +hget +hset +hdel +zadd +zrem +zcard +zrank +zrange "
    "+zpopmin +pexpireat +publish +subscribe +unsubscribe +pubsub|numsub +info +scan +ping"
)
"""The rights of docs/redis.md."""


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        ("", []),
        (" +zpopmin", ["zpopmin"]),
        (" +publish", ["publish"]),
        (" &tenure:*", ["publish", "subscribe"]),
        ("~tenure:*", ["get", "set"]),
        (" +eval", ["eval"]),
        (" +pubsub|numsub", ["pubsub|numsub"]),
    ],
)
def test_redis_user_with_few_rights(tmp_path: Path, form: str, dropped: str, lacks: list[str]) -> None:
    """What the user lacks is named, and the settings that it may not read were not looked at, which is no failure."""
    rules = " ".join(each for each in LEAST.split() if each != dropped.strip())
    users = ["default off", f"app on >app-secret {rules}", "admin on >admin-secret ~* &* +@all"]
    with RedisServer(tmp_path, users=users, login=("admin", "admin-secret")) as server:
        report = look(server.url_for("app", "app-secret"), form=form)
        assert ids(report) == (["redis-rights"] if lacks else [])
        for each in lacks:
            assert f"+{each}" in report.findings[0].what
        refused = [each for each in report.unseen if "CONFIG" in each.what]
        assert len(refused) >= 2
        assert all("NOPERM" in each.why or "CONFIG" in each.why for each in refused)
        assert "app-secret" not in repr(report)


def test_redis_behind_sentinels(redis_sentinel: SentinelGroup, form: str) -> None:
    """An old master would go on granting beside the promoted one. The Sentinels are counted."""
    report = look(redis_sentinel.url, form=form)
    assert ids(report) == ["redis-old-primary"]
    assert (report.findings[0].severity, report.unseen) == ("error", [])


# -- a quorum ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_quorum_that_is_no_quorum(redis_five: list[RedisServer], tmp_path: Path, form: str) -> None:
    """Nodes that are one server or replicate each other, an even number of them, and nodes that do not answer."""
    first, second, third = (server.address[1] for server in redis_five[:3])
    assert ids(look(f"redlock://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}", form=form)) == []
    same = look(f"redlock://127.0.0.1:{first},localhost:{first},127.0.0.1:{second}", form=form)
    assert ids(same) == ["quorum-same-server"]
    even = f"redlock://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third},127.0.0.1:{redis_five[3].port}"
    assert ids(look(even, form=form)) == ["quorum-even"]
    assert ids(look(f"redlock://127.0.0.1:1,127.0.0.1:{first},127.0.0.1:{second}", form=form)) == ["quorum-silent"]
    with RedisServer(tmp_path, options=("--replicaof", "127.0.0.1", str(first))) as replica:
        eventually(lambda: replica.follows(redis_five[0]), "a replica")
        url = f"redlock://127.0.0.1:{replica.port},127.0.0.1:{second},127.0.0.1:{third}"
        assert ids(look(url, form=form)) == ["quorum-replica"]


# -- PostgreSQL ----------------------------------------------------------------------------------------------


def test_postgresql_that_forgets(postgres_server: PostgresServer, form: str) -> None:
    """A server that does not wait for its disk."""
    assert ids(look(postgres_server.url, form=form)) == ["postgresql-fsync"]
    assert ids(look(f"{postgres_server.url}?guard=strict", form=form)) == []


def test_postgresql_behind_a_pooler(pgbouncer: PgBouncer, form: str) -> None:
    """The pooler, and what the sessions behind it begin with: Tenure leaves them as they are."""
    database = "doctor_pooled"
    with _database(pgbouncer.postgres, database) as alter:
        url = pgbouncer.url.replace("/postgres", f"/{database}")
        assert ids(look(f"{url}?guard=strict", form=form)) == ["postgresql-pooler"]
        assert ids(look(f"{url}?mode=advisory", form=form)) == ["postgresql-pooler"]
        alter("default_transaction_isolation = 'serializable'")
        alter("statement_timeout = 200")
        pgbouncer.restart()
        url = pgbouncer.url.replace("/postgres", f"/{database}")
        found = ids(look(f"{url}?guard=strict", form=form))
        assert found == ["postgresql-pooler", "postgresql-isolation", "postgresql-timeout"]
        alter("default_transaction_read_only = on")
        pgbouncer.restart()
        url = pgbouncer.url.replace("/postgres", f"/{database}")
        assert ids(look(f"{url}?guard=strict", form=form))[0] == "postgresql-read-only"


@contextmanager
def _database(server: PostgresServer, name: str) -> Generator[Callable[[str], object], None, None]:
    server.create_database(name)
    try:
        yield lambda setting: server.execute(f"ALTER DATABASE {name} SET {setting}")
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_postgresql_role_with_few_rights(postgres_server: PostgresServer, form: str) -> None:
    """A role that may not make the tables, and one that may not write them."""
    name = f"doctor_{form}"
    with _database(postgres_server, name):
        url = postgres_server.create_user(name, "a-secret").replace("/postgres", f"/{name}")
        report = look(f"{url}?guard=strict", form=form)
        assert ids(report) == ["postgresql-rights"]
        assert "CREATE" in report.findings[0].what
        owner = postgres_server.url.replace("/postgres", f"/{name}")
        with Client(owner, operation_timeout=SLOW) as client:
            client.lock("made").acquire().release()
        assert "UPDATE on" in look(f"{url}?guard=strict", form=form).findings[0].what
        assert "a-secret" not in repr(report)
    postgres_server.execute(f"DROP ROLE {name}")


def test_postgresql_standby(tmp_path: Path, form: str) -> None:
    """A server that takes no writes is named, though no lock could be taken to find out."""
    with ExitStack() as stack:
        primary = stack.enter_context(PostgresServer(tmp_path / "primary", options=("fsync=on",)))
        with Standby(tmp_path / "standby", primary) as standby:
            assert "postgresql-standby" in ids(look(standby.url, form=form))
            report = look(primary.url, form=form)
            assert [each.id for each in report.findings] == ["postgresql-replication"]
            assert ids(look(f"{primary.url}?guard=off", form=form)) == ["postgresql-replication"]


# -- MySQL ---------------------------------------------------------------------------------------------------


def test_mysql_that_forgets(mariadb_server: MariaDbServer, form: str) -> None:
    """A server that writes its log once a second."""
    assert ids(look(mariadb_server.url, form=form)) == ["mysql-flush-log"]
    assert look(f"{mariadb_server.url}?guard=off", form=form).findings[0].severity == "error"


def test_mysql_with_wrong_settings(tmp_path: Path, form: str) -> None:
    """Logs of statements, sessions that end soon, no connections left, and a server that cannot be written."""
    options = ("--innodb-flush-log-at-trx-commit=1", "--log-bin=log", "--binlog-format=STATEMENT", "--server-id=7")
    with MariaDbServer(tmp_path, options=options) as server:
        server.execute("SET GLOBAL wait_timeout = 5")
        assert ids(look(server.url, form=form)) == ["mysql-binlog-format", "mysql-wait-timeout"]
        server.execute("SET GLOBAL wait_timeout = 28800, binlog_format = 'ROW'")
        assert ids(look(server.url, form=form)) == []
        server.execute("SET GLOBAL read_only = 1")
        assert ids(look(server.url, form=form)) == ["mysql-read-only"]


def test_mysql_user_with_few_rights(mariadb_server: MariaDbServer, form: str) -> None:
    """A user that may not make the tables, and one that may not write them."""
    name = f"doctor_{form}"
    owner = mariadb_server.create_database(name)
    url = mariadb_server.create_user(name, "a-secret").rpartition("/")[0] + f"/{name}"
    mariadb_server.execute(f"GRANT SELECT ON {name}.* TO '{name}'@'%'")
    found = {each.id: each.what for each in look(url, form=form).findings}
    assert "CREATE" in found["mysql-rights"]
    with Client(owner, operation_timeout=SLOW) as client:
        client.lock("made").acquire().release()
    found = {each.id: each.what for each in look(url, form=form).findings}
    assert "UPDATE on `tenure_meta`" in found["mysql-rights"]
    assert "SELECT on" not in found["mysql-rights"]


# -- etcd, ZooKeeper -----------------------------------------------------------------------------------------


def test_etcd_that_is_old_and_alone(etcd_server: EtcdServer, form: str) -> None:
    """A version in which sessions may end too early, one member, and a session that outlives the ttl."""
    report = look(f"{etcd_server.url}?session_timeout=60", 30.0, form)
    old = ["etcd-version"] if etcd_server.version() < (3, 4, 31) else []
    assert (ids(report), report.unseen) == ([*old, "etcd-members", "etcd-session"], [])


def test_etcd_without_space(tmp_path: Path, form: str) -> None:
    """An alarm, after which nothing can be written."""
    with EtcdServer(tmp_path, options=("--quota-backend-bytes", "100000")) as server:
        with pytest.raises(OSError, match="space"):
            _fill(server)
        assert "etcd-alarm" in ids(look(server.url, form=form))


def _fill(server: EtcdServer) -> None:
    for number in range(100):
        server.command("kv/put", key=f"{number:04}", value="A" * 40_000)


def test_etcd_user_with_few_rights(tmp_path: Path, form: str) -> None:
    """A user of another prefix. The alarms and the members are not for its eyes, or they are: no failure."""
    with EtcdServer(tmp_path, login=("app", "a-secret"), prefix="other/") as server:
        url = server.url_for("app", "a-secret")
        assert "etcd-rights" in ids(look(url, form=form))
        assert "etcd-rights" not in ids(look(f"{url}/other", form=form))


@pytest.mark.parametrize("form", FORMS)
def test_zookeeper_that_shortens_sessions(zookeeper_server: ZooKeeperServer, form: str) -> None:
    """A session timeout that the server does not allow, one member, and a session that outlives the ttl."""
    report = look(f"{zookeeper_server.url}?session_timeout=3600", 10.0, form)
    expected = ["zookeeper-session-timeout", "zookeeper-members", "zookeeper-session"]
    assert (ids(report), report.unseen) == (expected, [])


# -- memcached -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"), [(("-C",), "memcached-cas"), (("-M",), "memcached-no-evictions"), ((), "memcached-flush")]
)
def test_memcached_with_wrong_options(tmp_path: Path, form: str, options: tuple[str, ...], found: str) -> None:
    """A server without CAS values, one that must not evict, and one that somebody has emptied."""
    with MemcachedServer(tmp_path, options=options) as server:
        if not options:
            server.flush()
        assert ids(look(server.url, form=form)) == [found]


def test_memcached_that_evicts(tmp_path: Path, form: str) -> None:
    """A server whose memory was too small."""
    with MemcachedServer(tmp_path, megabytes=2) as server:
        value = b"x" * 100_000
        for number in range(60):
            server.command(b"set %d 0 0 %d\r\n%b\r\n" % (number, len(value), value))
        assert "memcached-evictions" in ids(look(server.url, form=form))


# -- a lock file ---------------------------------------------------------------------------------------------


def test_lock_file_that_anybody_may_remove(tmp_path: Path, form: str) -> None:
    """A folder that every user may write."""
    tmp_path.chmod(0o777)
    assert ids(look(f"sqlite://{tmp_path}/locks.db", form=form)) == ["lock-file-exposed"]
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    assert ids(look(f"sqlite://{tmp_path}/locks.db", form=form)) == []


def test_lock_file_on_a_network(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that other machines may share: Tenure refuses the file, and the doctor says why."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 0:32 / {tmp_path} rw shared:1 - nfs4 server:/export rw\n")
    monkeypatch.setattr("tenure.stores.sqlite.machine._MOUNTS", mounts)
    assert ids(look(f"sqlite://{tmp_path}/locks.db", form=form)) == ["lock-file-network"]
    with Client(f"sqlite://{tmp_path}/locks.db") as client, pytest.raises(UsageError):
        client.lock("name").acquire()


def test_lock_file_on_a_full_disk(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full."""
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 100, *real[5:]))

    def of_full(_path: object) -> os.statvfs_result:
        return full

    monkeypatch.setattr(os, "statvfs", of_full)
    assert ids(look(f"sqlite://{tmp_path}/locks.db", form=form)) == ["lock-file-space"]


# -- planted bugs --------------------------------------------------------------------------------------------

BUGS = {
    "a line of INFO has another name": ('"maxmemory_policy"', '"maxmemory-policy"'),
    "a number of INFO is not read": ('"maxmemory": "maxmemory",', ""),
    "what is appended is a word": ('said["aof_enabled"] == "1"', 'said["aof_enabled"] == "yes"'),
    "replicas are needed by default": ("facts.least_replicas = 0 ", "facts.least_replicas = 1 "),
    "a version is that of another program": ('said.get("redis_version", "")', 'said.get("server_version", "")'),
}
"""Bugs in what is read of a Redis: a fact is missing, or another one than the server's."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that is missing makes no finding, so the report has to say that it was not seen."""
    options = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
    with RedisServer(tmp_path, options=options) as server:
        found = [each.id for each in look(server.url).findings]
        assert found == ["redis-eviction"]
        wrong = module_with(examining, BUGS[bug])
        monkeypatch.setattr(examining, "facts_of_info", vars(wrong)["facts_of_info"])
        report = look(server.url)
        facts = report.facts[0]
        assert isinstance(facts, RedisFacts)
        refused = [] if facts.version else ["the version"]
        at_opening = RedisFacts("here")
        examining.facts_of_info(at_opening, "role:master\r\nconnected_slaves:1\r\n")
        told = [each.what for each in report.unseen] + refused
        assert told or [each.id for each in report.findings] != found or at_opening.least_replicas != 0
