#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/install-deps.sh [build|test|bench] - installs the Debian packages that building (default), testing or measuring
# recask needs.
# Quick and silent when all is there. Uses sudo when not root.
set -euo pipefail

build=(gcc libc6-dev cmake ninja-build pkg-config libmicrohttpd-dev libgnutls28-dev libcrypt-dev libcurl4-openssl-dev
    libzstd-dev zlib1g-dev libjansson-dev libssl-dev libsqlite3-dev libxxhash-dev ca-certificates)
tests=(libcmocka-dev clang libclang-rt-dev llvm clang-tidy clang-format python3 shellcheck valgrind)

case ${1:-build} in
build) want=("${build[@]}") ;;
test) want=("${build[@]}" "${tests[@]}") ;;
bench) want=("${build[@]}" "${tests[@]}" nginx-light wrk docker-registry curl) ;;
*)
    echo "usage: tools/install-deps.sh [build|test|bench]" >&2
    exit 2
    ;;
esac

# Built for these only; recask does without (WITH_ISAL).
case $(dpkg --print-architecture 2>/dev/null || uname -m) in
amd64 | arm64 | x86_64 | aarch64) want+=(libisal-dev) ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system; install the equivalents of: ${want[*]}" >&2
    exit 0
fi

missing=()
for package in "${want[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == *installed* && $status != *not-installed* ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

root=()
if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || {
        echo "not root, and no sudo; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    }
    root=(sudo)
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
{
    "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
} </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
