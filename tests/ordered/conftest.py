"""What the tests of stores that stand in order are given."""

import pytest

from tests.ordered.ensembles import Ensemble, Etcds, ZooKeepers
from tests.servers import EtcdEnsemble, ZooKeeperEnsemble


@pytest.fixture(params=["zookeeper", "etcd"])
def ensemble(request: pytest.FixtureRequest) -> Ensemble:
    """Run three servers, of either kind; they are whole."""
    group = request.getfixturevalue(f"{request.param}_ensemble")
    group.mend()
    if request.param == "zookeeper":
        assert isinstance(group, ZooKeeperEnsemble)
        return ZooKeepers(group)
    assert isinstance(group, EtcdEnsemble)
    return Etcds(group)
