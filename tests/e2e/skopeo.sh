#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# skopeo.sh - skopeo of Debian 12 and the newest. It copies images: always the original.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks skopeo-stable docker oci zstd
client_checks skopeo-sid docker oci zstd
finish
