"""`tenure serve`: whom it listens to, and how it ends."""

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import TEST_TIMEOUT, Command, Done

SECRET = "a-secret-of-twenty-characters"  # noqa: S105 - of a test


def started(command: Command, *arguments: str) -> tuple[str, Callable[[signal.Signals], int]]:
    """Start `tenure serve`; return its URL, and what ends it and returns its status."""
    process = command.start("serve", "--port", "0", *arguments)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert f"the console of {command.url} is at http://127.0.0.1:" in line, line + process.stderr.read()

    def end(number: signal.Signals) -> int:
        process.send_signal(number)
        return process.wait(TEST_TIMEOUT)

    return line.split()[-1], end


def test_it_serves_until_a_signal_while_browsers_watch(command: Command) -> None:
    """The status says which; a stream to a browser does not hold it up."""
    for number in (signal.SIGTERM, signal.SIGINT):
        url, end = started(command)
        with httpx.stream("GET", f"{url}events", timeout=TEST_TIMEOUT) as stream:
            assert any("data: " in each for each in stream.iter_lines())
            assert httpx.get(url, timeout=TEST_TIMEOUT).status_code == 200
            assert end(number) == 128 + number


def test_without_a_token_it_serves_this_machine_alone(command: Command) -> None:
    """By name and by address."""
    url, end = started(command)
    assert httpx.get(url, headers={"host": "evil.test"}, timeout=TEST_TIMEOUT).status_code == 403
    end(signal.SIGTERM)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test"])  # noqa: S104 - refused
def test_other_machines_need_a_token(here: Callable[..., Done], host: str) -> None:
    """Else it is refused, with what to do; so are actions, because other users of this machine reach the port."""
    done = here("serve", "--host", host)
    assert done.status == 64
    assert "--token-file" in done.errors
    assert "--act needs a token" in here("serve", "--act").errors


def test_a_token_comes_from_a_file_or_the_environment(
    command: Command, here: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets in whoever has it, and nobody prints it. A short one is refused."""
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(stat.S_IRUSR)
    url, end = started(command, "--token-file", str(file), "--act", "--root-path", "/locks/")
    assert url.endswith("/locks/")
    bearer = {"authorization": f"Bearer {SECRET}"}
    place = url.removesuffix("locks/")
    page = httpx.get(place, headers=bearer, timeout=TEST_TIMEOUT)
    assert page.status_code == 200
    assert 'href="/locks/names"' in page.text
    assert httpx.get(place, timeout=TEST_TIMEOUT).headers["location"] == "/locks/login"
    end(signal.SIGTERM)
    monkeypatch.setenv("TENURE_CONSOLE_TOKEN", "short")
    done = here("serve")
    assert done.status == 64
    assert "at least 16 characters" in done.errors
    assert "short" not in done.errors
    assert "cannot be read" in here("serve", "--token-file", os.devnull + "/none").errors


def test_a_port_that_is_taken_is_named(command: Command, here: Callable[..., Done]) -> None:
    """With what to do."""
    url, end = started(command)
    done = here("serve", "--port", url.rstrip("/").rpartition(":")[2])
    assert done.status == 64
    assert "give another --port" in done.errors
    end(signal.SIGTERM)
