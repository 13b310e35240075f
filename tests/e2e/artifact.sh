#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# artifact.sh - an artifact (artifactType, empty config) stays byte-exact for every client.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

check "img/artifact fetched from the upstream" fetch_image "http://$upstream" img/artifact latest \
    "$work/want"
up=$(upstream_digest img/artifact)
recask_fresh
for state in cold warm; do
    while read -r agent; do
        head=$(http -I -A "$agent" -H "$any_manifest" \
            "http://$proxy/v2/img/artifact/manifests/latest")
        equal "$state: $agent: original" "$(header_of X-Recask-View <<<"$head")" original
        equal "$state: $agent: the upstream's digest" \
            "$(header_of Docker-Content-Digest <<<"$head")" "$up"
        rm -rf "$work/got"
        check "$state: $agent: fetched by tag" fetch_image "http://$proxy" img/artifact latest \
            "$work/got" -A "$agent"
        check "$state: $agent: the upstream's bytes" diff -r "$work/want" "$work/got"
    done <<'END'
oras/1.3.3
docker/28.5.2 go/go1.24 kernel/6.1 os/linux arch/amd64
containerd/2.1.9
containers/5.36.1 (github.com/containers/image)
END
    wait_jobs
done
# A layer that is no gzip is its own canonical form: it may travel encoded, under its own digest.
plain=$(jq -r '.layers[] | select(.mediaType == "application/vnd.example.thing.tar").digest' \
    "$work/want/manifest")
http -f -D "$work/blob.head" -o "$work/blob" -H 'Accept-Encoding: zstd' \
    "http://$proxy/v2/img/artifact/blobs/$plain"
equal "a plain layer goes out as zstd" "$(header_of Content-Encoding <"$work/blob.head")" zstd
equal "and decodes to its digest" "sha256:$(zstd -dcq "$work/blob" | sha256sum | cut -d ' ' -f 1)" \
    "$plain"
compressed=$(jq -r '.layers[] | select(.mediaType | endswith("+gzip")).digest' \
    "$work/want/manifest")
http -f -D "$work/blob.head" -o "$work/blob" -H 'Accept-Encoding: zstd, gzip' \
    "http://$proxy/v2/img/artifact/blobs/$compressed"
equal "a gzip layer goes out as it is" \
    "$(header_of Content-Encoding <"$work/blob.head")$(digest_of "$work/blob")" "$compressed"
finish
