"""Hide the parts that only POSIX systems have, and then use Tenure, in a process of its own.

Imports that the standard library itself needs come before; those of Tenure and of the stores' clients come after.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import pkgutil
import select
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HIDDEN: dict[Any, tuple[str, ...]] = {
    os: (
        *("O_CLOEXEC", "O_DIRECTORY", "WNOHANG", "WUNTRACED", "fork", "forkpty", "getegid", "geteuid", "getgid"),
        *("getpgrp", "getuid", "killpg", "posix_spawn", "posix_spawnp", "pread", "pwrite", "register_at_fork"),
        *("setsid", "tcgetpgrp", "tcsetpgrp", "wait3", "wait4"),
    ),
    select: ("epoll", "kqueue", "poll", "POLLIN", "POLLOUT", "POLLNVAL"),
    selectors: ("DevpollSelector", "EpollSelector", "KqueueSelector", "PollSelector"),
    signal: tuple(
        name
        for name in dir(signal)
        if name.startswith("SIG") and name not in {"SIG_DFL", "SIG_IGN", "SIGABRT", "SIGFPE", "SIGILL", "SIGINT"}
        if name not in {"SIGSEGV", "SIGTERM"}
    ),
    socket: ("AF_UNIX", "SO_REUSEPORT", "TCP_USER_TIMEOUT"),
    time: tuple(name for name in dir(time) if "CLOCK_" in name or name.startswith(("clock_", "pthread_"))),
}
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty")
PREPARED = (multiprocessing, shutil, sqlite3, subprocess)
"""These look at what is hidden here when they are imported."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a connection, made as Windows has to make them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def hide() -> None:
    """Hide all of it."""
    for module, names in HIDDEN.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    socket.socketpair = socket_pair  # type: ignore[assignment] # it has no arguments here
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment] # so importing it raises ImportError


def import_all() -> None:
    """Import every module of Tenure."""
    import tenure
    import tenure_testing

    for package in (tenure, tenure_testing):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def use_threads(url: Any) -> None:  # noqa: ANN401 - a URL, or the nodes of a quorum
    """Have threads contend for a name."""
    import tenure

    tokens: list[int] = []
    inside: list[int] = []

    def work(client: tenure.Client, number: int) -> None:
        for _ in range(3):
            with client.lock("threads", ttl=20.0, timeout=60.0) as lease:
                inside.append(number)
                tokens.append(lease.token)
                time.sleep(0.002)
                assert inside == [number]
                inside.clear()

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_client(tenure.Client, url)) for _ in range(2)]
        threads = [threading.Thread(target=work, args=(clients[each % 2], each)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == 12
        assert tokens == sorted(set(tokens))
        lease = clients[0].lock("a name").acquire()
        try:
            clients[1].lock("a name", timeout=0.05).acquire()
        except tenure.LockTimeout:
            assert lease.release().kept


async def use_asyncio(url: Any) -> None:  # noqa: ANN401 - a URL, or the nodes of a quorum
    """Have tasks contend for a name."""
    import tenure

    tokens: list[int] = []

    async def work(client: tenure.AsyncClient) -> None:
        for _ in range(3):
            async with client.lock("asyncio", ttl=20.0, timeout=60.0) as lease:
                tokens.append(lease.token)
                await asyncio.sleep(0.002)

    clients = [_client(tenure.AsyncClient, url) for _ in range(2)]
    await asyncio.gather(*(work(clients[each % 2]) for each in range(4)))
    for client in clients:
        await client.close()
    assert len(tokens) == 12
    assert tokens == sorted(set(tokens))


def _client(kind: Any, url: Any) -> Any:  # noqa: ANN401 - of either kind
    nodes = url.split()
    return kind(url) if len(nodes) == 1 else kind(quorum=nodes)


def _show_demo() -> int:
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the demo is not installed
    from demo.show import show_demo

    return show_demo()


def refusal_of(action: str) -> str:
    """Return the error of a store that needs a POSIX system."""
    import tenure
    from tenure.cli import run_app
    from tenure.stores.urls import store_source
    from tenure_testing.pytest import Sections

    actions: dict[str, Any] = {
        "default": tenure.Client,
        "sqlite": lambda: tenure.Client("sqlite:///tmp/locks.db"),
        "unix": lambda: tenure.Client("unix:///tmp/redis.sock"),
        "node": lambda: tenure.Client(quorum=["unix:///tmp/1.sock", "unix:///tmp/2.sock", "unix:///tmp/3.sock"]),
        "client": lambda: store_source(importlib.import_module("redis").Redis(unix_socket_path="/tmp/redis.sock")),  # noqa: S108
        "sections": lambda: Sections(Path("/tmp"))("report").__enter__(),  # noqa: S108
        "run": lambda: run_app(["run", "a name", "--", "true"]),
        "lock": lambda: run_app(["lock", "a name"]),
        "demo": _show_demo,
    }
    try:
        status = actions[action]()
    except tenure.UsageError as error:
        return str(error)
    assert status == 64
    return ""


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    if task == "import":
        importlib.import_module("billiard.compat")  # of Celery: it goes by the name of the platform
    hide()
    if task == "import":
        import_all()
    elif task == "use":
        use_threads(arguments[0])
        asyncio.run(use_asyncio(arguments[0]))
    else:
        sys.stdout.write(f"{refusal_of(arguments[0])}\n")
    sys.stdout.write("done\n")
