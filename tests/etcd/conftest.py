"""What the tests of the etcd directory are given."""

from pathlib import Path

import pytest

from tests.etcd.scenes import Run, run_asyncio, run_threads


@pytest.fixture(params=[run_threads, run_asyncio], ids=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scene in threads or in asyncio."""
    runner: Run = request.param
    return runner


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Return a name that no other test uses."""
    return f"{tmp_path.name}/ä%"
