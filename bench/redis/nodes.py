"""Five servers and the processes that use them: what both benchmarks of the quorum have in common."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.redis import apart
from bench.redis.redlocks import HOMES, KEYS, SENT
from bench.redis.usage import calls, processor
from tests.servers import RedisServer, five_nodes
from tests.servers.resp import RespWire


@dataclass(slots=True)
class Used:
    """What some work cost the servers."""

    commands: float
    """Sent by clients."""
    busy: float
    """How long all their processors worked together, in seconds."""


@dataclass(slots=True)
class Nodes:
    """Some of the servers."""

    servers: Sequence[RedisServer]
    wires: Sequence[RespWire]
    """A connection to each, for commands that are not measured."""

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [server.url for server in self.servers]

    def first(self, number: int) -> "Nodes":
        """Return so many of them."""
        return Nodes(self.servers[:number], self.wires[:number])

    def sweep(self, label: str) -> int:
        """Remove what a peer keeps, and return how many keys that were."""
        key = KEYS.get(label)
        return sum(wire.command("DEL", key) == 1 for wire in self.wires) if key else 0

    def begin(self, label: str) -> float:
        """Let the statistics begin at nothing; return what `end` asks for."""
        self.sweep(label)
        before = self._worked()
        for wire in self.wires:
            wire.command("CONFIG", "RESETSTAT")
        return before

    def end(self, label: str, before: float) -> Used:
        """Return what was used since `begin`."""
        counts = [calls(server) for server in self.servers]
        commands = sum(count.get(name, 0) for count in counts for name in SENT[label])
        return Used(commands, self._worked() - before)

    def _worked(self) -> float:
        return sum(map(processor, self.servers))


@contextmanager
def running(folder: Path) -> Generator[Nodes]:
    """Run five servers that know nothing of each other."""
    with ExitStack() as stack:
        servers = stack.enter_context(five_nodes(folder))
        yield Nodes(servers, [stack.enter_context(server.connect()) for server in servers])


def able(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which contenders can be measured here, and why others cannot."""
    missing = dict.fromkeys(HOMES[label] for label in labels if label in HOMES and not apart.is_there(HOMES[label]))
    return [label for label in labels if HOMES.get(label) not in missing], [apart.lacking(peer) for peer in missing]
