"""Windows: each instant lies in one, they follow each other without a gap, and all nodes name them alike."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import UsageError
from tenure.contracts.deadlines import MICROS
from tenure.jobs.windows import Window, instant, schedule

ZONES = ("UTC", "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu")
EXPRESSIONS = ("0 3 * * *", "30 2 * * *", "15 1 * * 0", "*/15 * * * *", "0 */6 * * 1-5", "30 0 1 * *")
SCHEDULES: list[object] = [
    60,
    90.5,
    "hourly",
    "daily",
    "weekly",
    "monthly",
    *(f"{often} America/Santiago" for often in ("weekly", "monthly")),
    *(f"daily {zone}" for zone in ZONES),
    *(f"{expression} {zone}" for expression in EXPRESSIONS for zone in ZONES),
]

instants = st.integers(
    round(datetime(2025, 1, 1, tzinfo=UTC).timestamp()) * MICROS,
    round(datetime(2032, 1, 1, tzinfo=UTC).timestamp()) * MICROS,
)


def at(text: str, zone: str = "UTC") -> int:
    """Return an instant in microseconds."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * MICROS


@given(st.sampled_from(SCHEDULES), instants)
def test_windows_follow_each_other(window: object, now: int) -> None:
    """An instant lies in its window, every instant of it names the same one, and the next begins where it ends."""
    of = schedule(window)[1]
    found = of(now)
    assert found.starts <= now < found.ends
    assert of(found.starts) == of(found.ends - 1) == found
    assert of(found.ends).starts == found.ends
    assert of(found.starts - 1).ends == found.starts


@pytest.mark.parametrize("window", SCHEDULES, ids=str)
def test_windows_follow_each_other_through_daylight_saving(window: object) -> None:
    """On the two strange days, too, five minutes by five minutes."""
    of = schedule(window)[1]
    for day in ("2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "2026-04-05", "2026-10-04"):
        now = at(f"{day} 00:00") - 86_400 * MICROS // 4
        found = of(now)
        for _ in range(36 * 12):
            now += 300 * MICROS
            if now >= found.ends:
                following = of(found.ends)
                assert following.starts == found.ends
                found = following if now < following.ends else of(now)
            assert of(now) == found


def test_a_daily_job_runs_once_on_the_day_that_is_shorter_and_on_the_longer_one() -> None:
    """A job of 02:30 runs right after the hour that is skipped, and once in the hour that comes twice."""
    of = schedule("30 2 * * * Europe/Vienna")[1]
    spring = of(at("2026-03-29 12:00"))
    assert instant(spring.starts) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)  # 03:00, where 02:30 does not exist
    autumn = of(at("2026-10-25 12:00"))
    assert instant(autumn.starts) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert instant(autumn.ends) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_local_day_has_its_hours(day: str, hours: int) -> None:
    """From midnight to midnight, as people there see them."""
    found = schedule("daily Europe/Vienna")[1](at(f"{day} 12:00", "Europe/Vienna"))
    assert instant(found.starts) == datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Vienna"))
    assert found.ends - found.starts == hours * 3600 * MICROS


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    """At midnight there."""
    vienna, day = ZoneInfo("Europe/Vienna"), at("2026-02-26 12:00")
    week, month = schedule("weekly Europe/Vienna")[1](day), schedule("monthly Europe/Vienna")[1](day)
    assert (instant(week.starts), instant(week.ends)) == (
        datetime(2026, 2, 23, tzinfo=vienna),
        datetime(2026, 3, 2, tzinfo=vienna),
    )
    assert (instant(month.starts), instant(month.ends)) == (
        datetime(2026, 2, 1, tzinfo=vienna),
        datetime(2026, 3, 1, tzinfo=vienna),
    )


def test_a_window_is_named_by_its_beginning() -> None:
    """As text that people read."""
    assert Window(at("2026-11-25 07:00"), at("2026-11-25 08:00")).name == "2026-11-25T07:00:00Z"


@pytest.mark.parametrize(
    ("window", "error"),
    [
        (0.5, "window must be a number of seconds from 1"),
        (True, "must be a number or a str"),
        (None, "must be a number or a str"),
        ("", "must be a number or a str"),
        ("yearly", "'yearly' is no window: give a number of seconds"),
        ("daily Europe/Nowhere", "no time zone 'Europe/Nowhere' on this machine"),
        ("daily ../../etc/passwd", "no time zone"),
        ("61 * * * *", "is no cron expression"),
        ("* * * *", "is no window"),
        ("0 3 * * * Europe/Paris extra", "is no window"),
        ("\x1b[31mred", r"x1b\[31mred' is no window"),
        ("0 0 30 2 *", "is no cron expression"),
    ],
)
def test_another_window_is_refused(window: object, error: str) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError, match=error):
        schedule(window)


def test_the_year_of_a_leap_day() -> None:
    """The rarest expression has windows of four years."""
    found = schedule("0 0 29 2 *")[1](at("2026-01-01 00:00"))
    assert instant(found.ends) - instant(found.starts) == timedelta(days=4 * 365 + 1)
