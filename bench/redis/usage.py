"""The commands, processor time and memory of a Redis server."""

from tests.servers import RedisServer

OURS = ("evalsha", "eval", "ping", "subscribe", "info", "hello", "auth", "select", "client|setinfo")
"""The commands that Tenure's clients send."""


def calls(server: RedisServer) -> dict[str, int]:
    """Return the number of calls of each command since the statistics were reset."""
    found = server.info("commandstats")
    return {key.removeprefix("cmdstat_"): _calls(value) for key, value in found.items()}


def script_micros(server: RedisServer) -> float:
    """Return the time of a script in microseconds since the statistics were reset."""
    return float(server.info("commandstats")["cmdstat_evalsha"].partition("usec_per_call=")[2].partition(",")[0])


def _calls(value: str) -> int:
    return int(value.partition("calls=")[2].partition(",")[0])


def processor(server: RedisServer) -> float:
    """Return the processor time of the server, in seconds."""
    used = server.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def memory(server: RedisServer) -> int:
    """Return the bytes that the server has allocated."""
    return int(server.info("memory")["used_memory"])


def connections(server: RedisServer) -> int:
    """Return the number of clients connected to the server."""
    return int(server.info("clients")["connected_clients"])
