"""An emulator of DynamoDB, moto."""

import http.client
import json
import sys
from pathlib import Path
from typing import ClassVar

from tests.servers.ports import LOCALHOST
from tests.servers.server import Server

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "a-secret"}
"""What programs that use it have in their environment; it takes any."""

CREDENTIAL = "Credential=any/20260101/us-east-1/dynamodb/aws4_request"


class DynamoServer(Server):
    """One emulator with a table, `locks`. It keeps its tables in its memory: killed, it forgets them."""

    title: ClassVar[str] = "emulator of DynamoDB"

    @property
    def url(self) -> str:
        """The URL for clients, which look often."""
        return self.url_behind(self.port)

    def url_behind(self, port: int, table: str = "locks") -> str:
        """Return the URL of a table behind a proxy."""
        return f"dynamodb://{table}?region=us-east-1&endpoint=http://{LOCALHOST}:{port}&poll=0.05"

    def make_table(self, name: str) -> bool:
        """Make a table as the page says; return False if it is there."""
        key = {"AttributeName": "key"}
        made = self.ask(
            "CreateTable",
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{**key, "AttributeType": "S"}],
            KeySchema=[{**key, "KeyType": "HASH"}],
        )
        return "TableDescription" in made

    def ask(self, operation: str, **request: object) -> dict[str, object]:
        """Send a request, and return the reply."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 {CREDENTIAL}, SignedHeaders=host, Signature=0",
        }
        try:
            connection.request("POST", "/", json.dumps(request), headers)
            said: dict[str, object] = json.loads(connection.getresponse().read())
            return said
        finally:
            connection.close()

    def _command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("emulator.py")), str(self.port)]

    def _answers(self) -> bool:
        try:
            self.make_table("locks")
        except (http.client.HTTPException, ValueError):
            return False
        return True
