"""One worker of the demo: `python -m demo.worker PLAN NUMBER`.

The worker does its part of a story, without a store or with one. It sends events to its standard output. A line on its
standard input lets it begin, or write after a planned pause.
"""

import os
import signal
import sys
from pathlib import Path

from demo.plan import Worker, load_plan
from demo.stories import STORIES
from tenure import Client

LIFETIME = 120
"""After this many seconds the kernel ends a worker, even if the process that started it has died."""


def main() -> None:
    """Run one worker."""
    signal.alarm(LIFETIME)
    plan, number = load_plan(Path(sys.argv[1])), int(sys.argv[2])
    worker, story = Worker(plan, number), STORIES[plan.story]
    if not plan.namespace:
        story.work_without(worker)
        return
    with Client(os.environ["TENURE_URL"], namespace=plan.namespace, owner=f"worker {number + 1}") as client:
        story.work_with(worker, client)


if __name__ == "__main__":
    main()
