#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# index.sh - multi-arch indexes: only the pulled child is rewritten, every digest resolves.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

# children FILE: "architecture digest" of each
children() { jq -r '.manifests[] | .platform.architecture + " " + .digest' "$1"; }
child() { children "$1" | awk -v a="$2" '$1 == a { print $2 }'; }

# index_checks CLIENT
index_checks() {
    local missing up ref
    use_client "$1"
    if missing=$(client_missing); then
        skip "$client img/multi" "$missing"
        return
    fi
    check "$client starts" client_start && check "$client: request learned" client_headers || return
    up=$(upstream_digest img/multi)
    ref=$proxy/img/multi:latest
    http -f -H "$any_manifest" -o "$work/multi.up" "http://$upstream/v2/img/multi/manifests/latest"

    recask_fresh || return
    check "$client img/multi cold: pull" client_pull "$ref" || return
    equal "$client img/multi cold: the upstream's digest" "$(client_digest "$ref")" "$up"
    wait_jobs || return
    client_clean >/dev/null 2>&1

    equal "$client img/multi warm: view" \
        "$(tag_head img/multi | header_of X-Recask-View)" "$(expected_view "$client" multi warm)"
    head_and_get_agree "$client img/multi warm: HEAD and GET of the tag agree" img/multi
    cp "$work/tag.body" "$work/multi.warm"
    equal "$client img/multi warm: still two children" \
        "$(children "$work/multi.warm" | cut -d ' ' -f 1 | xargs)" "amd64 arm64"
    check "$client img/multi warm: the pulled child is rewritten" \
        [ "$(child "$work/multi.warm" amd64)" != "$(child "$work/multi.up" amd64)" ]
    equal "$client img/multi warm: the other child is not" \
        "$(child "$work/multi.warm" arm64)" "$(child "$work/multi.up" arm64)"
    check "$client img/multi warm: pull" client_pull "$ref"
    equal "$client img/multi warm: the digest it recorded" "$(client_digest "$ref")" \
        "$(digest_of "$work/multi.warm")"
    # Last, since it fetches the other child too.
    rm -rf "$work/multi"
    check "$client img/multi warm: every digest resolves" fetch_image "http://$proxy" img/multi \
        "$(digest_of "$work/multi.warm")" "$work/multi"
    client_clean >/dev/null 2>&1

    # An attestation keeps its bytes; its annotation names the child that is served.
    client_pull "$proxy/img/attested:latest" >/dev/null 2>&1
    wait_jobs || return
    client_clean >/dev/null 2>&1
    http -f -H "$any_manifest" -o "$work/attested.up" \
        "http://$upstream/v2/img/attested/manifests/latest"
    head_and_get_agree "$client img/attested warm: HEAD and GET of the tag agree" img/attested
    check "$client img/attested warm: the image is rewritten" \
        [ "$(child "$work/tag.body" amd64)" != "$(child "$work/attested.up" amd64)" ]
    equal "$client img/attested warm: the attestation is not" \
        "$(child "$work/tag.body" unknown)" "$(child "$work/attested.up" unknown)"
    equal "$client img/attested warm: the annotation names the image served" \
        "$(jq -r '.manifests[].annotations["vnd.docker.reference.digest"] // empty' \
            "$work/tag.body")" "$(child "$work/tag.body" amd64)"
    rm -rf "$work/attested"
    check "$client img/attested warm: every digest resolves" fetch_image "http://$proxy" \
        img/attested "$(digest_of "$work/tag.body")" "$work/attested"
}

index_checks containerd1
index_checks containerd2
index_checks docker20
finish
