"""The cases of the rules: facts, and the findings that they make. Each rule has a case on either side of its bound."""

from dataclasses import fields
from typing import Any

from tenure.contracts.findings import Facts, Rule
from tenure.doctor import etcd, lock_file, memcached, mysql, postgresql, quorum, redis, rows, zookeeper
from tenure.doctor.etcd import EtcdFacts, EtcdMemberFacts
from tenure.doctor.lock_file import LockFileFacts
from tenure.doctor.memcached import MemcachedFacts
from tenure.doctor.mysql import MySqlFacts
from tenure.doctor.postgresql import PostgresFacts
from tenure.doctor.quorum import QuorumFacts
from tenure.doctor.redis import RedisFacts
from tenure.doctor.rows import TableFacts
from tenure.doctor.zookeeper import ZooKeeperFacts

MEGABYTE = 2**20

SOUND: dict[type[Facts], dict[str, Any]] = {
    RedisFacts: {
        "version": "7.0.15",
        "run_id": "a",
        "replication_id": "b",
        "role": "master",
        "replicas": 0,
        "maxmemory": 0,
        "used_memory": MEGABYTE,
        "policy": "noeviction",
        "evicted": 0,
        "clients": 1,
        "most_clients": 10_000,
        "append_only": True,
        "fsync": "everysec",
        "least_replicas": 0,
        "most_lag": 10,
        "lacks": [],
        "ahead": 0.0,
        "clocks_apart": 0.0,
        "quarantine": 0.0,
        "longest_ttl": 0.0,
        "sentinels": 0,
    },
    PostgresFacts: {
        "version": 150004,
        "standby": False,
        "pooled": False,
        "hears": True,
        "fsync": True,
        "commit": "on",
        "synchronous_standbys": "",
        "standbys": 0,
        "read_only": False,
        "isolation": "read committed",
        "statement_timeout": 0,
        "lock_timeout": 0,
        "used": 1,
        "most": 100,
        "ahead": 0.0,
        "lacks": [],
        "tables": True,
        "quarantine": 0.0,
        "longest_ttl": 30.0,
    },
    MySqlFacts: {
        "version": "10.11.6-MariaDB",
        "read_only": False,
        "flush": 1,
        "sync_binlog": 0,
        "log_bin": False,
        "binlog_format": "MIXED",
        "replicas": 0,
        "semi_sync": False,
        "galera": False,
        "wait_timeout": 28_800,
        "why_silent": "",
        "used": 1,
        "most": 151,
        "ahead": 0.0,
        "lacks": [],
        "quarantine": 0.0,
        "longest_ttl": 30.0,
    },
    EtcdMemberFacts: {"silent": "", "version": "3.5.13", "leader": True, "ahead": 0.0},
    EtcdFacts: {"members": 3, "learners": 0, "alarms": [], "lacks": []},
    ZooKeeperFacts: {"granted": 30.0, "version": "3.8.0", "members": 3, "lacks": []},
    MemcachedFacts: {
        "version": "1.6.18",
        "cas": True,
        "evicts": True,
        "evicted": 0,
        "flushed": 0,
        "used": MEGABYTE,
        "most": 64 * MEGABYTE,
        "clients": 1,
        "most_clients": 1024,
        "crawls": True,
        "ahead": 0.0,
    },
    LockFileFacts: {
        "file_system": "ext4",
        "shared": False,
        "free": 64 * MEGABYTE,
        "writable": True,
        "exposed": False,
    },
    QuorumFacts: {"size": 3, "quorum": 2},
    TableFacts: {"ignored": ""},
}
"""What is seen of a store that is set well."""

RULES: dict[type[Facts], tuple[Rule[Any], ...]] = {
    RedisFacts: redis.RULES,
    PostgresFacts: postgresql.RULES,
    MySqlFacts: mysql.RULES,
    EtcdMemberFacts: etcd.MEMBER_RULES,
    EtcdFacts: etcd.RULES,
    ZooKeeperFacts: zookeeper.RULES,
    MemcachedFacts: memcached.RULES,
    LockFileFacts: lock_file.RULES,
    QuorumFacts: quorum.RULES,
    TableFacts: rows.RULES,
}

GIGABYTE = 1024 * MEGABYTE

Case = tuple[type[Facts], dict[str, Any], list[str]]


def node(place: str, **given: Any) -> RedisFacts:  # noqa: ANN401 - of any fact
    """Return the facts of a node of a quorum."""
    facts: dict[str, Any] = {"run_id": place, "replication_id": place, "role": "master", **given}
    return RedisFacts(place, in_quorum=True, **facts)


CASES: tuple[Case, ...] = (
    # Redis
    (RedisFacts, {}, []),
    (RedisFacts, {"version": "6.2.14"}, ["redis-version error"]),
    (RedisFacts, {"version": "10.0.0"}, []),
    (RedisFacts, {"role": "slave"}, ["redis-role error"]),
    (RedisFacts, {"lacks": ["hset", "publish"]}, ["redis-rights error"]),
    (RedisFacts, {"maxmemory": GIGABYTE, "policy": "volatile-lru"}, ["redis-eviction error"]),
    (RedisFacts, {"maxmemory": GIGABYTE, "policy": "allkeys-lfu"}, ["redis-eviction error"]),
    (RedisFacts, {"maxmemory": GIGABYTE}, []),
    (RedisFacts, {"policy": "allkeys-lru"}, []),
    (RedisFacts, {"maxmemory": 100, "used_memory": 90}, ["redis-memory warning"]),
    (RedisFacts, {"maxmemory": 100, "used_memory": 89}, []),
    (RedisFacts, {"replicas": 1}, ["redis-old-primary warning"]),
    (RedisFacts, {"replicas": 1, "least_replicas": 1}, []),
    (RedisFacts, {"replicas": 1, "wait_replicas": 1}, []),
    (RedisFacts, {"replicas": 1, "in_quorum": True, "fsync": "always"}, []),
    (RedisFacts, {"replicas": 1, "shape": "cluster"}, []),
    (RedisFacts, {"replicas": 2, "shape": "sentinel", "sentinels": 3}, ["redis-old-primary error"]),
    (RedisFacts, {"replicas": 1, "least_replicas": 1, "most_lag": 11}, ["redis-replica-lag warning"]),
    (RedisFacts, {"replicas": 1, "least_replicas": 1, "most_lag": 0}, ["redis-replica-lag warning"]),
    (RedisFacts, {"replicas": 1, "least_replicas": 1, "most_lag": 10}, []),
    (
        RedisFacts,
        {"replicas": 1, "least_replicas": 1, "guard": "off", "fsync": "always"},
        ["redis-guard error"],
    ),
    (RedisFacts, {"append_only": False}, ["redis-persistence note"]),
    (RedisFacts, {"append_only": False, "guard": "strict"}, ["redis-persistence note"]),
    (RedisFacts, {"append_only": False, "guard": "off"}, ["redis-persistence error"]),
    (RedisFacts, {"guard": "off"}, ["redis-persistence warning"]),
    (RedisFacts, {"guard": "off", "fsync": "always"}, []),
    (RedisFacts, {"in_quorum": True}, ["redis-persistence note"]),
    (RedisFacts, {"in_quorum": True, "fsync": "always"}, []),
    (RedisFacts, {"clients": 9, "most_clients": 10}, ["redis-connections warning"]),
    (RedisFacts, {"clients": 8, "most_clients": 10}, []),
    (RedisFacts, {"ahead": 1.1}, ["redis-clock warning"]),
    (RedisFacts, {"ahead": -1.1}, ["redis-clock warning"]),
    (RedisFacts, {"ahead": -0.9}, []),
    (RedisFacts, {"clocks_apart": 0.6}, ["redis-replica-clock warning"]),
    (RedisFacts, {"clocks_apart": 0.4}, []),
    (RedisFacts, {"quarantine": 12.0}, ["redis-quarantine warning"]),
    (RedisFacts, {"ttl": 31.0}, ["redis-max-ttl warning"]),
    (RedisFacts, {"ttl": 30.0, "longest_ttl": 30.0}, []),
    (RedisFacts, {"longest_ttl": 60.0}, ["redis-max-ttl warning"]),
    (RedisFacts, {"ttl": 60.0, "guard": "off", "fsync": "always"}, []),
    (RedisFacts, {"shape": "sentinel", "wait_replicas": 1, "sentinels": 1}, ["redis-sentinels warning"]),
    (RedisFacts, {"shape": "sentinel", "wait_replicas": 1, "sentinels": 2}, ["redis-sentinels warning"]),
    (RedisFacts, {"shape": "sentinel", "wait_replicas": 1, "sentinels": 4}, ["redis-sentinels warning"]),
    (RedisFacts, {"shape": "sentinel", "wait_replicas": 1, "sentinels": 5}, []),
    # PostgreSQL
    (PostgresFacts, {}, []),
    (PostgresFacts, {"version": 110022}, ["postgresql-version error"]),
    (PostgresFacts, {"version": 120000}, []),
    (PostgresFacts, {"standby": True}, ["postgresql-standby error"]),
    (PostgresFacts, {"pooled": True, "hears": False}, ["postgresql-pooler warning"]),
    (PostgresFacts, {"pooled": True, "hears": False, "advisory": True}, ["postgresql-pooler error"]),
    (PostgresFacts, {"hears": False}, ["postgresql-notifications warning"]),
    (PostgresFacts, {"read_only": True}, []),
    (
        PostgresFacts,
        {"read_only": True, "pooled": True},
        ["postgresql-read-only error", "postgresql-pooler warning"],
    ),
    (PostgresFacts, {"isolation": "serializable"}, []),
    (
        PostgresFacts,
        {"isolation": "serializable", "pooled": True},
        ["postgresql-pooler warning", "postgresql-isolation warning"],
    ),
    (PostgresFacts, {"statement_timeout": 500}, []),
    (
        PostgresFacts,
        {"statement_timeout": 999, "pooled": True},
        ["postgresql-pooler warning", "postgresql-timeout warning"],
    ),
    (PostgresFacts, {"statement_timeout": 1000, "pooled": True}, ["postgresql-pooler warning"]),
    (
        PostgresFacts,
        {"lock_timeout": 10, "pooled": True},
        ["postgresql-pooler warning", "postgresql-timeout warning"],
    ),
    (PostgresFacts, {"fsync": False}, ["postgresql-fsync error"]),
    (PostgresFacts, {"fsync": False, "guard": "strict"}, []),
    (PostgresFacts, {"fsync": False, "advisory": True}, []),
    (PostgresFacts, {"standbys": 1}, ["postgresql-replication note"]),
    (PostgresFacts, {"standbys": 1, "guard": "off"}, ["postgresql-replication error"]),
    (PostgresFacts, {"standbys": 1, "synchronous_standbys": "*"}, []),
    (PostgresFacts, {"standbys": 1, "synchronous_standbys": "*", "commit": "local"}, ["postgresql-replication note"]),
    (PostgresFacts, {"lacks": ["UPDATE on tenure_meta"]}, ["postgresql-rights error"]),
    (PostgresFacts, {"used": 90}, ["postgresql-connections warning"]),
    (PostgresFacts, {"ahead": 2.0}, ["postgresql-clock warning"]),
    (PostgresFacts, {"quarantine": 1.0}, ["postgresql-quarantine warning"]),
    (PostgresFacts, {"ttl": 60.0}, ["postgresql-max-ttl warning"]),
    # MySQL
    (MySqlFacts, {}, []),
    (MySqlFacts, {"version": "10.2.44-MariaDB"}, ["mysql-version error"]),
    (MySqlFacts, {"version": "5.5.5-10.11.6-MariaDB"}, []),
    (MySqlFacts, {"version": "5.7.44"}, ["mysql-version error"]),
    (MySqlFacts, {"version": "8.0.36"}, []),
    (MySqlFacts, {"read_only": True}, ["mysql-read-only error"]),
    (MySqlFacts, {"flush": 2}, ["mysql-flush-log warning"]),
    (MySqlFacts, {"flush": 0, "guard": "off"}, ["mysql-flush-log error"]),
    (MySqlFacts, {"flush": 0, "get_lock": True}, []),
    (MySqlFacts, {"log_bin": True, "binlog_format": "STATEMENT"}, ["mysql-binlog-format error"]),
    (MySqlFacts, {"binlog_format": "STATEMENT"}, []),
    (MySqlFacts, {"replicas": 1, "sync_binlog": 1}, ["mysql-replication note"]),
    (MySqlFacts, {"replicas": 1, "sync_binlog": 1, "guard": "off"}, ["mysql-replication error"]),
    (MySqlFacts, {"replicas": 1, "sync_binlog": 1, "semi_sync": True}, []),
    (MySqlFacts, {"replicas": 1, "semi_sync": True}, ["mysql-sync-binlog warning"]),
    (MySqlFacts, {"galera": True}, ["mysql-galera warning"]),
    (MySqlFacts, {"galera": True, "get_lock": True}, ["mysql-galera error"]),
    (MySqlFacts, {"wait_timeout": 29}, ["mysql-wait-timeout warning"]),
    (MySqlFacts, {"wait_timeout": 30}, []),
    (MySqlFacts, {"why_silent": "a proxy"}, ["mysql-wake-up warning"]),
    (MySqlFacts, {"lacks": ["CREATE in the database"]}, ["mysql-rights error"]),
    (MySqlFacts, {"used": 150}, ["mysql-connections warning"]),
    (MySqlFacts, {"ahead": -3.0}, ["mysql-clock warning"]),
    (MySqlFacts, {"quarantine": 1.0}, ["mysql-quarantine warning"]),
    (MySqlFacts, {"ttl": 60.0}, ["mysql-max-ttl warning"]),
    # etcd
    (EtcdMemberFacts, {}, []),
    (EtcdMemberFacts, {"version": "3.4.4"}, ["etcd-version error"]),
    (EtcdMemberFacts, {"version": "3.4.30"}, ["etcd-version error"]),
    (EtcdMemberFacts, {"version": "3.4.31"}, []),
    (EtcdMemberFacts, {"version": "3.5.9"}, ["etcd-version error"]),
    (EtcdMemberFacts, {"version": "3.6.0"}, []),
    (EtcdMemberFacts, {"version": "3.10.0"}, []),
    (EtcdMemberFacts, {"version": "3.3.27"}, ["etcd-version error"]),
    (EtcdMemberFacts, {"leader": False}, ["etcd-leader error"]),
    (EtcdMemberFacts, {"silent": "refused"}, ["etcd-silent warning"]),
    (EtcdMemberFacts, {"ahead": 2.5}, ["etcd-clock warning"]),
    (EtcdMemberFacts, {"ahead": 1.5}, []),
    (EtcdFacts, {"ttl": 30.0}, []),
    (EtcdFacts, {"members": 1}, ["etcd-members warning"]),
    (EtcdFacts, {"members": 4}, ["etcd-members warning"]),
    (EtcdFacts, {"members": 5}, []),
    (EtcdFacts, {"alarms": ["NOSPACE"]}, ["etcd-alarm error"]),
    (EtcdFacts, {"lacks": ["read and write"]}, ["etcd-rights error"]),
    (EtcdFacts, {"session": 60.0, "ttl": 30.0}, ["etcd-session warning"]),
    # ZooKeeper
    (ZooKeeperFacts, {"ttl": 30.0}, []),
    (ZooKeeperFacts, {"asked": 60.0, "granted": 40.0}, ["zookeeper-session-timeout warning"]),
    (ZooKeeperFacts, {"asked": 1.0, "granted": 4.0}, ["zookeeper-session-timeout warning"]),
    (ZooKeeperFacts, {"ttl": 10.0}, ["zookeeper-session warning"]),
    (ZooKeeperFacts, {"members": 2}, ["zookeeper-members warning"]),
    (ZooKeeperFacts, {"members": 1}, ["zookeeper-members warning"]),
    (ZooKeeperFacts, {"version": "3.4.14"}, ["zookeeper-version error"]),
    (ZooKeeperFacts, {"version": "3.10.0"}, []),
    (ZooKeeperFacts, {"lacks": ["create"]}, ["zookeeper-rights error"]),
    # a table of rows
    (TableFacts, {"ignored": "that a row must be unchanged"}, ["table-conditions error"]),
    # memcached
    (MemcachedFacts, {}, []),
    (MemcachedFacts, {"silent": "refused"}, ["memcached-silent error"]),
    (MemcachedFacts, {"version": "1.6.9"}, ["memcached-version error"]),
    (MemcachedFacts, {"version": "1.6.10"}, []),
    (MemcachedFacts, {"cas": False}, ["memcached-cas error"]),
    (MemcachedFacts, {"evicted": 1}, ["memcached-evictions error"]),
    (MemcachedFacts, {"evicts": False}, ["memcached-no-evictions warning"]),
    (MemcachedFacts, {"used": 60 * MEGABYTE}, ["memcached-memory warning"]),
    (MemcachedFacts, {"flushed": 1}, ["memcached-flush warning"]),
    (MemcachedFacts, {"crawls": False}, ["memcached-crawler note"]),
    (MemcachedFacts, {"clients": 1000}, ["memcached-connections warning"]),
    (MemcachedFacts, {"ahead": 3.0}, ["memcached-clock warning"]),
    # a lock file
    (LockFileFacts, {}, []),
    (LockFileFacts, {"file_system": "nfs4", "shared": True}, ["lock-file-network error"]),
    (LockFileFacts, {"file_system": "fuse.sshfs", "shared": True}, ["lock-file-network error"]),
    (LockFileFacts, {"file_system": "fuse.other"}, ["lock-file-user-space warning"]),
    (LockFileFacts, {"free": 15 * MEGABYTE}, ["lock-file-space warning"]),
    (LockFileFacts, {"writable": False}, ["lock-file-rights error"]),
    (LockFileFacts, {"exposed": True}, ["lock-file-exposed warning"]),
    # a quorum
    (QuorumFacts, {"nodes": [node("a"), node("b"), node("c")]}, []),
    (QuorumFacts, {"nodes": [node("a"), node("b", run_id="a")]}, ["quorum-same-server error"]),
    (QuorumFacts, {"nodes": [node("a"), node("b", replication_id="a")]}, ["quorum-replica error"]),
    (QuorumFacts, {"nodes": [node("a"), node("b", role="slave")]}, ["quorum-replica error"]),
    (QuorumFacts, {"size": 4, "quorum": 3}, ["quorum-even warning"]),
    (QuorumFacts, {"silent": ["c"]}, ["quorum-silent warning"]),
    (QuorumFacts, {"silent": ["b", "c"]}, ["quorum-silent error"]),
    (QuorumFacts, {"nodes": [node("a", ahead=0.4), node("b", ahead=-0.2)]}, ["quorum-clocks warning"]),
    (QuorumFacts, {"nodes": [node("a", ahead=0.2), node("b", ahead=-0.2)]}, []),
)


def facts_of(kind: type[Facts], given: dict[str, Any]) -> Any:  # noqa: ANN401 - of any kind
    """Return the facts of a store that is set well, but for what is given."""
    return kind("here", **{**SOUND[kind], **given})


def may_be_unknown(kind: type[Facts]) -> list[str]:
    """Return the names of the facts that may be unknown."""
    return [each.name for each in fields(kind) if "label" in each.metadata]
