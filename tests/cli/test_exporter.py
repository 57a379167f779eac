"""`tenure exporter` serves what a store says of holders and waiters, with one look a second and no name as a label."""

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tenure import Client, LockTimeout, StoreUnavailable, UsageError
from tenure.cli import http, run_app
from tenure.cli.http import HttpServer, Looks, listening
from tests.hazards.helpers import TEST_TIMEOUT, eventually
from tests.virtual import Clock


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a store of this test."""
    return f"sqlite:///{tmp_path}/locks.db"


@contextmanager
def served(looks: Looks) -> Generator[str]:
    """Serve looks; yield the address."""
    with HttpServer(("127.0.0.1", 0), looks.answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(TEST_TIMEOUT)


def get(address: str) -> str:
    """Return what the server answers."""
    with urllib.request.urlopen(address, timeout=TEST_TIMEOUT) as answer:  # noqa: S310 - of this test
        text: str = answer.read().decode()
        return text


def test_it_shows_holders_and_waiters_of_others_by_template(url: str) -> None:
    """Also those of processes that died: the store knows them, and the process that asks holds nothing."""
    with Client(url) as holder, Client(url) as waiter, Client(url) as client:
        held = [holder.lock(f"invoice-{n}").acquire() for n in range(3)]
        held.append(holder.semaphore("permits", 3).acquire(weight=2))
        held.append(holder.rwlock("shared").read().acquire())

        def wait() -> None:
            with suppress(LockTimeout):
                waiter.lock("invoice-0", timeout=TEST_TIMEOUT).acquire().release()

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.inspect("invoice-0").waiters, "it waits")
        text = Looks(client, ["invoice-*"]).text()
        assert 'tenure_store_holders{kind="lock",template="invoice-*"} 3\n' in text
        assert 'tenure_store_holders{kind="semaphore",template="other"} 1\n' in text
        assert 'tenure_store_holders{kind="rwlock",template="other"} 1\n' in text
        assert 'tenure_store_waiters{kind="lock",template="invoice-*"} 1\n' in text
        assert "tenure_store_up 1\n" in text
        assert not re.search(r"invoice-\d", text)
        for each in held:
            each.release()
        thread.join(TEST_TIMEOUT)


def test_it_shows_jobs_by_their_state(url: str) -> None:
    """Each job is counted once; a pattern without wildcards is the job itself."""
    with Client(url) as client:
        client.once("nightly", window="daily").run(lambda: None)
        with pytest.raises(ZeroDivisionError):
            client.once("hourly", window="hourly").run(lambda: 1 / 0)
        client.job("hourly").pause()
        eventually(lambda: len(client.jobs()) == 2, "both are listed")
        text = Looks(client, ["nightly"]).text()
    assert 'tenure_store_jobs{state="done",template="nightly"} 1\n' in text
    assert 'tenure_store_jobs{state="failed",template="nightly"} 0\n' in text
    assert 'tenure_store_jobs{state="paused",template="other"} 1\n' in text


def test_however_many_scrapes_come_there_is_one_look_a_second(url: str) -> None:
    """Scrapes that come during a look, or within a second after it, get the same text."""
    clock = Clock()
    with Client(url) as client:
        looks = Looks(client, (), clock)
        count = 0
        look = looks._look

        def counting() -> str:
            nonlocal count
            count += 1
            return look()

        looks._look = counting  # type: ignore[method-assign]
        with served(looks) as address:
            threads = [threading.Thread(target=get, args=(f"{address}/metrics",)) for _ in range(10)]
            for each in threads:
                each.start()
            for each in threads:
                each.join(TEST_TIMEOUT)
            assert count == 1
            clock.advance(0.9)
            get(f"{address}/metrics")
            assert count == 1
            clock.advance(0.2)
            get(f"{address}/metrics")
            assert count == 2


def test_a_store_that_does_not_answer_is_down(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exporter goes on, and tells so in the metrics and on stderr."""
    with Client(url) as client:
        looks = Looks(client, ())

        def fail(*_: object) -> str:
            raise StoreUnavailable("the server is gone")

        client.iter_names = fail  # type: ignore[assignment, method-assign]
        text = looks.text()
    assert "tenure_store_up 0\n" in text
    assert "the server is gone" in capsys.readouterr().err


def test_a_look_inspects_so_many_names_and_counts_the_rest(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with very many names does not hold up the scrape."""
    monkeypatch.setattr(http, "MOST_NAMES", 3)
    with Client(url) as client, client.multilock([f"name-{n}" for n in range(5)]):
        text = Looks(client, ()).text()
    assert 'tenure_store_holders{kind="lock",template="other"} 3\n' in text
    assert "tenure_store_names_uninspected 2\n" in text


def test_hostile_templates_are_escaped(url: str) -> None:
    """A label cannot end its quotes, and begins no line."""
    with Client(url) as client, client.lock('a"\nb'):
        text = Looks(client, ['a"\n*\\']).text() + Looks(client, ['a"\n*']).text()
    assert r'template="a\"\n*"' in text
    assert not [line for line in text.splitlines() if not line.startswith(("#", "tenure_"))]


def test_other_pages_are_not_found(url: str) -> None:
    """There is one page."""
    with Client(url) as client, served(Looks(client, ())) as address:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{address}/")
        assert "tenure_store_up 1" in get(f"{address}/metrics?a=b")


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_wrong_address_is_refused(listen: str) -> None:
    """The error says what is right."""
    with pytest.raises(UsageError, match="HOST:PORT"):
        listening(listen, "--listen", lambda _path: None)


def test_the_command_serves_on_this_machine_alone(url: str) -> None:
    """It says where, and ends with the status of its signal."""
    command = [sys.executable, "-m", "tenure", "exporter", url, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
        assert found is not None, line
        assert "tenure_store_up 1" in get(found.group())
        process.terminate()
        assert process.wait(TEST_TIMEOUT) == -15


def test_an_address_in_use_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do about it."""
    with HttpServer(("127.0.0.1", 0), lambda _path: None) as server:
        assert run_app(["exporter", url, "--listen", f"127.0.0.1:{server.server_address[1]}"]) == 64
    assert "cannot listen at 127" in capsys.readouterr().err
