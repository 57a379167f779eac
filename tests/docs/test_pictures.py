"""The pictures of the protocol in docs/ are what the present code does, and stale ones are found."""

import functools
import re
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts import pictures
from tests.simulated.mutants import MUTANTS

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
NAMES = [f"picture-{name}.svg" for name in pictures.PICTURES]


@functools.cache
def present() -> dict[str, str]:
    """Return the pictures of the present code, which are drawn once."""
    return pictures.pictures()


def stale(folder: Path) -> list[str]:
    """Return the pictures in a folder that are not those of the present code."""
    return [name for name, drawn in present().items() if (folder / name).read_text("utf-8") != drawn]


def leases(name: str) -> list[tuple[str, float, float, int]]:
    """Return the leases in a picture from left to right: the lane, the begin, the end, and the end of the token."""
    root = ET.fromstring((DOCS / name).read_text("utf-8"))  # noqa: S314 - made here
    lanes = {int(each.attrib["y"]): each.text or "" for each in root.iter(f"{SVG}text") if len(each.attrib) == 2}
    found: list[tuple[str, float, float, int]] = []
    for bar in root.iter(f"{SVG}rect"):
        if bar.attrib["class"] in {"tenure", "next"}:
            begin, lane = float(bar.attrib["x"]), lanes[int(bar.attrib["y"]) + 12]
            token = int(re.sub(r".*\u2026", "", "".join(bar.itertext())))
            found.append((lane, begin, begin + float(bar.attrib["width"]), token))
    return sorted(found, key=lambda each: (each[1], each[0]))


def test_the_pictures_are_what_the_present_code_does() -> None:
    """Run `.venv/bin/python -m scripts.pictures`, and look at the pictures, if this fails."""
    assert stale(DOCS) == []


def test_the_pictures_show_what_their_pages_say() -> None:
    """In the order of the queue, with rising tokens; in one step; after a loss; by a majority."""
    queued = leases("picture-queue.svg")
    assert [lane for lane, *_ in queued] == [f"client {letter}" for letter in "ABCDE"]
    for name, lanes in (("queue", "client"), ("hand-off", "store"), ("lost-lease", "store"), ("quorum", "node 1")):
        shown = [each for each in leases(f"picture-{name}.svg") if each[0].startswith(lanes)]
        for (_, _, end, token), (_, begin, _, larger) in pairwise(shown):
            assert (begin >= end - 0.11, larger > token) == (True, True)
    (_, _, ends, _), (_, begins, _, _) = (each for each in leases("picture-hand-off.svg") if each[0] == "store")
    assert abs(ends - begins) < 0.11
    first, _ = (each[3] for each in leases("picture-lost-lease.svg") if each[0] == "store")
    assert f"\u2026{first:07} is refused" in (DOCS / "picture-lost-lease.svg").read_text("utf-8")
    granted = max(token for *_, token in leases("picture-quorum.svg"))
    voters = [lane for lane, _, _, token in leases("picture-quorum.svg") if token == granted]
    assert sorted(voters) == ["client B", "node 1", "node 2", "node 3"]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_with_another_token_is_stale(name: str, tmp_path: Path) -> None:
    """And no other picture is."""
    for each in NAMES:
        shutil.copy(DOCS / each, tmp_path)
    text = (tmp_path / name).read_text("utf-8")
    (tmp_path / name).write_text(re.sub(r"(?<=\u2026\d{6})\d", "7", text, count=1), encoding="utf-8")
    assert stale(tmp_path) == [name]


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("the last to come is served first", "queue"),
        ("pushed grants are ignored", "hand-off"),
        ("nothing is ever renewed", "lost-lease"),
        ("nothing is ever renewed", "quorum"),
    ],
)
def test_a_planted_bug_makes_a_picture_stale(bug: str, name: str) -> None:
    """The pictures are drawn from what the shipped protocol does."""
    mutant = next(each for each in MUTANTS if each.bug == bug)
    with mutant.plant():
        drawn = pictures.PICTURES[name]()
    assert drawn != present()[f"picture-{name}.svg"]  # not above: what is cached must not be drawn with the bug
