"""`tenure once`, `tenure run --done`, `tenure jobs` and `tenure job`: what runs, statuses, and what is said."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.cli.output import job_fields, story_of
from tenure.contracts.cells import Cell
from tenure.core.cells import Change
from tenure.jobs.once import Once
from tenure.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Command, Done, first_line, until
from tests.servers.redis import RedisServer

Here = Callable[..., Done]

SAY = 'echo "$TENURE_NAME $TENURE_WINDOW $TENURE_ATTEMPT"'


def once(here: Here, *options: str, script: str = "true") -> Done:
    """Run a script as the job `report`, for a key unless the options say otherwise."""
    return here("once", "report", *(options or ("--key", "1")), "-c", script)


def test_runs_once_and_tells_the_command_what_it_runs(here: Here, client: tenure.Client) -> None:
    """The second call runs nothing, says by whom it is done, and exits with 0."""
    first = once(here, "--window", "daily", "--owner", "anna", script=f'{SAY}; test "$TENURE_TOKEN" -gt 0')
    assert first.status == 0
    name, window, attempt = first.output.split()
    assert (name, attempt) == ("report", "1")
    assert window.endswith("T00:00:00Z")
    second = once(here, "--window", "daily", script="echo again")
    assert (second.status, second.output) == (0, "")
    assert "the job 'report' is done: it was begun by anna at 20" in second.errors
    assert second.errors.count("\n") == 1
    assert client.names() == []


def test_is_silent_for_cron_and_has_a_status_for_scripts(here: Here) -> None:
    """-q says nothing, and --skip-exit-code tells that nothing was run."""
    once(here)
    done = once(here, "--key", "1", "-q", "--skip-exit-code", "9", script="echo again")
    assert (done.status, done.output, done.errors) == (9, "", "")


def test_a_failed_command_is_a_failed_attempt(here: Here) -> None:
    """Its status is passed on; the next attempt waits for the back-off, and after the last one the status is 70."""
    first = once(here, "--key", "1", "--attempts", "2", script="exit 3")
    assert (first.status, first.errors) == (3, "")
    early = once(here, "--key", "1", "--attempts", "2", "--busy", "skip")
    assert early.status == 75
    assert "has failed at attempt 1 (exit status 3), and the next attempt is not due yet" in early.errors
    second = once(here, "--key", "1", "--attempts", "2", script="kill -TERM $$")
    assert second.status == 128 + signal.SIGTERM
    none_left = once(here, "--key", "1", "--attempts", "2", "-q")
    assert none_left.status == 70
    assert "has failed at attempt 2 (signal 15), and no attempt is left" in none_left.errors


def test_what_cannot_be_run_has_failed(here: Here, client: tenure.Client, tmp_path: Path) -> None:
    """127, and an attempt that the record shows."""
    assert here("once", "report", "--key", "1", "--", str(tmp_path / "missing")).status == 127
    assert [run.error for run in client.jobs()[0].runs] == ["exit status 127"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("once", "report", "--", "true"), "give either --window or --key"),
        (("once", "report", "--window", "sometimes", "--", "true"), "'sometimes' is no window"),
        (("once", "report", "--window", "hourly", "--key", "1", "--", "true"), "either"),
        (("once", "report", "--window", "hourly"), "there is no command to run"),
        (("once", "--window", "hourly", "--", "true"), "See `tenure once --help`"),
        (("once", "one", "two", "--window", "hourly", "--", "true"), "a job has one name"),
        (("once", "report", "--key", "1", "--busy", "maybe", "--", "true"), "busy must be one of"),
        (("once", "report", "--key", "1", "--attempts", "0", "--", "true"), "attempts"),
        (("run", "--done", "1", "--shared", "--", "true"), "no options of locks"),
        (("run", "one", "two", "--done", "1", "--", "true"), "one name"),
        (("run", "--done", "1"), "there is no command to run"),
        (("run", "--", "true"), "there is no name"),
        (("run",), "there is no name"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(here: Here, arguments: tuple[str, ...], says: str) -> None:
    """64, and what to write instead."""
    done = here(*arguments)
    assert done.status == 64
    assert says in done.errors
    assert done.errors.count("\n") == 1


def test_processes_that_start_at_once_run_it_once(command: Command, tmp_path: Path) -> None:
    """And all of them exit with 0."""
    out = tmp_path / "out"
    started = [command.start("once", "report", "--window", "daily", "-c", f"echo x >> {out}; sleep 0.3") for _ in "123"]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert out.read_text() == "x\n"


def test_a_killed_run_is_tried_again_but_no_more_often_than_allowed(command: Command, here: Here) -> None:
    """Neither tenure nor its command says a word, and the next call takes over when the lease has ended."""
    options = ("--window", "daily", "--busy", "wait", "--attempts", "2", "--ttl", "3")
    process = command.start("once", "report", *options, "--owner", "ben", "-c", "echo $$; exec sleep 100")
    child = int(first_line(process))
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.wait(60)
    second = once(here, *options, script=f"{SAY}; exit 1")
    assert (second.status, second.output.split()[-1]) == (1, "2")
    assert once(here, *options).status == 70
    runs = [tuple(run.values()) for run in json.loads(here("jobs", "--json").output)[0]["runs"]]
    assert [(run[0] == "ben", *run[3:]) for run in runs] == [(True, 1, "ben fell silent"), (False, 2, "exit status 1")]


def test_a_signal_reaches_the_command_and_ends_the_attempt(command: Command, client: tenure.Client) -> None:
    """The lock is free at once, so that another node can try."""
    process = command.start("once", "report", "--key", "1", "-c", "echo ready; exec sleep 100")
    assert first_line(process) == "ready"
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert client.names() == []
    assert [run.error for run in client.jobs()[0].runs] == ["signal 15"]


def test_a_signal_ends_a_wait(command: Command, client: tenure.Client) -> None:
    """A call that waits for another node leaves no waiter."""
    running = command.start("once", "report", "--key", "1", "-c", "echo ready; exec sleep 100")
    assert first_line(running) == "ready"
    waiting = command.start("once", "report", "--key", "1", "--", "true")
    until(lambda: len(client.inspect("job:report:1").waiters) == 1, "it waits")
    waiting.terminate()
    assert waiting.wait(60) == 128 + signal.SIGTERM
    assert not client.inspect("job:report:1").waiters
    running.terminate()
    running.wait(60)


def test_a_lost_lease_ends_the_command(command: Command, client: tenure.Client) -> None:
    """As with `tenure run`; the attempt has failed."""
    process = command.start("once", "report", "--key", "1", "--attempts", "2", "-c", "echo ready; exec sleep 100")
    assert first_line(process) == "ready"
    client.revoke("job:report:1", force=True)
    assert process.wait(60) == 76
    assert [run.error for run in client.jobs()[0].runs] == ["its lease was lost"]


def test_a_command_that_hangs_is_ended(here: Here, client: tenure.Client) -> None:
    """After --at-most, as if the lease were lost: the attempt has failed."""
    done = once(here, "--key", "1", "--attempts", "2", "--at-most", "0.5", script="exec sleep 100")
    assert done.status == 76
    assert [run.error for run in client.jobs()[0].runs] == ["it ran for longer than --at-most 0.5"]


def test_shows_for_how_long_a_job_runs(command: Command, client: tenure.Client) -> None:
    """And how long it usually takes, by the clock of the store."""
    for _ in range(2):
        client.once("report", window="daily", busy="wait").run(time.sleep, 0.0)
        client.job("report").repeat()
    process = command.start("once", "report", "--window", "daily", "-c", "echo ready; read line")
    assert first_line(process) == "ready"
    view = client.jobs()[0]
    fields = job_fields(view)
    assert view.usual is not None
    assert (fields[2], fields[4], fields[8]) == ("running", f"{view.running_for:.1f}", f"{view.usual:.1f}")
    assert story_of(view) == f"running for {view.running_for:.1f} s, usually {view.usual:.1f} s"


def test_a_busy_job_refuses_or_is_waited_for(command: Command, here: Here) -> None:
    """--no-wait and a timeout exit with 75, or with the status of -E; without them the others wait until it is done."""
    running = command.start("run", "--done", "migrate 17", "-c", "echo ready; read line; exit 0")
    assert first_line(running) == "ready"
    done = ("--done", "migrate 17")
    refused = here("run", *done, "--no-wait", "--", "echo", "again")
    assert refused.status == 75
    assert "the job 'run' was not run: it is run by" in refused.errors
    assert here("run", *done, "--timeout", "0.1", "-E", "9", "--", "echo", "again").status == 9
    crowded = here("once", "run", "--key", "migrate 17", "--busy", "wait", "--max-waiters", "0", "--", "true")
    assert (crowded.status, "max_waiters=0" in crowded.errors) == (75, True)
    skipped = here("once", "run", "--key", "migrate 17", "--busy", "skip", "--skip-exit-code", "9", "--", "true")
    assert (skipped.status, "is running" in skipped.errors) == (9, True)
    waiting = command.start("run", *done, "--", "echo", "again")
    assert running.stdin is not None
    running.stdin.write("go\n")
    running.stdin.flush()
    assert running.wait(60) == 0
    output, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, output) == (0, "")
    assert "is done" in errors


def test_a_failed_migration_runs_again(here: Here) -> None:
    """`run --done` has attempts enough."""
    assert here("run", "--done", "17", "--", "false").status == 1
    assert here("run", "--done", "17", "--", "echo", "done now").output == "done now\n"
    assert here("run", "--done", "17", "--", "echo", "again").output == ""


def test_a_store_that_does_not_note_the_end_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has run, and may run again: 69. If it failed, its own status says more."""

    async def silent(*_: object) -> None:
        raise tenure.StoreUnavailable("the store did not answer")

    monkeypatch.setattr(Once, "finish", silent)
    done = once(here, script="echo ran")
    assert (done.status, done.output) == (69, "ran\n")
    assert "has run to its end, but the store did not note that, so it may run again" in done.errors
    failed = once(here, "--key", "2", script="exit 3")
    assert failed.status == 3
    assert "did not note that the job has failed (exit status 3)" in failed.errors


def test_a_superseded_run_is_not_the_one_that_is_done(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt has begun meanwhile: 76."""
    finish = Once.finish

    async def late(call: Once, begun: object, error: str | None) -> object:
        await call._session.cells.change(call._spec.name, _another_run)
        return await finish(call, begun, error)  # type: ignore[arg-type]

    monkeypatch.setattr(Once, "finish", late)
    done = once(here)
    assert done.status == 76
    assert "and was given up" in done.errors


def _another_run(state: dict[str, object], _now: int) -> Change:
    return Change({**state, "run": {"id": "other", "by": "other", "at": 0}}, None)


def test_lists_jobs_in_lines_and_json(here: Here) -> None:
    """One line a job; text of others forges neither a field nor a line."""
    assert here("jobs").output == ""
    assert json.loads(here("jobs", "--json").output) == []
    here("once", "evil\tname\n", "--key", "1", "--owner", "own\ter", "--", "true")
    here("once", "report", "--window", "3600", "--", "false")
    lines = here("jobs").output.splitlines()
    assert len(lines) == 2
    evil, report = (line.split("\t") for line in lines)
    assert len(evil) == len(report) == 9
    assert (evil[0], evil[1], evil[2], evil[5], evil[7]) == ("evil\\tname\\n", "by key", "done", "own\\ter", "")
    assert (report[0], report[1], report[2], report[7]) == ("report", "3600 s", "failed", "exit status 1")
    assert report[6].startswith("20")
    first, second = json.loads(here("jobs", "--json").output)
    assert (first["name"], first["next"], first["runs"][0]["by"]) == ("evil\tname\n", None, "own\ter")
    assert (second["state"], second["error"], second["runs"][0]["attempt"]) == ("failed", "exit status 1", 1)


def test_an_operator_pauses_resumes_repeats_and_forgets(here: Here) -> None:
    """Each says what it did, and 1 if no such job has run."""
    for word in ("pause", "resume", "run", "forget"):
        unknown = here("job", word, "report")
        assert (unknown.status, "no job 'report' has run here" in unknown.errors) == (1, True)
    hourly = ("--window", "hourly")
    assert once(here, *hourly, script="echo 1").output == "1\n"
    assert here("job", "run", "report").status == 0
    assert once(here, *hourly, script="echo 2").output == "2\n"
    assert here("job", "pause", "report").status == 0
    assert here("job", "run", "report").status == 0
    paused = once(here, *hourly, script="echo 3")
    assert (paused.status, paused.output) == (0, "")
    assert "is paused: `tenure job resume` lets it run again" in paused.errors
    assert here("jobs").output.split("\t")[2] == "paused"
    assert here("job", "resume", "report").status == 0
    assert once(here, *hourly, script="echo 3").output == "3\n"
    forgotten = here("job", "forget", "report")
    assert (forgotten.status, forgotten.errors) == (
        0,
        "tenure: the job 'report' was forgotten: the next call runs it.\n",
    )
    assert here("jobs").output == ""
    assert once(here, *hourly, script="echo 4").output == "4\n"


def test_one_key_is_forgotten(here: Here) -> None:
    """The others stay done."""
    for key in ("1", "2"):
        assert once(here, "--key", key, script="echo ran").output == "ran\n"
    assert here("job", "forget", "report", "--key", "1").status == 0
    assert here("job", "forget", "report", "--key", "9").status == 1
    assert once(here, "--key", "1", script="echo ran").output == "ran\n"
    assert once(here, "--key", "2", script="echo ran").output == ""


def test_one_key_is_repeated(here: Here) -> None:
    """Only by its key: without one nothing would run, so the call is refused. The others stay done."""
    for key in ("1", "2"):
        assert once(here, "--key", key, script="echo ran").output == "ran\n"
    keyless = here("job", "run", "report")
    assert (keyless.status, keyless.errors.count("\n")) == (64, 1)
    assert "the job 'report' runs by key: give --key" in keyless.errors
    unknown = here("job", "run", "report", "--key", "9")
    assert (unknown.status, unknown.errors) == (
        1,
        "tenure: no job 'report' has run here for the key 9. See `tenure jobs`.\n",
    )
    repeated = here("job", "run", "report", "--key", "1")
    assert (repeated.status, repeated.errors) == (
        0,
        "tenure: the next call runs the job 'report' again for the key 1.\n",
    )
    assert once(here, "--key", "1", script="echo ran").output == "ran\n"
    assert once(here, "--key", "2", script="echo ran").output == ""


def test_a_repeated_job_is_not_shown_as_done(here: Here) -> None:
    """An operator sees that the next call will run it, until one has."""
    hourly = ("--window", "hourly")
    states: list[str] = []
    once(here, *hourly)
    states.append(here("jobs").output.split("\t")[2])
    here("job", "run", "report")
    states.append(here("jobs").output.split("\t")[2])
    once(here, *hourly, script="exit 3")
    states.append(here("jobs").output.split("\t")[2])
    assert states == ["done", "new", "failed"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--done", "1", "--timeout", "0"),
        ("run", "--done", "1", "--no-wait"),
        ("once", "report", "--key", "1", "--timeout", "0"),
    ],
)
def test_the_timeout_of_the_wait_does_not_bound_the_note_that_it_is_done(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """A store that does not answer once when the command ends is asked again, else the job would run a second time."""
    ran, refused = tmp_path / "ran", list[str]()
    write = SqliteStore.write_cell

    async def flaky(store: SqliteStore, name: str, *write_it: Any) -> Cell:  # noqa: ANN401 - passed on
        if ran.exists() and not refused:
            refused.append(name)
            raise tenure.StoreUnavailable("the store did not answer")
        return await write(store, name, *write_it)

    monkeypatch.setattr(SqliteStore, "write_cell", flaky)
    first = here(*arguments, "-c", f"touch {ran}; echo ran")
    assert (first.status, first.output, len(refused)) == (0, "ran\n", 1), first.errors
    assert here(*arguments, "-c", "echo again").output == ""


def test_a_store_without_cells_refuses(here: Here) -> None:
    """64, and which stores keep jobs."""
    done = here("once", "report", "--key", "1", "--url", "memcached://127.0.0.1:1", "--", "true")
    assert done.status == 64
    assert "keeps no jobs that run once" in done.errors


def test_works_on_a_server(here: Here, redis_server: RedisServer, space: str) -> None:
    """Jobs of two namespaces are apart."""
    for namespace, expected in (("a", "ran\n"), ("b", "ran\n"), ("a", "")):
        options = ("--url", redis_server.url, "--namespace", f"{space}{namespace}")
        assert here("once", "report", "--key", "1", *options, "--", "echo", "ran").output == expected
