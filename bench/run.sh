#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/run.sh - the numbers of the README: makes a Debian-based image, pulls it with real clients straight from a
# registry and through recask, in turn, measures what serving costs beside nginx (bench/serve.py, also alone), and writes
# bench/RESULTS.md. Needs root and tools/install-e2e.sh.
#
#   bench/run.sh [--rounds N] [--views] [CLIENT...]      clients as in tests/e2e/clients.sh; default: all that pull
#   --views: each client also with --view canonical and --view zstd, for the table in oci/client.c
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${RECASK_CACHE:-/var/cache/recask}
packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-numpy libopenblas0-pthread libgfortran5
    postgresql-15 libllvm14 libicu72)

# The packages of the image's upper layers. Only their files are used, unpacked in place of an installation.
mkdir -p "$cache/bench-debs"
if [[ ! -e $cache/bench-debs/complete ]]; then
    (cd "$cache/bench-debs" && apt-get -q download "${packages[@]}" && touch complete)
fi
[[ -s $cache/base.tar ]] || tools/install-e2e.sh

cmake --preset release >/dev/null
cmake --build --preset release --target recask >/dev/null
out=$(mktemp)
trap 'rm -f "$out"' EXIT
RECASK_E2E_PLAIN=1 RECASK_BIN=${RECASK_BIN:-$PWD/build/release/recask} RECASK_BENCH_ARGS="$*" bash bench/pull.sh | tee "$out"
RECASK_BIN=${RECASK_BIN:-$PWD/build/release/recask} python3 bench/serve.py | tee -a "$out"
{
    echo "# Results"
    echo
    echo "Made by \`make bench\` on $(date -u +%F): $(nproc) processors ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo |
        head -n 1)), Linux $(uname -r), $(. /etc/os-release && echo "$PRETTY_NAME"). Everything over loopback on one machine,"
    echo "stores and clients' disks on a tmpfs; times are medians and the spread of the rounds."
    echo
    cat "$out"
} >bench/RESULTS.md
