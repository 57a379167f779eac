#!/bin/sh
# A nightly job that cron starts, and that must never run twice at once on this machine: not if last night's is still
# running, not if somebody starts it by hand.
#
#   15 3 * * *  /path/to/one_at_a_time.sh
#
# Without TENURE_URL the lock is that of this user: start it by hand as the same user.
# 75 means that somebody else is at it, which is fine; everything else is told.
set -u

tenure run nightly-report --no-wait --max-hold 3600 -- sh -c '
    echo "writing the report, with fencing token $TENURE_TOKEN"
    # curl -H "X-Fencing-Token: $TENURE_TOKEN" ...
'
status=$?
if [ "$status" -eq 75 ]; then
    echo "the report is being written elsewhere"
    exit 0
fi
exit "$status"
