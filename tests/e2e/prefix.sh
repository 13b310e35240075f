#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# prefix.sh - the upstream named by the first part of the path.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

up=$(upstream_digest img/docker)
# by_path PREFIX: manifest and blobs
by_path() {
    rm -rf "$work/got"
    check "curl: $1/img/oci" fetch_image "http://$proxy" "$1/img/oci" latest "$work/got" &&
        check "curl: $1/img/oci is the upstream's" diff -r "$work/want" "$work/got"
}
fetch_image "http://$upstream" img/oci latest "$work/want"

# The default upstream was given without a name: it is called by its host and port.
recask_fresh
by_path "$upstream"
by_path "${upstream/:/%3A}"
equal "the same image without the prefix" "$(http -I -H "$any_manifest" \
    "http://$proxy/v2/img/docker/manifests/latest" | header_of Docker-Content-Digest)" "$up"
equal "an unknown first part is a part of the repository" "$(http -o /dev/null -w '%{http_code}' \
    -H "$any_manifest" "http://$proxy/v2/none.example/img/oci/manifests/latest")" 404

# A name that clients can write
recask_fresh --upstream "other.example=http://$upstream"
by_path other.example
for id in skopeo-stable docker20; do
    use_client "$id"
    if missing=$(client_missing); then
        skip "$id pulls other.example/img/docker" "$missing"
        continue
    fi
    check "$id starts" client_start || continue
    ref=$proxy/other.example/img/docker:latest
    check "$id pulls other.example/img/docker" client_pull "$ref"
    equal "$id: image ID" "$(client_config "$ref")" "$(upstream_config img/docker)"
done
finish
