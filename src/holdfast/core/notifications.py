"""What a client does with the notifications of its store. Each finds its acquisition or its lease by the request id."""

from holdfast.contracts.deadlines import micros
from holdfast.contracts.messages import Notification, NotificationKind
from holdfast.core.access import StoreAccess
from holdfast.core.lease import REVOKED, report_loss
from holdfast.core.local_queue import LocalQueues

GAP_SPREAD = 0.05
"""Within how many seconds all waiters of a client repeat their requests after its channel was cut off."""


class Notifications:
    """The notifications of one client."""

    def __init__(self, access: StoreAccess, local_queues: LocalQueues) -> None:
        """Give them to acquisitions and leases of `access`."""
        self._access = access
        self._local_queues = local_queues

    def deliver(self, notification: Notification) -> None:
        """Take a push from the store. Called where the runtime runs its code."""
        if notification.kind is NotificationKind.REVOKED:
            self._revoked(notification)
            return
        if notification.kind is NotificationKind.CONTENDED:
            self._contended(notification.request_id)
            return
        if notification.kind is NotificationKind.REVOCATION_REQUESTED:
            self._revocation_requested(notification)
            return
        if notification.kind is NotificationKind.GAP:
            self._retry_all()
            return
        attempt = self._access.attempts.get(notification.request_id)
        if attempt is not None:
            attempt.hear(notification)

    def _contended(self, request_id: str) -> None:
        attempt = self._access.attempts.get(request_id)
        if attempt is not None:  # it has not heard of its grant yet, or is just about to enter
            attempt.outrun = True
        lease = self._access.renewer.find(request_id)
        if lease is not None:
            self._local_queues.contended(lease)

    def _retry_all(self) -> None:
        """Have every waiter ask and every lease renewed, not all at once: the connection to the store was lost.

        Pushes may have been missed; and if the store restarted, it had better hear soon who was there before.
        """
        self._local_queues.end_all_lingering()
        self._access.renewer.hurry(GAP_SPREAD)
        for attempt in list(self._access.attempts.values()):
            after = micros(self._access.runtime.random() * GAP_SPREAD)
            attempt.hear(Notification(self._access.channel, NotificationKind.GAP, "", after=after))

    def _revocation_requested(self, notification: Notification) -> None:
        lease = self._access.renewer.find(notification.request_id)
        if lease is not None and lease.last == notification.token:
            lease.request_revocation()
            self._local_queues.contended(lease)  # whoever asks wants it: others here must not keep it for long

    def _revoked(self, notification: Notification) -> None:
        lease = self._access.renewer.find(notification.request_id)
        if (
            lease is not None
            and lease.last == notification.token
            and (lost := self._access.renewer.lose(lease, REVOKED)) is not None
        ):
            report_loss(lost)
