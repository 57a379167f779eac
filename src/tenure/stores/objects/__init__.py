"""Locks in a bucket of an object store: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blobs."""

from functools import partial
from typing import Any
from urllib.parse import SplitResult

from tenure.contracts.store import StoreSource
from tenure.stores.objects.options import bucket_of
from tenure.stores.objects.table import ObjectTable
from tenure.stores.rows import row_source
from tenure.stores.rows.in_loop import InLoop

POLL = 1.0
"""The longest time between two looks of a waiter, in seconds: each look is a request, for which buckets are paid."""


def objects_source(bucket: Any, title: str = "a bucket", *, poll: float = POLL) -> StoreSource:  # noqa: ANN401
    """Return the source of stores in a bucket, for `Client(store=...)` and `AsyncClient(store=...)`.

    Args:
        bucket: a store of obstore, such as `obstore.store.S3Store`, with `retry_config={"max_retries": 0}`: a write
            that obstore repeats by itself may be refused because it was done. Tenure repeats requests.
        title: the store in a few words, without secrets, for errors and `repr`.
        poll: the longest time between two looks of a waiter, in seconds.
    """
    table = partial(ObjectTable, bucket, title)
    return row_source(title, lambda: InLoop(table()), table, poll=poll)


def objects_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores in the bucket of a URL. Raises UsageError if the URL can't be understood."""
    bucket, title, poll = bucket_of(parts)
    return objects_source(bucket, title, poll=POLL if poll is None else poll)
