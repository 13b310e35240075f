#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# docker20.sh - docker 20.10 of Debian 12. It cannot read zstd layers: the view must do it.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

client_checks docker20 docker oci zstd
finish
