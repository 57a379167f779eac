"""The common part of both benchmarks of the quorum: five servers, and the processes that use them."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.redis import apart
from bench.redis.redlocks import FOLDERS, KEYS, SENT
from bench.redis.usage import calls, processor
from tests.servers import RedisServer, five_nodes
from tests.servers.resp import RespWire


@dataclass(slots=True)
class Used:
    """The cost of some work for the servers."""

    commands: float
    """The number of commands sent by clients."""
    busy: float
    """The processor time of all servers, in seconds."""


@dataclass(slots=True)
class Nodes:
    """Some of the servers."""

    servers: Sequence[RedisServer]
    wires: Sequence[RespWire]
    """A connection to each server, for commands that are not measured."""

    @property
    def urls(self) -> list[str]:
        """The addresses for clients."""
        return [server.url for server in self.servers]

    def first(self, number: int) -> "Nodes":
        """Return so many of the servers."""
        return Nodes(self.servers[:number], self.wires[:number])

    def sweep(self, label: str) -> int:
        """Delete the keys of a peer, and return their number."""
        key = KEYS.get(label)
        return sum(wire.command("DEL", key) == 1 for wire in self.wires) if key else 0

    def begin(self, label: str) -> float:
        """Reset the statistics; return the argument for `end`."""
        self.sweep(label)
        before = self._worked()
        for wire in self.wires:
            wire.command("CONFIG", "RESETSTAT")
        return before

    def end(self, label: str, before: float) -> Used:
        """Return the cost since `begin`."""
        counts = [calls(server) for server in self.servers]
        commands = sum(count.get(name, 0) for count in counts for name in SENT[label])
        return Used(commands, self._worked() - before)

    def _worked(self) -> float:
        return sum(map(processor, self.servers))


@contextmanager
def running(folder: Path) -> Generator[Nodes]:
    """Run five independent servers."""
    with ExitStack() as stack:
        servers = stack.enter_context(five_nodes(folder))
        yield Nodes(servers, [stack.enter_context(server.connect()) for server in servers])


def able(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the contenders that can be measured here, and why others cannot."""
    needed = dict.fromkeys(FOLDERS[label] for label in labels if label in FOLDERS)
    missing = [peer for peer in needed if not apart.is_there(peer)]
    return [label for label in labels if FOLDERS.get(label) not in missing], [apart.lacking(peer) for peer in missing]
