"""Real servers for tests and benchmarks: started on free ports, disturbed, and never left running."""

from tests.servers.clock import Clock
from tests.servers.cluster import Cluster, ClusterNode
from tests.servers.etcd import EtcdEnsemble, EtcdServer
from tests.servers.memcached import MemcachedServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, five_nodes
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
    "EtcdEnsemble",
    "EtcdServer",
    "MemcachedServer",
    "Proxy",
    "RedisServer",
    "RedisTlsServer",
    "Sentinel",
    "SentinelGroup",
    "Server",
    "ServerFailedError",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "five_nodes",
    "start_all",
    "stop_all",
    "wait_until",
]
