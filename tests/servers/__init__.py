"""Real servers for tests and benchmarks: started on free ports, disturbed, and never left running."""

from tests.servers.clock import Clock
from tests.servers.cluster import Cluster, ClusterNode
from tests.servers.dynamodb import DynamoServer
from tests.servers.etcd import EtcdEnsemble, EtcdServer
from tests.servers.mariadb import MariaDbServer, Replica
from tests.servers.memcached import MemcachedServer
from tests.servers.nats import NatsCluster, NatsServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgresql import PostgresServer, Standby
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, five_nodes
from tests.servers.seaweed import SeaweedServer
from tests.servers.sentinel import Sentinel, SentinelGroup
from tests.servers.server import Server, start_all, stop_all
from tests.servers.tls import Certificates, RedisTlsServer
from tests.servers.waiting import ServerFailedError, wait_until
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "Certificates",
    "Clock",
    "Cluster",
    "ClusterNode",
    "DynamoServer",
    "EtcdEnsemble",
    "EtcdServer",
    "MariaDbServer",
    "MemcachedServer",
    "NatsCluster",
    "NatsServer",
    "PgBouncer",
    "PostgresServer",
    "Proxy",
    "RedisServer",
    "RedisTlsServer",
    "Replica",
    "SeaweedServer",
    "Sentinel",
    "SentinelGroup",
    "Server",
    "ServerFailedError",
    "Standby",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "five_nodes",
    "start_all",
    "stop_all",
    "wait_until",
]
