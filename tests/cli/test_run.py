"""`tenure run`: statuses, signals, and what happens on loss."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tests.cli.conftest import TEST_TIMEOUT, Command, Done, first_line, until
from tests.servers.redis import RedisServer

Here = Callable[..., Done]

TRAPPER = """
import signal, sys, time
seen = []
def note(number, _):
    seen.append(number)
    print(signal.Signals(number).name, flush=True)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
print("ready", flush=True)
while len(seen) < 6:
    time.sleep(0.01)
sys.exit(5)
"""


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended (a zombie that nobody reaped counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL), ("kill -TERM $$", 128 + signal.SIGTERM)],
)
def test_exits_as_the_command_does(here: Here, script: str, status: int) -> None:
    """The command's status is passed on; 128+N stands for death by signal N."""
    assert here("run", "job", "--", "sh", "-c", script).status == status


def test_exports_token_and_name(here: Here, client: tenure.Client) -> None:
    """The command finds its fencing token, and a later run a larger one."""
    script = 'echo "$TENURE_TOKEN $TENURE_NAME"'
    first = here("run", "job", "--", "sh", "-c", script).output.split()
    second = here("run", "job", "--", "sh", "-c", script).output.split()
    assert first[1] == "job"
    assert int(first[0]) < int(second[0])
    assert client.inspect("job").holders == []


def test_a_given_url_reaches_the_command(here: Here, tmp_path: Path) -> None:
    """What the command itself locks, it locks in the same store."""
    url = f"sqlite://{tmp_path}/other.db"
    assert here("run", "job", "--url", url, "--", "sh", "-c", "echo $TENURE_URL").output.strip() == url


def test_what_cannot_be_run(here: Here, tmp_path: Path, client: tenure.Client) -> None:
    """127: not found; 126: found, and not to be run. Neither leaves the lock held."""
    plain = tmp_path / "plain"
    plain.touch(stat.S_IRUSR)
    missing = here("run", "job", "--", str(tmp_path / "missing"))
    refused = here("run", "job", "--", str(plain))
    assert (missing.status, refused.status) == (127, 126)
    assert missing.errors.count("\n") == refused.errors.count("\n") == 1
    assert client.names() == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["run", "job"], 64),
        (["run", "job", "--bogus", "--", "true"], 64),
        (["run", "job", "--ttl", "soon", "--", "true"], 64),
        (["run", "job", "--ttl", "-1", "--", "true"], 64),
        (["run", "job", "--url", "nosuch://user:hidden@host", "--", "true"], 64),
        (["run", "job", "--url", "sqlite:///no/such/folder/locks.db", "--", "true"], 69),
        (["bogus"], 64),
    ],
)
def test_errors_are_one_line(here: Here, arguments: list[str], status: int) -> None:
    """An error is one line on standard error, with a status of its own, and tells no secret."""
    done = here(*arguments)
    assert done.status == status
    assert done.errors.startswith("tenure: ")
    assert done.errors.count("\n") == 1
    assert "hidden" not in done.errors


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "job", "ls", "-l"], "Write `--` before the command. See `tenure run --help`."),
        (["run", "job"], "See `tenure run --help`."),
        (["bogus"], "See `tenure --help`."),
    ],
)
def test_a_wrong_call_is_told_where_to_read_on(here: Here, arguments: list[str], hint: str) -> None:
    """Whoever forgets `--` is told to write it, and the help that is named is that of the command."""
    assert here(*arguments).errors.endswith(f"{hint}\n")


def test_a_process_exits_with_the_status(command: Command) -> None:
    """A shell sees the same as the tests here, which call a function."""
    done = command.run("bogus")
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("tenure: ")
    assert done.stderr.count("\n") == 1


def test_contradicting_options_are_refused(here: Here) -> None:
    """64 if it is told both to wait and not to wait; the command never runs."""
    done = here("run", "job", "--no-wait", "--timeout", "5", "--", "echo", "ran")
    assert (done.status, done.output) == (64, "")
    assert "contradict" in done.errors


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--no-wait"], "Leave --no-wait or --timeout 0 out to wait for it, or see"),
        (["--timeout", "0"], "Leave --no-wait or --timeout 0 out to wait for it, or see"),
        (["--timeout", "0.1"], "Wait longer, or see"),
    ],
)
def test_who_is_not_granted_it_is_told_by_whom_it_is_held(
    here: Here, client: tenure.Client, options: list[str], advice: str
) -> None:
    """By 75, and what to type to wait for it, or to learn more; the command never runs, and no waiter stays."""
    name = "nightly report"
    with client.lock(name).acquire():
        done = here("run", name, *options, "--", "echo", "ran")
        assert (done.status, done.output) == (75, "")
        assert client.inspect(name).waiters == []
        assert "held by the test" in done.errors
        assert f"{advice} `tenure why '{name}'` for who holds it, who waits" in done.errors
        shown = here("show", name)
    assert shown.output.startswith("holder\tthe test\t")


def test_the_status_of_a_conflict_can_be_chosen(here: Here, client: tenure.Client) -> None:
    """As with flock(1), for jobs to which it is no failure."""
    with client.lock("job"):
        assert here("run", "job", "-n", "-E", "0", "--", "false").status == 0
        assert here("run", "job", "--timeout", "0.1", "--conflict-exit-code", "9", "--", "true").status == 9
    assert here("run", "job", "-E", "9", "--", "true").status == 0


def test_a_script_is_run_by_the_shell(here: Here) -> None:
    """-c takes a script instead of a command and its arguments."""
    assert here("run", "job", "-c", 'echo "$TENURE_NAME" | tr a-z A-Z; exit 3') == Done(3, "JOB\n", "")
    both = here("run", "job", "-c", "true", "--", "true")
    assert (both.status, both.output) == (64, "")


def test_several_names_are_held_at_once(here: Here, client: tenure.Client) -> None:
    """All before `--`; their tokens come in the order in which they were given."""
    names = ["b", "a", "c"]
    tokens = "import os, tenure; c = tenure.Client(); print([c.inspect(n).holders[0].token for n in 'bac'])"
    done = here("run", *names, "-c", f'echo $TENURE_NAME; echo $TENURE_TOKEN; {sys.executable} -c "{tokens}"')
    said, given, held = done.output.splitlines()
    assert said.split() == names
    assert given.split() == held.strip("[]").split(", ")
    assert client.names() == []
    with client.lock("c"):
        assert here("run", *names, "--no-wait", "--", "echo", "ran").status == 75
    assert here("run", *names, "--", "echo", "ran").output == "ran\n"


def test_readers_and_permits(here: Here, client: tenure.Client) -> None:
    """--shared lets readers in beside each other, --exclusive nobody; --permits so many."""
    with client.rwlock("data").read():
        assert here("run", "data", "--shared", "--no-wait", "--", "true").status == 0
        assert here("run", "data", "--exclusive", "--no-wait", "--", "true").status == 75
    with client.rwlock("data").write():
        assert here("run", "data", "-s", "-n", "--", "true").status == 75
    assert here("run", "data", "-x", "-n", "--", "true").status == 0
    with client.semaphore("gpu", 2) as first:
        assert here("run", "gpu", "--permits", "2", "-n", "--", "true").status == 0
        with client.semaphore("gpu", 2):
            assert here("run", "gpu", "--permits", "2", "-n", "--", "true").status == 75
        first.check()


@pytest.mark.parametrize(
    "options",
    [
        ["--shared", "--exclusive"],
        ["--shared", "--permits", "2"],
        ["other", "--shared"],
        ["other", "--min-hold=9"],
        ["--unfair", "-s"],
    ],
)
def test_kinds_of_locks_contradict_each_other(here: Here, options: list[str]) -> None:
    """64, and the command never runs."""
    done = here("run", "job", *options, "--", "echo", "ran")
    assert (done.status, done.output) == (64, "")
    assert done.errors.count("\n") == 1


def test_an_interrupted_wait_leaves_nothing_behind(command: Command, client: tenure.Client) -> None:
    """A signal ends the wait, and the place in the queue with it."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    with client.lock("job").acquire():
        waiting = [command.start("run", "job", "--", "echo", "ran") for _ in numbers]
        until(lambda: len(client.inspect("job").waiters) == len(numbers), "both wait")
        for process, number in zip(waiting, numbers, strict=True):
            process.send_signal(number)
            assert process.wait(TEST_TIMEOUT) == 128 + number
        assert client.inspect("job").waiters == []
    assert client.names() == []


def test_signals_reach_the_command(command: Command, tmp_path: Path) -> None:
    """Signals sent to tenure arrive at the command, and it decides what becomes of them."""
    running = command.start("run", "job", "--", "python3", "-c", TRAPPER)
    assert first_line(running) == "ready"
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        running.send_signal(signal.Signals[name])
        assert first_line(running) == name
    assert running.wait(TEST_TIMEOUT) == 5


def test_a_command_that_dies_of_a_signal(command: Command, client: tenure.Client) -> None:
    """SIGTERM ends the command and all it started; the lock is free at once."""
    running = command.start("run", "job", "--ttl", "60", "--", "sh", "-c", "sleep 60 & echo $!; wait")
    started = int(first_line(running))
    running.send_signal(signal.SIGTERM)
    assert running.wait(TEST_TIMEOUT) == 128 + signal.SIGTERM
    until(lambda: is_gone(started), "what it started is gone")
    assert client.names() == []


def test_loss_ends_the_command(command: Command, client: tenure.Client) -> None:
    """On loss the command is asked to end, may clean up, and the status says what happened."""
    running = command.start(
        "run", "job", "--", "sh", "-c", 'trap "echo bye; exit 0" TERM; echo on; while :; do sleep 0.05; done'
    )
    assert first_line(running) == "on"
    (victim,) = client.revoke("job", force=True)
    output, errors = running.communicate(timeout=TEST_TIMEOUT)
    assert (running.returncode, output) == (76, "bye\n")
    assert str(victim.token) in errors
    assert sum(line.startswith("tenure: ") for line in errors.splitlines()) == 1


def test_loss_ends_the_command_whoever_reads_of_it(command: Command, client: tenure.Client) -> None:
    """The terminal, or the program that read what tenure says, is gone."""
    script = 'exec 2>&-; trap "echo bye; exit 0" TERM; echo on; while :; do sleep 0.05; done'
    running = command.start("run", "job", "--", "sh", "-c", script)
    assert first_line(running) == "on"
    assert running.stdout is not None
    assert running.stderr is not None
    running.stderr.close()
    client.revoke("job", force=True)
    assert running.stdout.read() == "bye\n"
    assert running.wait(TEST_TIMEOUT) == 76


def test_loss_kills_a_command_that_stays(command: Command, client: tenure.Client) -> None:
    """After the grace the whole group is killed, also what ignores SIGTERM."""
    script = 'trap "" TERM; (while :; do sleep 0.05; done) & echo $!; while :; do sleep 0.05; done'
    running = command.start("run", "job", "--grace", "0.2", "--", "sh", "-c", script)
    started = int(first_line(running))
    client.revoke("job", force=True)
    assert running.wait(TEST_TIMEOUT) == 76
    until(lambda: is_gone(started), "what it started is gone")


def test_max_hold_is_a_loss(here: Here) -> None:
    """A command that runs for longer than --max-hold is ended."""
    assert here("run", "job", "--max-hold", "0.1", "--", "sleep", "60").status == 76


def test_a_quick_command_keeps_the_name_for_min_hold(here: Here) -> None:
    """A command that is over at once is not run again within --min-hold."""
    assert here("run", "job", "--min-hold", "20", "--", "true").status == 0
    assert here("run", "job", "--no-wait", "--", "true").status == 75


def test_an_unfair_command_waits_for_the_holder(here: Here, client: tenure.Client) -> None:
    """--unfair is about the waiters alone."""
    with client.lock("job"):
        assert here("run", "job", "--unfair", "--no-wait", "--", "true").status == 75
    assert here("run", "job", "--unfair", "--no-wait", "--", "true").status == 0


def test_a_stopped_tenure_loses_the_lease(command: Command, client: tenure.Client) -> None:
    """Stopped past the ttl, it finds the lease lost when it runs again, and ends the command."""
    running = command.start("run", "job", "--ttl", "0.3", "--", "sh", "-c", "echo on; exec sleep 60")
    assert first_line(running) == "on"
    running.send_signal(signal.SIGSTOP)
    client.lock("job").acquire(timeout=TEST_TIMEOUT).release()
    running.send_signal(signal.SIGCONT)
    assert running.wait(TEST_TIMEOUT) == 76


def test_an_ignored_signal_stays_ignored(command: Command, tmp_path: Path) -> None:
    """Under nohup, SIGHUP ends neither tenure nor the command."""
    before, go_on = signal.signal(signal.SIGHUP, signal.SIG_IGN), tmp_path / "go on"
    script = f"echo on; while ! [ -e '{go_on}' ]; do sleep 0.02; done; echo still here"
    try:
        running = command.start("run", "job", "--", "sh", "-c", script)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert first_line(running) == "on"
    running.send_signal(signal.SIGHUP)
    go_on.touch()
    assert first_line(running) == "still here"
    assert running.wait(TEST_TIMEOUT) == 0


def test_the_command_has_a_group_of_its_own(here: Here) -> None:
    """So that all of it can be ended without ending anyone else."""
    done = here("run", "job", "--", "python3", "-c", "import os; print(os.getpid(), os.getpgrp())")
    pid, group = done.output.split()
    assert pid == group
    assert int(group) != os.getpgrp()
    assert done.status == 0


def test_it_waits_for_a_store_that_is_not_up_yet(command: Command, tmp_path: Path) -> None:
    """Within --timeout: a job that starts before its server does not fail."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = f"redis://127.0.0.1:{port}?guard=off"
        running = command.start("run", "job", "--timeout", f"{TEST_TIMEOUT}", "--url", url, "--", "echo", "ran")
        listener.accept()[0].close()  # it has asked, and there is no server yet
    server = RedisServer(tmp_path, port=port)
    server.start()
    try:
        output, errors = running.communicate(timeout=TEST_TIMEOUT)
    finally:
        server.stop()
    assert (running.returncode, output) == (0, "ran\n"), errors


def test_it_waits_for_no_store_with_no_wait(here: Here) -> None:
    """69, and why."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = here("run", "job", "--no-wait", "--url", f"redis://127.0.0.1:{port}", "--", "true")
    assert (done.status, done.errors.count("\n")) == (69, 1)


AWAY = """
import os, sys, time
os.setpgid(0, os.getpgid(os.getppid()))  # out of the process group that tenure ends
print(os.getpid(), flush=True)
time.sleep(100)
"""
"""A command that leaves its process group."""

CALLS = {"run": ("run", "job"), "once": ("once", "job", "--window", "daily"), "run --done": ("run", "--done", "1")}


def pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """Return the process ids in the next lines that a process prints."""
    return [int(first_line(process)) for _ in range(count)]


@pytest.mark.parametrize("call", CALLS)
def test_a_command_ends_with_tenure(command: Command, client: tenure.Client, call: str) -> None:
    """If tenure is killed, the command and its children are gone before another gets the name."""
    process = command.start(*CALLS[call], "--ttl", "1", "-c", "echo $$; sleep 100 & echo $!; wait")
    running = pids(process, 2)
    process.kill()
    until(lambda: all(map(is_gone, running)), "the command and its child have ended")
    assert process.wait(TEST_TIMEOUT) == -signal.SIGKILL
    until(lambda: not client.names(), "the name is free")


def test_a_command_that_left_its_group_ends_with_tenure(command: Command) -> None:
    """On Linux the kernel kills it."""
    process = command.start("run", "job", "--", sys.executable, "-c", AWAY)
    running = pids(process, 1)
    process.kill()
    until(lambda: is_gone(running[0]), "the command has ended")


GROUP, MOVED, DAEMON = (
    "sleep 100 & echo $!; exec sleep 100",
    f"exec {sys.executable} -c '{AWAY}'",
    "sleep 100 & echo $!",
)

PLANTED = {
    "no watcher": ("child.WATCH = 'read -r end'", GROUP, False),
    "a watcher of the command alone": ("child.WATCH = child.WATCH.replace('-$1', '$1')", GROUP, False),
    "the kernel is not asked": ("launcher.PR_SET_PDEATHSIG = 2", MOVED, False),
    "the end of the command is not told": ("child.os.write = lambda *_: None", DAEMON, True),
}
"""A bug, a command that prints the process that shows it, and whether that shall go on."""

WRONG = """
import pkgutil, sys
from tenure.cli import child, launcher, main
true = pkgutil.get_data
wrong = sys.argv.pop(1)
if wrong.startswith("launcher"):
    pkgutil.get_data = lambda *names: true(*names).replace(b"PR_SET_PDEATHSIG = 1", b"PR_SET_PDEATHSIG = 2")
else:
    exec(wrong)
main()
"""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(command: Command, client: tenure.Client, bug: str) -> None:
    """What the tests here look for happens by what it is meant to happen by: without that, it does not."""
    wrong, script, ends = PLANTED[bug]
    process = subprocess.Popen(
        [sys.executable, "-c", WRONG, wrong, "run", "job", "--ttl", "1", "-c", script],
        env={**os.environ, "TENURE_URL": command.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        shows = pids(process, 1)[0]
        if ends:  # the daemon is killed though the command has ended as it should
            assert process.wait(TEST_TIMEOUT) == 0
            until(lambda: is_gone(shows), "the daemon is killed")
        else:
            process.kill()
            process.wait(TEST_TIMEOUT)
            until(lambda: not client.names(), "the name is free")  # which is later than the command ends otherwise
            assert not is_gone(shows)
            os.kill(shows, signal.SIGKILL)


def test_what_a_command_leaves_behind_goes_on(command: Command) -> None:
    """A daemon that it has started outlives it and tenure."""
    done = command.run("run", "job", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
    daemon = int(done.stdout)
    assert done.returncode == 0
    assert not is_gone(daemon)
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("name", ["TENURE_ODD", "BASH_FUNC_odd%%", "odd.name"])
def test_the_command_gets_the_environment_as_it_is(command: Command, name: str) -> None:
    """Also names that no shell would pass on, and bytes that are no text."""
    script = f"import os, sys; sys.stdout.write(repr(os.environb[{os.fsencode(name)!r}]))"
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "run", "job", "--", sys.executable, "-c", script],
        env={**os.environb, b"TENURE_URL": command.url.encode(), os.fsencode(name): b"a=\xff\n"},
        capture_output=True,
        timeout=TEST_TIMEOUT,
        check=True,
    )
    assert done.stdout == repr(b"a=\xff\n").encode()
