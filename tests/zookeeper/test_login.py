"""Who logs in may keep others out."""

import pytest

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.testing.servers import ZooKeeperServer
from tests.zookeeper.conftest import MakeMember


def test_what_is_private_is_refused_to_others(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """With acl=creator only the same login may see and change; others are told so at once, and no password."""
    private = f"{zookeeper_server.url}/private"
    url = private.replace("://", "://me:se%40cret@")
    one, two = member(url, acl="creator"), member(url, acl="creator")
    one.join("private", "a1")
    assert two.requests("private") == ["a1"]
    for stranger in (private, url.replace("se%40cret", "wrong")):
        with pytest.raises(StoreError, match="may not do that") as caught:
            member(stranger)
        assert not isinstance(caught.value, StoreUnavailable)
        assert "cret" not in str(caught.value)
