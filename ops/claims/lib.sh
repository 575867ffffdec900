# What the claims share; sourced by each. Leaves the script in the root of the checkout, with
# $tmp, a folder of its own that is deleted at the end, and $sheaf, the built program.
# shellcheck shell=bash
set -euo pipefail

root=$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
sheaf=${SHEAF:-$root/build/release/sheaf}
cache=${SHEAF_CACHE:-$HOME/.cache/sheaf}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/claim.XXXXXX")
at_exit=()

clean_up() {
    local rc=$? command
    for command in ${at_exit[@]+"${at_exit[@]}"}; do
        eval "$command" >/dev/null 2>&1 || true
    done
    rm -rf --one-file-system "$tmp"
    exit "$rc"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$root"

# The last words of a claim that does not hold.
fails() { echo "$*"; exit 1; }
needs_program() { [ -x "$sheaf" ] || fails "no $sheaf; build first: ops/test --quick"; }
# $build: the build with the worker that the fault tests break.
needs_faults() {
    build=$root/build/release
    [ -x "$build/tests/fault/sheaf_faulty" ] ||
        fails "no $build/tests/fault/sheaf_faulty; build first: ops/test --quick"
}
# A command whose jobs may fail one by one: exit 0 and 1 are both fine.
tolerate_failed_jobs() {
    local rc=0
    "$@" || rc=$?
    [ $rc -le 1 ] || fails "exit code $rc: $*"
}

fresh_clone() { git clone -q "$root" "$1"; }

# debian_root FOLDER: a minimal Debian 12 with this machine's way to its package registries, and
# the committed state of this checkout in /sheaf.
debian_root() {
    [ "$(id -u)" = 0 ] || fails "a Debian root can be made by root only"
    command -v debootstrap >/dev/null ||
        { apt-get -q update && apt-get -q -y install debootstrap; } ||
        fails "debootstrap cannot be installed"
    local sources mirror
    sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' | grep -E ' bookworm(-security|-updates)? main$' | sort -u)
    mirror=$(awk '$3 == "bookworm" {print $2; exit}' <<<"$sources")
    [ -n "$mirror" ] || fails "this machine knows no mirror of Debian 12"
    debootstrap --variant=minbase bookworm "$1" "$mirror"
    echo "$sources" >"$1/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(Check|http|https)' \
        >"$1/etc/apt/apt.conf.d/90host" || true
    cp /etc/resolv.conf /etc/hosts "$1/etc/"
    [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$1/etc/"
    mkdir -p "$1/usr/local/share/ca-certificates" "$1/home"
    cp -r /usr/local/share/ca-certificates/. "$1/usr/local/share/ca-certificates/"
    fresh_clone "$1/sheaf"
}

# in_debian_root FOLDER COMMAND: with processes and mounts that end with the command.
in_debian_root() {
    local proxies
    proxies=$(env | grep -iE '^(https?|no)_proxy=' || true)
    # shellcheck disable=SC2016,SC2086
    unshare --mount --pid --fork --kill-child bash -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 1
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home \
            DEBIAN_FRONTEND=noninteractive $3 bash -c "cd /sheaf && $2"' - "$1" "$2" "$proxies"
}

# shows_demo [--files]: the demo in a fresh clone, then in a minimal Debian.
shows_demo() {
    local here there
    fresh_clone "$tmp/clone"
    (cd "$tmp/clone" && ops/demo "$@") | tee "$tmp/here.log" ||
        fails "the demo fails in a clone"
    here=$(grep -E '^[0-9]+ jobs: ' "$tmp/here.log") || fails "the demo counted nothing"
    debian_root "$tmp/debian"
    in_debian_root "$tmp/debian" "ops/demo $*" | tee "$tmp/there.log" ||
        fails "the demo fails in a minimal Debian 12"
    there=$(grep -E '^[0-9]+ jobs: ' "$tmp/there.log") || fails "the demo counted nothing there"
    [ "$here" = "$there" ] || fails "clone: $here; minimal Debian: $there"
    echo "in a clone and in a minimal Debian 12: $here"
}

# Prints HOST:PORT of a broker of this claim's own.
start_broker() {
    at_exit+=("ops/kafka/broker -d '$tmp/kafka' kill")
    broker=$(ops/kafka/broker -p auto -d "$tmp/kafka" start)
}

# runs_tests BUILD_DIR [ctest arguments]: prints what each test program printed about figures,
# and leaves the sum in $sum.
runs_tests() {
    local rc=0
    python3 tests/run_ctest.py "$@" >"$tmp/tests.log" 2>&1 || rc=$?
    cat "$tmp/tests.log"
    sum=$(tail -n 1 "$tmp/tests.log")
    [ $rc = 0 ] || fails "$1: $sum"
}

# measures_lever LEVER EXPERIMENT [flags]: off and on by turns, 5 repeats (SHEAF_REPEATS), into
# $tmp. That
# answers differ (exit code 1) is judges_lever's to say.
measures_lever() {
    local rc=0
    "$sheaf" bench levers --lever "$1" --experiment "$2" --db "$tmp/bench.db" --json \
        --repeats "${SHEAF_REPEATS:-5}" "${@:3}" \
        >"$tmp/$2.json" || rc=$?
    [ $rc -le 1 ] || fails "bench levers --lever $1 --experiment $2 ended with exit code $rc"
    sqlite3 -readonly "$tmp/bench.db" "SELECT name, metric, median_off, median_on, ratio,
        spread, identical_share FROM v_ab WHERE name = '$2'"
}
# judges_lever EXPERIMENT METRIC RATIO...: prints the figures; fails when one is not reached.
judges_lever() { python3 ops/claims/lever_ratios.py "$tmp/$1.json" "${@:2}"; }
