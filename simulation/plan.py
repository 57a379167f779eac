"""The plan of a run: everything that the run depends on, drawn from a seed or parsed from a text."""

import random
from dataclasses import dataclass, fields

from simulation.faults import Faults
from simulation.scenarios import Scenario
from tenure.errors import UsageError

SIZES = ("clients", "tasks", "rounds", "names")


@dataclass(slots=True, frozen=True)
class Plan:
    """The plan of a run, which is deterministic together with the seed."""

    scenario: Scenario
    seed: int
    clients: int
    tasks: int
    rounds: int
    names: int
    """How many of the scenario's names the clients use. Fewer names have longer queues."""
    duration: float
    """For how many virtual seconds faults occur."""
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
        """Parse a text that `text` returned. Raises UsageError for any other text."""
        none, values = Faults(), dict[str, float]()
        kinds: dict[str, type[float]] = {each.name: type(getattr(none, each.name)) for each in fields(Faults)}
        kinds |= dict.fromkeys(SIZES, int) | {"duration": float}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            try:
                values[name] = kinds[name](value)
            except (KeyError, ValueError):
                known = ", ".join(kinds)
                raise UsageError(f"{part!r} is no part of a plan: give name=number, with a name of {known}") from None
        clients, tasks, rounds, names = (int(values.pop(size, 1)) for size in SIZES)
        duration = values.pop("duration", 2.0)
        faults = Faults(**values)  # type: ignore[arg-type]  # each value is a number of the type of its field
        return cls(scenario, seed, clients, tasks, rounds, names, duration, faults)

    def text(self) -> str:
        """Return everything but scenario and seed as a text for `parse`."""
        sizes = [f"{name}={getattr(self, name)}" for name in (*SIZES, "duration")]
        return ",".join([*sizes, *(f"{name}={getattr(self.faults, name)}" for name in self.faults.active())])

    def drawn(self) -> bool:
        """Tell whether drawing from the seed gives this plan."""
        return self == Plan.draw(self.scenario, self.seed)

    def describe(self) -> str:
        """Return a description of the plan in one line."""
        faults = ", ".join(f"{name}={getattr(self.faults, name):.3g}" for name in self.faults.active()) or "none"
        return (
            f"{self.scenario.name}, seed {self.seed}: {self.clients} clients x {self.tasks} tasks x {self.rounds} "
            f"rounds, {self.names} names, {self.duration:.1f} s, faults: {faults}"
        )
