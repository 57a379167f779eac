"""How the demo reads a log: every line counts, as a hit or as malformed, however odd it is."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.logs import Piece, cut, lines, local_copy, make_up, parse
from demo.tally import Tally, load, wrong_counts

GOOD = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a?b=%22 HTTP/1.1" 200 203 "-" "Agent \\"x\\""'


def test_a_good_line() -> None:
    """Day, visitor, class of status and size are read."""
    hit = parse(GOOD + b"\r\n")
    assert hit is not None
    assert (hit.day, hit.visitor, hit.status, hit.size) == ("2015-05-17", "1.2.3.4", "2xx", 203)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b' "-" "Agent \\"x\\""', b""),
        (b"203", b"-"),
        (b"- -", b"- frank o'hara"),
        (b"1.2.3.4", b"::1"),
        (b"GET /a", b"\xff\xfe\x16\x03"),
        (b"GET /a?b=%22 HTTP/1.1", b""),
        (b"1.2.3.4", b"\xff\xfe"),
    ],
)
def test_odd_lines_that_are_good(old: bytes, new: bytes) -> None:
    """The common format, no size, users with spaces, other addresses, bytes that are no text."""
    assert parse(GOOD.replace(old, new)) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"hello",
        b"\xff\xfe\x00",
        GOOD.replace(b"17/May", b"31/Feb"),
        GOOD.replace(b"May", b"Mai"),
        GOOD.replace(b"2015", b"0000"),
        GOOD.replace(b"200", b"999"),
        GOOD.replace(b"203", b"-203"),
        GOOD.replace(b"203", b"9" * 40),
        GOOD[:40],
    ],
)
def test_malformed_lines(line: bytes) -> None:
    """They are counted, and nothing is raised."""
    tally = Tally()
    tally.add([line])
    assert (tally.malformed, tally.days) == (1, {})


@given(st.binary())
def test_any_bytes_are_read(line: bytes) -> None:
    """No line whatever raises an error."""
    parse(line)


@given(content=st.binary(max_size=400), count=st.integers(1, 12))
def test_pieces_are_the_whole_log(tmp_path_factory: pytest.TempPathFactory, content: bytes, count: int) -> None:
    """However a log is cut, its pieces hold every line once, whole and in order."""
    log = tmp_path_factory.mktemp("log") / "access.log"
    log.write_bytes(content)
    whole = list(lines(log, Piece(0, len(content))))
    assert [line for piece in cut(log, count) for line in lines(log, piece)] == whole
    assert b"".join(whole) == content


def test_a_made_up_log_is_the_same_each_time(tmp_path: Path) -> None:
    """It has several days, some malformed lines, and no chance in it."""
    log, again = make_up(tmp_path / "a", 2000), make_up(tmp_path / "b", 2000)
    assert log.read_bytes() == again.read_bytes()
    tally = Tally()
    tally.add(lines(log, Piece(0, log.stat().st_size)))
    assert len(tally.days) == 5
    assert 0 < tally.malformed < 50
    assert tally.hits() + tally.malformed == 2000


def test_a_packed_log_is_unpacked(tmp_path: Path) -> None:
    """A .gz is read as what is in it, and one that is cut off is an error."""
    packed = tmp_path / "access.log.gz"
    packed.write_bytes(gzip.compress(GOOD * 100))
    assert local_copy(packed, tmp_path).read_bytes() == GOOD * 100
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(EOFError):
        local_copy(packed, tmp_path)


def test_a_tally_survives_the_record() -> None:
    """What is written is what is read, also of visitors that are no text."""
    tally = Tally()
    tally.add([GOOD, GOOD.replace(b"1.2.3.4", b"\xff\x80"), b"bad"])
    tally.batches.add(3)
    assert load(tally.dump()) == tally


def test_every_count_is_compared() -> None:
    """A count that is off by one is found, whichever it is, as is a day too many or too few."""
    truth, found = Tally(), Tally()
    truth.add([GOOD, b"bad"])
    found.add([GOOD, b"bad"])
    assert wrong_counts(truth, found) == []
    day = found.days["2015-05-17"]
    day.hits, day.bytes, day.visitors, found.malformed = 2, 204, {"5.6.7.8"}, 0
    day.status["2xx"] = 2
    found.days["2015-05-18"] = day
    wrong = "\n".join(wrong_counts(truth, found))
    for what in ("hits 2, but in truth 1", "bytes 204", "status", "other ones", "malformed", "2015-05-18"):
        assert what in wrong
