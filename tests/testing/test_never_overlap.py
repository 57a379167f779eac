"""`assert_never_overlap` fails a test in which two were in a critical section at once, and says who they were."""

import asyncio
import multiprocessing
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, UsageError
from tenure_testing.pytest import Section, Sections

WHO = r"'report' was entered by \S+.* of process \d+ at \S*test_it\.py:\d+ in \w+: .*\n  while .* of process \d+ at \S*"

THREADS = """
import threading

def test_it(assert_never_overlap):
    section = assert_never_overlap("report")
    both = threading.Barrier(2)

    def work():
        with section:
            both.wait()

    threads = [threading.Thread(target=work, name=name) for name in ("anna", "ben")]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""

TASKS = """
import asyncio

def test_it(assert_never_overlap):
    async def work():
        async with assert_never_overlap("report"):
            await asyncio.sleep(0.01)

    async def main():
        await asyncio.gather(work(), work())

    asyncio.run(main())
"""

PROCESSES = """
import multiprocessing

def work(section, both):
    with section:
        both.wait()

def test_it(assert_never_overlap):
    context = multiprocessing.get_context("spawn")
    both = context.Barrier(2)
    processes = [context.Process(target=work, args=(assert_never_overlap("report"), both)) for _ in range(2)]
    for process in processes: process.start()
    for process in processes: process.join()
"""


@pytest.mark.parametrize("code", [THREADS, TASKS, PROCESSES], ids=["threads", "tasks", "processes"])
def test_an_overlap_fails_the_test(pytester: pytest.Pytester, code: str) -> None:
    """The report says which two were in, where each went in, and what to do."""
    pytester.makepyfile(test_it=code)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey", "-W", "error")
    result.assert_outcomes(failed=1)
    assert re.search(WHO, result.stdout.str()), result.stdout.str()
    assert "Hold a lock of the same name" in result.stdout.str()


def test_threads_that_hold_a_lock_do_not_overlap(assert_never_overlap: Sections, tenure_client: Client) -> None:
    """Who goes in and out again under a lock is never told, however often; other sections are others."""

    def work() -> None:
        for _ in range(20):
            with tenure_client.lock("report"), assert_never_overlap("report"), assert_never_overlap("other"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_tasks_that_hold_a_lock_do_not_overlap(
    assert_never_overlap: Sections, tenure_async_client: AsyncClient
) -> None:
    """Tasks of one thread are told apart."""
    section = assert_never_overlap("report")

    async def work() -> None:
        for _ in range(5):
            async with tenure_async_client.lock("report"), section:
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(4)))

    asyncio.run(main())


def test_a_process_that_was_forked_inside_does_not_stay_in(tmp_path: Path) -> None:
    """A child has copies of its parent's descriptors, and is in no section by that."""
    sections = Sections(tmp_path)
    context = multiprocessing.get_context("fork")
    done = context.Event()
    with sections("report"):
        child = context.Process(target=done.wait)
        child.start()
    with sections("report"):
        pass
    done.set()
    child.join()
    assert not sections.verdict()


def test_a_thread_or_task_may_enter_again(
    assert_never_overlap: Sections, tenure_client: Client, tenure_async_client: AsyncClient
) -> None:
    """Code under a reentrant lock enters its section again, and is not two."""
    lock = tenure_client.lock("report", reentrant=True)
    async_lock = tenure_async_client.lock("report", reentrant=True)

    async def work() -> None:
        async with async_lock, assert_never_overlap("report"), async_lock, assert_never_overlap("report"):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work(), work())

    with lock, assert_never_overlap("report"), lock, assert_never_overlap("report"):
        pass
    asyncio.run(main())


def test_a_section_is_left_where_it_was_entered(tmp_path: Path) -> None:
    """Another thread that leaves it is told so, and whoever is in stays in."""
    section = Section("report", tmp_path)
    with ThreadPoolExecutor(1) as other, section:
        with pytest.raises(UsageError, match="Leave a section in the thread or task that entered it"):
            other.submit(section.__exit__, None, None, None).result()
        other.submit(section.__enter__).result()
    assert "'report'" in Sections(tmp_path).verdict()


def test_a_section_can_be_pickled(tmp_path: Path) -> None:
    """A copy is the same section."""
    section = Section("report", tmp_path)
    copy: Section = pickle.loads(pickle.dumps(section))  # noqa: S301 - our own
    with section, ThreadPoolExecutor(1) as other:
        other.submit(copy.__enter__).result()
    assert "'report'" in Sections(tmp_path).verdict()
