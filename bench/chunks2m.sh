#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/chunks2m.sh - what a store of two million chunks costs: makes one (bench/chunks2m.c), asks it in its own process, and
# then as `recask serve`: time until it is ready, memory, requests. Prints tables. A fast disk helps: TMPDIR=/dev/shm.
#
#   bench/chunks2m.sh [CHUNKS]        2000000; takes a few minutes
set -euo pipefail
cd "$(dirname "$0")/.."

chunks=${1:-2000000}
dir=$(mktemp -d "${TMPDIR:-/tmp}/recask-chunks-XXXXXX")
trap 'rm -rf "$dir"' EXIT

cmake --preset release >/dev/null
cmake --build --preset release --target recask bench_chunks2m >/dev/null
begin=$(date +%s)
build/release/bench/bench_chunks2m make "$dir/store" "$chunks"
echo "made in $(($(date +%s) - begin)) s"
echo
RECASK_BIN=build/release/recask python3 bench/chunks2m.py "$dir/store"
echo
build/release/bench/bench_chunks2m ask "$dir/store" 2>/dev/null
