"""etcd: one server, and an ensemble of three that elect a leader.

Requests go to their JSON gateway with the HTTP client of the standard library, for tests of a store must not depend on
the client that the store uses.
"""

import base64
import http.client
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from tests.servers.ports import LOCALHOST
from tests.servers.server import Server, start_all, stop_all
from tests.servers.tls import Certificates
from tests.servers.waiting import ServerFailedError, holds, wait_until

ROOT = ("root", "root-secret")
"""The user that sets up a server with users and passwords."""


class EtcdError(OSError):
    """The error reply of a server."""


class EtcdServer(Server):
    """One etcd server. It keeps its data when it is killed."""

    title: ClassVar[str] = "etcd server"
    distances = (1,)
    """The second port, on which servers communicate with each other."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        certificates: Certificates | None = None,
        login: tuple[str, str] | None = None,
        prefix: str = "",
    ) -> None:
        """Prepare a server.

        `options` are further arguments. With `certificates` its clients use TLS. With `login` it accepts the root
        user, as which `command` logs in, and this user, which may read and write keys that begin with `prefix`.
        """
        super().__init__(folder, port=port)
        self.options = list(options)
        self.certificates = certificates
        self.cluster: list[EtcdServer] = [self]
        """The other members of its ensemble."""
        self._login = login
        self._prefix = prefix

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.folder.name

    @property
    def url(self) -> str:
        """The URL for clients, without user and password."""
        return f"etcd{'s' if self.certificates else ''}://{LOCALHOST}:{self.port}"

    @property
    def peer_url(self) -> str:
        """The URL for the other members."""
        return f"http://{LOCALHOST}:{self.claim_port() + 1}"

    def url_for(self, user: str, password: str) -> str:
        """Return the URL with a user and a password."""
        return self.url.replace("://", f"://{user}:{password}@")

    def command(self, path: str, timeout: float = 5.0, **body: object) -> dict[str, Any]:
        """Send a request, such as `command("kv/range", key=encoded("a"))`. Raises `EtcdError` or another `OSError`."""
        headers = {"Authorization": self._token()} if self._login and self._is_guarded() else {}
        return self._post(path, body, headers, timeout)

    def status(self) -> dict[str, Any]:
        """Return the status of the server."""
        return self._post("maintenance/status", {}, {}, 1.0)

    def version(self) -> tuple[int, ...]:
        """Return its version, such as (3, 4, 31)."""
        return tuple(map(int, self.status()["version"].partition("-")[0].split(".")))

    def is_leader(self) -> bool:
        """Tell whether the server considers itself the leader."""
        status = self.status()
        return bool(status.get("leader") == status["header"]["member_id"])

    def revision(self) -> int:
        """Return the revision of the store."""
        return int(self.command("kv/range", key=encoded("\0"), count_only=True)["header"]["revision"])

    def compact(self) -> None:
        """Compact the history up to the present revision."""
        self.command("kv/compaction", revision=str(self.revision()), physical=True)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`."""
        found = self.command("kv/range", key=encoded(prefix or "\0"), range_end=encoded(after(prefix)), keys_only=True)
        return [base64.b64decode(each["key"]).decode() for each in found.get("kvs", [])]

    def leases(self) -> list[str]:
        """Return the ids of all leases."""
        return [each["ID"] for each in self.command("lease/leases").get("leases", [])]

    def revoke(self, lease: str) -> None:
        """End a lease as if it had expired."""
        self.command("lease/revoke", ID=lease)

    def await_ready(self, within: float = 30.0) -> None:
        """Return when the server serves and its users exist."""
        super().await_ready(within)
        if self._login and not self._is_guarded():
            self._guard(*self._login)

    def _command(self) -> list[str]:
        scheme = "https" if self.certificates else "http"
        client = f"{scheme}://{LOCALHOST}:{self.port}"
        settings = {
            "name": self.name,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{each.name}={each.peer_url}" for each in self.cluster),
            "heartbeat-interval": "50",
            "election-timeout": "250" if len(self.cluster) == 1 else "500",
            "logger": "zap",
            "log-level": "warn",
        }
        if self.certificates:
            settings["cert-file"] = str(self.certificates.certificate)
            settings["key-file"] = str(self.certificates.key)
        words = (f"--{name}={value}" for name, value in settings.items())
        return [find_program(), *words, "--unsafe-no-fsync", *self.options]

    def _answers(self) -> bool:
        """Tell whether the server knows and reaches a leader."""
        return self.runs and self.status().get("leader", "0") != "0" and bool(self.revision())

    def _post(self, path: str, body: object, headers: dict[str, str], timeout: float) -> dict[str, Any]:
        connection = self._connect(timeout)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
        except http.client.HTTPException as error:
            raise EtcdError(f"The {self.title} broke off: {error!r}.") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise EtcdError(said.decode("utf-8", "replace"))
        return cast("dict[str, Any]", json.loads(said))

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection(LOCALHOST, self.port, timeout=timeout)
        context = self.certificates.for_clients()
        return http.client.HTTPSConnection(LOCALHOST, self.port, timeout=timeout, context=context)

    def _token(self) -> str:
        name, password = ROOT
        said = self._post("auth/authenticate", {"name": name, "password": password}, {}, 5.0)
        return str(said["token"])

    def _is_guarded(self) -> bool:
        try:
            self._token()
        except EtcdError as error:
            if "authentication is not enabled" in str(error):
                return False
            raise
        return True

    def _guard(self, user: str, password: str) -> None:
        """Accept only the root user and this user."""
        permission = {"permType": "READWRITE", "key": encoded(self._prefix or "\0")}
        permission["range_end"] = encoded(after(self._prefix))
        steps: list[tuple[str, Mapping[str, object]]] = [
            ("role/add", {"name": "root"}),
            ("role/add", {"name": user}),
            ("role/grant", {"name": user, "perm": permission}),
            *(("user/add", {"name": each, "password": secret}) for each, secret in (ROOT, (user, password))),
            ("user/grant", {"user": ROOT[0], "role": "root"}),
            ("user/grant", {"user": user, "role": user}),
            ("enable", {}),
        ]
        for path, body in steps:
            self._post(f"auth/{path}", body, {}, 5.0)


class EtcdEnsemble:
    """Three servers on ports of 127.0.0.1, of which one leads. `with` starts and stops them."""

    def __init__(self, folder: Path, *, servers: int = 3, options: Sequence[str] = ()) -> None:
        """Prepare an ensemble."""
        self.servers = [EtcdServer(folder / f"server-{n}", options=options) for n in range(servers)]
        for server in self.servers:
            server.cluster = self.servers

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The address for clients."""
        return [server.address for server in self.servers]

    @property
    def url(self) -> str:
        """The URL of all servers, without user and password."""
        return "etcd://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def start(self) -> None:
        """Start all servers, and return when each of them serves."""
        start_all(self.servers)

    def stop(self) -> None:
        """Kill all of them."""
        stop_all(self.servers, timeout=0)

    def leader(self) -> EtcdServer:
        """Return the leader once a majority of the servers follows a leader that serves."""
        wait_until(lambda: self._agreed_leader() is not None, "a leader that the servers agree on")
        return self._agreed_leader() or self.leader()

    def followers(self) -> list[EtcdServer]:
        """Return the other servers that serve."""
        leader = self.leader()
        return [server for server in self.servers if server.serves and server is not leader]

    def kill_leader(self) -> EtcdServer:
        """Kill the leader, and return it."""
        leader = self.leader()
        leader.kill()
        return leader

    def await_another_leader(self, old: EtcdServer) -> EtcdServer:
        """Return the new leader once it is not `old`, which may be paused or dead."""
        wait_until(lambda: self._agreed_leader() not in {None, old}, "another leader")
        return self.leader()

    def is_complete(self) -> bool:
        """Tell whether all servers serve and have a leader among them."""
        serving = all(server.serves and holds(server.revision) for server in self.servers)
        return serving and self._agreed_leader() is not None

    def mend(self) -> None:
        """Resume or start all servers that don't run, and return when each of them serves."""
        dead = [server for server in self.servers if not server.runs]
        for server in self.servers:
            if server.runs and not server.serves:
                server.resume()
        start_all(dead)
        wait_until(self.is_complete, "an ensemble whose servers are all well")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _agreed_leader(self) -> EtcdServer | None:
        serving = [server for server in self.servers if server.serves]
        views = [view for server in serving if holds(partial(_view, server)) for view in [_view(server)]]
        leaders = {leader for _, leader, _ in views}
        if len(leaders) != 1 or len(views) != len(serving) or 2 * len(views) <= len(self.servers):
            return None
        return next((server for member, leader, server in views if member == leader), None)


def _view(server: EtcdServer) -> tuple[str, str, EtcdServer]:
    """Return the id of a server, the id of its leader, and the server."""
    status = server.status()
    return status["header"]["member_id"], status.get("leader", "0"), server


def encoded(text: str | bytes) -> str:
    """Return a key or a value in the encoding of the gateway."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def after(prefix: str) -> bytes:
    """Return the first key after all keys that begin with a prefix."""
    return prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1]) if prefix else b"\0"


def find_program() -> str:
    """Return the path of the server program, or of `TENURE_ETCD`. Raises `ServerFailedError` if there is none."""
    found = os.environ.get("TENURE_ETCD") or shutil.which("etcd")
    if found is None:
        raise ServerFailedError(
            "There is no etcd here: install the system's package etcd-server, or name the program by TENURE_ETCD."
        )
    return found
