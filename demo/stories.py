"""The stories that the demo tells."""

from collections.abc import Callable
from dataclasses import dataclass

from demo import coupons, push, statistics
from demo.account import Account
from demo.plan import Worker
from demo.rounds import Stage
from tenure import Client


@dataclass(slots=True, frozen=True)
class Story:
    """A story: what a worker does in it without and with Tenure, and how it is played and told."""

    title: str
    work_without: Callable[[Worker], None]
    work_with: Callable[[Worker, Client], None]
    play: Callable[[Stage], Account]


STORIES = {
    "statistics": Story(
        "Statistics that many processes write", statistics.without_lock, statistics.under_lock, statistics.play
    ),
    "coupons": Story("Few coupons, many customers", coupons.without_stock, coupons.with_stock, coupons.play),
    "push": Story("An hourly push", push.without_job, push.with_job, push.play),
}
"""By the name that `--story` takes."""
