"""A table of DynamoDB as a table of rows: conditions, lost replies, errors, and what it costs."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import CredentialRetrievalError, SSLError
from botocore.loaders import JSONFileLoader
from botocore.parsers import ResponseParserError

import tenure
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from tenure.stores.dynamodb import table as module
from tenure.stores.dynamodb.options import deployment_of
from tenure.stores.dynamodb.table import DynamoTable
from tenure.stores.rows import Row
from tenure.stores.urls import store_source
from tenure_testing.conformance.kit import Kit
from tests.dynamodb.gateway import Gateway, Says, gateway_to
from tests.faults.scenes import API_FORMS, client_at
from tests.faults.scenes import play as play_form
from tests.planting import module_with
from tests.rows.forking import assert_a_forked_child_has_connections_of_its_own
from tests.servers import DynamoServer, Proxy

LONG = 20.0


@dataclass(slots=True)
class World:
    """A table of a test alone, and two ways to it."""

    server: DynamoServer
    gateway: Gateway
    proxy: Proxy
    name: str

    @property
    def url(self) -> str:
        """The URL of the table."""
        return self.server.url_behind(self.server.port, self.name)

    @property
    def url_noted(self) -> str:
        """The URL behind the gateway."""
        return self.server.url_behind(self.gateway.port, self.name)

    @property
    def url_lossy(self) -> str:
        """The URL behind the proxy that loses replies."""
        return self.server.url_behind(self.proxy.address[1], self.name)


@pytest.fixture
def world(dynamodb_server: DynamoServer, tmp_path: Path) -> Iterator[World]:
    """Make a table."""
    dynamodb_server.make_table(tmp_path.name)
    with gateway_to(dynamodb_server) as gateway, Proxy(dynamodb_server.address) as proxy:
        yield World(dynamodb_server, gateway, proxy, tmp_path.name)


Make = Callable[[str], DynamoTable]
Scene = Callable[[World, Make], None]


def play(scene: Scene, world: World, source: Any = module) -> None:  # noqa: ANN401 - a module, maybe with a bug
    """Play a scene; close its tables."""
    made: list[DynamoTable] = []

    def make(url: str) -> DynamoTable:
        made.append(source.DynamoTable(deployment_of(urlsplit(url))))
        return made[-1]

    try:
        scene(world, make)
    finally:
        for each in made:
            each.close()


# -- a table is a table of rows ----------------------------------------------------------------------------------


def rows_are_rows(world: World, make: Make) -> None:
    """Write only what is unchanged, and find what is not there absent."""
    rows = make(world.url)
    assert rows.read("lock.a", LONG) == Row()
    first = rows.write("lock.a", b"1", None, LONG)
    assert first is not None
    assert rows.write("lock.a", b"2", None, LONG) is None
    second = rows.write("lock.a", b"2", first, LONG)
    assert second not in {None, first}
    assert rows.write("lock.a", b"3", first, LONG) is None
    assert rows.read("lock.a", LONG) == Row(b"2", second)
    assert rows.write("lock.none", b"1", second, LONG) is None
    assert rows.read("lock.none", LONG) == Row()


def versions_are_new(world: World, make: Make) -> None:
    """Refuse a write on a version of an item that was deleted and made again."""
    rows = make(world.url)
    first = rows.write("lock.a", b"1", None, LONG)
    world.server.ask("DeleteItem", TableName=world.name, Key={"key": {"S": "lock.a"}})
    assert rows.write("lock.a", b"2", first, LONG) is None
    assert rows.read("lock.a", LONG) == Row()
    assert rows.write("lock.a", b"3", None, LONG)
    assert rows.write("lock.a", b"4", first, LONG) is None
    assert rows.read("lock.a", LONG).value == b"3"


def keys_are_listed(world: World, make: Make) -> None:
    """Keys come in the order of their bytes, from a place on, also when DynamoDB answers in pages."""
    rows = make(world.url)
    for key in ("cell.a", "lock.A", "lock.ab", "lock.b", "lock.c", "zzz", "lock.a"):
        rows.write(key, bytes(300_000), None, LONG)  # a page has a megabyte
    assert rows.keys("lock.", "", 99, LONG) == ["lock.A", "lock.a", "lock.ab", "lock.b", "lock.c"]
    assert rows.keys("lock.a", "", 99, LONG) == ["lock.a", "lock.ab"]
    assert rows.keys("lock.", "lock.a", 2, LONG) == ["lock.ab", "lock.b"]


def reads_are_consistent(world: World, make: Make) -> None:
    """Ask for what the last write left: by default DynamoDB may answer what was before."""
    rows = make(world.url_noted)
    rows.read("lock.a", LONG)
    rows.keys("lock.", "", 9, LONG)
    asked = [*world.gateway.of("GetItem"), *world.gateway.of("Scan")]
    assert [each.get("ConsistentRead") for each in asked] == [True, True]


# -- replies that are lost ---------------------------------------------------------------------------------------


def lost_reply(world: World, make: Make) -> None:
    """Find a write done whose reply was lost: it is sent again, refused, and recognised."""
    rows = make(world.url_lossy)
    first = rows.write("lock.a", b"1", None, LONG)
    world.proxy.swallow(containing=b"PutItem")
    second = rows.write("lock.a", b"2", first, LONG)
    assert rows.read("lock.a", LONG) == Row(b"2", second)
    world.proxy.swallow(containing=b"PutItem")
    made = rows.write("lock.b", b"1", None, LONG)
    assert rows.read("lock.b", LONG) == Row(b"1", made)
    world.proxy.swallow(containing=b"GetItem")
    assert rows.read("lock.b", LONG) == Row(b"1", made)


def lost_race(world: World, make: Make) -> None:
    """Do not say what became of a write that was repeated, if another has written since."""
    rows, other = make(world.url_lossy), make(world.url)
    first = rows.write("lock.a", b"1", None, LONG)
    assert other.write("lock.a", b"other", first, LONG)
    world.proxy.swallow(containing=b"PutItem")
    with pytest.raises(OutcomeUnknown, match="was not answered"):
        rows.write("lock.a", b"2", first, LONG)
    assert rows.read("lock.a", LONG).value == b"other"


def lost_for_good(world: World, make: Make) -> None:
    """Do not say that a write was not done if no reply comes at all."""
    rows = make(world.url_lossy)
    first = rows.write("lock.a", b"1", None, LONG)
    world.proxy.swallow(None, containing=b"PutItem")
    with pytest.raises((OutcomeUnknown, TimeoutError)):  # the second counts as unknown, too
        rows.write("lock.a", b"2", first, 0.5)
    assert rows.read("lock.a", LONG).value == b"2"


def silence(world: World, make: Make) -> None:
    """End a call in its time though nobody answers, and go on when somebody does."""
    rows = make(world.url_lossy)
    assert rows.read("lock.a", LONG) == Row()
    world.proxy.blackhole()
    with pytest.raises((StoreUnavailable, TimeoutError)):
        rows.read("lock.a", 0.2)
    world.proxy.heal()
    assert rows.read("lock.a", LONG) == Row()


def told_nothing(world: World, make: Make) -> None:
    """After an error of the service itself look whether the write was done."""
    rows = make(world.url_noted)
    first = rows.write("lock.a", b"1", None, LONG)
    world.gateway.errors = [Says("PutItem", 500, "InternalServerError", done=True)]
    second = rows.write("lock.a", b"2", first, LONG)
    assert rows.read("lock.a", LONG) == Row(b"2", second)
    world.gateway.errors = [
        Says("PutItem", 500, "InternalServerError", done=True),
        Says("PutItem", 400, "ThrottlingException"),
    ]
    with pytest.raises(OutcomeUnknown):
        rows.write("lock.a", b"3", second, LONG)
    world.gateway.errors = [Says("GetItem", 503, "ServiceUnavailable")]
    assert rows.read("lock.a", LONG).value == b"3"


def cut_reply(world: World, make: Make) -> None:
    """Take a reply that is cut for one that did not come, and not for a row that is not there."""
    rows = make(world.url_noted)
    first = rows.write("lock.a", b"1", None, LONG)
    world.gateway.cuts = ["GetItem"]
    assert rows.read("lock.a", LONG) == Row(b"1", first)
    named = rows.write("lock." + 500 * "é", b"", None, LONG)
    world.gateway.cuts = ["GetItem", "GetItem"]
    assert rows.read("lock." + 500 * "é", LONG) == Row(b"", named)
    world.server.ask("DeleteItem", TableName=world.name, Key={"key": {"S": "lock." + 500 * "é"}})
    world.gateway.cuts = ["Scan"]
    assert rows.keys("lock.", "", 9, LONG) == ["lock.a"]
    world.gateway.cuts = ["PutItem"]
    second = rows.write("lock.a", b"2", first, LONG)
    assert rows.read("lock.a", LONG) == Row(b"2", second)
    world.gateway.cuts = ["PutItem"]
    with pytest.raises(OutcomeUnknown, match="was not answered"):  # the refusal was cut
        rows.write("lock.a", b"3", first, LONG)
    assert not world.gateway.cuts


def page_of_a_stranger(world: World, make: Make) -> None:
    """Take no page of something between for the reply to a write, which never arrived."""
    rows = make(world.url_noted)
    world.gateway.pages = ["PutItem"]
    first = rows.write("lock.a", b"1", None, LONG)
    world.gateway.pages = ["GetItem"]
    assert rows.read("lock.a", LONG) == Row(b"1", first)


STRANGE = (
    (b"<html>Log in to use this network.</html>", module.REPLY_TYPE),
    (b"{}", "application/json"),
    (b"[]", module.REPLY_TYPE),
    (b"null", module.REPLY_TYPE),
    (b'{"Item": [], "Items": 5, "Attributes": [1]}', module.REPLY_TYPE),
    (b'{"Item": {"value": {"B": "a"}}, "Items": [{"key": {"B": "a"}}], "Attributes": 5}', module.REPLY_TYPE),
)
"""Replies of something else, and their types."""


def reply_of_a_stranger(world: World, make: Make) -> None:
    """Nor anything else that DynamoDB does not say, whatever its form is."""
    rows = make(world.url_noted)
    first = rows.write("lock.a", b"1", None, LONG)
    for world.gateway.page, world.gateway.page_type in STRANGE:
        world.gateway.pages = ["GetItem", "Scan", "PutItem"]
        assert rows.read("lock.a", LONG) == Row(b"1", first)
        assert rows.keys("lock.", "", 9, LONG) == ["lock.a"]
        first = rows.write("lock.a", b"1", first, LONG)
    world.gateway.pages = [*["GetItem"] * 99, *["PutItem"] * 99, "Scan"]
    with pytest.raises(StoreUnavailable, match="none of DynamoDB's"):
        rows.read("lock.a", 0.3)
    with pytest.raises(OutcomeUnknown, match="none of DynamoDB's"):
        rows.write("lock.a", b"2", first, 0.3)
    world.gateway.page, world.gateway.page_type = b"{}", module.REPLY_TYPE
    with pytest.raises(StoreUnavailable, match="none of DynamoDB's"):
        rows.keys("lock.", "", 9, LONG)


def told_by_botocore(world: World, make: Make) -> None:
    """Do not say that a write was not done whose reply was lost, if its repetition fails before it is sent."""
    rows = make(world.url_noted)
    first = rows.write("lock.a", b"1", None, LONG)
    failures: list[Exception | None] = [None, CredentialRetrievalError(provider="assume-role", error_msg="a-secret")]

    def fail(**_: object) -> None:
        if failures and (failure := failures.pop(0)) is not None:
            raise failure

    rows._made.meta.events.register("before-send.dynamodb.PutItem", fail)
    world.gateway.errors = [Says("PutItem", 500, "InternalServerError", done=True)]
    with pytest.raises(OutcomeUnknown, match="was not answered"):
        rows.write("lock.a", b"2", first, LONG)
    failures.append(SSLError(endpoint_url="https://localhost", error="a-secret"))
    with pytest.raises(OutcomeUnknown, match="was not answered") as failed:
        rows.write("lock.a", b"3", None, LONG)
    assert "a-secret" not in str(failed.value)


def closed_meanwhile(world: World, make: Make) -> None:
    """Nor if the table is closed before it is repeated."""
    rows = make(world.url_noted)
    rows.read("lock.a", LONG)

    def close(**_: object) -> None:
        rows.close()

    rows._made.meta.events.register("after-call.dynamodb.PutItem", close)
    world.gateway.errors = [Says("PutItem", 500, "InternalServerError", done=True)]
    with pytest.raises(OutcomeUnknown, match="is closed"):
        rows.write("lock.a", b"1", None, LONG)


SCENES = (
    rows_are_rows,
    versions_are_new,
    keys_are_listed,
    reads_are_consistent,
    lost_reply,
    lost_race,
    lost_for_good,
    silence,
    told_nothing,
    cut_reply,
    page_of_a_stranger,
    reply_of_a_stranger,
    told_by_botocore,
    closed_meanwhile,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_table_is_a_table_of_rows(scene: Scene, world: World) -> None:
    """Whatever is lost on the way."""
    play(scene, world)


PLANTED: dict[str, tuple[str, str, Scene]] = {
    "any version": ('"#version = :version"', '"attribute_exists(#version) OR #version = :version"', rows_are_rows),
    "a row that is there": (
        '"attribute_not_exists(#key)"',
        '"attribute_not_exists(#key) OR attribute_exists(#key)"',
        rows_are_rows,
    ),
    "versions are counted": ("mine = uuid.uuid4().hex", "mine = str(int(version or 0) + 1)", versions_are_new),
    "old reads": ('Key={"key": {"S": key}}, ConsistentRead=True', 'Key={"key": {"S": key}}', reads_are_consistent),
    "the first page": ('if "LastEvaluatedKey" not in reply:', "if True:", keys_are_listed),
    "keys from the beginning": (" if key > after", "", keys_are_listed),
    "a done write counts as refused": (
        'if refused.item.get("version") == item["version"]:',
        "if False:",
        lost_reply,
    ),
    "a repeated write counts as refused": ("if refused.repeated:", "if False:", lost_race),
    "the first copy is forgotten": ('lost = lost or operation == "put_item"', "lost = False", told_nothing),
    "botocore repeats": ('"total_max_attempts": 1', '"total_max_attempts": 3', lost_race),
    "a reply that is cut is read": ("json.loads(http_response.content)", "pass", cut_reply),
    "a refusal that is cut is read": ("status) == REFUSED or", "status) and", cut_reply),
    "a page is read": ("http_response.status_code) == REFUSED or status < OTHER", "0)", reply_of_a_stranger),
    "a reply of another type is read": ("if status < OTHER and", "if False and", reply_of_a_stranger),
    "the parser of botocore is trusted": (
        "(ResponseParserError, AttributeError, TypeError, ValueError)",
        "(ResponseParserError, ValueError)",
        reply_of_a_stranger,
    ),
    "a scan without items is none": ('if "Items" not in reply:', "if False:", reply_of_a_stranger),
    "a repetition that was not sent": ("if lost or (operation", "if (operation", told_by_botocore),
    "TLS breaks only before a request": ("isinstance(error, SSLError)", "False", told_by_botocore),
    "a write when the client was closed": ("self._client(lost=lost)", "self._client(lost=False)", closed_meanwhile),
    "an error of the service is a refusal": (">= INTERNAL:", ">= 10 * INTERNAL:", told_nothing),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, world: World) -> None:
    """Each is one that a maintainer could bring in; a scene fails."""
    right, wrong, scene = PLANTED[bug]
    with pytest.raises(
        (AssertionError, LookupError, AttributeError, StoreError, ResponseParserError, pytest.fail.Exception)
    ):
        play(scene, world, module_with(module, (right, wrong)))


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("ProvisionedThroughputExceededException", StoreUnavailable, "ProvisionedThroughput"),
        ("RequestLimitExceeded", StoreUnavailable, "RequestLimit"),
        ("AccessDeniedException", StoreError, "must allow dynamodb:GetItem, dynamodb:PutItem and dynamodb:Scan"),
        ("ExpiredTokenException", StoreError, "renew them"),
        ("InvalidSignatureException", StoreError, "the clock of this machine"),
        ("SomethingNewException", StoreError, "SomethingNewException"),
    ],
)
@pytest.mark.parametrize("operation", ["GetItem", "PutItem"])
def test_an_error_says_whether_to_repeat(
    operation: str, code: str, kind: type[StoreError], says: str, world: World
) -> None:
    """What was throttled was not done; what is not allowed will not be. Texts that may hold a token are not shown."""
    world.gateway.errors = [Says(operation, 400, code, "x-amz-security-token:a-secret" * (says != code))]

    def scene(world: World, make: Make) -> None:
        rows = make(world.url_noted)
        with pytest.raises(StoreError, match=says) as failed:
            rows.read("a", LONG) if operation == "GetItem" else rows.write("a", b"1", None, LONG)
        assert type(failed.value) is kind
        assert failed.value.__cause__ is None
        assert failed.value.__suppress_context__
        if code != "AccessDeniedException":
            assert "a-secret" not in str(failed.value)

    play(scene, world)


def test_a_table_that_is_not_there_says_how_to_make_it(world: World) -> None:
    """By one command, with the region."""
    url = world.server.url_behind(world.server.port, "not-there")
    with tenure.Client(url) as client, pytest.raises(StoreError) as failed:
        client.lock("a").try_acquire()
    assert "aws dynamodb create-table --table-name not-there --billing-mode PAY_PER_REQUEST" in str(failed.value)
    assert "--region us-east-1" in str(failed.value)


def test_another_table_is_refused(world: World) -> None:
    """One with another key, and one with items of others."""
    attribute = {"AttributeName": "id"}
    name = f"{world.name}-other"
    world.server.ask(
        "CreateTable",
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{**attribute, "AttributeType": "S"}],
        KeySchema=[{**attribute, "KeyType": "HASH"}],
    )
    world.server.ask("PutItem", TableName=world.name, Item={"key": {"S": "lock.a"}, "of": {"S": "others"}})

    def scene(world: World, make: Make) -> None:
        with pytest.raises(StoreError, match="ValidationException"):
            make(world.server.url_behind(world.server.port, name)).read("lock.a", LONG)
        with pytest.raises(StoreError, match="a table of their own"):
            make(world.url).read("lock.a", LONG)

    play(scene, world)


def test_a_row_that_is_too_large_says_so(world: World) -> None:
    """Before it is sent. The emulator takes less than DynamoDB, so this does not show that no more is refused."""

    def scene(world: World, make: Make) -> None:
        rows = make(world.url_noted)
        with pytest.raises(StoreError, match="400 KB"):
            rows.write("lock.a", bytes(module.LARGEST + 1), None, LONG)
        assert not world.gateway.requests

    play(scene, world)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Take the region and the credentials out of the environment."""
    for each in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(each)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "name the region"),
        ("?region=us-east-1", "set AWS_ACCESS_KEY_ID"),
        ("?region=us-east-1&profile=not-there", "no profile of this name"),
    ],
)
def test_what_is_missing_is_named(options: str, says: str, bare: pytest.MonkeyPatch) -> None:
    """The region, the credentials or the profile."""
    with tenure.Client(f"dynamodb://locks{options}") as client, pytest.raises(StoreError, match=says):
        client.lock("a").try_acquire()


def test_credentials_and_the_region_come_from_where_they_do_for_all_programs(
    world: World, bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a profile, and from the variable that containers have."""
    (tmp_path / "credentials").write_text("[locks]\naws_access_key_id = any\naws_secret_access_key = a-secret\n")
    (tmp_path / "config").write_text("[profile locks]\nregion = us-east-1\n")
    url = world.url.replace("region=us-east-1&", "")
    with tenure.Client(f"{url}&profile=locks") as client, client.lock("a"):
        assert "a-secret" not in repr(client)
    bare.setenv("AWS_REGION", "us-east-1")
    bare.setenv("AWS_ACCESS_KEY_ID", "any")
    bare.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    with tenure.Client(url) as client, client.lock("a"):
        pass


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dynamodb://", "names a table"),
        ("dynamodb://key:a-secret@locks", "takes no login"),
        ("dynamodb://localhost:8000/locks", "another server is an option"),
        ("dynamodb://locks/more", "names a table"),
        ("dynamodb://locks?regoin=a", "did you mean region"),
        ("dynamodb://locks?region=US East", "must be a region"),
        ("dynamodb://locks?endpoint=localhost:8000", "must be a URL"),
        ("dynamodb://locks?endpoint=http://a:a-secret@host", "must be a URL"),
        ("dynamodb://locks?endpoint=http://host:99999", "must be a URL"),
        ("dynamodb://locks?secret_access_key=a-secret", "is not an option"),
        ("dynamodb://locks?poll=0", "must be from 0.05"),
        ("dynamodb:locks", "two slashes"),
    ],
)
def test_wrong_urls_are_refused(url: str, says: str) -> None:
    """Nothing of them is repeated that may be a secret."""
    with pytest.raises(UsageError, match=says) as failed:
        store_source(url)
    assert "a-secret" not in str(failed.value)


# -- clients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("removed", ["attribute_not_exists", "#version"])
def test_a_proxy_that_removes_a_condition_is_refused(removed: str, world: World) -> None:
    """By the first client that wants a lock, and by the doctor; without it both find nothing."""
    with tenure.Client(world.url_noted) as client, client.lock("through", timeout=100):
        assert client.examine().sound
    world.gateway.removes = removed
    with tenure.Client(world.url_noted) as client:
        with pytest.raises(StoreError, match="It takes the condition that a row must"):
            client.lock("a").acquire(timeout=100)
        assert [each.id for each in client.examine().findings] == ["table-conditions"]


def test_costs_are_as_the_page_says(world: World) -> None:
    """A pair is two writes from the second time on; a look is one read."""
    with tenure.Client(world.url_noted) as client:
        lock = client.lock("costs")
        for _ in range(2):
            with lock:
                pass
        world.gateway.requests.clear()
        with lock:
            pass
        assert [operation for operation, _ in world.gateway.requests] == ["PutItem", "PutItem"]
        world.gateway.requests.clear()
        client.inspect("costs")
        assert [operation for operation, _ in world.gateway.requests] == ["GetItem"]
        world.gateway.requests.clear()
        assert client.names() == []
        assert [operation for operation, _ in world.gateway.requests] == ["Scan", "GetItem"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(world: World) -> None:
    """Those of the parent stay the parent's."""
    assert_a_forked_child_has_connections_of_its_own(world.url)


def test_a_first_use_imports_nothing(world: World) -> None:
    """A fork meanwhile would leave the child with a module that is never imported to its end."""
    script = (
        "import sys, tenure\nclient = tenure.Client(sys.argv[1])\nbefore = set(sys.modules)\n"
        "with client.lock('a'): pass\nprint(*sorted(set(sys.modules) - before))\nclient.close()\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, world.url], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip() == ""


@pytest.mark.parametrize("form", API_FORMS)
def test_a_first_request_reads_no_file_of_botocore(form: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are read when a client is made: on a busy machine that takes longer than one request may."""
    read = list[str]()
    load = JSONFileLoader.load_file

    def note(self: JSONFileLoader, file_path: str) -> Any:  # noqa: ANN401 - of botocore
        read.append(file_path)
        return load(self, file_path)

    async def scene(kit: Kit) -> None:
        module.botocore_data.cache_clear()
        client = client_at(kit, world.url)
        assert read
        read.clear()
        await client.lock("a").acquire(timeout=LONG)  # the server may take longer for its first request, too
        assert not read

    monkeypatch.setattr(JSONFileLoader, "load_file", note)
    play_form(form, world.url, scene)


def test_a_call_after_the_end_connects_no_more(world: World) -> None:
    """A renewal may be under way while its client closes; no thread is left."""
    before = set(threading.enumerate())
    table = DynamoTable(deployment_of(urlsplit(world.url)))
    assert table.read("lock.a", LONG) == Row()
    table.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        table.read("lock.a", LONG)
    for each in set(threading.enumerate()) - before:
        each.join(LONG)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("form", API_FORMS)
def test_no_update_is_lost_though_replies_are(form: str, world: World) -> None:
    """Clients add under a lock and to a counter, while every fourth reply to a write is lost."""
    tokens = list[int]()
    inside = list[int]()

    async def scene(kit: Kit) -> None:
        clients = [client_at(kit, world.url_lossy, operation_timeout=LONG) for _ in range(3)]

        async def work(number: int) -> None:
            for _ in range(5):
                lease = await clients[number].lock("a", ttl=60, timeout=60).acquire()
                assert not inside
                inside.append(number)
                tokens.append(lease.token)
                await clients[number].counter("adds").add(1)
                inside.remove(number)
                await lease.release()

        world.proxy.swallow(None, probability=0.25, containing=b"PutItem")
        for each in [kit.start(partial(work, number)) for number in range(3)]:
            await each.result()
        assert await clients[0].counter("adds").get() == 15

    play_form(form, world.url, scene)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 15
    assert world.proxy.counts.swallowed
