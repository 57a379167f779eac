"""What every store must do whose leases are locks of a database's sessions, without a table.

The tests of PostgreSQL's `?mode=advisory` and of MySQL's `?mode=get_lock` share these scenes. `is_free` looks at the
server itself.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tenure import AsyncClient, Client, Outcome, StoreError, StoreUnavailable, UsageError
from tests.hazards.helpers import soon
from tests.servers import Proxy

if TYPE_CHECKING:
    from tenure.primitives.options import PlainOptions

HOLDER = """
import sys
from tenure import Client
lease = Client(sys.argv[1]).lock(sys.argv[2], ttl=2).acquire()
print("held", flush=True)
sys.stdin.read()
print(lease.state.value, flush=True)
"""

SAY_IT = "import os, json; print(json.dumps(os.environ.get('TENURE_TOKEN')))"


def pause_a_holder(url: str, other: Client, name: str) -> None:
    """Stop a process that holds a lock for longer than its ttl: the server ends its session, and it learns of that."""
    command = [sys.executable, "-c", HOLDER, url, name]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            holder.send_signal(signal.SIGSTOP)
            lease = other.lock(name).acquire(timeout=20.0)
            holder.send_signal(signal.SIGCONT)
            holder.stdin.close()
            assert holder.stdout.readline() == b"lost\n"
            assert lease.release() is Outcome.RELEASED
        finally:
            holder.kill()


def cancel_acquisitions(url: str, name: str, is_free: Callable[[], bool]) -> None:
    """Cancel acquisitions that wait, and acquisitions whose reply is under way: none of them leaves a lock."""

    async def main() -> None:
        async with AsyncClient(url) as client, AsyncClient(url) as other:
            for step in range(60):
                lease = await other.lock(name).acquire() if step % 2 else None
                task = asyncio.ensure_future(client.lock(name).acquire(timeout=5.0))
                for _ in range(step // 2):
                    await asyncio.sleep(0)
                task.cancel()
                if lease is not None:
                    await lease.release()
                result = (await asyncio.gather(task, return_exceptions=True))[0]
                if not isinstance(result, BaseException):
                    await result.release()
            await soon(is_free, "a lock that is free")

    asyncio.run(main())


def swallow_replies(proxy: Proxy, url: str, name: str, swallowed: bytes, rounds: int) -> None:
    """Let four clients acquire a name through a proxy that swallows replies, and check that no two held it at once."""
    counter = 0

    def work(client: Client) -> None:
        nonlocal counter
        for _ in range(rounds // 4):
            with client.lock(name, ttl=20).acquire(timeout=60.0):
                seen = counter
                counter = seen + 1

    with ThreadPoolExecutor(4) as pool:
        clients = [Client(url) for _ in range(4)]
        for client in clients:
            client.inspect(name)
        proxy.swallow(None, probability=0.05, containing=swallowed)
        for done in [pool.submit(work, client) for client in clients]:
            done.result(600.0)
        assert proxy.counts.swallowed > rounds / 100
        proxy.heal()
        for client in clients:
            client.close()
    assert counter == rounds


def follow_a_silent_holder(
    url: str, name: str, ttl: float, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Let no renewal reach the server; return a function that acquires a name after the ttl of such a holder."""

    async def unanswered(*_args: object) -> None:
        raise StoreUnavailable("no renewal reaches the server")

    monkeypatch.setattr("tenure.stores.sql.session_locks.SessionLockStore.renew", unanswered)

    def follow() -> None:
        with Client(url) as here, Client(url) as there:
            lease = here.lock(name, ttl=ttl).acquire()
            try:
                there.lock(name).acquire(timeout=timeout).release()
            finally:
                lease.release()

    return follow


def ask_for_what_needs_a_record(client: Client) -> None:
    """Ask for all that a lock alone cannot keep: each is refused, and named."""
    options: list[PlainOptions] = [
        {"lock_delay": 1.0},
        {"min_hold": 1.0},
        {"on_revoke": print},
        {"detect_deadlock": True},
    ]
    for option in options:
        with pytest.raises(UsageError, match=f"{next(iter(option))} is not available"):
            client.lock("name", **option)
    with pytest.raises(UsageError, match="keeps no elections"):
        client.election("name")
    with pytest.raises(UsageError, match="keeps no semaphores"):
        client.semaphore("name", 2)
    for call in (client.names, lambda: client.revoke("name")):
        with pytest.raises(StoreError, match="keeps no record"):
            call()


def run_a_command_without_a_token(url: str, name: str) -> None:
    """Run a command under a lock: it has no TENURE_TOKEN, not even that of the command that runs it."""
    command = [sys.executable, "-m", "tenure", "run", name, "--", sys.executable, "-c", SAY_IT]
    environment = {**os.environ, "TENURE_URL": url, "TENURE_TOKEN": "7"}
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, env=environment)
    assert json.loads(done.stdout) is None
