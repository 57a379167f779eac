"""What goes wrong in a run, and how often: drawn from the seed, and easy to switch off one by one."""

import random
from dataclasses import dataclass, fields, replace


@dataclass(slots=True, frozen=True)
class Faults:
    """The faults of a run. Rates are probabilities a message or an acquisition, counts are per run."""

    loss: float = 0.0
    """A push is lost; a request, or its reply, is a third as likely each."""
    duplicate: float = 0.0
    """A request is carried out twice, the second time later, as by a retry below us."""
    straggler: float = 0.0
    """A message takes up to seconds instead of milliseconds."""
    errors: float = 0.0
    """The store answers an error instead of doing anything."""
    cancel: float = 0.0
    """An acquisition is cancelled at a random one of its await points."""
    cuts: int = 0
    """A connection breaks: what is under way has an unknown outcome."""
    partitions: int = 0
    """A client and the store cannot hear each other for a while, in one direction or both."""
    slow: int = 0
    """The store takes hundreds of milliseconds for a while."""
    pauses: int = 0
    """A client runs no code for a while, and believes that nothing happened."""
    crashes: int = 0
    """A client dies, and another one starts in its place."""
    drift: float = 0.0
    """By how much clocks run fast or slow; the allowance is 1 % between any two."""
    disorder: float = 0.0
    """By how many seconds the wall clocks of clients are off."""
    clock_back: int = 0
    """The store's clocks step back."""
    restarts: int = 0
    """The store restarts with all of its state; connections break."""
    clock_forward: int = 0
    """The store's clock steps forward: leases end early."""
    amnesia: int = 0
    """The store restarts with some or none of its state."""
    failovers: int = 0
    """A replica that lags behind is promoted."""
    failbacks: int = 0
    """A replica is promoted, and after a while the master before it again, which knows nothing of the time between."""
    newcomers: int = 0
    """A client that was never there before comes as soon as the store that forgot is back."""
    stalls: int = 0
    """The replicas get nothing for a while."""
    flushes: int = 0
    """A Redis server forgets all scripts."""
    revokes: int = 0
    """Somebody takes a name by force."""
    delays: float = 0.0
    """A lease has a lock delay of most of the longest ttl, or of more than that."""

    def without(self, name: str) -> "Faults":
        """Return the same with one fault switched off."""
        return replace(self, **{name: type(getattr(self, name))(0)})

    def active(self) -> list[str]:
        """Name the faults that are switched on."""
        return [field.name for field in fields(self) if getattr(self, field.name)]

    def drawn(self, rng: random.Random) -> "Faults":
        """Return a random selection of these faults, each at a random strength up to what is given here.

        A run with every fault at once is mostly noise; one with two or three of them goes deeper.
        """
        values: dict[str, float | int] = {}
        for name in self.active():
            most = getattr(self, name)
            if rng.random() < 0.5:
                values[name] = rng.randint(1, most) if isinstance(most, int) else most * rng.random()
        return Faults(**values)  # type: ignore[arg-type]  # the fields are numbers of the same kinds
