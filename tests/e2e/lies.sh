#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# lies.sh - an image whose config lies about a diffID is never rewritten, for no one.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

up=$(upstream_digest img/liar)
recask_fresh
check "img/liar fetched by tag" fetch_image "http://$proxy" img/liar latest "$work/liar"
wait_jobs
while read -r agent; do
    for round in 1 2; do
        head=$(http -I -A "$agent" -H "$any_manifest" "http://$proxy/v2/img/liar/manifests/latest")
        equal "$agent, look-up $round: original" "$(header_of X-Recask-View <<<"$head")" original
        equal "$agent, look-up $round: the upstream's digest" \
            "$(header_of Docker-Content-Digest <<<"$head")" "$up"
        wait_jobs
    done
done <<'END'
docker/20.10.24 go/go1.19.8 kernel/6.1 os/linux arch/amd64
docker/28.5.2 go/go1.24 kernel/6.1 os/linux arch/amd64
containerd/1.6.20~ds1
containerd/2.1.9
containers/5.36.1 (github.com/containers/image)
END
for view in canonical zstd; do
    head=$(http -I -H "Recask-View: $view" -H "$any_manifest" \
        "http://$proxy/v2/img/liar/manifests/latest")
    equal "Recask-View: $view: original all the same" \
        "$(header_of X-Recask-View <<<"$head")" original
done
rm -rf "$work/liar2"
check "img/liar fetched again" fetch_image "http://$proxy" img/liar latest "$work/liar2" \
    -A 'docker/28.5.2 go/go1.24'
check "the same bytes as before" diff -r "$work/liar" "$work/liar2"

# A real client finds the lie out by itself.
use_client docker20
if missing=$(client_missing); then
    skip "docker 20.10 refuses img/liar" "$missing"
elif check "docker20 starts" client_start; then
    out=$(client_pull "$proxy/img/liar:latest" 2>&1)
    if grep -q "layers from manifest don't match image configuration" <<<"$out"; then
        ok "docker 20.10 refuses img/liar"
    else
        not_ok "docker 20.10 refuses img/liar" "$out"
    fi
fi
finish
