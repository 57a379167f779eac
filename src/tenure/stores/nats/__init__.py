"""The NATS store: rows in a key-value bucket of JetStream, written if their revision is unchanged."""

from functools import partial
from urllib.parse import SplitResult

from tenure.contracts.store import StoreSource
from tenure.stores.nats.options import deployment_of


def nats_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a NATS URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.nats.bucket import Bucket
    from tenure.stores.rows import row_source
    from tenure.stores.rows.in_loop import InLoop

    deployment = deployment_of(parts)
    bucket = partial(Bucket, deployment)
    return row_source(deployment.title(), lambda: InLoop(bucket()), bucket)
