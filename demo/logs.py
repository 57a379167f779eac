"""Access logs: the parser of a line, the division of a log into batches, and an invented log as the default.

The rule: everything is read as bytes, for a log contains whatever clients sent, in any encoding. A line that is not in
the common or combined format is counted as malformed, and is never an error.
"""

import datetime as dt
import gzip
import itertools
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}

LINE = re.compile(
    rb"""(?P<visitor>\S+)[ ]\S+[ ][^\["]+[ ]\[
    (?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):\d\d:\d\d:\d\d[ ][+-]\d{4}\][ ]
    "(?:[^"\\]|\\.)*"[ ](?P<status>[1-5])\d\d[ ](?P<size>\d{1,18}|-)(?:[ ].*)?""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class Hit:
    """The fields of a line that are counted."""

    day: str
    visitor: str
    status: str
    size: int


def parse(line: bytes) -> Hit | None:
    """Return the fields of a line of a log, or None if the line is malformed."""
    found = LINE.fullmatch(line.rstrip(b"\r\n"))
    if found is None:
        return None
    try:
        day = dt.date(int(found["year"]), MONTHS[found["month"]], int(found["day"]))
    except (KeyError, ValueError):
        return None
    size = 0 if found["size"] == b"-" else int(found["size"])
    return Hit(
        day.isoformat(), found["visitor"].decode("utf-8", "surrogateescape"), f"{found['status'].decode()}xx", size
    )


@dataclass(slots=True)
class Piece:
    """Some whole lines of a log: their position, and their size in bytes."""

    start: int
    size: int


def lines(path: Path, piece: Piece) -> Iterator[bytes]:
    """Read the lines of a piece."""
    with path.open("rb") as file:
        file.seek(piece.start)
        left = piece.size
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            yield line


def cut(path: Path, count: int) -> list[Piece]:
    """Divide a log, in its present length, into at most `count` pieces of about the same size."""
    end = path.stat().st_size
    bounds = [0]
    with path.open("rb") as file:
        for number in range(1, count):
            file.seek(max(bounds[-1], end * number // count))
            file.readline()
            bounds.append(min(file.tell(), end))
    bounds.append(end)
    return [Piece(start, stop - start) for start, stop in itertools.pairwise(bounds) if stop > start]


def local_copy(log: Path, folder: Path) -> Path:
    """Return a log that can be divided: the log itself, or a copy in `folder` if it is packed or no ordinary file.

    Raises OSError or EOFError if the log can't be read.
    """
    packed = log.suffix == ".gz"
    if log.is_file() and not packed:
        log.open("rb").close()
        return log
    copy = folder / "access.log"
    with (gzip.open if packed else open)(log, "rb") as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target)
    return copy


def make_up(path: Path, count: int = 4000, seed: int = 1) -> Path:
    """Write a log of `count` lines over five days, some of them malformed. The same seed makes the same log."""
    chance = random.Random(seed)  # noqa: S311 - the log must be repeatable, not secret
    with path.open("wb") as file:
        file.writelines(_made_up_line(chance, number, count) for number in range(count))
    return path


def _made_up_line(chance: random.Random, number: int, count: int) -> bytes:
    if chance.random() < 0.005:  # noqa: PLR2004 - one in two hundred
        return chance.choice(
            [b"\n", b"\xff\xfe not a log line\n", b'10.0.0.1 - - [99/Foo/2024] "GET / HTTP/1.1" 200 1\n']
        )
    second = number * 5 * 86400 // count
    moment = dt.datetime(2024, 3, 4, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    host = f"10.0.{chance.randrange(4)}.{int(chance.paretovariate(0.5)) % 200}"
    status = chance.choice([200] * 12 + [304, 304, 301, 404, 500])
    size = "-" if status == 304 else str(chance.randrange(200, 60000))  # noqa: PLR2004 - "not modified"
    page = f"/page/{chance.randrange(50)}"
    when = f"{moment:%d}/Mar/{moment:%Y:%H:%M:%S} +0000"
    return f'{host} - - [{when}] "GET {page} HTTP/1.1" {status} {size} "-" "Made-Up/1.0"\n'.encode()
