#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - runs the end-to-end tests and counts.
#
#     run.sh [--list] [--jobs N] [NAME...]      NAME: docker20, digest, ... (default: all)
#
# RECASK_BIN       the program to test (default: build/release/recask)
# RECASK_CACHE     what tools/install-e2e.sh made (default: /var/cache/recask)
# RECASK_E2E_LOGS  a folder for the logs of scripts that failed
# RECASK_E2E_TIMEOUT  seconds for one script (default: 600)
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# The long ones first, so that jobs end together.
all=(private docker28 podman containerd password mirror skopeo docker20 oras crane index digest encoding lies
    artifact conformance prefix sharing tls tlsboth)
jobs=2
names=()

while [ $# -gt 0 ]; do
    case $1 in
        --list) printf '%s\n' "${all[@]}"; exit 0 ;;
        --jobs) jobs=$2; shift ;;
        -*) sed -n '4,11s/^# \?//p' "$0" >&2; exit 2 ;;
        *) names+=("$(basename "$1" .sh)") ;;
    esac
    shift
done
[ "${#names[@]}" -gt 0 ] || names=("${all[@]}")
for name in "${names[@]}"; do
    [ -x "$here/$name.sh" ] || { echo "run.sh: no test called $name" >&2; exit 2; }
done

out=$(mktemp -d) || exit 1
running=()
cleanup() {
    local pid
    for pid in "${running[@]}"; do kill -TERM "$pid" 2>/dev/null; done
    wait
    rm -rf "$out"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# The images are made before the clock of any test runs; a failure becomes each test's skip.
"$here/fixtures.sh" >/dev/null 2>&1

# report NAME: shows its output, once it has ended
reported=()
report() {
    local status
    status=$(cat "$out/$1.status")
    reported+=("$1")
    printf '# ==== %s (%s s)\n' "$1" "$(cat "$out/$1.seconds")"
    cat "$out/$1.out"
    case $status in
        0 | 77) ;;
        *)
            grep -q '^not ok' "$out/$1.out" ||
                echo "not ok - $1 ended with status $status" | tee -a "$out/$1.out"
            ;;
    esac
}
began=$SECONDS
for name in "${names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    (
        start=$SECONDS
        timeout -k 10 "${RECASK_E2E_TIMEOUT:-600}" "$here/$name.sh" >"$out/$name.out" 2>&1 &
        trap 'kill -TERM $! 2>/dev/null; wait $!; exit 130' TERM INT
        wait $!
        echo $? >"$out/$name.status"
        echo $((SECONDS - start)) >"$out/$name.seconds"
    ) &
    running+=($!)
done
wait "${running[@]}"
for name in "${names[@]}"; do report "$name"; done

cat "$out"/*.out >"$out/all"
failed=$(grep -c '^not ok' "$out/all")
skipped=$(grep -c '^ok .* # SKIP' "$out/all")
passed=$(($(grep -c '^ok ' "$out/all") - skipped))
if [ "$skipped" -gt 0 ]; then
    echo "# skipped, by reason:"
    sed -n 's/^ok .* # SKIP //p' "$out/all" | sort | uniq -c | sed 's/^/# /'
fi
grep -h '^not ok' "$out/all" | sed 's/^/# /'
echo "# took $((SECONDS - began)) s"
printf 'e2e: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
