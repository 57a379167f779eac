"""Many contenders for one name in one process: the grants of each, and the overlaps, when two held the name."""

import statistics
from collections.abc import Mapping, Sequence

from bench.harness import Report, Row, ratios, spread

START_AFTER = 0.05
"""How long the members may take to get ready, in seconds."""


class Crowd:
    """One period of contention. It counts each member's grants, under the lock."""

    def __init__(self, members: int, start: float, seconds: float) -> None:
        """Prepare for members that begin at `start` and contend for `seconds`."""
        self.start = start
        self.until = start + seconds
        self.overlaps = 0
        self.grants = [0] * members
        self._seconds = seconds
        self._inside = False

    def enter(self, member: int) -> None:
        """Record that a member holds the lock."""
        self.overlaps += self._inside
        self._inside = True
        self.grants[member] += 1

    def withdraw(self) -> None:
        """Record that the holder is about to release the lock."""
        self._inside = False

    def rate(self) -> float:
        """Return the acquisitions a second."""
        return sum(self.grants) / self._seconds

    def fairness(self) -> float:
        """Return the fewest grants of a member over the most: 1 is fair; 0: a member was never granted."""
        return min(self.grants) / max(self.grants, default=0) if any(self.grants) else 0.0


def crowd_report(
    name: str, title: str, rounds: Mapping[str, Sequence[Crowd]], meanings: Mapping[str, str], floor: str
) -> Report:
    """Report on the crowds of all contenders, round by round."""
    columns = ["acquired/s", f"share of {floor}", "least..most of a member", "least/most", "overlaps"]
    report = Report(name, title, columns)
    rates = {label: [crowd.rate() for crowd in crowds] for label, crowds in rounds.items()}
    for label, crowds in rounds.items():
        rate, share = spread(rates[label]), ratios(rates[label], rates[floor])
        fairness = statistics.median(crowd.fairness() for crowd in crowds)
        least, most = (pick(pick(crowd.grants) for crowd in crowds) for pick in (min, max))
        overlaps = sum(crowd.overlaps for crowd in crowds)
        cells = [f"{rate.median:,.0f}", f"{share.median:.4f}", f"{least}..{most}", f"{fairness:.2f}", str(overlaps)]
        figures = {"rates": rates[label], "share": share.median, "fairness": fairness, "overlaps": overlaps}
        report.rows.append(Row(label, cells, meanings[label], figures))
    return report
