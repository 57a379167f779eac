"""The start of a command: a program that becomes the command once tenure says so, and dies with tenure.

It runs in an interpreter of its own, as `child.py` starts it, and imports nothing of tenure. Only a process itself can
ask the kernel for a signal at the death of its parent, and no code may run between fork and exec in a process with
threads. Its arguments are the process id of tenure, the descriptor of the request and that of the reply.
"""

import _signal as signal  # pyright: ignore[reportMissingModuleSource] - without the enums of `signal`, it starts sooner
import os
import sys

PR_SET_PDEATHSIG = 1
HELD_BACK = {getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM") if hasattr(signal, name)}
"""Signals that `child.py` blocks until the command can get them, without those that this system does not have."""


def main() -> None:
    """Read the command and its environment, and become the command. Without a request, end."""
    parent, request, reply = map(int, sys.argv[1:4])
    os.set_inheritable(reply, False)  # noqa: FBT003 - takes no keyword
    _die_with(parent)
    with os.fdopen(request, "rb") as source:
        count, _, rest = source.read().partition(b"\0")
    if not count:  # tenure has ended before it could watch the command
        os._exit(1)
    words = rest.split(b"\0")
    command, environment = words[: int(count)], words[int(count) :]
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # as Python has set them for itself
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    try:
        variables = dict(each.split(b"=", 1) for each in environment)
        os.execvpe(command[0], command, variables)  # noqa: S606 - the user's command, as it is
    except OSError as error:
        os.write(reply, str(error.errno).encode())
    os._exit(127)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process, also as the command that it becomes, when its parent has died."""
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        except (ImportError, OSError, AttributeError):  # the watcher kills its group all the same
            pass
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
