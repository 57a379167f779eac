"""What was done in a console: a line in the log `tenure.audit` for each action, and the last lines for the pages."""

import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

from tenure.console.actions import Action
from tenure.errors import TenureError
from tenure.escaping import quoted, shown

log = logging.getLogger("tenure.audit")

KEPT = 50
"""How many lines the pages show, those of this process."""


@dataclass(slots=True, frozen=True)
class AuditLine:
    """One action: who did what to what, why, and what came of it."""

    at: str
    who: str
    action: str
    subject: str
    """The name or the job; the title of the store."""
    page: str
    """The page that shows it: that of names, jobs or the store."""
    reason: str
    outcome: str


class Audit:
    """The actions of one console."""

    def __init__(self) -> None:
        self._lines: deque[AuditLine] = deque(maxlen=KEPT)

    def lines(self) -> list[AuditLine]:
        """Return the last lines, the latest first."""
        return list(reversed(self._lines))

    async def record(self, who: str, action: Action, subject: str, reason: str, work: Awaitable[str]) -> None:
        """Carry out an action, and note what came of it, also if it failed or was interrupted."""
        outcome = "interrupted: it may have been done"
        try:
            outcome = await work
        except TenureError as error:
            outcome = f"failed: {quoted(error)}"
        finally:
            at = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
            self._note(AuditLine(at, who, action.title, subject, action.page, reason, outcome))

    def refuse(self, who: str, action: str, why: str) -> None:
        """Note that an action was refused before anything was done. The pages do not show it: anybody may cause it."""
        log.warning("%s was refused to %s: %s", shown(action), shown(who), why, extra={"audit_action": action})

    def _note(self, line: AuditLine) -> None:
        self._lines.append(line)
        log.info(
            "%s: %s of %s, because %s: %s",
            shown(line.who),
            line.action,
            shown(line.subject),
            shown(line.reason, 200),
            line.outcome,
            extra={f"audit_{key}": getattr(line, key) for key in ("who", "action", "subject", "reason", "outcome")},
        )
