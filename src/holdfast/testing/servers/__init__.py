"""Real servers for tests and benchmarks: started on free ports, disturbed, and never left running."""

from holdfast.testing.servers.clock import Clock
from holdfast.testing.servers.cluster import Cluster, ClusterNode
from holdfast.testing.servers.etcd import EtcdEnsemble, EtcdServer
from holdfast.testing.servers.proxy import Proxy
from holdfast.testing.servers.redis import RedisServer, five_nodes
from holdfast.testing.servers.sentinel import Sentinel, SentinelGroup
from holdfast.testing.servers.server import Server, start_all, stop_all
from holdfast.testing.servers.tls import Certificates, RedisTlsServer
from holdfast.testing.servers.waiting import ServerFailedError, wait_until
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "Certificates",
    "Clock",
    "Cluster",
    "ClusterNode",
    "EtcdEnsemble",
    "EtcdServer",
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
