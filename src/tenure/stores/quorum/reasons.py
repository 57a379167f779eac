"""The reasons why nodes do not vote: whether waiting may help, and a summary of all of them."""

import errno
import re
import socket
from collections.abc import Sequence

from tenure.errors import Vote

UNKNOWN_HOSTS = frozenset({socket.EAI_NONAME, socket.EAI_FAIL, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors that tell that a host does not exist. A silent name server is not among them: it may reply soon."""

SEVERAL = re.compile(r"\[Errno (\d+)\]")
"""The errors in the text of an OSError: asyncio raises one error for all addresses of a host."""


def is_nobody_there(error: BaseException) -> bool:
    """Return whether an error tells at once that waiting is useless: no process listens, or the host is unknown."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, socket.gaierror):
        return cause.errno in UNKNOWN_HOSTS
    several = SEVERAL.findall(str(cause)) if cause is not None and cause.errno is None else []
    return isinstance(cause, ConnectionRefusedError) or set(several) == {str(errno.ECONNREFUSED)}


def in_short(votes: Sequence[Vote]) -> str:
    """Return a summary of what the nodes said, to be appended to a message. It names equal reasons only once.

    An error is shown as its reason without the address, which the node's title contains, and then its advice.
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
