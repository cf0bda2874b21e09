#!/bin/sh
# A cron job that shares one limit with every other machine that runs it:
#
#   */5 * * * *  QUORATE_NODES=http://127.0.0.1:7001,http://127.0.0.1:7002  /opt/jobs/fetch.sh https://api.example/export
#
# cron starts all of them at the same second. `quorate acquire` waits for the slot and then becomes curl, so the exit code is
# curl's own, or 3 (denied: the slot would come too late), 4 (nobody decided, certainly not granted), 5 (unknown): cron mails
# what was printed, and nothing was fetched twice.
set -eu

url=${1:?usage: fetch.sh URL}
limit=${LIMIT:-1/6s}

exec "${QUORATE:-quorate}" acquire nightly-export --limit "$limit" --max-wait 5m --worker "cron@$(uname -n)" -- \
    curl --silent --show-error --fail --max-time 60 "$url"
