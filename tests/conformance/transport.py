"""The checks that use the connection to a store: together they send every request and receive every notification.

The grant table does not depend on how its server is reached. So all checks run on one server of a kind, and these on
every other connection to it: over TLS, by a Unix socket, as a user with few rights, through a client of the user's.
"""

from tenure_testing.conformance import CHECKS, Check

NAMES = (
    "cancelled_acquire_leaves_nothing",
    "cancelled_release_is_carried_out",
    "close_ends_every_wait",
    "close_releases_every_lease",
    "closed_client_refuses_operations",
    "downgrade_admits_readers_but_no_writer",
    "extend_lengthens_the_lease",
    "free_names_cost_one_request",
    "holder_is_notified_of_a_revocation_request_once",
    "inspect_and_names_show_holders_and_waiters",
    "larger_semaphore_admits_waiters",
    "multilock_is_all_or_nothing",
    "one_holder_at_a_time",
    "published_value_arrives_unchanged",
    "readers_share_and_writers_exclude",
    "release_hands_off_at_once",
    "release_returns_the_outcome",
    "renewal_keeps_the_lease",
    "repeated_request_holds_once",
    "revoke_takes_the_name",
    "silent_holder_loses_the_lease",
    "unanswered_request_leaves_nothing",
    "unconfirmed_grant_expires",
    "waiter_ends_linger",
    "waiters_are_served_in_order",
    "withdrawal_gives_up_the_place",
)

TRANSPORT: tuple[Check, ...] = tuple(check for check in CHECKS if check.name in NAMES)
assert len(TRANSPORT) == len(NAMES), set(NAMES) - {check.name for check in TRANSPORT}
