#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# crane.sh - crane (go-containerregistry). It copies images: always the original.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks crane docker oci zstd

if [ "$tests" -gt "$skips" ]; then
    # crane's own idea of the files, through recask
    crane_cli export --insecure "$proxy/img/oci:latest" - >"$work/export.tar"
    mklist tar "$work/export.tar" >"$work/list/export"
    same "crane export writes the same files" "$work/list/export" "$work/list/reference-oci"
fi
finish
