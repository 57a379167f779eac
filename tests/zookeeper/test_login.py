"""Who logs in may keep others out."""

import pytest

from tenure.errors import StoreError, StoreUnavailable
from tests.servers import ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, World, let_read


def test_what_is_private_is_refused_to_others(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """With acl=creator only the same login may see and change; others are told so at once, and no password."""
    private = f"{zookeeper_server.url}/private"
    url = private.replace("://", "://me:se%40cret@")
    one, two = member(url, acl="creator"), member(url, acl="creator")
    one.join("private", "a1")
    assert two.requests("private") == ["a1"]
    for stranger in (private, url.replace("se%40cret", "wrong")):
        with pytest.raises(StoreError, match="lacks a permission") as caught:
            member(stranger)
        assert not isinstance(caught.value, StoreUnavailable)
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made yet"])
def test_who_may_only_read_is_told_what_is_missing(world: World, zookeeper_server: ZooKeeperServer, made: bool) -> None:
    """The error names the permissions, and the node where they are needed; and no password."""
    reader = Member(world, zookeeper_server.url.replace("://", "://reader:secret@") + f"/made-{made}")
    root = reader.directory._nodes.root
    let_read(zookeeper_server, root if made else root.removesuffix("/tenure"), "reader", "secret")
    with pytest.raises(StoreError) as caught:
        reader.open()
    reader.close()
    assert not isinstance(caught.value, StoreUnavailable)
    assert f"read, write, create and delete at {root} and below" in str(caught.value)
    assert "secret" not in str(caught.value)
