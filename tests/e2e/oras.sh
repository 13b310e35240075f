#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oras.sh - oras: images, and an artifact.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks oras docker oci zstd

if [ "$tests" -gt "$skips" ]; then
    for state in cold warm; do
        [ "$state" = warm ] || recask_fresh
        ref=$proxy/img/artifact:latest
        check "oras img/artifact $state: copy" client_pull "$ref"
        equal "oras img/artifact $state: digest" "$(client_digest "$ref")" \
            "$(upstream_digest img/artifact)"
        client_clean
        wait_jobs
    done
fi
finish
