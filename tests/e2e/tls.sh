#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tls.sh - TLS hellos on the plain port get an HTTP 400, a thousand out of a thousand.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

recask_fresh
check "1000 hellos, one after the other" "$python" "$here/tlshello.py" "$proxy" 1000 1
check "200 hellos, eight at a time" "$python" "$here/tlshello.py" "$proxy" 200 8
check "recask still answers" http -f -o /dev/null "http://$proxy/v2/"
finish
