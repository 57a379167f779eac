"""A Redis server with TLS, and the certificates that it uses."""

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
    """A certificate authority of the tests, and its certificate for servers on this machine."""

    def __init__(self, folder: Path) -> None:
        """Make the certificates in a folder. Needs the package `trustme`."""
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        self.authority, self.certificate, self.key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
        authority = trustme.CA()
        issued = authority.issue_cert(LOCALHOST, "localhost")
        authority.cert_pem.write_to_path(str(self.authority))
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))
        issued.private_key_pem.write_to_path(str(self.key))

    def for_java(self) -> Path:
        """Return a file with the key and the certificate in a format of Java."""
        from cryptography.hazmat.primitives import serialization

        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        both = self.key.with_name("server-java.pem")
        both.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + self.certificate.read_bytes())
        return both

    def for_clients(self) -> ssl.SSLContext:
        """Return a context that trusts only this authority."""
        return ssl.create_default_context(cafile=str(self.authority))

    def for_servers(self) -> ssl.SSLContext:
        """Return a context with the certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


class RedisTlsServer(RedisServer):
    """A Redis server whose clients use TLS. A program without TLS gets a proxy in front that terminates TLS.

    `connect` and `command` use a plain port, for tests that inspect the server.
    """

    distances = (1,)
    """The port of the program for TLS."""

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
        """Prepare a server with one of these certificates; the other arguments are those of `RedisServer`."""
        super().__init__(folder, port=port, options=options, users=users, login=login)
        self.certificates = certificates
        self._proxy: Proxy | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients with TLS."""
        return self._proxy.address if self._proxy else (LOCALHOST, self.port + 1)

    @property
    def url(self) -> str:
        """The URL for clients, without user and password."""
        return super().url.replace("redis://", "rediss://")

    def launch(self) -> None:
        """Start its process."""
        super().launch()
        if not speaks_tls(find_program()):
            self._open_proxy()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the server and its proxy."""
        super().stop(timeout)
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None

    def _open_proxy(self) -> None:
        """Start the proxy for clients."""
        if self._proxy is None:
            self._proxy = Proxy((LOCALHOST, self.port), tls=self.certificates.for_servers())
            self._proxy.start()
        else:
            self._proxy.accept()

    def _end(self, number: signal.Signals, timeout: float = STOP_TIMEOUT) -> None:
        super()._end(number, timeout)
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
    """Tell whether a server program supports TLS: such a program complains first of a missing certificate."""
    command = [program, "--port", "0", "--tls-port", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout
    return "No tls-cert-file configured" in said
