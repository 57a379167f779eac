"""Real servers for tests and benchmarks: started on free ports, disturbed, and never left running."""

from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.server import Server, start_all, stop_all
from holdfast.testing.servers.waiting import ServerFailedError, wait_until

__all__ = ["RedisServer", "Server", "ServerFailedError", "start_all", "stop_all", "wait_until"]
