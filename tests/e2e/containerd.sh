#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# containerd.sh - containerd 1.6 of Debian 12 and containerd 2, by ctr.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks containerd1 docker oci zstd
client_checks containerd2 docker oci zstd
finish
