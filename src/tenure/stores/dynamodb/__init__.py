"""Locks in a table of Amazon DynamoDB: an item a name, written if it is unchanged."""

from contextlib import suppress
from urllib.parse import SplitResult

from tenure.contracts.store import StoreSource
from tenure.stores.dynamodb.options import deployment_of


def dynamodb_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores in the table of a URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.dynamodb.table import DynamoTable, botocore_data
    from tenure.stores.rows import row_source
    from tenure.stores.rows.bounded import BoundedTable, InThreads

    deployment = deployment_of(parts)
    title = deployment.title
    with suppress(Exception):  # the first request says what is wrong
        botocore_data(deployment.profile)  # here: on a busy machine that takes longer than a request may
    return row_source(
        title,
        lambda: BoundedTable(title, DynamoTable(deployment)),
        lambda: InThreads(title, DynamoTable(deployment)),
        poll=deployment.poll,
    )
