"""What docs/cli.md and docs/operate.md show happens: scripts print what follows them, tables name what there is."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import tenure
from tenure.cli import output, run_app
from tenure.cli.commands import COMMANDS
from tenure.cli.output import Status
from tenure.contracts.messages import HolderView, NameView, WaiterView

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
OPERATE = (PAGE.parent / "operate.md").read_text("utf-8")
ALL_BLOCKS = BLOCKS + re.findall(r"^```(\w+)\n(.*?)^```$", OPERATE, re.MULTILINE | re.DOTALL)
SCRIPTS = [(shell, script, told) for (shell, script), (kind, told) in pairwise(ALL_BLOCKS) if kind == "text"]


@pytest.mark.parametrize(("shell", "script", "told"), SCRIPTS, ids=range(len(SCRIPTS)))
def test_every_script_prints_what_follows_it(shell: str, script: str, told: str, tmp_path: Path) -> None:
    """And fails nowhere."""
    done = subprocess.run(
        [shell, "-eu", "-c", script],
        env={
            **os.environ,
            "TENURE_URL": f"sqlite://{tmp_path}/locks.db",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, told), done.stderr


def test_every_script_is_followed_by_what_it_prints() -> None:
    """None is left out."""
    assert len(SCRIPTS) == sum(language in {"sh", "bash"} for language, _ in ALL_BLOCKS) > 5


def test_every_status_is_documented() -> None:
    """In one table, and nothing else stands there."""
    table = TEXT.partition("## What it exits with")[2]
    told = {int(number) for number in re.findall(r"^\| (\d+) ", table, re.MULTILINE)}
    assert told == {*(status.value for status in Status)}


def test_every_field_of_json_is_documented() -> None:
    """As it is printed; a field that is gone, or has another name, would break a script."""
    holder, waiter = HolderView("me", 7, 1, 1.0, 2.0, 3.0), WaiterView("me", 1, 1.0, alive=True)
    printed = output.name_json(NameView("name", 1, 7, [holder], [waiter]))
    for what, fields in (("name", printed), ("holder", printed["holders"][0]), ("waiter", printed["waiters"][0])):
        (row,) = re.findall(rf"^\| a {what} \| (.*) \|$", TEXT, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(fields)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On the page, and in its own help with the statuses that it exits with."""
    first, *second = command.split()
    assert f"`tenure {command}" in TEXT or f"`{second[0]}`" in TEXT.partition(f"`tenure {first} ")[2]
    assert run_app([first, *second, "--help"]) == 0
    assert "Exits with" in " ".join(capsys.readouterr().out.split())


def test_every_link_leads_somewhere() -> None:
    """No link of the page leads nowhere."""
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


def test_json_is_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a command that names several things, a list."""
    url = f"sqlite://{tmp_path}/locks.db"
    with tenure.Client(url) as client, client.lock("orders"):
        for arguments in (["ls"], ["show", "orders"], ["revoke", "orders"], ["wait", "other"]):
            assert run_app([*arguments, "--json", "--url", url]) == 0
            found = json.loads(capsys.readouterr().out)
            assert isinstance(found, list) == (arguments[0] in {"ls", "revoke"})
