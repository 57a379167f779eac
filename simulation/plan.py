"""All that a run depends on, drawn from a seed or written out as text."""

import random
from dataclasses import dataclass, fields

from holdfast.errors import UsageError
from simulation.faults import Faults
from simulation.scenarios import Scenario

SIZES = ("clients", "tasks", "rounds", "names")


@dataclass(slots=True, frozen=True)
class Plan:
    """What happens in a run, up to the randomness of its seed."""

    scenario: Scenario
    seed: int
    clients: int
    tasks: int
    rounds: int
    names: int
    """How many of the scenario's names are wanted: the fewer, the longer the queues."""
    duration: float
    """For how many virtual seconds faults happen."""
    faults: Faults

    @classmethod
    def draw(cls, scenario: Scenario, seed: int) -> "Plan":
        """Draw a plan from a seed."""
        rng = random.Random(f"{scenario.name}/{seed}/plan")
        crowded = rng.random() < 0.2
        return cls(
            scenario,
            seed,
            clients=2 if crowded else rng.randint(2, 4),
            tasks=6 if crowded else rng.randint(1, 2),
            rounds=2 if crowded else rng.randint(2, 4),
            names=rng.randint(1, len(scenario.kinds)),
            duration=rng.uniform(2.0, 5.0),
            faults=scenario.faults.drawn(rng),
        )

    @classmethod
    def parse(cls, scenario: Scenario, seed: int, text: str) -> "Plan":
        """Read what `text` wrote. Raises UsageError for anything else."""
        none, values = Faults(), dict[str, float]()
        kinds: dict[str, type[float]] = {each.name: type(getattr(none, each.name)) for each in fields(Faults)}
        kinds |= dict.fromkeys(SIZES, int) | {"duration": float}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            try:
                values[name] = kinds[name](value)
            except (KeyError, ValueError):
                known = ", ".join(kinds)
                raise UsageError(f"{part!r} is no part of a plan: give name=number, a name being {known}") from None
        clients, tasks, rounds, names = (int(values.pop(size, 1)) for size in SIZES)
        duration = values.pop("duration", 2.0)
        faults = Faults(**values)  # type: ignore[arg-type]  # each is a number of its own kind
        return cls(scenario, seed, clients, tasks, rounds, names, duration, faults)

    def text(self) -> str:
        """Write out everything but scenario and seed, to be read by `parse`."""
        sizes = [f"{name}={getattr(self, name)}" for name in (*SIZES, "duration")]
        return ",".join([*sizes, *(f"{name}={getattr(self.faults, name)}" for name in self.faults.active())])

    def drawn(self) -> bool:
        """Tell whether the seed alone gives this plan."""
        return self == Plan.draw(self.scenario, self.seed)

    def describe(self) -> str:
        """Say in a line what happens."""
        faults = ", ".join(f"{name}={getattr(self.faults, name):.3g}" for name in self.faults.active()) or "none"
        return (
            f"{self.scenario.name}, seed {self.seed}: {self.clients} clients x {self.tasks} tasks x {self.rounds} "
            f"rounds, {self.names} names, {self.duration:.1f} s, faults: {faults}"
        )
