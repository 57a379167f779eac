"""Grant tables that are wrong in one way each about requests that allow barging."""

from tenure.contracts.messages import AcquireRequest, NotificationKind
from tenure.table.step import Step


class ImpatientIsPassed(Step):
    """Who has waited for its bound is passed as before."""

    def _is_passable(self) -> bool:
        return self.state.queue.fair_after > 0


class FairIsPassed(Step):
    """Only the first must allow that it is passed."""

    def _is_passable(self) -> bool:
        head = self.state.queue[0]
        return self.now - head.joined_at < head.request.fair_after


class BoundByTheWallClock(Step):
    """A bound is compared with the clock that makes the tokens."""

    def _is_passable(self) -> bool:
        return self.stamp - self.state.queue[0].joined_at < self.state.queue.fair_after


class FairPasses(Step):
    """A request that allows no barging takes what is free."""

    def _may_barge(self, request: AcquireRequest) -> bool:
        return not self._live_head(request.request_id) or self._is_passable()


class FreedInSilence(Step):
    """A release frees the name and notifies nobody."""

    def _notify_that_free(self) -> None: ...


class ToldAgainAndAgain(Step):
    """Each release wakes the first, however often that came too late."""

    def _notify_that_free(self) -> None:
        if queue := self.state.queue:
            queue[0].quiet_until = 0
        super()._notify_that_free()


class ToldOnce(Step):
    """Who came too late once is not told again."""

    def _notify_that_free(self) -> None:
        super()._notify_that_free()
        if (queue := self.state.queue) and queue[0].quiet_until:
            queue[0].quiet_until = 2**60


class ToldButDeaf(Step):
    """Who does not listen is told, and nobody else."""

    def _notify_that_free(self) -> None:
        head = self.state.queue[0]
        self._notify(head.request.channel, NotificationKind.HEAD, head.request.request_id)


class HandedOverAtOnce(Step):
    """Whoever allows barging is served as if it did not."""

    def _is_passable(self) -> bool:
        return False


MUTANTS: list[type[Step]] = [
    each for each in list(globals().values()) if isinstance(each, type) and issubclass(each, Step) and each is not Step
]
