#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs shellcheck over every shell script of the tree.
set -euo pipefail
failed=0
cd "$(dirname "$0")/../.."

command -v shellcheck >/dev/null || {
    echo "shellcheck is not installed"
    exit 77
}
mapfile -d '' scripts < <(find . -path ./build -prune -o -path ./.git -prune -o -name '*.sh' -print0)
scripts+=(./.ci/run)
# A bare machine has no locale, and shellcheck cannot read UTF-8 without one.
export LC_ALL=C.UTF-8

check() {
    local exclude=()
    # What a library sets, those who source it use.
    [[ $1 != */lib.sh ]] || exclude=(--exclude=SC2034)
    shellcheck --severity=warning --external-sources "${exclude[@]}" "$1"
}
export -f check
printf '%s\0' "${scripts[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$1"' _ || failed=1
((!failed)) || exit 1
echo "${#scripts[@]} scripts are clean"
