# SPDX-License-Identifier: Apache-2.0
# Thin over CMakePresets.json; HACKING.md tells more.
.PHONY: run build test test-quick test-long bench format deps clean
.DEFAULT_GOAL := build

deps:
	@tools/install-deps.sh build

build: deps
	@mkdir -p build
	@cmake --preset release -DRECASK_TESTS=OFF -B build/release >build/.release.configure.log 2>&1 || \
	    { cat build/.release.configure.log; exit 1; }
	@cmake --build build/release

# Builds and starts the proxy on 127.0.0.1:5000.
run: build
	@echo "Try, in another terminal:  docker pull 127.0.0.1:5000/library/alpine   build/release/recask ls   (Ctrl-C stops)"
	@exec build/release/recask serve

test:
	@tools/test.sh all

# One preset, under a minute: for the inner loop.
test-quick:
	@tools/test.sh quick

test-long:
	@tools/test.sh long

bench: build
	@tools/install-deps.sh bench
	@cmake --build build/release --target bench_programs
	@if [ -x bench/run.sh ]; then exec bench/run.sh; else echo "bench/run.sh is missing"; exit 1; fi

# banned.h poisons names, clang-format does not care; third-party code would be excluded here.
format:
	@tools/install-deps.sh test
	@find admin base bench cli config oci proxy store transcode tests -name '*.[ch]' -print0 | xargs -0 -r clang-format -i

clean:
	@rm -rf build
