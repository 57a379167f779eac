"""`tenure elect`: one candidate leads, all say who it is, and another leads soon after it has gone."""

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tenure
from tenure.cli.elect import Candidate
from tenure.contracts.messages import NameView
from tenure.errors import StoreUnavailable
from tests import virtual
from tests.cli.conftest import TEST_TIMEOUT, Command, Done, first_line, until
from tests.faults.metronome import Metronome
from tests.planting import planted

if TYPE_CHECKING:
    import subprocess

TTL = 3.0


class Running:
    """A candidate in a process of its own, on a free port."""

    def __init__(self, command: Command, value: str, ttl: float) -> None:
        arguments = ("nightly", "--http", ":0", "--value", value, "--ttl", str(ttl))
        self.process = command.start("elect", *arguments)
        assert self.process.stderr is not None
        self.name = value
        self.address = re.findall(r"http://127\.0\.0\.1:\d+/", self.process.stderr.readline())[0]

    def get(self, path: str = "") -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of an answer."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=TEST_TIMEOUT) as answer:  # noqa: S310 - our own
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def leads(self) -> bool:
        """Return what a readiness probe finds."""
        status, said = self.get("leader")
        assert said == {"leading": status == 200}
        assert status in {200, 503}
        return status == 200

    def end(self, number: int) -> int:
        """Send a signal, and return the status."""
        self.process.send_signal(number)
        return self.process.wait(TEST_TIMEOUT)


Start = Callable[[str, float], Running]


@pytest.fixture
def start(command: Command) -> Start:
    """Return what starts a candidate with a value and a ttl."""
    return lambda value, ttl: Running(command, value, ttl)


def test_one_leads_and_all_say_who(start: Start, client: tenure.Client) -> None:
    """A leader that gets SIGTERM resigns: the next leads long before the ttl is over, with a greater token."""
    one = start("pod-1", 600)
    until(one.leads, "the first leads")
    two = start("pod-2", 600)
    until(lambda: client.inspect("nightly").waiters, "the second stands")
    assert not two.leads()
    status, said = one.get()
    assert (status, said["name"], said["leading"]) == (200, "pod-1", True)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", said["since"])
    other = two.get()[1]
    assert (other["name"], other["leading"], other["token"]) == ("pod-1", False, said["token"])
    assert one.end(signal.SIGTERM) == 128 + signal.SIGTERM
    until(two.leads, "the second leads")
    after = two.get()[1]
    assert (after["name"], after["leading"]) == ("pod-2", True)
    assert after["token"] > said["token"]
    assert two.end(signal.SIGINT) == 128 + signal.SIGINT
    assert not client.names()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_another_leads_soon_after_a_leader_was_killed(
    store: str, command: Command, request: pytest.FixtureRequest, metronome: Metronome
) -> None:
    """Within its ttl and a second: it was killed with `kill -9`, and so says nothing."""
    if store == "redis":
        command.url = f"{request.getfixturevalue('redis_server').url}?guard=off"
    leader, *others = [Running(command, f"pod-{number}", TTL) for number in range(3)]
    everybody = [leader, *others]
    until(lambda: any(each.leads() for each in everybody), "one leads")
    (leader,) = [each for each in everybody if each.leads()]
    others = [each for each in everybody if each is not leader]
    killed_at = time.monotonic()
    assert leader.end(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: any(each.leads() for each in others), "another leads")
    assert metronome.elapsed(killed_at) < TTL + 1
    (after,) = [each for each in others if each.leads()]
    assert {each.get()[1]["name"] for each in others} == {after.name}


def test_a_leader_that_was_stopped_says_so_when_it_goes_on(start: Start) -> None:
    """It has renewed nothing, and another leads by then: its first answer is that it does not lead. It stands again."""
    one = start("pod-1", TTL)
    until(one.leads, "the first leads")
    two = start("pod-2", TTL)
    one.process.send_signal(signal.SIGSTOP)
    until(two.leads, "the second leads")
    one.process.send_signal(signal.SIGCONT)
    assert not one.leads()
    assert two.end(signal.SIGTERM) == 128 + signal.SIGTERM
    until(one.leads, "the first leads again")
    assert one.end(signal.SIGTERM) == 128 + signal.SIGTERM


def test_a_command_runs_while_its_candidate_leads(command: Command, client: tenure.Client, tmp_path: Path) -> None:
    """It finds its token; its status is that of the candidate, and then another leads."""
    out = tmp_path / "out"
    script = f'echo "$TENURE_NAME $TENURE_TOKEN" >> {out}; read -r line < {tmp_path}/go; exit 7'
    os.mkfifo(tmp_path / "go")
    both: list[subprocess.Popen[str]] = []
    for count in range(2):
        both.append(command.start("elect", "nightly", "--ttl", "600", "--", "sh", "-c", script))
        until(lambda: out.exists() and len(client.inspect("nightly").waiters) == count, "it leads, or waits")  # noqa: B023
    for each in both:
        token = client.inspect("nightly").holders[0].token
        until(lambda: out.read_text().splitlines()[-1:] == [f"nightly {token}"], "its command runs")  # noqa: B023
        with (tmp_path / "go").open("w") as go:
            go.write("on\n")
        assert each.wait(TEST_TIMEOUT) == 7
    assert len(out.read_text().splitlines()) == 2


def test_a_signal_while_a_lost_term_ends_its_command_ends_all(command: Command, client: tenure.Client) -> None:
    """The candidate does not stand again: whoever sent the signal waits for its end."""
    script = 'trap "echo asked" TERM; trap "echo told; exit 0" INT; echo on; while :; do sleep 0.05; done'
    running = command.start("elect", "nightly", "--grace", "60", "--", "sh", "-c", script)
    assert first_line(running) == "on"
    client.revoke("nightly", force=True)
    assert first_line(running) == "asked"
    running.send_signal(signal.SIGINT)
    assert first_line(running) == "told"
    assert running.wait(TEST_TIMEOUT) == 128 + signal.SIGINT
    assert not client.inspect("nightly").holders


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nightly",), "give --http, or a command"),
        (("one", "two", "--http", ":0"), "an election has one name"),
        (("--http", ":0"), "an election has one name"),
        (("nightly", "--http", "localhost"), "--http takes HOST:PORT"),
        (("nightly", "--http", ":0", "--value", "x" * 5000), "up to 4096 bytes"),
        (("nightly", "--http", ":0", "--url", "memcached://:hunter2@localhost:1?x"), "hunter2"),
    ],
)
def test_a_wrong_call_is_told(here: Callable[..., Done], arguments: tuple[str, ...], says: str) -> None:
    """64, and what to write instead; never a password."""
    done = here("elect", *arguments)
    assert done.status == 64
    assert (says in done.errors) == (says != "hunter2")


def check_the_answers() -> None:
    """Check that a candidate answers by its own deadline, looks at most once a second, and tells of a silent store."""
    with (
        virtual.stopped_clock() as clock,
        tenure.Client(store=(source := virtual.source()), owner="host/1") as client,
        tenure.Client(store=source, owner="host/2") as rival,
    ):
        looks: list[str] = []
        inspect = client.inspect

        def counted(name: str) -> NameView:
            looks.append(name)
            if name in silent:
                raise StoreUnavailable("the store is away")
            return inspect(name)

        client.inspect = counted  # type: ignore[method-assign]
        silent: set[str] = set()
        candidate = Candidate(client, client.election("x", ttl=30), "x", "pod-1", clock)

        def said(path: str) -> tuple[int, dict[str, Any]]:
            answer = candidate.answer(path)
            assert answer is not None
            return answer.status, json.loads(answer.body)

        assert candidate.answer("/metrics") is None
        assert said("/leader") == (503, {"leading": False})
        assert said("/") == (200, {"name": "", "leading": False, "token": None, "since": None})
        term = candidate.acquire()
        assert said("/leader")[0] == 200
        assert said("/")[1]["name"] == "pod-1"
        assert looks == ["x"]
        clock.advance(29.9)  # the store keeps the lease for a moment longer
        assert said("/leader")[0] == 503
        assert said("/")[1] == {**said("/")[1], "name": "pod-1", "leading": False}
        assert looks == ["x", "x"]
        clock.advance(0.5)
        later = rival.election("x").campaign()
        assert said("/")[1]["token"] == term.token
        clock.advance(1)
        first = said("/")[1]
        assert (first["name"], first["leading"]) == ("host/2", False)
        assert first["token"] == later.token > term.token
        assert len(looks) == 3
        silent.add("x")
        clock.advance(1)
        assert said("/") == (503, {"name": "", "leading": False, "error": "the store is away"})
        assert said("/leader")[0] == 503
        assert len(looks) == 4


def test_a_candidate_answers_by_its_own_deadline() -> None:
    """It never says that it leads when another may, and a probe of it asks no store."""
    check_the_answers()


PLANTED = {
    "it leads once it was elected": ("answer", "term is not None and term.remaining() > 0", "term is not None"),
    "it leads as long as the store says so": (
        "answer",
        "leads = term is not None and term.remaining() > 0",
        "leads = any(each.value == self._value for each in self._look().holders)",
    ),
    "it looks once": ("_look", "self._now() - self._seen_at >= LOOK_EVERY", "False"),
    "it looks each time": ("_look", "self._seen is None or self._now() - self._seen_at >= LOOK_EVERY", "True"),
    "a silent store has no leader": ("answer", "isinstance(seen, StoreError)", "False"),
    "a probe succeeds whoever leads": ("answer", "OK if leads else HTTPStatus.SERVICE_UNAVAILABLE", "OK"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a term that the check left behind
@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check of the answers."""
    method, right, wrong = PLANTED[bug]
    monkeypatch.setattr(Candidate, method, planted(Candidate, method, right, wrong))
    with pytest.raises((AssertionError, AttributeError)):
        check_the_answers()
