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
for script in "${scripts[@]}"; do
    exclude=()
    # What a library sets, those who source it use.
    [[ $script != */lib.sh ]] || exclude=(--exclude=SC2034)
    shellcheck --severity=warning --external-sources "${exclude[@]}" "$script" || failed=1
done
((!failed)) || exit 1
echo "${#scripts[@]} scripts are clean"
