#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/test.sh [quick|all|long] - what `make test` runs, cheapest first; stops at the first preset that fails.
#   quick  dev only: unit, wire, fuzz corpus, lint, clang-tidy
#   all    dev, clang (warnings and unit tests), asan, tsan, release with the end-to-end tests
#   long   all, then every place where an allocation or a system call of the store can fail, then each fuzzer for
#          RECASK_FUZZ_S seconds (default 60)
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-all}
case $mode in quick | all | long) ;; *)
    echo "usage: tools/test.sh [quick|all|long]" >&2
    exit 2
    ;;
esac

tools/install-deps.sh test
if [[ $mode != quick && -f tools/install-e2e.sh ]]; then
    if [[ $(id -u) == 0 ]]; then
        bash tools/install-e2e.sh
    else
        echo "not root: the end-to-end tests will skip"
    fi
fi

passed=()

# preset NAME [ctest arguments]
preset() {
    local name=$1
    shift
    printf '\n==== %s ====\n' "$name"
    cmake --preset "$name" >"build/.$name.configure.log" 2>&1 || {
        cat "build/.$name.configure.log"
        return 1
    }
    cmake --build --preset "$name"
    ctest --preset "$name" "$@"
    passed+=("$name")
}

fuzz() {
    local binary name
    cmake --preset fuzz
    cmake --build --preset fuzz
    for binary in build/fuzz/fuzz/fuzz_*; do
        name=${binary##*/fuzz_}
        [[ -d tests/fuzz/corpus/$name ]] || continue
        # New finds go to the build folder: the corpus in git grows by hand.
        mkdir -p "build/fuzz/found/$name"
        (cd "build/fuzz/found/$name" &&
            "../../../../$binary" -max_total_time="${RECASK_FUZZ_S:-60}" -timeout=25 -rss_limit_mb=2048 \
                -print_final_stats=1 . "../../../../tests/fuzz/corpus/$name")
    done
}

mkdir -p build
start=$SECONDS
preset dev
if [[ $mode != quick ]]; then
    # clang is here for its warnings; its binaries behave like dev's, so the slow wire tests are not repeated.
    preset clang --label-regex '^(unit|fuzz-replay)$'
    preset asan
    preset tsan
    preset release
fi
if [[ $mode == long ]]; then
    # A crash at each durable step, and many at random moments; `all` takes a sample (tests/wire/README.md).
    for name in steps random; do
        RECASK_CRASH_STEPS=all RECASK_CRASH_MOMENTS=200 RECASK_CRASH_POWER=1 RECASK_BIN=$PWD/build/release/recask \
            RECASK_LIBFAULT=$PWD/build/release/fault/libfault.so python3 "tests/wire/crash_${name}_test.py"
    done
    RECASK_TORTURE=all build/dev/unit/store_torture_test
    RECASK_TORTURE=all RECASK_BIN=$PWD/build/dev/recask python3 tests/wire/faults_test.py test_allocations_fail
    fuzz
fi
printf '\nrecask: presets passed: %s (%d s)\n' "${passed[*]}" $((SECONDS - start))
