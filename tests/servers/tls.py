"""A Redis server that speaks TLS, with certificates made on the spot."""

import signal
import ssl
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.servers.ports import LOCALHOST
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, find_program
from tests.servers.server import STOP_TIMEOUT


class Certificates:
    """A certificate authority that nobody knows, and a certificate by it for servers on this machine."""

    def __init__(self, folder: Path) -> None:
        """Make them in a folder. Needs the package `trustme`."""
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        self.authority, self.certificate, self.key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
        authority = trustme.CA()
        issued = authority.issue_cert(LOCALHOST, "localhost")
        authority.cert_pem.write_to_path(str(self.authority))
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))
        issued.private_key_pem.write_to_path(str(self.key))

    def for_java(self) -> Path:
        """Return a file of the key and the certificate as Java reads them."""
        from cryptography.hazmat.primitives import serialization

        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        both = self.key.with_name("server-java.pem")
        both.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + self.certificate.read_bytes())
        return both

    def for_clients(self) -> ssl.SSLContext:
        """Return a context that trusts the authority, and nobody else."""
        return ssl.create_default_context(cafile=str(self.authority))

    def for_servers(self) -> ssl.SSLContext:
        """Return a context that shows the certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


class RedisTlsServer(RedisServer):
    """A Redis server whose clients speak TLS. A program that can't gets a proxy in front that ends TLS.

    `connect` and `command` use a plain port, for tests that look at what is there.
    """

    distances = (1,)
    """Where the program listens for TLS."""

    def __init__(
        self,
        folder: Path,
        certificates: Certificates,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        users: Sequence[str] = (),
        login: tuple[str, str] | None = None,
    ) -> None:
        """Prepare a server with one of these certificates; the rest is as for `RedisServer`."""
        super().__init__(folder, port=port, options=options, users=users, login=login)
        self.certificates = certificates
        self._proxy: Proxy | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect, with TLS."""
        return self._proxy.address if self._proxy else (LOCALHOST, self.port + 1)

    @property
    def url(self) -> str:
        """Where clients connect, as a URL without user and password."""
        return super().url.replace("redis://", "rediss://")

    def launch(self) -> None:
        """Start its process."""
        super().launch()
        if not speaks_tls(find_program()):
            self._open_proxy()

    def stop(self, patience: float = STOP_TIMEOUT) -> None:
        """End it, and what is in front of it."""
        super().stop(patience)
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None

    def _open_proxy(self) -> None:
        """Let clients in."""
        if self._proxy is None:
            self._proxy = Proxy((LOCALHOST, self.port), tls=self.certificates.for_servers())
            self._proxy.start()
        else:
            self._proxy.accept()

    def _end(self, number: signal.Signals, patience: float = STOP_TIMEOUT) -> None:
        super()._end(number, patience)
        if self._proxy is not None:
            self._proxy.refuse()
            self._proxy.cut()

    def _command(self) -> list[str]:
        if not speaks_tls(find_program()):
            return super()._command()
        settings = {
            "tls-port": str(self.port + 1),
            "tls-ca-cert-file": str(self.certificates.authority),
            "tls-cert-file": str(self.certificates.certificate),
            "tls-key-file": str(self.certificates.key),
            "tls-auth-clients": "no",
        }
        return [*super()._command(), *(word for name, value in settings.items() for word in (f"--{name}", value))]


@cache
def speaks_tls(program: str) -> bool:
    """Tell whether a server program can do TLS: then it asks for a certificate before anything else."""
    command = [program, "--port", "0", "--tls-port", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout
    return "No tls-cert-file configured" in said
