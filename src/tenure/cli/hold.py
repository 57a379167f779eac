"""`tenure lock`: hold names without a command, until the standard input ends.

The command prints one line a name once it holds all names: the name, a tab, the fencing token. It releases them at a
signal, or when its input ends, for instance because the script that opened the input died. A background job of a
terminal may not read from the terminal, and so holds its names until a signal.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable

from tenure.cli import output
from tenure.cli.acquisition import TO_GROUP, AnyLock, InterruptedWait, Lease, acquire, loss_of, tokens_of
from tenure.cli.child import stop_oneself
from tenure.cli.diagnostics import Status, tell, tell_warnings
from tenure.cli.wakeups import Wakeups, known_signals
from tenure.client import Client

TAKEN = (*TO_GROUP, *known_signals("SIGTSTP"))
STDIN = 0
PIECE = 65536


def hold_lock(client: Client, lock: AnyLock, *, as_json: bool) -> int:
    """Hold `lock` until the standard input ends or a signal comes, and return the status to exit with.

    Raises LockTimeout or StoreError if the lock was not granted. The client is closed at the end.
    """
    tell_warnings()
    with Wakeups(TAKEN) as wakeups, client:
        try:
            lease = acquire(client, lock, wakeups)
        except InterruptedWait as interrupted:
            return interrupted.status
        try:
            _print_tokens(lease, as_json=as_json)
            status = _hold(lease, wakeups)
        finally:
            kept = lease.release().kept
        if kept and status != Status.LEASE_LOST:
            return status
        tell(loss_of(lease))
        return Status.LEASE_LOST


def _print_tokens(lease: Lease, *, as_json: bool) -> None:
    tokens = tokens_of(lease)
    if as_json:
        output.print_json([{"name": name, "token": token} for name, token in tokens.items()])
    for name, token in () if as_json else tokens.items():
        output.print_line(name, "-" if token is None else token)
    sys.stdout.flush()
    if sys.stdin is not None and sys.stdin.isatty():
        tell("held until Ctrl-D or a signal.")


def _hold(lease: Lease, wakeups: Wakeups) -> int:
    """Wait for the end of the input, a signal, or the loss of the lease."""
    lease.on_lost(lambda _loss: wakeups.wake())
    source = _Input(wakeups.wake)
    source.start()
    while not lease.lost:
        for number in wakeups.wait(lease.remaining()):
            if number in TO_GROUP:
                return Status.SIGNALLED + number
            stop_oneself()
        if source.ended:
            return Status.DONE
    return Status.LEASE_LOST


class _Input(threading.Thread):
    """Reads the standard input to its end, and discards it."""

    def __init__(self, done: Callable[[], None]) -> None:
        super().__init__(name="tenure-input", daemon=True)
        self._tell = done
        self.ended = False

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})  # the kernel would stop a background job
        try:
            while sys.stdin is not None and os.read(STDIN, PIECE):
                pass
        except OSError as error:
            if error.errno == errno.EIO:  # a background job may not read from the terminal
                return
        self.ended = True
        self._tell()
