"""ZooKeeper servers: a standalone one, or three that elect a leader.

They are configured for tests: no forced writes to disk, short ticks, and a log of warnings and errors only.
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

CLASSPATH = "TENURE_ZOOKEEPER_CLASSPATH"
JARS = Path("/usr/share/java")
"""The folder of Java libraries on Debian and related systems."""

UNNAMED = ("slf4j-simple", "netty-codec")
"""The requirements that the manifest of `zookeeper.jar` does not name: for the log, and for TLS."""

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
    """One ZooKeeper server. It keeps its data when it is killed, like every server."""

    title: ClassVar[str] = "ZooKeeper server"
    distances = (1, 2, 3)
    """The two ports for the members of an ensemble, and the third for clients with TLS."""

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
        """Prepare a server. Sessions end within `tick` seconds of their timeout. `options` go into its configuration.

        With `certificates` it uses TLS with clients that have a certificate of the same authority. With `users`, their
        names and passwords, all clients must log in by SASL.
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
        """The URL for clients, without a login; with TLS if there are certificates."""
        host, port = self.address
        return f"zookeeper://{host}:{port + 3 if self._certificates else port}"

    def peer(self, number: int) -> Peer:
        """Reserve the ports, and return the data that the other members of an ensemble need."""
        port = self.claim_port()
        return number, port + 1, port + 2

    def join(self, number: int, peers: Sequence[Peer]) -> None:
        """Configure the server as the member with this number."""
        self._number, self._peers = number, peers

    def say(self, word: str, timeout: float = 1.0) -> str:
        """Return the reply to a four-letter word, such as `srvr`."""
        with socket.create_connection(self.address, timeout) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def role(self) -> str:
        """Return the role that the server reports: standalone, leader or follower; "" if it does not serve."""
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
        """Tell whether this server serves, and not another program that took the port first."""
        return str(self.folder) in self.say("conf") and (self._certificates is None or self._takes_tls())

    def _takes_tls(self) -> bool:
        """Tell whether the server accepts clients with TLS, its last step. An OSError means that it does not."""
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
        """The addresses of the servers."""
        return [server.address for server in self.servers]

    @property
    def url(self) -> str:
        """The URL of all servers."""
        return "zookeeper://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def start(self) -> None:
        """Start all servers, and return when one leads and the others follow."""
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
        """Kill all of them."""
        stop_all(self.servers, timeout=0)

    def leader(self) -> ZooKeeperServer:
        """Return the leader once there is one."""
        wait_until(lambda: self._leading() is not None, "a leader that serves")
        return self._leading() or self.leader()

    def followers(self) -> list[ZooKeeperServer]:
        """Return the other servers that serve."""
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

    def is_whole(self) -> bool:
        """Tell whether one server leads and all others follow it."""
        return sorted(map(_role, self.servers)) == ["follower"] * (len(self.servers) - 1) + ["leader"]

    def await_health(self) -> None:
        """Return when the ensemble is whole."""
        wait_until(self.is_whole, "an ensemble of a leader and its followers")

    def mend(self) -> None:
        """Resume or start concurrently all servers that don't serve, and return when the ensemble is whole again."""
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
    """Return the configuration of the users."""
    known = "\n".join(f'    user_{name}="{password}"' for name, password in users.items())
    return f"Server {{\n    org.apache.zookeeper.server.auth.DigestLoginModule required\n{known};\n}};\n"


def _role(server: ZooKeeperServer) -> str:
    """Return the role that a server reports; "" if it does not reply."""
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
    """Return the classpath of ZooKeeper, or the value of `TENURE_ZOOKEEPER_CLASSPATH`.

    Raises `ServerFailedError` if ZooKeeper is not installed.
    """
    if named := os.environ.get(CLASSPATH):
        return named
    jar = JARS / "zookeeper.jar"
    if not jar.exists():
        raise ServerFailedError(
            f"There is no ZooKeeper here: install the system's package libzookeeper-java, or set {CLASSPATH}."
        )
    return ":".join([str(jar), *(str(JARS / f"{each}.jar") for each in UNNAMED)])
