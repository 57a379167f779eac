"""A Redis master and its replicas, watched by sentinels that promote a replica when the master dies.

By themselves, sentinels need seconds to find each other and the replicas. So the group configures them with the lines
that they would write into their configuration later.
"""

import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.ports import LOCALHOST
from tests.servers.redis import RedisServer, find_program
from tests.servers.resp import Reply, pairs
from tests.servers.server import start_all, stop_all
from tests.servers.waiting import holds, wait_until

SERVICE = "tenure"


class Sentinel(RedisServer):
    """One sentinel. It writes its knowledge into its configuration, and reads it after a restart."""

    title: ClassVar[str] = "sentinel"

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        """Prepare a sentinel. `watch` configures it."""
        super().__init__(folder, port=port)
        self.name = secrets.token_hex(20)

    def watch(self, lines: Sequence[str]) -> None:
        """Set the lines of its configuration, and discard those that it wrote before."""
        head = [f"port {self.claim_port()}", f"bind {LOCALHOST}", f'dir "{self.folder}"', f"sentinel myid {self.name}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text("\n".join([*head, *lines, ""]), "utf-8")

    @property
    def _configuration(self) -> Path:
        return self.folder / "sentinel.conf"

    def _command(self) -> list[str]:
        return [find_program(), str(self._configuration), "--sentinel"]


class SentinelGroup:
    """A master, its replicas and their sentinels, on ports of 127.0.0.1. `with` starts and stops them."""

    service = SERVICE
    """The sentinels' name for the master."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        down_after: float = 1.0,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare a group. A master that doesn't reply for `down_after` seconds counts as dead."""
        self.servers = [RedisServer(folder / f"server-{n}", options=options) for n in range(1 + replicas)]
        self.sentinels = [Sentinel(folder / f"sentinel-{n}") for n in range(sentinels)]
        self._options = list(options)
        self._down_after = down_after
        self._quorum = sentinels // 2 + 1

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the sentinels."""
        return [sentinel.address for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """The URL of all sentinels and the name of the service."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    def start(self) -> None:
        """Start all servers, and return when the sentinels would notice and handle the death of the master."""
        try:
            self._start_servers(self.servers[0], self.servers)
            for sentinel in self.sentinels:
                sentinel.watch(self._configuration_of(sentinel))
            start_all(self.sentinels)
            wait_until(self.is_complete, "sentinels that see each other, the master and all replicas, all well")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all of them."""
        stop_all([*self.sentinels, *self.servers], timeout=0)

    def master(self) -> RedisServer:
        """Return the master once all running sentinels and the server itself agree on it."""
        wait_until(lambda: self._agreed_master() is not None, "a master on which the sentinels agree")
        return self._agreed_master() or self.master()

    def replicas(self) -> list[RedisServer]:
        """Return the other servers that run."""
        master = self.master()
        return [server for server in self.servers if server.serves and server is not master]

    def await_failover(self, old: RedisServer) -> RedisServer:
        """Return the new master once it is not `old`."""
        wait_until(lambda: self._agreed_master() not in {None, old}, "another master")
        return self.master()

    def revive(self, server: RedisServer) -> None:
        """Start a killed server as a replica of the present master, and return when it replicates."""
        self._start_servers(self.master(), [server])

    def is_complete(self) -> bool:
        """Tell whether all servers run, and all sentinels see each other, a master and all replicas, all healthy."""
        return all(server.serves for server in [*self.servers, *self.sentinels]) and all(
            holds(partial(self._sees_all_well, sentinel)) for sentinel in self.sentinels
        )

    def mend(self) -> None:
        """Start the group anew, on the same ports, if it isn't complete.

        This is quicker than to wait until the sentinels consider all servers healthy again.
        """
        if not self.is_complete():
            self.restart()

    def restart(self) -> None:
        """Start the group anew, on the same ports."""
        for server in [*self.sentinels, *self.servers]:
            server.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _start_servers(self, master: RedisServer, servers: Sequence[RedisServer]) -> None:
        """Start servers; all but `master` become its replicas."""
        for server in servers:
            follow = [] if server is master else ["--replicaof", LOCALHOST, str(master.claim_port())]
            server.options = [*self._options, *follow]
        start_all(servers)
        for server in servers:
            if server is not master:
                wait_until(partial(server.follows, master), "a replica that follows its master")

    def _configuration_of(self, sentinel: Sentinel) -> list[str]:
        master, *replicas = (f"{self.service} {LOCALHOST} {server.port}" for server in self.servers)
        others = [other for other in self.sentinels if other is not sentinel]
        return [
            f"sentinel monitor {master} {self._quorum}",
            f"sentinel down-after-milliseconds {self.service} {self._down_after * 1000:.0f}",
            f"sentinel failover-timeout {self.service} {self._down_after * 4000:.0f}",
            *(f"sentinel known-replica {replica}" for replica in replicas),
            *(
                f"sentinel known-sentinel {self.service} {LOCALHOST} {other.claim_port()} {other.name}"
                for other in others
            ),
        ]

    def _sees_all_well(self, sentinel: Sentinel) -> bool:
        with sentinel.connect() as wire:
            master = pairs(wire.command("SENTINEL", "MASTER", self.service))
            replicas = _each(wire.command("SENTINEL", "REPLICAS", self.service))
            others = _each(wire.command("SENTINEL", "SENTINELS", self.service))
        return (
            master["flags"] == "master"
            and len(replicas) == len(self.servers) - 1
            and all(replica["flags"] == "slave" and replica["master-link-status"] == "ok" for replica in replicas)
            and len(others) == len(self.sentinels) - 1
            and all(other["flags"] == "sentinel" for other in others)
        )

    def _agreed_master(self) -> RedisServer | None:
        said = {self._master_of(sentinel) for sentinel in self.sentinels if sentinel.serves}
        port = said.pop() if len(said) == 1 else None
        found = next((server for server in self.servers if server.serves and server.port == port), None)
        return found if found and found.info("replication")["role"] == "master" else None

    def _master_of(self, sentinel: Sentinel) -> int | None:
        said = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(str(said[1])) if isinstance(said, list) else None


def _each(reply: Reply) -> list[dict[str, Reply]]:
    """Convert a list of flat lists into dicts."""
    return [pairs(one) for one in reply] if isinstance(reply, list) else []
