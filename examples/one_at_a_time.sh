#!/bin/sh
# A nightly job that several machines' or users' cron may start, and that must never run twice at once.
#
#   15 3 * * *  /path/to/one_at_a_time.sh
#
# 75 means that somebody else is at it, which is fine; everything else is told.
set -u

holdfast run nightly-report --no-wait --max-hold 3600 -- sh -c '
    echo "writing the report, with fencing token $HOLDFAST_TOKEN"
    # curl -H "X-Fencing-Token: $HOLDFAST_TOKEN" ...
'
status=$?
if [ "$status" -eq 75 ]; then
    echo "the report is being written elsewhere"
    exit 0
fi
exit "$status"
