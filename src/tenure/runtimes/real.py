"""What the runtimes of the real world share: the clocks of this machine, random numbers and unique ids."""

import itertools
import random
import socket
from typing import TYPE_CHECKING

from tenure.runtimes import clocks

if TYPE_CHECKING:
    from collections.abc import Callable

DATAGRAM = 4096
"""The longest message that a channel receives, in bytes."""


class RealWorld:
    """The clocks and the random numbers of a runtime, seeded from the system: no two processes draw the same."""

    def __init__(self) -> None:
        """Draw a seed, and the prefix of this runtime's ids."""
        source = random.Random(random.SystemRandom().getrandbits(256))
        prefix = f"{source.getrandbits(128):032x}-"
        self.new_id: Callable[[], str] = map((prefix + "%x").__mod__, itertools.count()).__next__
        """Returns 128 random bits and a number that counts up, as text."""
        self.now = clocks.steady
        self.wall = clocks.wall_micros
        self.random = source.random


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()
