"""ZooKeeper servers: one that stands alone, or three that elect a leader.

Started for tests: nothing is forced to the disk, time is counted in short ticks, and the log holds what went wrong.
"""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.ports import LOCALHOST
from tests.servers.server import Server, start_all, stop_all
from tests.servers.tls import Certificates
from tests.servers.waiting import ServerFailedError, wait_until

CLASSPATH = "HOLDFAST_ZOOKEEPER_CLASSPATH"
JARS = Path("/usr/share/java")
"""Where Debian and its kin put libraries of Java."""

UNNAMED = ("slf4j-simple", "netty-codec")
"""What the manifest of `zookeeper.jar` does not name of what it needs: to write the log, and for TLS."""

JAVA_OPTIONS = (
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

Peer = tuple[int, int, int]
"""A member of an ensemble: its number, and its ports for followers and for elections."""


class ZooKeeperServer(Server):
    """One ZooKeeper server. `kill` keeps its data, as for any server."""

    title: ClassVar[str] = "ZooKeeper server"
    distances = (1, 2, 3)
    """Members of an ensemble talk to each other on two more ports, and clients with TLS on a third."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        tick: float = 0.2,
        options: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a server; sessions end within `tick` seconds of their time. `options` go into its configuration.

        With `certificates` it speaks TLS with clients that have a certificate of the same authority; with `users`, by
        their names and passwords, all must log in by SASL.
        """
        super().__init__(folder, port=port)
        self._tick = tick
        self._options = dict(options or {})
        self._certificates = certificates
        self._users = dict(users or {})
        self._number = 0
        self._peers: Sequence[Peer] = ()

    @property
    def url(self) -> str:
        """Where clients connect, as a URL without a login; with TLS if there are certificates."""
        host, port = self.address
        return f"zookeeper://{host}:{port + 3 if self._certificates else port}"

    def peer(self, number: int) -> Peer:
        """Claim its ports, and return what the others of an ensemble must know of it."""
        port = self.claim_port()
        return number, port + 1, port + 2

    def join(self, number: int, peers: Sequence[Peer]) -> None:
        """Have it start as the member with this number."""
        self._number, self._peers = number, peers

    def say(self, word: str, timeout: float = 1.0) -> str:
        """Return what it answers to a four-letter word, as `srvr`."""
        with socket.create_connection(self.address, timeout) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def role(self) -> str:
        """Return what it takes itself for: standalone, leader or follower; "" if it serves nobody just now."""
        if not self.serves:
            return ""
        lines = self.say("srvr").splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    def launch(self) -> None:
        """Start its process."""
        self.claim_port()
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "zoo.cfg").write_text("\n".join([*self._configuration(), ""]), "utf-8")
        if self._users:
            (self.folder / "jaas.conf").write_text(_jaas(self._users), "utf-8")
        if self._peers:
            (self.folder / "data" / "myid").write_text(f"{self._number}\n", "utf-8")
        super().launch()

    def _configuration(self) -> list[str]:
        settings = {
            "tickTime": f"{self._tick * 1000:.0f}",
            "initLimit": "50",
            "syncLimit": f"{max(5, round(2 / self._tick))}",
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": LOCALHOST,
            "forceSync": "no",
            "admin.enableServer": "false",
            "maxClientCnxns": "0",
            "minSessionTimeout": f"{self._tick * 2000:.0f}",
            "maxSessionTimeout": "60000",
            "4lw.commands.whitelist": "*",
            **(_tls(self.port + 3, self._certificates) if self._certificates else {}),
            **(SASL if self._users else {}),
            **self._options,
        }
        members = [f"server.{number}={LOCALHOST}:{follow}:{elect}" for number, follow, elect in self._peers]
        return [*(f"{name}={value}" for name, value in settings.items()), *members]

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        login = [f"-Djava.security.auth.login.config={self.folder / 'jaas.conf'}"] if self._users else []
        return [find_java(), *JAVA_OPTIONS, *login, "-cp", find_classpath(), main, str(self.folder / "zoo.cfg")]

    def _answers(self) -> bool:
        """Tell whether it is this server that serves: others may have been faster to take the port."""
        return str(self.folder) in self.say("conf") and (self._certificates is None or self._takes_tls())

    def _takes_tls(self) -> bool:
        """Tell whether it listens for clients with TLS, which it begins last. An OSError means that it does not."""
        host, port = self.address
        socket.create_connection((host, port + 3), 1.0).close()
        return True


class ZooKeeperEnsemble:
    """Servers that elect a leader among them, on ports of 127.0.0.1. `with` starts and stops them."""

    def __init__(self, folder: Path, *, servers: int = 3, tick: float = 0.2) -> None:
        """Prepare an ensemble."""
        self.servers = [ZooKeeperServer(folder / f"server-{n}", tick=tick) for n in range(1, servers + 1)]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the servers listen."""
        return [server.address for server in self.servers]

    @property
    def url(self) -> str:
        """All servers, as a URL."""
        return "zookeeper://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def start(self) -> None:
        """Start all, and return when one leads and the others follow."""
        try:
            peers = [server.peer(number) for number, server in enumerate(self.servers, 1)]
            for number, server in enumerate(self.servers, 1):
                server.join(number, peers)
            start_all(self.servers)
            self.await_health()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of them on the spot."""
        stop_all(self.servers, patience=0)

    def leader(self) -> ZooKeeperServer:
        """Return the server that leads, once there is one."""
        wait_until(lambda: self._leading() is not None, "a leader that serves")
        return self._leading() or self.leader()

    def followers(self) -> list[ZooKeeperServer]:
        """Return the others that serve."""
        return [server for server in self.servers if _role(server) == "follower"]

    def kill_leader(self) -> ZooKeeperServer:
        """Kill the leader, and return it."""
        leader = self.leader()
        leader.kill()
        return leader

    def kill_follower(self) -> ZooKeeperServer:
        """Kill a follower, and return it."""
        follower = self.followers()[0]
        follower.kill()
        return follower

    def await_election(self, old: ZooKeeperServer) -> ZooKeeperServer:
        """Return the new leader, once it is another than `old`."""
        wait_until(lambda: self._leading() not in {None, old}, "another leader")
        return self.leader()

    def is_whole(self) -> bool:
        """Tell whether one leads and all others follow it."""
        return sorted(map(_role, self.servers)) == ["follower"] * (len(self.servers) - 1) + ["leader"]

    def await_health(self) -> None:
        """Return when the ensemble is whole."""
        wait_until(self.is_whole, "an ensemble of a leader and its followers")

    def mend(self) -> None:
        """Resume or start all that don't serve, side by side, and return when the ensemble is whole again."""
        start_all([server for server in self.servers if not server.runs])
        for server in self.servers:
            server.mend()
        self.await_health()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _leading(self) -> ZooKeeperServer | None:
        return next((server for server in self.servers if _role(server) in {"leader", "standalone"}), None)


def _tls(port: int, certificates: Certificates) -> dict[str, str]:
    return {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "secureClientPortAddress": LOCALHOST,
        "ssl.keyStore.location": str(certificates.for_java()),
        "ssl.trustStore.location": str(certificates.authority),
        "ssl.clientAuth": "need",
    }


SASL = {
    "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "sessionRequireClientSASLAuth": "true",
}


def _jaas(users: Mapping[str, str]) -> str:
    """Write who may log in."""
    known = "\n".join(f'    user_{name}="{password}"' for name, password in users.items())
    return f"Server {{\n    org.apache.zookeeper.server.auth.DigestLoginModule required\n{known};\n}};\n"


def _role(server: ZooKeeperServer) -> str:
    """Return what a server takes itself for; "" also if it does not answer."""
    try:
        return server.role()
    except OSError:
        return ""


def find_java() -> str:
    """Return the path of a Java runtime. Raises `ServerFailedError` if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ServerFailedError("There is no Java here: install a runtime, as the package openjdk-17-jre-headless.")
    return found


def find_classpath() -> str:
    """Return where the classes of ZooKeeper are, which `HOLDFAST_ZOOKEEPER_CLASSPATH` may tell.

    Raises `ServerFailedError` if they are not here.
    """
    if named := os.environ.get(CLASSPATH):
        return named
    jar = JARS / "zookeeper.jar"
    if not jar.exists():
        raise ServerFailedError(
            f"There is no ZooKeeper here: install the system's package libzookeeper-java, or set {CLASSPATH}."
        )
    return ":".join([str(jar), *(str(JARS / f"{each}.jar") for each in UNNAMED)])
