"""Grant tables that are wrong in one way each, to show that the judge and the oracle would notice.

They change what goes in and what comes out of the true table, and know nothing of how it works.
"""

# ruff: noqa: D102 - the class says what is wrong with it

from dataclasses import replace

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    HolderView,
    NotGranted,
    Notification,
    NotificationKind,
    ReleaseRequest,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.outcome import Outcome
from tenure.table.state import PLACEHOLDER, REVOKED, Queue
from tenure.table.step import Step
from tenure.table.times import RETRY


class NewcomerOvertakes(Step):
    """Who asks for the first time is granted ahead of the queue if it fits."""

    def acquire(self, request: AcquireRequest) -> Reply:
        if any(each.request.request_id == request.request_id for each in self.state.queue):
            return super().acquire(request)
        queue, self.state.queue = self.state.queue, Queue()
        reply = super().acquire(request)
        self.state.queue = Queue([*queue, *self.state.queue])
        return reply


class LastComesFirst(Step):
    """Who joins the queue stands at its head."""

    def acquire(self, request: AcquireRequest) -> Reply:
        before = len(self.state.queue)
        reply = super().acquire(request)
        if len(self.state.queue) > before:
            *others, last = self.state.queue
            self.state.queue = Queue([last, *others])
        return reply


class AskedAgainGoesToTheTail(Step):
    """Who asks again loses its place."""

    def acquire(self, request: AcquireRequest) -> Reply:
        self.state.queue.drop(request.request_id)
        return super().acquire(request)


class ReleaseAsksNoOwner(Step):
    """A release lets go of whoever holds the name."""

    def release(self, release: ReleaseRequest) -> Outcome:
        if self.state.holders:
            release = ReleaseRequest(release.name, self.state.holders[0].request_id, release.token, release.unsure)
        return super().release(release)


class ReleaseHandsNothingOver(Step):
    """A release frees the name and leaves it to the waiters to find out."""

    def release(self, release: ReleaseRequest) -> Outcome:
        queue, self.state.queue = self.state.queue, Queue()
        outcome = super().release(release)
        self.state.queue = queue
        return outcome


class TokensRepeat(Step):
    """A token may be issued twice."""

    def acquire(self, request: AcquireRequest) -> Reply:
        self.state.counter -= 1
        return super().acquire(request)


class TokensForgetOnExpiry(Step):
    """The counter starts again when the name is not held."""

    def acquire(self, request: AcquireRequest) -> Reply:
        if all(each.expires_at <= self.now for each in self.state.holders):
            self.state.counter = 0
        return super().acquire(request)


class TombstonesAreIgnored(Step):
    """Who gave up is granted when its request arrives late."""

    def acquire(self, request: AcquireRequest) -> Reply:
        self.state.tombstones.clear()
        return super().acquire(request)


class RevocationsAreForgotten(Step):
    """A revocation leaves nothing behind that a repeated release could find."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        revoked = super().revoke(token)
        self.state.tombstones = {
            each: until for each, until in self.state.tombstones.items() if not each.startswith(REVOKED)
        }
        return revoked


class ExpiredHoldersStay(Step):
    """Who lets its lease run out keeps the name while somebody asks."""

    def acquire(self, request: AcquireRequest) -> Reply:
        for holder in self.state.holders:
            holder.expires_at = max(holder.expires_at, self.now + 1)
        return super().acquire(request)


class ExpiryComesLate(Step):
    """A lease lives one microsecond too long."""

    def acquire(self, request: AcquireRequest) -> Reply:
        for holder in self.state.holders:
            if holder.expires_at == self.now:
                holder.expires_at += 1
        return super().acquire(request)


class LeaveKeepsTheGrant(Step):
    """Who leaves after it was granted keeps the name."""

    def withdraw(self, withdraw: WithdrawRequest) -> NotGranted:
        if any(each.request_id == withdraw.request_id for each in self.state.holders):
            return NotGranted()
        return super().withdraw(withdraw)


class LeaveKeepsThePlace(Step):
    """Who leaves goes on standing in the queue."""

    def withdraw(self, withdraw: WithdrawRequest) -> NotGranted:
        queue = list(self.state.queue)
        left = super().withdraw(withdraw)
        held = {each.request_id for each in self.state.holders}
        self.state.queue = Queue(each for each in queue if each.request.request_id not in held)
        return left


class RenewalRevives(Step):
    """Any renewal is answered with a yes."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        super().renew(renewal)
        return None


class RenewalShortens(Step):
    """A renewal sets the end of a lease, even if it was later."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        answer = super().renew(renewal)
        for holder in self.state.holders:
            if holder.request_id == renewal.request_id:
                holder.expires_at = self.now + renewal.ttl
        return answer


class PushesAreShort(Step):
    """A grant that may not have been heard is for less than its ttl."""

    def release(self, release: ReleaseRequest) -> Outcome:
        before = {each.request_id for each in self.state.holders}
        outcome = super().release(release)
        for holder in self.state.holders:
            if holder.channel and holder.request_id not in before:
                holder.expires_at = self.now + (holder.ttl + 1) // 2
        return outcome


class RepliesAreShort(Step):
    """A grant in a reply is for less than its ttl, until the first renewal."""

    def acquire(self, request: AcquireRequest) -> Reply:
        held = {each.request_id for each in self.state.holders}
        reply = super().acquire(request)
        for holder in self.state.holders:
            if (
                isinstance(reply, Granted)
                and holder.request_id == request.request_id
                and request.request_id not in held
            ):
                holder.expires_at = self.now + (holder.ttl + 1) // 2
        return reply


class CapacityIsExceeded(Step):
    """One more fits than there is room for."""

    def acquire(self, request: AcquireRequest) -> Reply:
        self.state.capacity += 1
        reply = super().acquire(replace(request, capacity=request.capacity + 1))
        self.state.capacity -= 1
        return reply


class DelaysAreIgnored(Step):
    """No lock delay follows an expiry."""

    def acquire(self, request: AcquireRequest) -> Reply:
        for holder in self.state.holders:
            holder.lock_delay = 0
        return super().acquire(request)


class DelaysFollowReleases(Step):
    """A lock delay follows a release too."""

    def release(self, release: ReleaseRequest) -> Outcome:
        delay = max(
            (each.lock_delay for each in self.state.holders if each.request_id == release.request_id), default=0
        )
        outcome = super().release(release)
        if delay:
            self.state.blocked_until, self.state.block = self.now + delay, delay
        return outcome


class RevocationBurnsNoToken(Step):
    """A revoked token stays the last."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        before = self.state.counter
        victims = super().revoke(token)
        if not self.state.holders:
            self.state.counter = before
        return victims


class TheDeadAreGranted(Step):
    """A waiter that nobody can reach is granted like any other."""

    def release(self, release: ReleaseRequest) -> Outcome:
        self.listening = _everybody
        return super().release(release)


class LighterIsNotPassedOn(Step):
    """What a holder no longer takes is left to the waiters to find out."""

    def adjust(self, adjust: AdjustRequest) -> Outcome | None:
        queue, self.state.queue = self.state.queue, Queue()
        answer = super().adjust(adjust)
        self.state.queue = queue
        return answer


class HeavierByAdjusting(Step):
    """Whoever asks to be heavier is."""

    def adjust(self, adjust: AdjustRequest) -> Outcome | None:
        answer = super().adjust(adjust)
        for holder in self.state.holders:
            if answer is None and holder.request_id == adjust.request_id and adjust.weight:
                holder.weight = adjust.weight
        return answer


class AnyoneMayAdjust(Step):
    """A token that is not the holder's changes its holding."""

    def adjust(self, adjust: AdjustRequest) -> Outcome | None:
        holder = self.state.find_holder(adjust.request_id)
        return super().adjust(replace(adjust, token=holder.token) if holder else adjust)


class AdjustingProlongs(Step):
    """Who changes its holding keeps it for longer."""

    def adjust(self, adjust: AdjustRequest) -> Outcome | None:
        answer = super().adjust(adjust)
        for holder in self.state.holders:
            if answer is None and holder.request_id == adjust.request_id:
                holder.expires_at = self.now + holder.ttl
        return answer


class NothingIsKept(Step):
    """A release frees the name at once, however quick it was."""

    def release(self, release: ReleaseRequest) -> Outcome:
        return super().release(replace(release, keep=0))


class KeptForTheWholeLease(Step):
    """A name that is to be kept for a while is kept for as long as the lease had."""

    def release(self, release: ReleaseRequest) -> Outcome:
        held = {each.request_id: each.expires_at for each in self.state.holders}
        outcome = super().release(release)
        for holder in self.state.holders:
            holder.expires_at = held.get(holder.request_id.removeprefix(PLACEHOLDER), holder.expires_at)
        return outcome


class KeptIsStillHeld(Step):
    """Who let go of a name that is kept for a while can renew it."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        for holder in self.state.holders:
            if holder.request_id == PLACEHOLDER + renewal.request_id and holder.expires_at > self.now:
                holder.request_id = renewal.request_id
        return super().renew(renewal)


class WaitersAreNotToldOfKeeping(Step):
    """Who waits asks when the lease would have ended."""

    def release(self, release: ReleaseRequest) -> Outcome:
        outcome = super().release(release)
        if release.keep:
            self.notifications = [each for each in self.notifications if each.kind is not NotificationKind.HEAD]
        return outcome


class AnyoneMayResize(Step):
    """A capacity is changed by who thinks that it is another."""

    def resize(self, before: int, after: int) -> int:
        return super().resize(self.state.capacity if before != self.state.capacity else before, after)


class TooHeavyAfterResizing(Step):
    """Who wants more than there is by now waits on."""

    def resize(self, before: int, after: int) -> int:
        waiting = list(self.state.queue)
        capacity = super().resize(before, after)
        for each in waiting:
            if each.request.weight > capacity and not self._waits(each.request.request_id):
                self.state.queue.join(each)
        return capacity


class MoreRoomIsNotPassedOn(Step):
    """What a larger capacity makes room for is left to the waiters to find out."""

    def resize(self, before: int, after: int) -> int:
        queue, self.state.queue = self.state.queue, Queue()
        capacity = super().resize(before, after) if self.state.holders else self.state.capacity
        self.state.queue = Queue(each for each in queue if each.request.weight <= capacity)
        return capacity


class WaitersAreRefusedAfterResizing(Step):
    """Who waits is refused, as it asks again for what it asked for when it came."""

    def _waits(self, request_id: str) -> bool:
        return request_id == ""


class NobodyIsAskedBack(Step):
    """Who holds is not told that it is asked to let go."""

    def request_revocation(self) -> list[HolderView]:
        asked = super().request_revocation()
        self.notifications = [
            each for each in self.notifications if each.kind is not NotificationKind.REVOCATION_REQUESTED
        ]
        return asked


def _everybody(_channel: str) -> bool:
    return True


class PushesAreForgotten(Step):
    """A grant by a release is not told."""

    def release(self, release: ReleaseRequest) -> Outcome:
        outcome = super().release(release)
        self.notifications = [each for each in self.notifications if each.kind is not NotificationKind.GRANTED]
        return outcome


class HeadsAreNotTold(Step):
    """Who becomes first in the queue hears nothing of it."""

    def _notify_new_head(self, answered: str = "") -> None:
        pass


class PushesNameAnotherToken(Step):
    """A push does not carry the token that was granted."""

    def release(self, release: ReleaseRequest) -> Outcome:
        outcome = super().release(release)
        self.notifications = [
            Notification(each.channel, each.kind, each.request_id, each.token + 1) for each in self.notifications
        ]
        return outcome


class AskedAgainGetsAnotherToken(Step):
    """Who asks again after it was granted is given a new token."""

    def acquire(self, request: AcquireRequest) -> Reply:
        reply = super().acquire(request)
        for holder in self.state.holders:
            if holder.request_id == request.request_id and isinstance(reply, Granted) and holder.granted_at < self.now:
                holder.token = self.state.counter = self.state.counter + 1
                return Granted(holder.token, reply.ttl)
        return reply


class HoldersAreNotTold(Step):
    """Who holds hears nothing of those who wait."""

    def acquire(self, request: AcquireRequest) -> Reply:
        reply = super().acquire(request)
        self.notifications = [each for each in self.notifications if each.kind is not NotificationKind.CONTENDED]
        return reply


class TokensAreReservedTwice(Step):
    """The tokens that a holder may hand on are given out to the next as well."""

    def acquire(self, request: AcquireRequest) -> Reply:
        reply = super().acquire(request)
        if isinstance(reply, Granted):
            self.state.counter -= request.span - 1
        return reply


class GrantsInQuarantine(Step):
    """Who asks is granted whatever may have been forgotten."""

    def acquire(self, request: AcquireRequest) -> Reply:
        self.quarantined_until = 0
        return super().acquire(request)


class HandsOverInQuarantine(Step):
    """A release grants the next whatever may have been forgotten."""

    def release(self, release: ReleaseRequest) -> Outcome:
        self.quarantined_until = 0
        return super().release(release)


class QuarantineIsNotTold(Step):
    """Who leaves is not told why it had to wait."""

    def withdraw(self, withdraw: WithdrawRequest) -> NotGranted:
        return replace(super().withdraw(withdraw), quarantine=0)


class NothingIsTakenUp(Step):
    """A lease that was forgotten is lost."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        return super().renew(replace(renewal, request=None))


class AnythingIsTakenUpAtAnyTime(Step):
    """A lease that ran out is taken up again if nobody followed, quarantine or not."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        self.quarantined_until = max(self.quarantined_until, self.now + 1)
        return super().renew(renewal)


class WhatWasFollowedIsTakenUp(Step):
    """A lease that another one followed is taken up again."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        counter, self.state.counter = self.state.counter, min(self.state.counter, renewal.token - 1)
        outcome = super().renew(renewal)
        self.state.counter = max(self.state.counter, counter)
        return outcome


class WhatWasReleasedIsTakenUp(Step):
    """A renewal that comes after the release revives the lease."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        released, self.state.last_released = self.state.last_released, ""
        outcome = super().renew(renewal)
        self.state.last_released = released
        return outcome


class MoreIsTakenUpThanThereIs(Step):
    """A lease is taken up again whether it fits or not."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        holders = self.state.holders
        if renewal.request is not None and all(each.request_id != renewal.request_id for each in holders):
            self.state.holders = []
            outcome = super().renew(renewal)
            self.state.holders = holders + self.state.holders
            return outcome
        return super().renew(renewal)


class TakenUpWithANewToken(Step):
    """A lease that is taken up again gets another token."""

    def renew(self, renewal: RenewRequest) -> Outcome | None:
        return super().renew(replace(renewal, token=renewal.token + 1) if renewal.request else renewal)


class HeadsAreToldTheWrongTime(Step):
    """Who becomes first is told to ask when it likes."""

    def _notify_new_head(self, answered: str = "") -> None:
        super()._notify_new_head(answered)
        self.notifications = [
            replace(each, after=0) if each.kind is NotificationKind.HEAD else each for each in self.notifications
        ]


class HeadsAreToldForNothing(Step):
    """Who becomes first is told so even if it asks long before anything happens."""

    def _notify_new_head(self, answered: str = "") -> None:
        head = self.state.queue.head
        if head and head not in {self._head_before, answered}:
            self._notify(
                self.state.queue[0].request.channel, NotificationKind.HEAD, head, after=max(self._frees_in(), RETRY)
            )


MUTANTS: list[type[Step]] = [
    each for each in list(globals().values()) if isinstance(each, type) and issubclass(each, Step) and each is not Step
]
