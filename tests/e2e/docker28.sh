#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# docker28.sh - docker 28 or newer, with its classic store and with containerd's.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks docker28 docker oci zstd
client_checks docker28-containerd docker oci zstd
finish
