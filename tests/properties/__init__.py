"""What holds for every input and every history."""

import os

from hypothesis import HealthCheck, settings

IN_CI = bool(os.environ.get("CI"))


def thorough(examples: int, steps: int = 40) -> settings:
    """Return settings for so many examples; the same ones each time in continuous integration."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=IN_CI,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
