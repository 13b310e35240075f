#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# conformance.sh - the OCI distribution-spec's own conformance suite, its pull and content-discovery parts.
# The suite reads what it has pushed. recask takes no pushes, so suitereg.py sends what writes to the
# registry and what reads to recask. The same suite on the registry alone tells which failures are its own.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox

suite=$cache/conformance
[ -x "$suite" ] || skip_all "$(cat "$cache/conformance.reason" 2>/dev/null ||
    echo "no conformance suite (tools/install-e2e.sh builds it)")"
upstream_start "$work/empty"
alone=127.0.0.1:5400
front=127.0.0.1:5401
start suitereg "$python" "$here/suitereg.py" "${upstream#*:}" "${alone#*:}" "${proxy#*:}" "${front#*:}"
wait_for 10 http -f "http://$alone/v2/"

# run_suite NAME REGISTRY: into $work/NAME. Nothing is deleted: what is gone upstream stays in recask. The
# registry takes neither sha512 nor layers that are elsewhere.
run_suite() {
    OCI_TLS=disabled OCI_REGISTRY=$2 OCI_RESULTS_DIR=$work/$1 OCI_REPO1=$1/one OCI_REPO2=$1/two \
        OCI_DATA_SHA512=false OCI_DATA_NONDISTRIBUTABLE=false OCI_API_BLOBS_DELETE=false \
        OCI_API_MANIFESTS_DELETE=false OCI_API_TAGS_DELETE=false timeout 120 "$suite" >"$work/log/suite-$1.log" 2>&1
    [ -s "$work/$1/junit.xml" ]
}
check "the suite runs on the registry" run_suite direct "$alone"
upstream=$alone recask_fresh --tag-ttl 0s
check "the suite runs on recask" run_suite through "$front"
while IFS=$'\t' read -r verdict name; do
    case $verdict in
        ok) ok "$name" ;;
        "not ok") not_ok "$name" ;;
        *) echo "$verdict" ;;
    esac
done < <("$python" "$here/conform.py" "$work/direct/junit.xml" "$work/through/junit.xml" 2>&1)
at_least "recask was what was read" "$(grep -c '^read ' "$work/log/suitereg.log")" 150
equal "nothing was written to recask" "$(grep -c 'method=P' "$work/log/recask.log")" 0
finish
