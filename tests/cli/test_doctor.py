"""`tenure doctor`: what it prints, and its statuses. What it finds is tested in tests/doctor."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.cli.stores import examine
from tenure.contracts.findings import Finding, Report, Severity, Unseen
from tenure.escaping import escape
from tests.cli.conftest import Done
from tests.servers import RedisServer

Here = Callable[..., Done]


def test_a_finding_is_a_line_for_a_pipe(here: Here, tmp_path: Path) -> None:
    """Severity, name, server, what, why and change, with tabs between; the status is 1."""
    with RedisServer(tmp_path, options=("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")) as server:
        done = here("doctor", server.url)
    first, second = done.output.splitlines()
    assert first.split("\t")[:2] == ["error", "redis-eviction"]
    assert first.split("\t")[-1] == "CONFIG SET maxmemory-policy noeviction"
    assert second.split("\t")[:2] == ["note", "redis-persistence"]
    assert (done.status, done.errors) == (1, "")


def test_json_has_all_fields(here: Here, tmp_path: Path) -> None:
    """The fields that docs/doctor.md lists. A note alone is status 0."""
    with RedisServer(tmp_path) as server:
        done = here("doctor", server.url, "--json")
    said = json.loads(done.output)
    assert said.keys() == {"store", "sound", "findings", "unseen"}
    assert (said["sound"], said["unseen"], done.status) == (True, [], 0)
    assert [each.keys() for each in said["findings"]] == [{"id", "severity", "place", "what", "why", "change"}]


def test_the_store_of_the_environment_is_looked_at(here: Here) -> None:
    """Without a URL: TENURE_URL. A lock file that is not there yet is fine."""
    done = here("doctor")
    assert (done.status, done.output) == (0, "")


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "postgresql://127.0.0.1:1/x", "mysql://127.0.0.1:1/x", "etcd://127.0.0.1:1",
            "memcached://127.0.0.1:1", "zookeeper://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]
)  # fmt: skip
def test_a_store_that_is_not_there_is_status_2(here: Here, url: str) -> None:
    """What cannot be looked at is neither sound nor wrong. A secret of the URL is not shown."""
    done = here("doctor", url.replace("://", "://someone:a-secret@") if "memcached" not in url else url)
    assert (done.status, done.output) == (2, "")
    assert "could not look at the store" in done.errors
    assert "a-secret" not in done.errors


def test_wrong_usage_is_status_64(here: Here) -> None:
    """A URL that nobody understands, and an option that is no number."""
    assert here("doctor", "nonsense://host").status == 64
    assert here("doctor", "--ttl", "soon").status == 64


class _Examined:
    """A client whose store has said something wicked."""

    def examine(self, _ttl: float | None) -> Report:
        wicked = "\x1b[31m\nforged\tline"
        finding = Finding("some-rule", Severity.WARNING, wicked, f"It is {wicked}.", "It matters.", "change it")
        return Report(wicked, [finding], [Unseen(wicked, "its clock", wicked)])


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_server_says_is_escaped(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text of a server moves the cursor, or begins a line; people and programs see the same."""
    monkeypatch.setattr("tenure.cli.output.is_terminal", lambda: terminal)
    assert examine(_Examined(), Namespace(ttl=None, as_json=False)) == 1  # type: ignore[arg-type]
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert not any(line.startswith("forged") for line in output.splitlines())
    assert "some-rule" in output
    assert "its clock" in output
    assert escape("\x1b[31m") in output


def test_people_read_what_to_change(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal: a summary, and for each finding a heading, the reason, and the line to paste."""
    monkeypatch.setattr("tenure.cli.output.is_terminal", lambda: True)
    with RedisServer(tmp_path, options=("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")) as server:
        output = here("doctor", server.url).output
    assert output.splitlines()[0].endswith(": 1 error, 1 note")
    assert "error    redis-eviction at 127.0.0.1" in output
    assert "To change it: CONFIG SET maxmemory-policy noeviction" in output
