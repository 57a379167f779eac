"""The thread of a listener runs from when it is needed until it is closed, and leaves nothing open."""

import threading

import pytest

from tenure.transport.listener_thread import ListenerThread
from tenure.transport.polling import is_readable

TEST_TIMEOUT = 60.0


class Echo(ListenerThread):
    """Counts how often it is woken."""

    def __init__(self) -> None:
        super().__init__("tenure-echo")
        self.woken = threading.Semaphore(0)
        self.fails = False

    def need(self) -> None:
        """Have the thread run."""
        with self._mutex:
            self._start()

    def wake(self) -> None:
        """Wake it."""
        self._wakeup_pipe.wake()

    def thread(self) -> threading.Thread | None:
        """Return the thread, if it was started."""
        return self._thread

    def is_open(self) -> bool:
        """Tell whether the wake-up pipe is open."""
        return self._wakeup_pipe.fileno() >= 0

    def _work(self) -> None:
        while not self._stopped:
            if is_readable(self._wakeup_pipe):
                self._wakeup_pipe.drain()
                self.woken.release()
            if self.fails:
                raise SystemExit


@pytest.fixture
def echo() -> Echo:
    """Make a listener whose thread does not run yet."""
    return Echo()


def test_the_thread_is_started_once(echo: Echo) -> None:
    """When it is needed first; it is woken from then on, and ended by `close`."""
    assert echo.thread() is None
    echo.need()
    thread = echo.thread()
    echo.need()
    assert echo.thread() is thread
    echo.wake()
    assert echo.woken.acquire(timeout=TEST_TIMEOUT)
    echo.close()
    assert thread is not None
    assert not thread.is_alive()
    assert not echo.is_open()


def test_a_listener_that_nobody_needed_is_closed(echo: Echo) -> None:
    """Its pipe is, for no thread does it. Closing it again does nothing."""
    echo.close()
    assert not echo.is_open()
    echo.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_leaves_nothing_open(echo: Echo) -> None:
    """The pipe is closed with it."""
    echo.fails = True
    echo.need()
    thread = echo.thread()
    assert thread is not None
    thread.join(TEST_TIMEOUT)
    assert not echo.is_open()
    echo.close()


def test_a_forked_child_closes_its_copy(echo: Echo) -> None:
    """Without waiting for a thread that is not there."""
    echo.abandon()
    assert not echo.is_open()


def test_an_interrupted_start_leaves_no_thread_without_an_owner(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt the start when the thread runs already: `close` ends it, and no second one is started."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        echo.need()
    monkeypatch.undo()
    echo.need()
    echo.wake()
    assert echo.woken.acquire(timeout=TEST_TIMEOUT)
    echo.close()
    if (thread := echo.thread()) is not None:
        thread.join(TEST_TIMEOUT)
    started[0].join(TEST_TIMEOUT)
    assert not [each for each in threading.enumerate() if each.name == "tenure-echo"]
    assert not echo.is_open()


def test_a_thread_that_an_interrupted_start_has_left_ends_with_close(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another need of it in between."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        echo.need()
    monkeypatch.undo()
    echo.close()
    started[0].join(TEST_TIMEOUT)
    assert not started[0].is_alive()
    assert not echo.is_open()
