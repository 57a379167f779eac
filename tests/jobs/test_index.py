"""The list of all jobs: it grows over pages, names each job once, and loses none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tenure import Client
from tenure.contracts.cells import LARGEST_CELL, Change
from tenure.core import cells
from tenure.jobs import index
from tenure.runtimes.threads import drive
from tenure.stores.memory import MemoryTable, memory_source

LONGEST = "\x01" * 512
"""A name that takes six times its length in a cell."""


class List:
    """The list of one namespace."""

    def __init__(self) -> None:
        """Start empty."""
        self.table = MemoryTable()
        self.client = Client(store=memory_source(self.table))

    def add(self, title: str) -> None:
        """Add a job."""
        drive(index.add_title(self.client.session().cells, "", title))

    def remove(self, title: str) -> None:
        """Remove a job."""
        drive(index.remove_title(self.client.session().cells, "", title))

    def titles(self) -> list[str]:
        """Return all jobs."""
        return drive(index.all_titles(self.client.session().cells, ""))

    def page(self, number: int) -> list[str] | None:
        """Return the jobs of one page."""
        found: list[str] | None = drive(self.client.session().cells.look(index.page_name("", number)))[0]
        return found


def test_the_list_grows_beyond_one_cell() -> None:
    """It names all jobs, of which many more fit than into one cell, and each once."""
    jobs, titles = List(), [f"billing:monthly-invoice:tenant-{number:050}" for number in range(1100)]
    for title in titles:
        jobs.add(title)
    jobs.add(titles[0])
    jobs.add(titles[-1])
    assert jobs.titles() == titles
    pages = [jobs.page(number) or [] for number in range(4)]
    assert sorted(title for page in pages for title in page) == titles
    assert jobs.page(4) is None
    assert all(len(jobs.table.cell(index.page_name("", number)).value) < LARGEST_CELL for number in range(4))


def test_a_page_has_room_for_its_replies() -> None:
    """Also with the longest names."""
    state: Any = None
    while (change := index.listed(state, 0, title=f"{len(state or ())}{LONGEST}"[:512])).reply:
        state = change.state
    assert len(state) > 5
    assert len(cells._text(state)) + cells.REPLIES < LARGEST_CELL - 8_000


def a_list_of_three_pages(monkeypatch: pytest.MonkeyPatch) -> List:
    """Return a list whose pages have one job each."""
    monkeypatch.setattr(index, "PAGE_BYTES", 5)
    jobs = List()
    for title in ("a", "b", "c"):
        jobs.add(title)
    assert [jobs.page(number) for number in range(4)] == [["a"], ["b"], ["c"], None]
    return jobs


def test_a_page_without_jobs_does_not_end_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room is used again."""
    jobs = a_list_of_three_pages(monkeypatch)
    jobs.remove("a")
    jobs.remove("nobody")
    assert jobs.titles() == ["b", "c"]
    jobs.add("d")
    assert [jobs.page(number) for number in range(4)] == [["d"], ["b"], ["c"], None]


def test_a_job_is_not_listed_twice_though_an_earlier_page_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for in all pages first."""
    jobs = a_list_of_three_pages(monkeypatch)
    jobs.remove("a")
    jobs.add("c")
    assert [jobs.page(number) for number in range(4)] == [[], ["b"], ["c"], None]


def test_two_nodes_that_add_a_job_at_once_list_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it stands in two pages nevertheless, it is shown once, and forgotten in both."""
    jobs = a_list_of_three_pages(monkeypatch)
    jobs.remove("a")
    for page in (0, 3):
        drive(jobs.client.session().cells.change(index.page_name("", page), lambda _state, _now: Change(["x"], None)))
    assert jobs.titles() == ["b", "c", "x"]
    jobs.remove("x")
    assert jobs.titles() == ["b", "c"]


def test_a_list_without_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has no room is run all the same."""
    jobs = a_list_of_three_pages(monkeypatch)
    monkeypatch.setattr(index, "MOST_PAGES", 3)
    jobs.add("d")
    assert jobs.titles() == ["a", "b", "c"]
    assert jobs.client.once("d", key="1").run(lambda: 1).value == 1


def test_jobs_are_listed_by_their_calls_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users see it."""
    monkeypatch.setattr(index, "PAGE_BYTES", 20)
    client = List().client
    names = [f"job {number}" for number in range(12)]
    for name in names:
        client.once(name, window=3600).run(lambda: 1)
    assert [job.name for job in client.jobs()] == sorted(names)
    assert client.job("job 3").forget()
    assert [job.name for job in client.jobs()] == sorted(set(names) - {"job 3"})


def drop_empty_pages(patch: pytest.MonkeyPatch) -> None:
    """Remove a page with its last job, so that the list seems to end there."""

    def unlisted(state: Any, _now: int, *, title: str) -> Change:  # noqa: ANN401
        before: list[str] = state or []
        return Change([each for each in before if each != title] or None, None, changed=title in before)

    patch.setattr(index, "unlisted", unlisted)


def take_the_first_room(patch: pytest.MonkeyPatch) -> None:
    """Add a job to the first page with room, without a look at the later ones."""

    async def add(cells_: cells.Cells, prefix: str, title: str) -> None:
        work = partial(index.listed, title=title)
        for page in range(index.MOST_PAGES):
            if await cells_.change(index.page_name(prefix, page), work):
                return

    patch.setattr(index, "add_title", add)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (drop_empty_pages, test_a_page_without_jobs_does_not_end_the_list),
        (take_the_first_room, test_a_job_is_not_listed_twice_though_an_earlier_page_has_room),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test of the guarantee fails with the bug."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(monkeypatch)
