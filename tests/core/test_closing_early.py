"""A client that is closed while another thread uses it for the first time."""

import threading
from dataclasses import replace

import pytest

from tenure import Client, UsageError
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store

PATIENCE = 20.0


def test_a_client_that_is_closed_while_its_session_begins_stays_closed() -> None:
    """To begin a session may take long, because it may import the store. It must not outlive `close`."""
    client = Client("memory://")
    begins, closed = threading.Event(), threading.Event()
    source = client._source

    def make(runtime: Runtime) -> Store:
        begins.set()
        assert closed.wait(PATIENCE)
        return source.make(runtime)

    def close() -> None:
        assert begins.wait(PATIENCE)
        client.close()
        closed.set()

    client._source = replace(source, make=make)
    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(UsageError, match="closed"):
        client.lock("name").acquire(timeout=0)
    closing.join(PATIENCE)
    assert client._session is None
