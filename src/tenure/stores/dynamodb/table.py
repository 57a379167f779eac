"""A table of DynamoDB as a table of rows: an item a row, written if it has its version still.

The version of a row is a text that is drawn anew for each write. So none comes again, also when somebody deletes an
item and its name is used anew; and it names the write that it came with.

A write whose reply was lost is sent again, and refused if its first copy was done. The refusal brings the item, and its
version says whether that was so. botocore would repeat a write too, but report the refusal alone: its retries are off.
"""

import json
import os
import threading
import time
import uuid
from functools import cache
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.escaping import shown
from tenure.stores.dynamodb.options import DynamoDeployment
from tenure.stores.rows import Row
from tenure.stores.rows.bounded import MOST

ATTEMPT = 1.0
"""How long one attempt of a request waits for a connection, and then for each part of the reply, in seconds."""

PAUSE = 0.1
"""How long to wait before a request is sent again, in seconds."""

LARGEST = 400 * 1024 - 1024
"""The largest value of an item, in bytes: DynamoDB takes 400 KB with the key and the names of the attributes."""

NOT_DONE = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
}
"""The errors after which nothing was done, and the same request may be answered later."""

REPLY_TYPE = "application/x-amz-json-1.0"
"""The type of all replies of DynamoDB that refuse nothing."""

STRANGE = "a reply was none of DynamoDB's"

NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)

TOLD = {"AccessDeniedException", "ValidationException"}
"""The errors whose text is shown. That of a wrong signature repeats the request with its session token."""

INTERNAL = 500
"""From this status of HTTP on, a reply does not say whether a write was done."""

OTHER = 300
"""From this status on, a reply does not come from DynamoDB, but for REFUSED and from INTERNAL on."""

REFUSED = 400
"""The status of a reply that refuses a request."""

HINTS = {
    "AccessDeniedException": "a policy must allow dynamodb:GetItem, dynamodb:PutItem and dynamodb:Scan on the table",
    "ExpiredTokenException": "the credentials have ended; renew them",
    "InvalidSignatureException": "check the secret key, and the clock of this machine",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile as ?profile=locks, or give "
    "the machine a role",
    "NoRegionError": "name the region as ?region=eu-central-1, or set AWS_REGION",
    "ProfileNotFound": "the files of the user have no profile of this name",
    "UnrecognizedClientException": "check the access key, and whether it is of an account that has this region",
}
"""What to do after an error."""


@cache
def botocore_data(profile: str | None) -> Any:  # noqa: ANN401 - of botocore
    """Return a loader of botocore that has read all files of which a client is made: megabytes of JSON.

    It makes such a client, which has neither looked for credentials nor for its region, so nothing is connected.
    """
    session = botocore.session.Session(profile=profile)
    session.create_client(
        "dynamodb",
        region_name="us-east-1",
        aws_access_key_id="-",
        aws_secret_access_key="-",  # noqa: S106 - given, so that none are looked for
        config=Config(defaults_mode="legacy"),  # another mode may ask the machine for its region
    ).close()
    return session.get_component("data_loader")


class _RefusedError(Exception):
    """The condition of a write was not met."""

    def __init__(self, item: dict[str, Any], *, repeated: bool) -> None:
        super().__init__()
        self.item = item
        self.repeated = repeated
        """Whether the write was sent before, and that copy may have been done."""


class DynamoTable:
    """The rows of a table, by a client of botocore.

    To look up a host or credentials may take any time, whatever the timeout of a call is.
    """

    def __init__(self, deployment: DynamoDeployment) -> None:
        """Use a table, which must exist."""
        self._deployment = deployment
        self._making = threading.Lock()
        self._made: Any = None
        self._closed = False

    def read(self, key: str, timeout: float) -> Row:
        """Return a row; `Row()` if there is none."""
        item = self._send("get_item", timeout, Key={"key": {"S": key}}, ConsistentRead=True).get("Item")
        if item is None:
            return Row()
        try:
            return Row(item["value"]["B"], item["version"]["S"])
        except KeyError:
            raise StoreError(
                f"an item of {self._deployment.title} is none of Tenure's: give the locks a table of their own"
            ) from None

    def write(self, key: str, value: bytes, version: str | None, timeout: float) -> str | None:
        """Write a row if it has this version still; return its new version, or None."""
        if len(value) > LARGEST:
            raise StoreError(
                f"a row of {len(value)} bytes is more than DynamoDB takes (400 KB): have fewer clients wait for a name"
            )
        mine = uuid.uuid4().hex
        item = {"key": {"S": key}, "value": {"B": value}, "version": {"S": mine}}
        condition: dict[str, Any] = {
            "ConditionExpression": "#version = :version",
            "ExpressionAttributeNames": {"#version": "version"},
            "ExpressionAttributeValues": {":version": {"S": version}},
        }
        if version is None:
            condition = {
                "ConditionExpression": "attribute_not_exists(#key)",
                "ExpressionAttributeNames": {"#key": "key"},
            }
        try:
            self._send("put_item", timeout, Item=item, ReturnValuesOnConditionCheckFailure="ALL_OLD", **condition)
        except _RefusedError as refused:
            if refused.item.get("version") == item["version"]:  # an earlier copy of it was done
                return mine
            if refused.repeated:
                why = "a write was not answered, and others have written the row since"
                raise self._unavailable(why, lost=True) from None
            return None
        return mine

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return up to `most` keys that begin with `prefix` and follow `after`. DynamoDB reads all rows for that."""
        found, until = list[str](), time.monotonic() + timeout
        page: dict[str, Any] = {
            "ConsistentRead": True,
            "ProjectionExpression": "#key",
            "FilterExpression": "begins_with(#key, :prefix)",
            "ExpressionAttributeNames": {"#key": "key"},
            "ExpressionAttributeValues": {":prefix": {"S": prefix}},
        }
        while True:
            reply = self._send("scan", until - time.monotonic(), **page)
            if "Items" not in reply:
                raise self._unavailable(STRANGE, lost=False)
            found += [each["key"]["S"] for each in reply["Items"]]
            if "LastEvaluatedKey" not in reply:
                return sorted(key for key in found if key > after)[:most]
            page["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        if self._made is not None:
            self._made.close()

    def _send(self, operation: str, timeout: float, **request: Any) -> dict[str, Any]:  # noqa: ANN401 - as DynamoDB names it
        """Send a request until it is answered. Raises _RefusedError if the condition of a write is not met."""
        lost, why, until = False, "no time was left", time.monotonic() + timeout
        while time.monotonic() < until:
            try:
                send = getattr(self._client(lost=lost), operation)
                reply: dict[str, Any] = send(TableName=self._deployment.table, **request)
                return reply
            except ClientError as error:
                why = self._judge(error, lost=lost)
            except NOT_SENT as error:
                why = type(error).__name__
                if not lost:
                    raise self._unavailable(f"it cannot be reached ({why})", lost=False) from None
            except HTTPClientError as error:
                why = type(error).__name__
            except BotoCoreError as error:
                why = type(error).__name__
                if lost or (operation == "put_item" and isinstance(error, SSLError)):  # TLS may break at the reply
                    raise self._unavailable(f"a write was not answered ({why})", lost=True) from None
                kind = StoreUnavailable if isinstance(error, CredentialRetrievalError) else StoreError
                raise self._failed(kind, why, HINTS.get(why)) from None
            except (ResponseParserError, AttributeError, TypeError, ValueError):  # of the parser of botocore
                if self._made is None:
                    raise
                why = STRANGE
            lost = lost or operation == "put_item"
            time.sleep(max(0.0, min(PAUSE, until - time.monotonic())))
        raise self._unavailable(f"it did not answer in time ({why})", lost=lost)

    def _judge(self, error: ClientError, *, lost: bool) -> str:
        """Raise what an error means; if it does not say whether a write was done, return its name."""
        code = str(error.response["Error"].get("Code"))
        if code == "ConditionalCheckFailedException":
            raise _RefusedError(error.response.get("Item") or {}, repeated=lost) from None
        if code in NOT_DONE:
            raise self._unavailable(f"it refused a request ({code})", lost=lost) from None
        if error.response["ResponseMetadata"].get("HTTPStatusCode", 0) >= INTERNAL:
            return code
        if lost:
            raise self._unavailable(f"a write was not answered, and then refused ({code})", lost=True) from None
        hint = HINTS.get(code)
        if code == "ResourceNotFoundException" and self._made is not None:  # else it is about credentials
            hint = (
                f"there is no such table in {self._made.meta.region_name}, or not yet; make it by `{self._command()}`"
            )
        if code in TOLD:
            code += f": {shown(str(error.response['Error'].get('Message')))}"
        raise self._failed(StoreError, code, hint) from None

    def _command(self) -> str:
        """Return the command that makes the table."""
        where = self._deployment
        return (
            f"aws dynamodb create-table --table-name {where.table} --billing-mode PAY_PER_REQUEST "
            "--attribute-definitions AttributeName=key,AttributeType=S --key-schema AttributeName=key,KeyType=HASH "
            f"--region {self._made.meta.region_name}{f' --endpoint-url {where.endpoint}' if where.endpoint else ''}"
        )

    def _client(self, *, lost: bool) -> Any:  # noqa: ANN401 - botocore makes its class when it runs
        """Return the client; the first caller makes it. `lost`: whether a write that was sent may have been done."""
        with self._making:
            if self._made is None and not self._closed:
                self._made = self._make()
            made = self._made
        if self._closed:
            if made is not None:
                made.close()
            raise self._unavailable("the client is closed; make a new one", lost=lost)
        return made

    def _make(self) -> Any:  # noqa: ANN401
        where = self._deployment
        session = botocore.session.Session(profile=where.profile)
        session.register_component("data_loader", botocore_data(where.profile))
        region = where.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
        config = Config(
            connect_timeout=ATTEMPT,
            read_timeout=ATTEMPT,
            max_pool_connections=MOST,
            retries={"total_max_attempts": 1, "mode": "standard"},
            user_agent_extra="tenure",
        )
        made = session.create_client("dynamodb", region_name=region, endpoint_url=where.endpoint, config=config)
        made.meta.events.register("after-call.dynamodb", _refuse_parts)
        return made

    def _unavailable(self, why: str, *, lost: bool) -> StoreError:
        kind = OutcomeUnknown if lost else StoreUnavailable
        return kind(f"{self._deployment.title}: {why}.")

    def _failed(self, kind: type[StoreError], why: str, hint: str | None) -> StoreError:
        return kind(f"a request to {self._deployment.title} failed ({why}){': ' * bool(hint)}{hint or ''}.")


def _refuse_parts(http_response: Any, **_: object) -> None:  # noqa: ANN401 - of botocore
    """Raise ValueError for a reply that is not whole, or not DynamoDB's: botocore takes it for an empty one.

    It was cut, or something between has answered.
    """
    if (status := http_response.status_code) == REFUSED or status < OTHER:
        json.loads(http_response.content)
    if status < OTHER and http_response.headers.get("content-type") != REPLY_TYPE:
        raise ValueError(STRANGE)
