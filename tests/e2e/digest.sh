#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# digest.sh - pulled by digest, every byte is the upstream's: cold, warm, and with no upstream.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

# A client that would get a rewritten view by tag
modern=(-A "docker/28.5.2 go/go1.24 UpstreamClient(Docker-Client/28.5.2 \\(linux\\))")
images=(docker oci zstd multi attested liar artifact share-a)
declare -A digests
for image in "${images[@]}"; do
    digests[$image]=$(upstream_digest "img/$image")
    check "img/$image fetched from the upstream" fetch_image "http://$upstream" "img/$image" \
        "${digests[$image]}" "$work/want-$image"
done

# by_digest STATE: with curl, as a plain client and as one of the table
by_digest() {
    local image
    for image in "${images[@]}"; do
        rm -rf "$work/got"
        check "$1: img/$image by digest" fetch_image "http://$proxy" "img/$image" \
            "${digests[$image]}" "$work/got" "${modern[@]}" &&
            check "$1: img/$image is the upstream's" diff -r "$work/want-$image" "$work/got"
    done
}
# by_skopeo STATE: what "skopeo copy" keeps. Schema 2 has no place in an OCI layout.
by_skopeo() {
    local image form layout
    use_client skopeo-stable
    for image in docker oci zstd multi; do
        form=oci layout=$work/skopeo/blobs/sha256
        [ "$image" != docker ] || form=dir layout=$work/skopeo
        rm -rf "$work/skopeo"
        check "$1: skopeo copies img/$image by digest" skopeo_cli copy -q --all \
            --src-tls-verify=false "docker://$proxy/img/$image@${digests[$image]}" \
            "$form:$work/skopeo" || continue
        check "$1: skopeo's copy of img/$image is the upstream's" copy_has_all "$image" "$layout"
    done
}
copy_has_all() {
    local file
    for file in "$work/want-$1"/sha256:*; do
        cmp "$file" "$2/${file##*sha256:}" || return 1
    done
    [ "$1" != docker ] || cmp "$work/want-docker/manifest" "$2/manifest.json"
}
# by_tag: rewritten views come into being, which must not change what a digest means
by_tag() {
    local image
    for image in "${images[@]}"; do
        http -f "${modern[@]}" -H "$any_manifest" -o /dev/null \
            "http://$proxy/v2/img/$image/manifests/latest"
    done
}

recask_fresh
by_digest cold
wait_jobs
by_tag
wait_jobs
by_tag
by_digest warm
by_skopeo warm
recask_fresh
by_skopeo cold
by_digest "half warm"
wait_jobs
upstream_stop
by_digest "warm, no upstream"
by_skopeo "warm, no upstream"
recask_start
by_digest "warm, no upstream, after a restart"
finish
