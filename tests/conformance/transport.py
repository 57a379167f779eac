"""The checks that exercise the code of a store: together they send every request and receive every notification.

The grant table does not depend on how its server is reached. So all checks run on one server of a kind before a
release, and these on every other connection to it: over TLS, by a Unix socket, as a user with few rights, through a
client of the user's.
"""

from tenure_testing.conformance import CHECKS, Check

TRANSPORT: tuple[Check, ...] = tuple(check for check in CHECKS if check.exercises == "store")
