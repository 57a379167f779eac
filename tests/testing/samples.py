"""Tests of a user, right and wrong ones, each with what the plugin has to say of it."""

HEAD = '''
import asyncio
import threading
import time

import pytest

import tenure


class Database:
    """What the code under test writes to."""

    def __init__(self):
        self.rows = []

    def save(self, row, token=None):
        self.rows.append(row)

    async def store(self, row):
        self.rows.append(row)

    def fetch(self):
        return 1


@pytest.fixture
def database(tenure_chaos):
    database = Database()
    tenure_chaos.watch(database, "save", token="token")
    tenure_chaos.watch(database, "store")
    return database


pytestmark = pytest.mark.tenure_lose_lease
'''

RIGHT = {
    "a_check_before_every_write": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        for row in range(3):
            lease.check()
            database.save(row)
""",
    "a_token_with_every_write": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        for row in range(3):
            database.save(row, token=lease.token)
""",
    "a_look_that_ends_the_work": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        for row in range(3):
            if lease.lost.is_set():
                return
            database.save(row)
""",
    "another_try_after_a_loss": """
def test_it(tenure_client, database):
    for _ in range(5):
        try:
            with tenure_client.lock("name") as lease:
                for row in range(3):
                    lease.check()
                    database.save(row)
        except tenure.LeaseLost:
            continue
        break
    assert database.rows[-1] == 2
""",
    "a_client_of_its_own": """
def test_it(tenure_url, database):
    with tenure.Client() as client, client.lock("name") as lease:
        lease.check()
        database.save(1)
""",
    "one_write_and_nothing_else": """
def test_it(tenure_client, database):
    with tenure_client.lock("name"):
        database.save(1)
""",
    "a_check_after_a_slow_call": """
def test_it(tenure_client, tenure_chaos, database):
    tenure_chaos.slow(database, "fetch")
    with tenure_client.lock("name") as lease:
        row = database.fetch()
        lease.check()
        database.save(row)
""",
    "an_asyncio_body": """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name"):
            for row in range(3):
                await asyncio.sleep(0)
                await database.store(row)
    asyncio.run(work())
""",
    "an_asyncio_body_with_children": """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name"), asyncio.TaskGroup() as group:
            for row in range(3):
                group.create_task(database.store(row))
    asyncio.run(work())
""",
    "an_asyncio_check_after_every_await": """
def test_it(tenure_async_client, database):
    async def work():
        lease = await tenure_async_client.lock("name").acquire()
        for row in range(3):
            await asyncio.sleep(0)
            lease.check()
            await database.store(row)
        await lease.release()
    try:
        asyncio.run(work())
    except tenure.LeaseLost:
        assert len(database.rows) < 3
""",
    "contending_tasks": """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name"):
            await asyncio.sleep(0)
            await database.store(1)
    async def main():
        await asyncio.gather(work(), work(), return_exceptions=True)
    asyncio.run(main())
""",
    "contending_threads": """
def test_it(tenure_client, database):
    def work():
        try:
            with tenure_client.lock("name") as lease:
                for row in range(3):
                    lease.check()
                    database.save(row)
        except tenure.LeaseLost:
            pass
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
""",
    "an_extension_before_every_write": """
def test_it(tenure_client, database):
    with tenure_client.lock("name", reentrant=True) as lease, tenure_client.multilock(["one", "two"]) as both:
        for row in range(2):
            lease.extend()
            both.extend()
            lease.check()
            database.save(row)
            if lease.remaining() and both.remaining():
                database.save(row)
            else:
                break
""",
    "lingering_leases": """
def test_it(tenure_client, database):
    for row in range(3):
        with tenure_client.lock("name", linger=2) as lease:
            lease.check()
            database.save(row)
""",
    "a_leader_that_looks_whether_it_is": """
def test_it(tenure_client, database):
    election = tenure_client.election("name")
    with election.campaign("here"):
        for row in range(3):
            if not election.is_leader:
                return
            database.save(row)
""",
    "threads_that_work_for_a_task": """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name") as lease:
            def part():
                lease.check()
                database.save(1)
            for _ in range(3):
                await asyncio.to_thread(part)
    asyncio.run(work())
""",
    "an_expected_failure": """
@pytest.mark.xfail(strict=True)
def test_it(tenure_client, database):
    with tenure_client.lock("name"):
        database.save(1)
        database.save(2)
""",
    "several_names": """
def test_it(tenure_client, database):
    with tenure_client.multilock(["one", "two"]) as lease:
        for row in range(3):
            lease.check()
            database.save(row)
""",
    "an_assertion_for_runs_without_a_loss": """
def test_it(tenure_client, tenure_chaos, database):
    with tenure_client.lock("name") as lease:
        for row in range(3):
            if lease.lost: break
            database.save(row)
    if not tenure_chaos.lost_at:
        assert database.rows == [0, 1, 2]
""",
    "a_lease_of_the_parent_for_each_thread": """
from concurrent.futures import ThreadPoolExecutor

def test_it(tenure_client, database):
    leases = [tenure_client.lock(f"shard{number}").acquire() for number in range(2)]
    def work(lease):
        try:
            for row in range(3):
                lease.check()
                database.save(row)
        except tenure.LeaseLost:
            pass
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, leases))
    for lease in leases:
        lease.release()
""",
    "a_lease_of_the_parent_for_each_turn_of_one_thread": """
from concurrent.futures import ThreadPoolExecutor

def test_it(tenure_client, database):
    leases = [tenure_client.lock(f"shard{number}").acquire() for number in range(3)]
    def work(lease):
        try:
            for row in range(2):
                lease.check()
                database.save(row)
        except tenure.LeaseLost:
            pass
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(work, leases))
    for lease in leases:
        lease.release()
""",
    "a_lease_of_the_parent_for_each_task": """
def test_it(tenure_async_client, database):
    async def work(lease):
        try:
            for row in range(3):
                lease.check()
                await database.store(row)
        except tenure.LeaseLost:
            pass
    async def main():
        leases = [await tenure_async_client.lock(f"shard{number}").acquire() for number in range(2)]
        await asyncio.gather(*map(work, leases))
        for lease in leases:
            await lease.release()
    asyncio.run(main())
""",
    "a_thread_that_once_held_another_lock": """
def test_it(tenure_client, database):
    def work(lease):
        with tenure_client.lock("other"):
            pass
        try:
            lease.check()
            database.save(1)
        except tenure.LeaseLost:
            pass
    with tenure_client.lock("name") as lease:
        thread = threading.Thread(target=work, args=(lease,))
        thread.start()
        thread.join()
""",
    "leases_that_inner_tasks_acquired": """
def test_it(tenure_async_client, database):
    async def work(name):
        lease = await asyncio.create_task(tenure_async_client.lock(name).acquire())  # as wait_for of Python 3.11 does
        try:
            for row in range(2):
                lease.check()
                await database.store(row)
        except tenure.LeaseLost:
            pass
        await lease.release()
        lease = await asyncio.wait_for(tenure_async_client.lock(name).acquire(), 5)
        lease.check()
        await database.store(2)
        await lease.release()
    async def main():
        await asyncio.gather(work("one"), work("two"), return_exceptions=True)
    asyncio.run(main())
""",
    "a_test_of_a_class_that_keeps_state": """
class TestIt:
    def test_it(self, tenure_client, database):
        assert not hasattr(self, "lease")
        self.lease = tenure_client.lock("name").acquire()
        for row in range(2):
            self.lease.check()
            database.save(row)
""",
    "a_loss_at_the_look_of_another_thread": """
from concurrent.futures import ThreadPoolExecutor

def test_it(tenure_client, database):
    seen, lost = threading.Event(), threading.Event()
    def first(lease):
        try:
            lease.check()
        finally:
            seen.set()
        lost.wait()
        database.save(1)
    def second(lease):
        seen.wait()
        try:
            lease.check()
        finally:
            lost.set()
    with tenure_client.lock("name") as lease, ThreadPoolExecutor() as pool:
        jobs = [pool.submit(work, lease) for work in (first, second)]
        for job in jobs:
            job.result()
""",
    "threads_that_share_a_lease": """
import sys
from concurrent.futures import ThreadPoolExecutor

@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)

def test_it(tenure_client, database, many_switches):
    def work(lease):
        for row in range(5):
            lease.check()
            database.save(row)
    with tenure_client.lock("name") as lease, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [lease] * 4))
""",
}
"""What passes: at no point does it write after a loss."""

WRONG = {
    "one_check_before_a_loop": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        lease.check()
        for row in range(3):
            database.save(row)  # LOST WRITTEN
""",
    "a_slow_call_after_the_check": """
def test_it(tenure_client, tenure_chaos, database):
    tenure_chaos.slow(database, "fetch")
    with tenure_client.lock("name") as lease:
        lease.check()
        row = database.fetch()  # LOST
        database.save(row)  # WRITTEN
""",
    "another_lock_after_the_check": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        lease.check()
        with tenure_client.lock("other"):  # LOST
            database.save(1)  # WRITTEN
""",
    "a_write_although_it_is_told": """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        try:
            lease.check()  # LOST
        finally:
            database.save(1)  # WRITTEN
""",
    "a_write_after_the_end": """
def test_it(tenure_client, database):
    try:
        with tenure_client.lock("name") as lease:
            lease.check()  # LOST
    except tenure.LeaseLost:
        database.save(0)  # WRITTEN
    else:
        with tenure_client.lock("name"):
            database.save(1)
""",
    "an_await_between_check_and_write": """
def test_it(tenure_async_client, database):
    async def work():
        lease = await tenure_async_client.lock("name").acquire()
        lease.check()
        await asyncio.sleep(0)  # LOST
        await database.store(1)  # WRITTEN
        await lease.release()
    asyncio.run(work())
""",
    "a_write_of_a_cancelled_body": """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name"):
            try:
                await asyncio.sleep(0)  # LOST
            finally:
                await database.store(1)  # WRITTEN
    asyncio.run(work())
""",
    "a_task_that_is_left_behind": """
def test_it(tenure_async_client, database):
    async def write():
        await asyncio.sleep(0.01)
        await database.store(1)  # WRITTEN
    async def work():
        async with tenure_async_client.lock("name"):
            task = asyncio.create_task(write())
            await asyncio.shield(task)  # LOST
    async def main():
        await asyncio.gather(work(), return_exceptions=True)
        await asyncio.sleep(0.1)  # the task goes on
    asyncio.run(main())
""",
    "several_names": """
def test_it(tenure_client, database):
    with tenure_client.multilock(["one", "two"]) as lease:
        lease.check()
        database.save(1)  # LOST
        database.save(2)  # WRITTEN
""",
    "a_lock_of_a_method": """
def test_it(tenure_client, database):
    @tenure_client.lock("name")
    def work():
        database.save(1)  # LOST
        database.save(2)  # WRITTEN
    work()
""",
    "one_of_two_leases_is_checked": """
def test_it(tenure_client, database):
    with tenure_client.lock("one") as one, tenure_client.lock("two") as two:
        one.check()
        for row in range(3):
            two.check()
            database.save(row)  # LOST WRITTEN
""",
    "one_of_two_leases_is_checked_in_a_task": """
def test_it(tenure_async_client, database):
    async def work():
        one = await tenure_async_client.lock("one").acquire()
        two = await tenure_async_client.lock("two").acquire()
        one.check()
        for row in range(3):
            await asyncio.sleep(0)  # LOST
            two.check()
            await database.store(row)  # WRITTEN
        await one.release()
        await two.release()
    asyncio.run(work())
""",
    "a_child_with_a_lock_of_its_own": """
def test_it(tenure_async_client, database):
    async def part(lease, number):
        lease.check()
        async with tenure_async_client.lock(f"item{number}"):  # LOST
            await asyncio.sleep(0)
            await database.store(number)  # WRITTEN
    async def work():
        lease = await tenure_async_client.lock("name").acquire()
        await asyncio.gather(*(part(lease, number) for number in range(2)))
        await lease.release()
    asyncio.run(work())
""",
    "a_request_of_a_worker_thread": """
from concurrent.futures import ThreadPoolExecutor

def test_it(tenure_client, database):
    def work(lease):
        lease.check()
        tenure_client.inspect("other")  # LOST
        database.save(1)  # WRITTEN
    with tenure_client.lock("name") as lease, ThreadPoolExecutor() as pool:
        pool.submit(work, lease).result()
""",
    "an_async_function_under_a_sync_decorator": """
import functools

def logged(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call

class Shop:
    @logged
    async def put(self, row):
        pass

def test_it(tenure_async_client, tenure_chaos, database):
    shop = Shop()
    tenure_chaos.watch(shop, "put")
    async def work():
        lease = await tenure_async_client.lock("name").acquire()
        lease.check()
        await shop.put(1)  # LOST
        await shop.put(2)  # WRITTEN
        await lease.release()
    asyncio.run(work())
""",
}
"""What fails, with the lines at which the lease is lost and at which the code writes after that."""

MISTAKEN = {
    "it takes no lock": (
        """
def test_it(database):
    database.rows.append(1)
""",
        "acquired no lease",
    ),
    "it takes no lock, nor a fixture": (
        """
def test_it():
    pass
""",
        "acquired no lease",
    ),
    "it writes nothing that is known to be a write": (
        """
def test_it(tenure_client):
    with tenure_client.lock("name") as lease:
        lease.check()
""",
        r"tenure_chaos\.watch",
    ),
    "it has very many points": (
        """
@pytest.mark.tenure_lose_lease(runs=5)
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        for row in range(6):
            lease.check()
            database.save(row, lease.token)
""",
        r"more than 5 points.*runs=",
    ),
    "it has very many points, and its marker no keyword": (
        """
@pytest.mark.tenure_lose_lease(5)
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        for row in range(6):
            lease.check()
            database.save(row, lease.token)
""",
        r"more than 5 points.*runs=",
    ),
    "its loop is not one whose awaits are seen": (
        """
class Loop(asyncio.SelectorEventLoop):
    def create_task(self, coroutine, **options):
        return asyncio.Task(coroutine, loop=self, **options)

def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name"):
            await database.store(1)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(work())
""",
        r"cannot be seen.*asyncio\.run",
    ),
    "its loop is not one whose awaits are seen, and a thread holds the lease": (
        """
class Loop(asyncio.SelectorEventLoop):
    def create_task(self, coroutine, **options):
        return asyncio.Task(coroutine, loop=self, **options)

def test_it(tenure_client, database):
    async def work(lease):
        lease.check()
        await asyncio.sleep(0)
        await database.store(1)
        await database.store(2)
    with tenure_client.lock("name") as lease, asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(work(lease))
""",
        r"cannot be seen.*asyncio\.run",
    ),
    "its code runs in a task of an earlier run": (
        """
@pytest.fixture(scope="module")
def server():
    jobs, tasks, loop = [], [], asyncio.new_event_loop()
    async def serve():
        while True:
            while not jobs:
                await asyncio.sleep(0)
            job, done = jobs.pop()
            await job()
            done.set_result(None)
    async def hand_over(job):
        if not tasks:
            tasks.append(asyncio.create_task(serve()))
        jobs.append((job, done := asyncio.Future()))
        await done
    yield lambda job: loop.run_until_complete(hand_over(job))
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(tasks[0])
    loop.close()

def test_it(server, tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name") as lease:
            await database.store(1)
    server(work)
""",
        r"cannot be seen.*started before the test",
    ),
    "it writes without a lock": (
        """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        lease.check()
    database.save(1)
""",
        "no lease was held",
    ),
    "it loses a lease by itself and goes on writing": (
        """
def test_it(tenure_client, tenure_chaos, database):
    with tenure_client.lock("name") as lease:
        lease.check()
        tenure_chaos.lose(lease)
        database.save(1)
""",
        "run 0: the code wrote while it held no valid lease",
    ),
    "it fails without a loss": (
        """
def test_it(tenure_client, database):
    with tenure_client.lock("name"):
        database.save(1)
    assert database.rows == [2]
""",
        r"assert \[1\] == \[2\]",
    ),
    "it fails in another way because of a loss": (
        """
def test_it(tenure_client, database):
    with tenure_client.lock("name") as lease:
        if lease.lost:
            raise KeyError("no such row")
        database.save(1)
""",
        r"KeyError: 'no such row'(?s:.*)This run lost the lease at(?s:.*)if lease\.lost:",
    ),
}
"""What fails by its own error, or because it would find nothing; with what is said of it."""
