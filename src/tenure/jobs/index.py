"""The list of all jobs of a namespace, in pages: each is a cell, so that the list may grow beyond one.

A page that was made stays, also if it is empty: the first that was never made ends the list. A name is added to the
first page that has room, after it was found in none.
"""

import json
from functools import partial
from typing import Any

from tenure.contracts.cells import Change, cell_name
from tenure.core.cells import Cells

PAGE_BYTES = 32_768
"""How many bytes the names of one page have at most."""

MOST_PAGES = 256
"""How many pages there are at most: a job that has no room is run, but not listed."""


def page_name(prefix: str, page: int) -> str:
    """Return the name of the cell of a page."""
    return cell_name(f"jobs-{page}", prefix, "")


def listed(state: Any, _now: int, *, title: str) -> Change:  # noqa: ANN401 - what JSON knows
    """Add a job to a page. The reply is whether it is there; not if the page is full."""
    before: list[str] = state or []
    after = [*before, title]
    if title in before:
        return Change(state, True, changed=False)  # noqa: FBT003 - the reply
    if before and len(json.dumps(after, separators=(",", ":"))) > PAGE_BYTES:
        return Change(state, False, changed=False)  # noqa: FBT003 - the reply
    return Change(after, True)  # noqa: FBT003 - the reply


def unlisted(state: Any, _now: int, *, title: str) -> Change:  # noqa: ANN401 - what JSON knows
    """Remove a job from a page. The page stays."""
    before: list[str] = state or []
    return Change([each for each in before if each != title], None, changed=title in before)


async def add_title(cells: Cells, prefix: str, title: str, timeout: float | None = None) -> None:
    """Add a job to the list, unless it is there. A change of a page takes up to `timeout`, as `Cells.change` does."""
    room = MOST_PAGES
    for page in range(MOST_PAGES):
        state, _ = await cells.look(page_name(prefix, page))
        if state is not None and title in state:
            return
        if room == MOST_PAGES and (state is None or listed(state, 0, title=title).reply):
            room = page
        if state is None:
            break
    for page in range(room, MOST_PAGES):
        if await cells.change(page_name(prefix, page), partial(listed, title=title), timeout=timeout):
            return


async def remove_title(cells: Cells, prefix: str, title: str) -> None:
    """Remove a job from the list."""
    for page in range(MOST_PAGES):
        state, _ = await cells.look(page_name(prefix, page))
        if state is None:
            return
        if title in state:
            await cells.change(page_name(prefix, page), partial(unlisted, title=title))


async def all_titles(cells: Cells, prefix: str) -> list[str]:
    """Return the names of all jobs, sorted."""
    titles: set[str] = set()
    for page in range(MOST_PAGES):
        listed_here = await cells.read(page_name(prefix, page), _titles)
        if listed_here is None:
            break
        titles.update(listed_here)
    return sorted(titles)


def _titles(state: list[str] | None, _now: int) -> list[str] | None:
    if state is not None:
        "".join(state)  # raises TypeError unless all are texts
    return state
