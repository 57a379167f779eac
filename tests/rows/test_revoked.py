"""A table that tells of no changes: what a holder is told whose lease somebody has revoked."""

import pytest

import tenure
from tenure.stores.rows import row_source
from tests.rows.tables import DictTable, Rows


def test_a_holder_that_hears_of_nothing_is_told_of_a_revocation_by_its_renewal() -> None:
    """Nobody else has the name: only the token that has grown says that it was taken away."""
    rows = Rows()
    source = row_source("a dict", lambda: DictTable(rows))
    with tenure.Client(store=source) as client, tenure.Client(store=source) as operator:
        lease = client.lock("name", ttl=60).acquire()
        operator.revoke("name", force=True)
        with pytest.raises(tenure.LeaseLost, match="revoked by force"):
            lease.extend()
        assert not operator.inspect("name").holders
