"""The handling of notifications: each is passed to the acquisition or the lease that has its request id."""

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import Notification, NotificationKind
from tenure.core.access import StoreAccess
from tenure.core.lease import REVOKED, report_loss
from tenure.core.local_queue import LocalQueues

GAP_SPREAD = 0.05
"""Within how many seconds all waiters of a client repeat their requests after its channel was cut off."""


class Notifications:
    """The notifications of one client."""

    def __init__(self, access: StoreAccess, local_queues: LocalQueues) -> None:
        """Prepare to pass notifications to the acquisitions and leases of `access`."""
        self._access = access
        self._local_queues = local_queues

    def deliver(self, notification: Notification) -> None:
        """Take a notification from the store, which calls this through `Runtime.post`."""
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
            if not self._access.channel:  # a store may have found one now
                self._access.set_channel(notification.channel)
            self._retry_all()
            return
        attempt = self._access.attempts.get(notification.request_id)
        if attempt is not None:
            attempt.hear(notification)

    def _contended(self, request_id: str) -> None:
        attempt = self._access.attempts.get(request_id)
        if attempt is not None:  # the acquisition has not heard of its grant yet, or is about to make the lease
            attempt.contended_before_grant = True
        lease = self._access.renewer.find(request_id)
        if lease is not None:
            self._local_queues.contended(lease)

    def _retry_all(self) -> None:
        """Repeat the request of every waiter and renew every lease, after the connection to the store was lost.

        Notifications may have been missed; and if the store restarted, it must learn soon of its waiters and holders.
        The requests are spread over GAP_SPREAD seconds, so that they do not come all at once.
        """
        self._local_queues.end_all_lingering()
        self._access.renewer.hurry(GAP_SPREAD)
        for attempt in list(self._access.attempts.values()):
            after = micros(self._access.runtime.random() * GAP_SPREAD)
            attempt.hear(Notification(self._access.channel, NotificationKind.GAP, "", after=after))

    def _revocation_requested(self, notification: Notification) -> None:
        lease = self._access.renewer.find(notification.request_id)
        if lease is not None and lease.grant.last == notification.token:
            lease.request_revocation()
            self._local_queues.contended(lease)  # so that local hand-offs do not keep the name for long

    def _revoked(self, notification: Notification) -> None:
        lease = self._access.renewer.find(notification.request_id)
        if (
            lease is not None
            and lease.grant.last == notification.token
            and not lease.grant.detaching  # its detachment is one to the store, and its reply says what it was
            and (lost := self._access.renewer.lose(lease, REVOKED)) is not None
        ):
            report_loss(lost)
