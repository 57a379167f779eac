"""Let go of an event loop's connection in a forked child, without a word to the loop, which is the parent's."""

import asyncio
import os
import socket


def abandon_transport(transport: asyncio.BaseTransport) -> None:
    """In a forked child: put a blank socket in place of a transport's own, which closes this copy of it.

    The child shares the loop's selector with its parent: to take the descriptor out of the selector here would take it
    out there as well. To close the descriptor would set its number free for another file, which the transport might
    then write to or close.
    """
    with socket.socket(socket.AF_UNIX) as blank:
        os.dup2(blank.fileno(), transport.get_extra_info("socket").fileno(), inheritable=False)
