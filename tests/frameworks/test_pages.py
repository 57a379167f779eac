"""The programs in the pages of frameworks do what the pages say."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import tenure
from tests.docs.test_readme import run_example
from tests.hazards.helpers import TEST_TIMEOUT, eventually
from tests.servers import RedisServer
from tests.servers.ports import reserve

STARTED = 120.0
"""Within how many seconds a server has started: most of it is for imports, on a busy machine."""
DOCS = Path(__file__).parents[2] / "docs"


def program(page: str, number: int = 0) -> str:
    """Return a program of a page."""
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return found[number]


def is_served(address: str) -> bool:
    """Tell whether a server answers."""
    with suppress(httpx.TransportError):
        return bool(httpx.get(address).status_code)
    return False


@contextmanager
def served(page: str, folder: Path, url: str, *command: str) -> Generator[str]:
    """Run the first program of a page as app.py, by a command with the port as PORT; yield its address."""
    (folder / "app.py").write_text(program(page), "utf-8")
    port = reserve()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"TENURE_URL": url, "PATH": path, "PYTHONWARNINGS": "error"}
    words = [each.replace("PORT", str(port.port)) for each in command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port.port}"
        eventually(lambda: is_served(address), "a server", STARTED)
        yield address
        process.terminate()
        process.wait(TEST_TIMEOUT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.wait()
        port.give_up()
    said = (folder / "log").read_text("utf-8")
    assert "Traceback" not in said, said


def test_fastapi(tmp_path: Path) -> None:
    """An order is paid, and is busy while another process holds its name; the tasks run."""
    url = f"sqlite://{tmp_path}/locks.db"
    with (
        served("fastapi.md", tmp_path, url, sys.executable, "-m", "uvicorn", "app:app", "--port=PORT") as address,
        tenure.Client(url) as client,
    ):
        for _ in range(2):
            paid = httpx.post(f"{address}/orders/7/pay")
            assert paid.json().startswith("order 7 is paid, under token ")
        with client.lock("orders:7"):
            busy = httpx.post(f"{address}/orders/7/pay", timeout=TEST_TIMEOUT)
        assert (busy.status_code, busy.headers["retry-after"]) == (409, "2")
        assert httpx.post(f"{address}/orders/seven/pay").status_code == 422
        assert client.inspect("scheduler").holders
        eventually(lambda: [job.name for job in client.jobs()] == ["clean up"], "a tick")


def test_flask(tmp_path: Path) -> None:
    """Forked workers, with a client of the app that was loaded before the fork."""
    url = f"sqlite://{tmp_path}/locks.db"
    command = ("gunicorn", "--workers=2", "--preload", "--bind=127.0.0.1:PORT", "app:app")
    with served("flask.md", tmp_path, url, *command) as address, tenure.Client(url) as client:
        for _ in range(4):
            assert httpx.post(f"{address}/orders/7/pay").text == "order 7 is paid"
        with client.lock("orders:7"):
            busy = httpx.post(f"{address}/orders/7/pay", timeout=TEST_TIMEOUT)
        assert (busy.status_code, busy.text) == (409, "busy: try again later")


@pytest.mark.parametrize(
    ("page", "number", "says"),
    [
        ("flask.md", 1, "2 is alone"),
        ("pydantic-ai.md", 0, "success"),
        ("structlog.md", 0, "the order is paid .*lock=orders:42 .*token="),
    ],
)
def test_a_program_prints_what_its_page_says(page: str, number: int, says: str, tmp_path: Path) -> None:
    """It runs as it stands, with warnings as errors."""
    printed = run_example(program(page, number), tmp_path, f"sqlite://{tmp_path}/locks.db")
    assert re.search(says, printed)


def test_gevent_over_a_server(redis_server: RedisServer, tmp_path: Path) -> None:
    """Greenlets wait for replies and notifications through patched sockets."""
    printed = run_example(program("flask.md", 1), tmp_path, f"{redis_server.url}?guard=off")
    assert "2 is alone" in printed
