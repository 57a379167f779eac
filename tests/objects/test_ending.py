"""A process that has used a bucket ends in peace: no thread of obstore wants the interpreter while it ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

ANSWER = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

PROGRAM = """
import asyncio, contextlib, inspect, sys, threading, time
from obstore.store import MemoryStore, S3Store
import tenure
from tenure.runtimes import ending
from tenure.stores.objects import objects_source, table

right, wrong, port = sys.argv[1:]
if right:
    code = inspect.getsource(table)
    assert code.count(right) == 1
    ending._last.clear()
    exec(code.replace(right, wrong), vars(table))

class Slow:
    def __del__(self, sleep=time.sleep):
        print("ends", flush=True)
        sleep(0.5)

def call_soon_threadsafe(self, *args, soon=asyncio.BaseEventLoop.call_soon_threadsafe, **more):
    handle = soon(self, *args, **more)
    if threading.current_thread().name.startswith("Dummy"):
        time.sleep(0.2)
    return handle

asyncio.BaseEventLoop.call_soon_threadsafe = call_soon_threadsafe
sys.last_value = Slow()  # among the first that the end of the interpreter drops
silent = S3Store("locks", endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id="any",
    secret_access_key="any", client_options={"allow_http": True}, retry_config={"max_retries": 0})
source, silence, kept = objects_source(MemoryStore()), objects_source(silent), []

async def use(client):
    async with client.lock("a"):
        pass

async def give_up(client):
    tasks = [asyncio.create_task(client.lock(f"{number}").acquire(timeout=9)) for number in range(10)]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()

async def in_loop(work, source):
    async with tenure.AsyncClient(store=source, retry_for=0) as client:
        await work(client)

async def not_closed(work, source):
    kept.append(tenure.AsyncClient(store=source, retry_for=0, operation_timeout=30))
    await work(kept[-1])

async def again(work, source):
    while True:
        with contextlib.suppress(BaseException):
            await not_closed(work, source)

"""
"""A program in which a thread of obstore that has answered a request gets no processor for a while, as on a busy
machine, and the end of the interpreter takes longer than that. `silence` answers when the interpreter ends."""

USES = {
    "closed": "with tenure.Client(store=source) as client, client.lock('a'): pass",
    "not closed": "client = tenure.Client(store=source); lease = client.lock('a').acquire()",
    "asyncio": "asyncio.run(in_loop(use, source))",
    "asyncio, not closed": "asyncio.run(not_closed(use, source))",
    "given up": "asyncio.run(in_loop(give_up, silence))",
    "given up, not closed": "asyncio.run(not_closed(give_up, silence))",
    "in a thread": "threading.Thread(target=asyncio.run, args=[again(use, silence)], daemon=True).start(); "
    "time.sleep(0.5)",
}


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Listen, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        server.setblocking(False)
        yield server


def end_of(use: str, right: str, wrong: str, silent_server: socket.socket) -> str:
    """Return what a program says at its end, or its status. All its requests are answered as it ends."""
    port = str(silent_server.getsockname()[1])
    command = [sys.executable, "-W", "error", "-c", f"{PROGRAM}{use}", right, wrong, port]
    environment = os.environ | {"RUST_BACKTRACE": "0"}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as program,
        ExitStack() as connections,
    ):
        assert program.stdout is not None
        if program.stdout.readline() != "ends\n":
            return f"it has not come to its end: {program.communicate(timeout=60)[1]}"
        with suppress(BlockingIOError):
            while True:
                connections.enter_context(silent_server.accept()[0]).sendall(ANSWER)
        _, said = program.communicate(timeout=60)
        return said or str(program.returncode)


@pytest.mark.parametrize("use", USES)
def test_a_process_ends_in_peace(use: str, silent_server: socket.socket) -> None:
    """With status 0, and without a word."""
    assert end_of(USES[use], "", "", silent_server) == "0"


@pytest.mark.parametrize(
    ("use", "right", "wrong"),
    [
        ("closed", "_under_way.add(weakref.ref(future, _under_way.discard))", "pass"),
        ("closed", "while _under_way and", "while False and"),
        ("in a thread", "future.get_loop().call_soon_threadsafe(future.cancel)", "pass"),
    ],
)
def test_a_planted_bug_is_found(use: str, right: str, wrong: str, silent_server: socket.socket) -> None:
    """Nobody waits, or a request goes on."""
    assert end_of(USES[use], right, wrong, silent_server) != "0"
