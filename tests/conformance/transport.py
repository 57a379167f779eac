"""The checks that use the way to a store: between them they make every request and hear every notification.

The grant table does not depend on how its server is reached, so all checks run on one server of a kind, and these on
every other way there: over TLS, by a Unix socket, as a user with few rights, through a client of the user's.
"""

from holdfast.testing.conformance import CHECKS, Check

NAMES = (
    "asked_again_holds_once",
    "cancelled_acquire_leaves_nothing",
    "cancelled_release_is_carried_out",
    "close_dismisses_waiters",
    "close_releases",
    "closed_client_is_refused",
    "downgrade_lets_readers_in_and_no_writer",
    "extend_lengthens_the_lease",
    "free_names_cost_one_request",
    "inspect_and_names_tell_the_truth",
    "leave_gives_up_the_place",
    "more_permits_let_waiters_in",
    "multilock_is_all_or_nothing",
    "one_holder_at_a_time",
    "readers_share_and_writers_exclude",
    "release_hands_over_at_once",
    "release_tells_what_happened",
    "renewal_keeps_the_lease",
    "revoke_takes_the_name",
    "silent_holder_loses_the_lease",
    "unanswered_request_leaves_nothing",
    "unheard_grant_is_passed_on",
    "waiter_ends_linger",
    "waiters_are_served_in_order",
    "what_a_leader_publishes_arrives",
    "who_is_asked_to_let_go_hears_of_it_once",
)

TRANSPORT: tuple[Check, ...] = tuple(check for check in CHECKS if check.name in NAMES)
assert len(TRANSPORT) == len(NAMES), set(NAMES) - {check.name for check in TRANSPORT}
