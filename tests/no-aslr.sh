#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command without address randomisation where the system allows that (containers may forbid personality(2)).
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
