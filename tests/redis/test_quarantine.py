"""What people are shown of a quarantined server, and how they end its quarantine."""

import json
from pathlib import Path

import pytest

from holdfast import Client, LockTimeout
from holdfast.cli.app import run_app
from holdfast.core.messages import NameView
from holdfast.stores.quorum.views import view_of
from tests.servers import RedisServer


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command, and return its status, output and errors."""
    capfd.readouterr()
    status = run_app(list(arguments))
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_a_quarantine_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`show`, `ls`, their JSON, `wait` and LockTimeout say that a server is quarantined, and for how long."""
    with RedisServer(tmp_path) as server:
        strict = f"{server.url}?guard=strict&max_ttl=40"
        with Client(strict) as client:
            assert client.inspect("orders").quarantined_for == 40.0  # it would begin now
            with pytest.raises(LockTimeout, match=r"is quarantined: it grants nothing for another (39\.\d|40\.0) s"):
                client.lock("orders").acquire(timeout=0)
            assert 0 < client.inspect("orders").quarantined_for < 40.0  # it has begun
        status, output, errors = run(capfd, "show", "orders", "--url", strict)
        word, left = output.rstrip("\n").split("\t")
        assert (status, word, errors) == (0, "quarantined", "")
        assert 0 < float(left) <= 40
        _, output, _ = run(capfd, "show", "orders", "--json", "--url", strict)
        assert 0 < json.loads(output)["quarantined_for"] <= 40
        status, output, errors = run(capfd, "ls", "--url", strict)
        assert (status, output) == (0, "")
        assert "may have forgotten who holds what" in errors
        status, _, errors = run(capfd, "wait", "orders", "--timeout", "0", "--url", strict)
        assert status == 75
        assert "may have forgotten who holds what" in errors
        assert run(capfd, "show", "orders", "--url", f"{server.url}?guard=off")[1] == "free\n"


def test_a_quorum_is_quarantined_until_enough_of_its_nodes_grant() -> None:
    """Not until the last does: a majority is enough."""
    views = [NameView("orders", 1, 7, quarantined_for=left) for left in (9.0, 0.0, 3.0)]
    assert view_of("orders", views, 2).quarantined_for == 3.0
    assert view_of("orders", views, 1).quarantined_for == 0.0
