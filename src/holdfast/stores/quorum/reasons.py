"""Why nodes do not vote: whether it is worth to wait for one, and all of them in few words."""

import errno
import re
import socket
from collections.abc import Sequence

from holdfast.errors import Vote

UNKNOWN_HOSTS = frozenset({socket.EAI_NONAME, socket.EAI_FAIL, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""That a name server did not answer is not among them: it may do so soon."""

SEVERAL = re.compile(r"\[Errno (\d+)\]")
"""Where a host has several addresses, asyncio has one error for all of them, which has them in its text alone."""


def is_nobody_there(error: BaseException) -> bool:
    """Tell whether an error says at once what waiting would not change: nobody listens, or nobody knows the host."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, socket.gaierror):
        return cause.errno in UNKNOWN_HOSTS
    several = SEVERAL.findall(str(cause)) if cause is not None and cause.errno is None else []
    return isinstance(cause, ConnectionRefusedError) or set(several) == {str(errno.ECONNREFUSED)}


def in_short(votes: Sequence[Vote]) -> str:
    """Tell what the nodes said, to be added to what happened: what is the same of several nodes only once.

    Of an error that is what went wrong without the address, which the title of the node tells, and then what to do.
    """
    nodes: dict[str, list[str]] = {}
    advices: dict[str, None] = {}
    for vote in votes:
        what, _, advice = vote.said.partition("; ")
        nodes.setdefault(what.replace(f" at {vote.node.partition('://')[2]}", ""), []).append(vote.node)
        if advice:
            advices[advice] = None
    told = "; ".join(f"{', '.join(titles)}: {what}" for what, titles in nodes.items())
    return f" ({told}){''.join(f'; {advice}' for advice in advices)}" if votes else ""
