"""A session opens its store once."""

from holdfast import Client
from holdfast.runtimes.threads import drive
from holdfast.stores.memory import MemoryTable, memory_source
from tests.etcd.scenes import Meanwhile


def test_a_store_is_opened_once_however_many_come_first() -> None:
    """Also if another thread opens it between a look and the decision to do so."""
    table = MemoryTable()
    with Client(store=memory_source(table)) as client:
        session = client.session()
        session._opening._mutex = Meanwhile(lambda: drive(session.open()))
        drive(session.open())
        assert len(table._inboxes) == 1
    assert table._inboxes == {}
