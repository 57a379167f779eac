"""Windows: the stretches of the store's clock in each of which a job runs once.

A window begins at one instant of its schedule and ends at the next one. Its name is its beginning, so all nodes that
read the store's clock in the same window name it alike, whatever their own clocks show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo  # noqa: TID251 - for arithmetic; no clock is read
from functools import lru_cache

from tenure.contracts.deadlines import MICROS, micros
from tenure.contracts.limits import check_duration
from tenure.errors import UsageError
from tenure.escaping import escape

SHORTEST = 1.0
"""The length of the shortest window, in seconds."""

LOOK_BACK = tuple(timedelta(hours=hours) for hours in (2, 49, 24 * 32, 24 * 367, 24 * 366 * 9))
"""How far back the last instant of a cron expression is looked for, step by step: the rarest is a 29 February."""

ADVICE = (
    'give a number of seconds, "hourly", "daily", "weekly" or "monthly", the last three with or without a time zone, '
    'as "daily Europe/Paris", or a cron expression of five fields with or without one: "0 3 * * 1-5 Europe/Paris"'
)


@dataclass(slots=True, frozen=True)
class Window:
    """One window of a schedule. Instants are microseconds since 1970, UTC."""

    starts: int
    ends: int

    @property
    def name(self) -> str:
        """The beginning of the window, as text for people."""
        return instant(self.starts).isoformat().replace("+00:00", "Z")


def instant(micros: int) -> datetime:
    """Return an instant of the store's clock as a datetime in UTC."""
    return datetime.fromtimestamp(micros // MICROS, UTC).replace(microsecond=micros % MICROS)


Schedule = Callable[[int], Window]
"""Returns the window that contains an instant."""


def schedule(text: object) -> tuple[str, Schedule]:
    """Return a window as text, and its schedule. Raises UsageError, which says what is allowed."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        length = micros(check_duration(text, "window", SHORTEST))
        return f"{text} s", lambda now: Window(now - now % length, now - now % length + length)
    if not isinstance(text, str) or not text:
        raise UsageError(f"a window must be a number or a str, not {text!r}: {ADVICE}")
    words = text.split()
    match words:
        case ["hourly"]:
            return "hourly", schedule(3600)[1]
        case ["daily" | "weekly" | "monthly" as often]:
            return often, _dates(UTC, *DATES[often])
        case ["daily" | "weekly" | "monthly" as often, zone]:
            return " ".join(words), _dates(_zone(zone), *DATES[often])
        case [_, _, _, _, _]:
            return " ".join(words), _cron(" ".join(words), UTC)
        case [*fields, zone] if len(fields) == 5:  # noqa: PLR2004 - the fields of cron
            return " ".join(words), _cron(" ".join(fields), _zone(zone))
        case _:
            raise UsageError(f"{escape(text)!r} is no window: {ADVICE}")


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # no such name, a folder of names, no name at all
        raise UsageError(
            f"there is no time zone {escape(name)!r} on this machine: write a name of the IANA database, such as "
            "Europe/Paris; on a machine without that database, install the package tzdata"
        ) from error


def _dates(zone: tzinfo, first: Callable[[date], date], longest: int) -> Schedule:
    """Return the schedule of the local midnights of some dates, which are at most `longest` days apart.

    `first` returns the last of them that is not after a date. A day of daylight saving has 23 or 25 hours.
    """

    def window(now: int) -> Window:
        begins = first(instant(now).astimezone(zone).date())
        starts, ends = (
            micros(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
            for day in (begins, first(begins + timedelta(days=longest)))
        )
        return Window(starts, ends)

    return window


DATES: dict[str, tuple[Callable[[date], date], int]] = {
    "daily": (lambda day: day, 1),
    "weekly": (lambda day: day - timedelta(days=day.weekday()), 7),
    "monthly": (lambda day: day.replace(day=1), 31),
}
"""The windows that begin at a local midnight: the last one not after a date, and the most days between two."""


def _cron(expression: str, zone: tzinfo) -> Schedule:
    """Return the schedule of a cron expression in a time zone.

    On the days of daylight saving cronsim does as Debian's cron: what falls into the hour that is skipped runs right
    after it, what falls into the hour that comes twice runs once; jobs of every hour or minute run in real time. Where
    the clock changes by half an hour (Australia/Lord_Howe), cronsim leaves out what falls into the half hour that is
    skipped: docs/jobs.md says so.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise UsageError("a window by a cron expression needs cronsim: pip install 'tenure[cron]'") from error
    try:
        CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise UsageError(f"{escape(expression)!r} is no cron expression ({error}): {ADVICE}") from error

    @lru_cache(maxsize=2)
    def around(second: int) -> Window:
        for back in LOOK_BACK:
            last: float | None = None
            for each in CronSim(expression, (datetime.fromtimestamp(second, UTC) - back).astimezone(zone)):
                following = each.timestamp()  # datetimes of one zone compare what their clocks show, not the instants
                if following > second:
                    if last is None:
                        break
                    return Window(micros(last), micros(following))
                last = following
        raise UsageError(f"the cron expression {escape(expression)!r} names no instant of these years: {ADVICE}")

    return lambda now: around(now // MICROS)
