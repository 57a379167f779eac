"""Locks in a table of Amazon DynamoDB: an item a name, written if it is unchanged."""

from urllib.parse import SplitResult

from tenure.contracts.store import StoreSource
from tenure.stores.dynamodb.options import deployment_of


def dynamodb_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores in the table of a URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.dynamodb.table import DynamoTable
    from tenure.stores.rows import row_source
    from tenure.stores.rows.bounded import BoundedTable, InThreads

    deployment = deployment_of(parts)
    title = deployment.title
    return row_source(
        title,
        lambda: BoundedTable(title, DynamoTable(deployment)),
        lambda: InThreads(title, DynamoTable(deployment)),
        poll=deployment.poll,
    )
