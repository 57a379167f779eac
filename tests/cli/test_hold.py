"""`tenure lock`: a name is held while the standard input is open."""

import json
import signal
from collections.abc import Callable

import pytest

import tenure
from tests.cli.conftest import TEST_TIMEOUT, Command, Done, first_line, until


def test_it_holds_until_its_input_ends(command: Command, client: tenure.Client) -> None:
    """It prints the name and the token once it is held, and 0 says that it let go."""
    holding = command.start("lock", "job")
    name, token = first_line(holding).split("\t")
    (holder,) = client.inspect("job").holders
    assert (name, int(token)) == ("job", holder.token)
    holding.communicate("the input is discarded\n", timeout=TEST_TIMEOUT)
    assert holding.returncode == 0
    assert client.inspect("job").holders == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_go(command: Command, client: tenure.Client, number: signal.Signals) -> None:
    """128+N, and the name is free at once."""
    holding = command.start("lock", "job", "--ttl", "60")
    first_line(holding)
    holding.send_signal(number)
    assert holding.wait(TEST_TIMEOUT) == 128 + number
    assert client.names() == []


def test_it_tells_of_a_loss(command: Command, client: tenure.Client) -> None:
    """76, though its input is still open."""
    holding = command.start("lock", "job")
    first_line(holding)
    client.revoke("job", force=True)
    assert holding.wait(TEST_TIMEOUT) == 76
    assert holding.stderr is not None
    assert holding.stderr.read().count("\n") == 1


def test_it_says_that_it_was_asked_to_let_go(command: Command, client: tenure.Client) -> None:
    """One line on standard error; it goes on."""
    holding = command.start("lock", "job")
    first_line(holding)
    assert holding.stderr is not None
    client.revoke("job")
    told = holding.stderr.readline()
    assert told == "tenure: `tenure revoke` asks this process to release 'job'; end this process to release it.\n"
    assert len(client.inspect("job").holders) == 1


def test_several_names_are_held_together(command: Command, client: tenure.Client) -> None:
    """All or none; as JSON it is one document."""
    holding = command.start("lock", "b", "a", "--json")
    until(lambda: client.names() == ["a", "b"], "both are held")
    output, _ = holding.communicate(timeout=TEST_TIMEOUT)
    assert [(each["name"], each["token"] > 0) for each in json.loads(output)] == [("a", True), ("b", True)]


def test_without_any_input_it_ends_at_once(command: Command, client: tenure.Client) -> None:
    """A job of cron has no input: it is granted the name and lets go."""
    done = command.run("lock", "job")
    assert done.returncode == 0
    assert done.stdout.startswith("job\t")


def test_what_is_held_is_refused(here: Callable[..., Done], client: tenure.Client) -> None:
    """75, or the status that -E gives."""
    with client.lock("job"):
        assert here("lock", "job", "--no-wait").status == 75
        assert here("lock", "job", "-n", "-E", "5").status == 5
