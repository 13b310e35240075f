#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# podman.sh - podman of Debian 12 and the newest.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks podman-stable docker oci zstd
client_checks podman-sid docker oci zstd
finish
