# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# lib.sh - the ground every end-to-end test stands on. A test is
#
#     . "$(dirname "$0")/lib.sh"
#     sandbox                 # from here on: own mounts, processes and network
#     ...                     # ok, not_ok, skip, check, equal
#     finish                  # prints the plan, exits 0, 1 or 77 (all skipped)
#
# sandbox() runs the script once more inside new mount, pid and network namespaces, with only a
# loopback interface, a scratch /etc, /var and /run, and $work on a tmpfs. However the test ends,
# the kernel takes processes and mounts away with the namespaces; the parent removes $work.
# Ports can be fixed, since nobody else is on that loopback.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${RECASK_CACHE:-/var/cache/recask}
RECASK_BIN=${RECASK_BIN:-$here/../../build/release/recask}
python=/usr/bin/python3

upstream=127.0.0.1:5100
proxy=127.0.0.1:5200
admin=127.0.0.1:5201
# shellcheck disable=SC2034 # for clients.sh
sniffer=127.0.0.1:5300

oci_manifest=application/vnd.oci.image.manifest.v1+json
oci_index=application/vnd.oci.image.index.v1+json
docker_manifest=application/vnd.docker.distribution.manifest.v2+json
docker_list=application/vnd.docker.distribution.manifest.list.v2+json
any_manifest="Accept: $oci_manifest, $oci_index, $docker_manifest, $docker_list"

# --- results ------------------------------------------------------------------------------------

tests=0
failures=0
skips=0
finished=

ok() {
    tests=$((tests + 1))
    printf 'ok %d - %s\n' "$tests" "$1"
}
# not_ok NAME [DETAIL]
not_ok() {
    tests=$((tests + 1))
    failures=$((failures + 1))
    printf 'not ok %d - %s\n' "$tests" "$1"
    [ -z "${2:-}" ] || printf '%s\n' "$2" | tail -n 30 | sed 's/^/#   /'
}
# skip NAME REASON
skip() {
    tests=$((tests + 1))
    skips=$((skips + 1))
    printf 'ok %d - %s # SKIP %s\n' "$tests" "$1" "$2"
}
# check NAME COMMAND...: ok when the command succeeds; its output is shown when it does not.
# The command runs in this shell: what it starts and sets stays.
check() {
    local name=$1
    shift
    if "$@" >"$work/log/check.out" 2>&1; then
        ok "$name"
    else
        echo "failed: $*" >>"$work/log/check.out"
        not_ok "$name" "$(cat "$work/log/check.out")"
        return 1
    fi
}
# equal NAME GOT WANT
equal() {
    if [ "$2" = "$3" ] && [ -n "$2" ]; then
        ok "$1"
    else
        not_ok "$1" "got:  ${2:-(nothing)}"$'\n'"want: $3"
        return 1
    fi
}
# at_least NAME NUMBER MINIMUM; at_most NAME NUMBER MAXIMUM
at_least() {
    if [ "${2:-x}" -ge "$3" ] 2>/dev/null; then ok "$1"; else not_ok "$1" "got $2, want >= $3"; fi
}
at_most() {
    if [ "${2:-x}" -le "$3" ] 2>/dev/null; then ok "$1"; else not_ok "$1" "got $2, want <= $3"; fi
}
# same NAME FILE FILE
same() {
    local name=$1
    shift
    if [ -s "$1" ] && cmp -s "$1" "$2"; then
        ok "$name"
    else
        not_ok "$name" "$(ls -l "$@" 2>&1; diff "$@" 2>&1 | head -n 12)"
        return 1
    fi
}

finish() {
    recask_stop
    if [ "${recask_starts:-0}" -gt 0 ]; then
        equal "recask ended with 0 each time it was told to" "${recask_bad_ends:-none}" none
    fi
    finished=yes
    printf '1..%d\n' "$tests"
    if [ "$failures" -gt 0 ]; then
        show_logs
        exit 1
    fi
    if [ "$skips" = "$tests" ]; then exit 77; fi
    exit 0
}
# skip_all REASON: the whole script cannot run here.
skip_all() {
    skip "$(basename "$0" .sh)" "$1"
    printf '1..%d\n' "$tests"
    finished=yes
    exit 77
}
show_logs() {
    local f
    for f in "$work"/log/*.log; do
        [ -s "$f" ] || continue
        printf '# --- end of %s\n' "$(basename "$f")"
        tail -n 15 "$f" | cut -c 1-300 | sed 's/^/#   /'
    done
    if [ -n "${RECASK_E2E_LOGS:-}" ]; then
        mkdir -p "$RECASK_E2E_LOGS/$(basename "$0" .sh)"
        cp -r "$work/log/." "$RECASK_E2E_LOGS/$(basename "$0" .sh)/"
    fi
}

# --- sandbox ------------------------------------------------------------------------------------

# See the top of this file. Without RECASK_E2E_PLAIN the test images are made
# first, if the cache has none of the present recipe.
sandbox() {
    if [ -n "${RECASK_E2E_INSIDE:-}" ]; then
        sandbox_inside
        return
    fi
    [ "$(id -u)" = 0 ] || skip_all "needs root"
    [ -x "$python" ] || skip_all "tools/install-e2e.sh has not been run"
    if [ -z "${RECASK_E2E_PLAIN:-}" ]; then
        [ -x "$RECASK_BIN" ] || skip_all "no recask at $RECASK_BIN"
        RECASK_BIN=$(realpath "$RECASK_BIN")
        export RECASK_BIN
        RECASK_E2E_FIXTURES=$("$here/fixtures.sh")
        case $? in
            0) export RECASK_E2E_FIXTURES ;;
            77) skip_all "$RECASK_E2E_FIXTURES" ;;
            *) not_ok "$(basename "$0" .sh): test images" "$RECASK_E2E_FIXTURES"; exit 1 ;;
        esac
    fi
    unshare --mount --pid --net --fork true 2>/dev/null || skip_all "no namespaces here"

    work=$(mktemp -d "${TMPDIR:-/tmp}/recask-e2e.XXXXXX") || exit 1
    local child status
    RECASK_E2E_INSIDE=$work RECASK_CACHE=$cache setpriv --pdeathsig KILL \
        unshare --mount --propagation private --pid --net --fork --kill-child --mount-proc \
        /bin/bash "$0" &
    child=$!
    # shellcheck disable=SC2064 # the values of now are wanted
    trap "kill -KILL $child; wait $child; rm -rf --one-file-system '$work'; exit 130" INT TERM HUP
    wait "$child"
    status=$?
    trap - INT TERM HUP
    rm -rf --one-file-system "$work"
    sandbox_cgroups
    exit "$status"
}

# Container engines leave an empty cgroup of their own name behind. Only empty ones can go.
sandbox_cgroups() {
    find /sys/fs/cgroup -mindepth 1 -maxdepth 3 -depth -type d \
        \( -name docker -o -name moby -o -name libpod_parent -o -name buildah \) \
        -exec rmdir {} + 2>/dev/null
}

sandbox_inside() {
    local d free_kib
    work=$RECASK_E2E_INSIDE
    finished=
    trap sandbox_exit EXIT
    trap 'exit 130' INT TERM HUP
    ip link set lo up
    free_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    if [ "${free_kib:-0}" -gt 6000000 ]; then
        mount -t tmpfs -o size=5g,mode=755 recask-e2e "$work" || exit 1
    fi
    mkdir -p "$work"/{log,tmp,home,cache,list,ua,run}
    mount --bind "$cache" "$work/cache" || exit 1
    cache=$work/cache
    for d in etc var; do
        mkdir -p "$work/scratch/$d"/{upper,work}
        mount -t overlay overlay \
            -o "lowerdir=/$d,upperdir=$work/scratch/$d/upper,workdir=$work/scratch/$d/work" "/$d" ||
            exit 1
    done
    mount -t tmpfs -o mode=755 tmpfs /run
    export HOME=$work/home TMPDIR=$work/tmp XDG_RUNTIME_DIR=$work/run no_proxy='*'
    unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY DOCKER_HOST
    export PODMAN_IGNORE_CGROUPSV1_WARNING=1
    cd "$work" || exit 1
    umask 022
}
# Nothing to kill or unmount: this is pid 1 of the namespaces, and they end with it.
sandbox_exit() {
    if [ -z "$finished" ] && [ -z "${RECASK_E2E_PLAIN:-}" ]; then
        not_ok "the script ran to its end"
        show_logs
        exit 1
    fi
}

# wait_for SECONDS COMMAND...
wait_for() {
    local until=$((SECONDS + $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.1
    done
}
# start NAME COMMAND...: in the background, output to a log; sets $started to its pid.
start() {
    local name=$1
    shift
    "$@" >>"$work/log/$name.log" 2>&1 </dev/null &
    started=$!
}
# stop PID [SECONDS]: SIGTERM, then SIGKILL; the exit status of the process.
stop() {
    local until=$((SECONDS + ${2:-10}))
    kill -TERM "$1" 2>/dev/null
    while kill -0 "$1" 2>/dev/null; do
        if [ "$SECONDS" -ge "$until" ]; then
            kill -KILL "$1" 2>/dev/null
            wait "$1" 2>/dev/null
            return 124
        fi
        sleep 0.05
    done
    wait "$1" 2>/dev/null
}

# --- upstream -----------------------------------------------------------------------------------

http() { curl -sS --max-time 60 --noproxy '*' "$@"; }

upstream_pid=
# upstream_start [DIR]: a registry over DIR (default: a scratch copy of the test images). The
# script ends here when there is none.
upstream_start() {
    local dir=${1:-}
    command -v docker-registry >/dev/null || skip_all "no docker-registry (tools/install-e2e.sh)"
    if [ -z "$dir" ]; then
        dir=$work/upstream/root
        if [ ! -d "$dir" ]; then
            mkdir -p "$dir" "$work/upstream/"{upper,work}
            mount -t overlay overlay "$dir" \
                -o "lowerdir=$work/cache/$RECASK_E2E_FIXTURES/registry" \
                -o "upperdir=$work/upstream/upper,workdir=$work/upstream/work"
        fi
    fi
    cat >"$work/upstream.yml" <<END
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $dir}, delete: {enabled: true}}
http: {addr: "$upstream"}
END
    start upstream docker-registry serve "$work/upstream.yml"
    upstream_pid=$started
    wait_for 20 http -f "http://$upstream/v2/" || {
        not_ok "the upstream registry starts"
        finish
    }
}
upstream_stop() {
    [ -z "$upstream_pid" ] || stop "$upstream_pid"
    upstream_pid=
}

# upstream_digest IMAGE [TAG], upstream_config IMAGE, upstream_type IMAGE
upstream_digest() {
    http -f -I -H "$any_manifest" "http://$upstream/v2/$1/manifests/${2:-latest}" |
        header_of Docker-Content-Digest
}
upstream_type() {
    http -f -I -H "$any_manifest" "http://$upstream/v2/$1/manifests/latest" |
        header_of Content-Type
}
upstream_config() {
    http -f -H "$any_manifest" "http://$upstream/v2/$1/manifests/latest" | jq -r .config.digest
}

# header_of NAME: the value of a header in the response head on standard input.
header_of() {
    tr -d '\r' | awk -v want="$(printf '%s' "$1" | tr '[:upper:]' '[:lower:]')" '
        { name = tolower($0); sub(/:.*/, "", name) }
        name == want { sub(/^[^:]*: */, ""); value = $0 }
        END { if (value != "") print value }'
}
# fetch_image BASE REPOSITORY REFERENCE DIR [CURL ARGUMENTS...]: the manifest as DIR/manifest and
# everything below it as DIR/<algorithm>:<hex>. Fails unless every file has its digest.
fetch_image() {
    local base=$1 repository=$2 reference=$3 dir=$4
    shift 4
    mkdir -p "$dir"
    http -f -H "$any_manifest" "$@" -o "$dir/manifest" \
        "$base/v2/$repository/manifests/$reference" || return 1
    case $reference in
        sha256:*) has_digest "$dir/manifest" "$reference" || return 1 ;;
    esac
    fetch_below "$base" "$repository" "$dir" "$dir/manifest" "$@"
}
fetch_below() {
    local base=$1 repository=$2 dir=$3 manifest=$4 digest
    shift 4
    for digest in $(jq -r '.manifests[]?.digest' "$manifest"); do
        http -f -H "$any_manifest" "$@" -o "$dir/$digest" \
            "$base/v2/$repository/manifests/$digest" || return 1
        has_digest "$dir/$digest" "$digest" || return 1
        fetch_below "$base" "$repository" "$dir" "$dir/$digest" "$@" || return 1
    done
    for digest in $(jq -r '.config.digest // empty, .layers[]?.digest' "$manifest"); do
        http -f "$@" -o "$dir/$digest" "$base/v2/$repository/blobs/$digest" || return 1
        has_digest "$dir/$digest" "$digest" || return 1
    done
}
digest_of() { printf 'sha256:%s\n' "$(sha256sum "$1" | cut -d ' ' -f 1)"; }
has_digest() {
    [ "$(digest_of "$1")" = "$2" ] || {
        echo "$1 hashes to $(digest_of "$1"), want $2"
        return 1
    }
}

# --- recask -------------------------------------------------------------------------------------

recask_pid=
recask_starts=0
recask_bad_ends=
# recask_start [ARGUMENTS...]: on the store as it is. $recask_upstream is another upstream than the registry here;
# $recask_config a configuration file that says where recask listens and what its upstreams are.
recask_start() {
    local flags=(--listen "$proxy" --upstream "${recask_upstream:-http://$upstream}")
    [ -z "${recask_config:-}" ] || flags=(--config "$recask_config")
    recask_stop
    recask_starts=$((recask_starts + 1))
    start recask "$RECASK_BIN" serve --admin "$admin" --store "$work/store" \
        "${flags[@]}" "$@"
    recask_pid=$started
    wait_for 20 recask_ready || {
        not_ok "recask starts" "$(tail -n 20 "$work/log/recask.log")"
        return 1
    }
}
# Any answer on the port will do: it is 401 where clients need a password.
recask_ready() { http -f "http://$admin/readyz" && http "http://$proxy/v2/"; }
# recask_fresh [ARGUMENTS...]: on an empty store.
recask_fresh() {
    recask_stop
    rm -rf "$work/store"
    recask_start "$@"
}
recask_stop() {
    local status
    [ -n "$recask_pid" ] || return 0
    stop "$recask_pid" 15
    status=$?
    [ "$status" = 0 ] || recask_bad_ends="${recask_bad_ends:+$recask_bad_ends }$status"
    recask_pid=
}
# stat_of FILTER: one number of /api/v1/stats, such as .jobs.pending
stat_of() { http -f "http://$admin/api/v1/stats" | jq -r "$1"; }
no_jobs() { [ "$(stat_of .jobs.pending)" = 0 ]; }
# wait_jobs [SECONDS]: until no background work is left, seen twice.
wait_jobs() {
    local limit=${1:-60}
    if ! { wait_for "$limit" no_jobs && sleep 0.2 && wait_for "$limit" no_jobs; }; then
        not_ok "background jobs end within $limit s" "$(http "http://$admin/api/v1/stats")"
        return 1
    fi
}

# --- the tree with the newest clients -----------------------------------------------------------

sid_pid=
# sid_missing: prints why there is no such tree; fails when there is one.
sid_missing() {
    if [ -e "$cache/sid.reason" ]; then
        cat "$cache/sid.reason"
    elif [ ! -d "$cache/sid" ]; then
        echo "no sid tree in the cache (tools/install-e2e.sh makes it)"
    else
        return 1
    fi
}
# sid_start: mounts it, writable on top, in a mount namespace of its own where it is a real root
# (dockerd remounts /), with $work at the same path. in_sid runs commands there.
sid_start() {
    [ -z "$sid_pid" ] || return 0
    mkdir -p "$work/sid/"{upper,work,root}
    # shellcheck disable=SC2016 # expands in the shell inside
    start sid unshare --mount --propagation private /bin/bash -euc '
        work=$1 lower=$2
        root=$work/sid/root
        mount -t overlay overlay "$root" \
            -o "lowerdir=$lower,upperdir=$work/sid/upper,workdir=$work/sid/work"
        cd "$root"
        for d in dev proc sys; do mount --rbind /$d $d; done
        mount -t tmpfs -o mode=755 tmpfs run
        mount -t tmpfs -o mode=1777 tmpfs tmp
        mkdir -p ".$work" run/old-root
        mount --bind "$work" ".$work"
        pivot_root . run/old-root
        cd /
        umount -l /run/old-root
        touch /run/ready
        exec sleep infinity' sid "$work" "$cache/sid"
    sid_pid=$started
    wait_for 10 in_sid /bin/test -e /run/ready
}
in_sid() { nsenter --target "$sid_pid" --mount --root --wd -- "$@"; }

# shellcheck source=clients.sh
. "$here/clients.sh"
