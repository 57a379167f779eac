"""Where the URL of the store comes from, and that a password goes nowhere unasked."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure.cli.commands import Address, find_address, without_password
from tenure.errors import UsageError
from tests.cli.conftest import Command, Done

Here = Callable[..., Done]


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("redis://localhost:6379/3", "redis://localhost:6379/3"),
        ("redis://:secret@host", "redis://host"),
        ("redis://me:secret@host:1/2?guard=off", "redis://me@host:1/2?guard=off"),
        ("redis://me@host", "redis://me@host"),
        ("redis+sentinel://:secret@a,b:2/service?sentinel_password=secret", "redis+sentinel://a,b:2/service"),
        ("etcds://host?ssl_password=secret&session_timeout=9", "etcds://host?session_timeout=9"),
        ("zookeeper://a,b/path?keyfile_password=secret", "zookeeper://a,b/path"),
        ("sqlite:///var/lib/app/locks.db", "sqlite:///var/lib/app/locks.db"),
        ("redis://[::1", ""),
    ],
)
def test_a_url_without_its_passwords(url: str, bare: str) -> None:
    """All else of it stays."""
    assert without_password(url) == bare
    assert "secret" not in without_password(url)


def test_a_command_is_given_no_password_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by --url, and not from our own environment; asked for, it gets the whole URL."""
    monkeypatch.setenv("TENURE_URL", "redis://:inherited@host")
    assert find_address(Namespace(url=None, url_file=None)).environment(pass_url=False) == {
        "TENURE_URL": "redis://host"
    }
    assert find_address(Namespace(url=None, url_file=None)).environment(pass_url=True) == {
        "TENURE_URL": "redis://:inherited@host"
    }
    given = find_address(Namespace(url="redis://:given@host", url_file=None))
    assert given.environment(pass_url=False) == {"TENURE_URL": "redis://host"}
    assert Address(None).environment(pass_url=True) == {}


def test_a_password_in_the_command_line_is_told(here: Here, command: Command) -> None:
    """Once the command is right, it says where to put the URL, without repeating it."""
    done = here("ls", "--url", "redis://:hidden@127.0.0.1:1")
    assert done.status == 69
    assert "--url-file" in done.errors
    assert "hidden" not in done.errors
    assert "--url-file" not in here("ls", "--url", command.url).errors


def test_a_store_in_memory_is_told_to_be_of_one_process(here: Here, command: Command) -> None:
    """A lock that keeps nobody out is not taken in silence; with another store nothing is said."""
    done = here("run", "job", "--url", "memory://", "-c", "exit 0")
    assert done.status == 0
    assert "no other process sees" in done.errors
    assert here("run", "job", "--url", command.url, "-c", "exit 0").errors == ""


@pytest.mark.parametrize("arguments", [("run", "job", "-w", "-1", "-c", "exit 0"), ("wait", "job", "-w", "-1")])
def test_a_negative_timeout_is_named_as_it_was_given(here: Here, arguments: tuple[str, ...]) -> None:
    """By the option, not by what becomes of it inside."""
    done = here(*arguments)
    assert done.status == 64
    assert "--timeout" in done.errors
    assert "retry_for" not in done.errors


def test_the_url_stands_in_a_file(
    here: Here, command: Command, client: tenure.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --url-file, or by TENURE_URL_FILE, which a client of the library reads too; --url-file comes first."""
    file = tmp_path / "url"
    file.write_text(f"{command.url}\n", "utf-8")
    with client.lock("orders"):
        monkeypatch.setenv("TENURE_URL", "memory://nothing")
        assert here("ls").output == ""
        assert here("ls", "--url-file", str(file)).output.startswith("orders\t")
        monkeypatch.setenv("TENURE_URL_FILE", str(file))
        assert here("ls").output == ""
        monkeypatch.delenv("TENURE_URL")
        assert here("ls").output.startswith("orders\t")
        with tenure.Client() as other:
            assert other.names() == ["orders"]


def test_a_command_finds_the_file_and_not_the_url(
    here: Here, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it locks in the same store, if it may read the file, though it does so from elsewhere."""
    (tmp_path / "url").write_text(command.url, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_URL", "memory://nothing")
    script = 'echo "$TENURE_URL_FILE ${TENURE_URL-unset}"'
    assert here("run", "job", "--url-file", "url", "-c", script).output == f"{tmp_path}/url unset\n"
    assert here("run", "job", "--url-file", "url", "--pass-url", "-c", "echo $TENURE_URL").output == f"{command.url}\n"


@pytest.mark.parametrize("content", [None, "", "\n", "redis://hidden\nredis://hidden", b"\xff\xfe"])
def test_a_file_without_a_url_is_told(here: Here, tmp_path: Path, content: str | bytes | None) -> None:
    """64, and nothing of what the file holds is repeated."""
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    done = here("ls", "--url-file", str(file))
    assert done.status == 64
    assert repr(str(file)) in done.errors
    assert done.errors.count("\n") == 1
    assert "hidden" not in done.errors


def test_two_stores_are_a_contradiction() -> None:
    """Nobody guesses which one was meant."""
    with pytest.raises(UsageError, match="contradict"):
        find_address(Namespace(url="redis://host", url_file=Path("url")))
