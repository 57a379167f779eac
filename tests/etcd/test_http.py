"""What is read of HTTP is what h11 reads of it, however it comes; what h11 does not take, we do not take."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.stores.etcd.http import EtcdReply, EtcdRequest, HttpConversation, piece
from tenure.transport.errors import BROKEN
from tenure.transport.link import ServerAddress

ADDRESS = ServerAddress("server", 2379)

TEXTS = st.text(max_size=20)

BODIES = st.dictionaries(TEXTS, st.integers() | TEXTS | st.lists(TEXTS, max_size=3), max_size=3)
"""Small ones: what is read of HTTP are bytes, whatever JSON they hold."""

HEADERS = st.sampled_from([(b"Grpc-Metadata", b"\xe4"), (b"X-Empty", b""), (b"Date", b"Sun, 22 Nov")])

ASK = EtcdRequest("kv/txn", b'{"compare":[]}')


def said_by_h11(body: bytes, parts: Sequence[int], headers: Sequence[tuple[bytes, bytes]], *, chunked: bool) -> bytes:
    """Return an answer as h11 writes it; chunked, in parts of these lengths."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(HttpConversation(ADDRESS).pack(ASK))
    while not isinstance(server.next_event(), h11.EndOfMessage):
        pass
    length = (b"Transfer-Encoding", b"chunked") if chunked else (b"Content-Length", str(len(body)).encode())
    said = server.send(h11.Response(status_code=200, headers=[*headers, length])) or b""
    for part in parts if chunked else ():
        data, body = body[:part], body[part:]
        said += (server.send(h11.Data(data)) or b"") if data else b""
    said += (server.send(h11.Data(body)) or b"") if body else b""
    return said + (server.send(h11.EndOfMessage()) or b"")


def read_by_h11(said: bytes) -> tuple[int, bytes, bool] | None:
    """Return the status and the body of an answer, and whether the connection goes on; None if it is none."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/v3/kv/txn", headers=[("Host", "server"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(said)
    client.receive_data(b"")
    status, body = 0, b""
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None
    return status, body, client.their_state is h11.DONE and not client.trailing_data[0]


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut something somewhere."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=8)
PARTS = st.lists(st.integers(0, 40), max_size=6)


@given(BODIES, PARTS, st.lists(HEADERS, max_size=3), st.booleans(), CUTS)
def test_an_answer_is_read_however_it_comes(
    body: dict[str, Any], parts: list[int], headers: list[tuple[bytes, bytes]], chunked: bool, cuts: list[int]
) -> None:
    """Whole or in pieces, with a length or in chunks; it is complete with its last byte, and another one may follow."""
    conversation = HttpConversation(ADDRESS)
    for _ in range(2):
        conversation.pack(ASK)
        *pieces, last = in_pieces(said_by_h11(json.dumps(body).encode(), parts, headers, chunked=chunked), cuts)
        for each in pieces:
            conversation.feed(each)
            assert conversation.reply() is None
            assert not conversation.goes_on()
        conversation.feed(last)
        assert conversation.reply() == EtcdReply(200, body)
        assert conversation.goes_on()


@given(st.lists(st.tuples(BODIES, PARTS, st.booleans()), min_size=2, max_size=4), CUTS)
def test_answers_that_are_owed_come_before_the_one_that_is_waited_for(
    answers: list[tuple[dict[str, Any], list[int], bool]], cuts: list[int]
) -> None:
    """Each goes to the one that it is for, however they come; the connection goes on while no other answer is due."""
    conversation, heard = HttpConversation(ADDRESS), list[EtcdReply | None]()
    *owed, _ = expected = [EtcdReply(200, body) for body, _, _ in answers]
    for _ in owed:
        conversation.pack(ASK)
        assert not conversation.goes_on()
        conversation.owed.append(heard.append)
        assert conversation.goes_on()
    conversation.pack(ASK)
    said = b"".join(
        said_by_h11(json.dumps(body).encode(), parts, [], chunked=chunked) for body, parts, chunked in answers
    )
    for each in in_pieces(said, cuts):
        assert not conversation.goes_on()
        conversation.feed(each)
        if (reply := conversation.reply()) is not None:
            heard.append(reply)
    assert heard == expected
    assert conversation.goes_on()


def test_an_answer_that_is_owed_may_be_the_last() -> None:
    """Then the one that is due behind it never comes, and the server does not carry its request out."""
    conversation, heard = HttpConversation(ADDRESS), list[EtcdReply | None]()
    conversation.pack(ASK)
    conversation.owed.append(heard.append)
    conversation.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert conversation.reply() is None
    assert heard == [EtcdReply(200, {})]
    assert not conversation.goes_on()
    conversation.pack(ASK)
    conversation.feed(b"")
    with pytest.raises(ConnectionResetError):
        conversation.reply()


@given(
    BODIES, PARTS, st.booleans(), CUTS, st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=2)), max_size=8)
)
@example({}, [], False, [], [(9, b"1")])
def test_what_is_no_http_is_taken_for_none(
    body: dict[str, Any], parts: list[int], chunked: bool, cuts: list[int], changes: list[tuple[int, bytes]]
) -> None:
    """Of an answer in which bytes were changed, either h11 reads the same or it breaks the connection."""
    said = bytearray(said_by_h11(json.dumps(body).encode(), parts, [(b"Date", b"today")], chunked=chunked))
    for place, bits in changes:
        said[place % len(said) : place % len(said) + 1] = bits
    conversation = HttpConversation(ADDRESS)
    conversation.pack(ASK)
    try:
        answer = None
        for each in [*in_pieces(bytes(said), cuts), b""]:
            conversation.feed(each)
            if (answer := conversation.reply()) is not None:
                break
    except BROKEN:
        return
    theirs = read_by_h11(bytes(said))
    assert answer is not None
    assert theirs is not None
    assert (answer.status, answer.said) == (theirs[0], json.loads(theirs[1]))


@given(st.lists(BODIES, max_size=3), PARTS, CUTS)
def test_a_stream_is_an_object_a_line(bodies: list[dict[str, Any]], parts: list[int], cuts: list[int]) -> None:
    """Whatever chunks they come in; its end is an error, and all that was said before that is told."""
    lines = b"".join(json.dumps(body).encode() + b"\n" for body in bodies)
    conversation = HttpConversation(ADDRESS)
    conversation.begin(ASK)
    told: list[Any] = []

    def hear() -> None:
        for each in [*in_pieces(said_by_h11(lines, parts, [], chunked=True), cuts), b""]:
            conversation.feed(each)
            while (reply := conversation.reply()) is not None:
                told.append(reply.said)

    with pytest.raises(ConnectionResetError):
        hear()
    assert told == bodies
    assert not conversation.goes_on()


@given(st.binary(min_size=1), st.binary(min_size=1), st.sampled_from(["", "a-token"]))
def test_what_is_said_is_read_by_h11(first: bytes, second: bytes, token: str) -> None:
    """A request with its body, and one whose body goes on."""
    server = h11.Connection(h11.SERVER)
    conversation = HttpConversation(ADDRESS)
    server.receive_data(conversation.pack(EtcdRequest("kv/txn", first, token)))
    request, data, end = server.next_event(), server.next_event(), server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (b"POST", b"/v3/kv/txn")
    assert dict(request.headers).get(b"authorization", b"") == token.encode()
    assert isinstance(data, h11.Data)
    assert data.data == first
    assert isinstance(end, h11.EndOfMessage)
    server = h11.Connection(h11.SERVER)
    server.receive_data(conversation.begin(EtcdRequest("watch", b"", token)) + piece(first) + piece(second))
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert dict(request.headers)[b"connection"] == b"close"
    said = b""
    while isinstance(event := server.next_event(), h11.Data):
        said += event.data
    assert said == first + second
    assert event is h11.NEED_DATA


def test_a_connection_that_is_to_be_closed_does_not_go_on() -> None:
    """Be it said, or an old server, or an answer without an end, or more than was asked for."""
    for head, more in [
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2", b""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2", b"HTTP"),
    ]:
        conversation = HttpConversation(ADDRESS)
        conversation.pack(ASK)
        conversation.feed(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head + b"\r\n\r\n{}" + more)
        assert conversation.reply() == EtcdReply(200, {})
        assert not conversation.goes_on()
    conversation = HttpConversation(ADDRESS)
    conversation.pack(ASK)
    conversation.feed(b"HTTP/1.1 200\r\n\r\n{}")
    assert conversation.reply() is None
    conversation.feed(b"")
    assert conversation.reply() == EtcdReply(200, {})
    assert not conversation.goes_on()


@pytest.mark.parametrize(
    "without_end", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n1;"]
)
def test_a_head_without_an_end_is_not_kept(without_end: bytes) -> None:
    """A server cannot fill the memory by a line that goes on and on."""
    conversation = HttpConversation(ADDRESS)
    conversation.pack(ASK)
    conversation.feed(without_end)
    assert conversation.reply() is None
    conversation.feed(b"x" * 100_000)
    with pytest.raises(BROKEN):
        conversation.reply()


def test_a_token_cannot_add_headers() -> None:
    """Whoever answers a login must not say what else we ask for."""
    with pytest.raises(BROKEN):
        HttpConversation(ADDRESS).pack(EtcdRequest("kv/txn", b"", "token\r\nX: y"))
