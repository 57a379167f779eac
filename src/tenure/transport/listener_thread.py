"""The life of a thread that listens to servers: started on need, woken, stopped, and not there after a fork."""

import threading
from abc import ABC, abstractmethod

from tenure.reentry import start_thread
from tenure.transport.wakeup_pipe import WakeUpPipe

CLOSING = 2.0
"""The longest that close() waits for the thread, in seconds. It may be stuck in connecting, and ends by itself then."""


class ListenerThread(ABC):
    """Runs `_work` in a thread from the first `_start` to `close`.

    Only that thread touches the connections, because Python's TLS sockets are not made for two threads at once. Others
    note under the mutex what they want, wake the thread, and do not wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._wakeup_pipe = WakeUpPipe()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _work(self) -> None:
        """Listen until stopped, and close what is open. Runs in the thread."""

    def _start(self) -> None:
        """Start the thread if it does not run. The caller has the mutex, and has seen that this is not stopped."""
        if self._thread is None:
            self._thread = start_thread(self._run, self._name)

    def _run(self) -> None:
        me = threading.current_thread()
        with self._mutex:
            if self._thread is not me:  # the start was interrupted before it noted this thread
                if self._stopped or self._thread is not None:
                    return
                self._thread = me
        try:
            self._work()
        finally:
            self._close_pipes()

    def close(self) -> None:
        """Stop the thread, which closes what is open. Idempotent."""
        with self._mutex:
            self._stopped = True
            thread = self._thread
        self._wakeup_pipe.wake()
        if thread is None:
            self._close_pipes()
        elif thread is not threading.current_thread():
            thread.join(CLOSING)

    def _close_pipes(self) -> None:
        """Close what wakes the thread, which has ended."""
        self._wakeup_pipe.close()

    def abandon(self) -> None:
        """In a forked child: close its copies. The thread is not here."""
        self._wakeup_pipe.close()
