"""What the tests of the etcd directory are given."""

import pytest

from tests.etcd.scenes import Run, run_asyncio, run_threads


@pytest.fixture(params=[run_threads, run_asyncio], ids=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scene in either colour."""
    runner: Run = request.param
    return runner


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses."""
    return f"{request.node.name}/ä%"
