"""docs/compatibility.md says what was tested: its tables are what the script makes, of servers that were started."""

from pathlib import Path

import pytest

from scripts.compatibility import PAGE, SERVERS, clients, pythons, servers
from tests.servers import RedisServer, versions
from tests.servers.redis import find_program, version

TEXT = PAGE.read_text("utf-8")


def test_the_packages_and_pythons_are_those_of_the_project() -> None:
    """A changed pin or bound changes the page."""
    assert clients() in TEXT
    assert pythons() in TEXT


def test_a_server_that_starts_tells_its_version(redis_server: RedisServer) -> None:
    """The file has what the program said, and its row is made of that."""
    program = Path(find_program())
    said = (versions.FOLDER / program.name).read_text("utf-8")
    assert ".".join(map(str, version(str(program)))) in said


def test_no_row_is_made_of_a_server_that_was_not_started(tmp_path: Path) -> None:
    """The script names what is missing; each server has its row on the page."""
    for program in SERVERS:
        (tmp_path / program).write_text(f"{program} Version: 7.11.3-alpha (2026)", "utf-8")
    table = servers(tmp_path)
    assert all(f"| {title} | 7.11.3 |\n" in table for title in SERVERS.values())
    assert all(f"\n| {title} | " in TEXT for title in SERVERS.values())
    (tmp_path / "etcd").unlink()
    with pytest.raises(SystemExit, match="etcd"):
        servers(tmp_path)
