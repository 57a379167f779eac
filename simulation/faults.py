"""The faults of a run and their rates: drawn from the seed, and switched off one by one to shrink a run."""

import random
from dataclasses import dataclass, fields, replace


@dataclass(slots=True, frozen=True)
class Faults:
    """The faults of a run. A rate is a probability per message or per acquisition; a count is per run."""

    loss: float = 0.0
    """A notification is lost. A request or its reply is lost with a third of the probability each."""
    duplicate: float = 0.0
    """A request is carried out twice, the second time later, as by a retry of a lower layer."""
    straggler: float = 0.0
    """A message takes up to seconds instead of milliseconds."""
    errors: float = 0.0
    """The store replies with an error and changes nothing."""
    cancel: float = 0.0
    """An acquisition is cancelled at a random await point."""
    cuts: int = 0
    """A connection breaks: requests under way have an unknown outcome."""
    partitions: int = 0
    """Messages between a client and the store are lost for a while, in one direction or both."""
    slow: int = 0
    """The store takes hundreds of milliseconds for a while."""
    pauses: int = 0
    """A client runs no code for a while, and does not notice."""
    crashes: int = 0
    """A client dies, and another client starts in its place."""
    drift: float = 0.0
    """By how much clocks run fast or slow. Tenure allows 1 % between any two clocks."""
    disorder: float = 0.0
    """By how many seconds the wall clocks of clients are wrong."""
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
    """A replica is promoted, and after a while the former master again, without the changes of the time between."""
    newcomers: int = 0
    """A new client starts as soon as a store that has forgotten its state is up again."""
    stalls: int = 0
    """The replicas receive nothing for a while."""
    flushes: int = 0
    """A Redis server forgets all scripts."""
    revokes: int = 0
    """A name is revoked by force."""
    delays: float = 0.0
    """A lease has a lock delay of most of the longest ttl, or of more than it."""

    def without(self, name: str) -> "Faults":
        """Return these faults with one fault switched off."""
        return replace(self, **{name: type(getattr(self, name))(0)})

    def active(self) -> list[str]:
        """Return the names of the faults that are switched on."""
        return [field.name for field in fields(self) if getattr(self, field.name)]

    def drawn(self, rng: random.Random) -> "Faults":
        """Return a random selection of these faults, each at a random strength up to the given one.

        A run with two or three faults goes deeper than a run with all of them at once.
        """
        values: dict[str, float | int] = {}
        for name in self.active():
            most = getattr(self, name)
            if rng.random() < 0.5:
                values[name] = rng.randint(1, most) if isinstance(most, int) else most * rng.random()
        return Faults(**values)  # type: ignore[arg-type]  # each value is a number of the type of its field
