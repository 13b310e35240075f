#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# encoding.sh - one canonical digest, three encodings, decoded by command-line tools.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

oci_layer=application/vnd.oci.image.layer.v1.tar
blob_head=$work/blob.head
blob=$work/blob
get() { http -f -D "$blob_head" -o "$blob" "$@" "http://$proxy/v2/img/docker/blobs/$diff_id"; }
head_() { http -f -I "$@" "http://$proxy/v2/img/docker/blobs/$diff_id" | tr -d '\r' >"$blob_head"; }
header() { header_of "$1" <"$blob_head"; }
status() { head -n 1 "$blob_head" | cut -d ' ' -f 2; }
# coding_and_sum: "-sha256:..." when there is no coding
coding_and_sum() { printf '%s-%s\n' "$(header Content-Encoding)" "$(sum <"$blob")"; }
sum() { printf 'sha256:%s\n' "$(sha256sum | cut -d ' ' -f 1)"; }

recask_fresh
# Made canonical by one pull; the view publishes the canonical digests.
check "a first pull" fetch_image "http://$proxy" img/docker latest "$work/original"
wait_jobs
http -f -H "$any_manifest" -H 'Recask-View: canonical' -D "$blob_head" -o "$work/canonical" \
    "http://$proxy/v2/img/docker/manifests/latest"
equal "Recask-View: canonical is heard" "$(header X-Recask-View)" canonical
equal "the canonical layers are the config's diffIDs" \
    "$(jq -c '[.layers[].digest]' "$work/canonical")" \
    "$(jq -c '.rootfs.diff_ids' "$work/original/$(jq -r .config.digest "$work/original/manifest")")"
equal "schema 2 stays schema 2" "$(jq -r '[.mediaType, .layers[].mediaType] | unique | join(" ")' \
    "$work/canonical")" \
    "$docker_manifest application/vnd.docker.image.rootfs.diff.tar"

# The first is a whole tree, the second has incompressible bytes and zeros.
for layer in 0 1; do
    diff_id=$(jq -r ".layers[$layer].digest" "$work/canonical")
    size=$(jq -r ".layers[$layer].size" "$work/canonical")
    name="layer $layer"

    get
    equal "$name, nothing accepted: identity" "$(coding_and_sum)" "-$diff_id"
    equal "$name, identity: Content-Length" "$(header Content-Length)" "$size"
    equal "$name, identity: digest told" "$(header Docker-Content-Digest)" "$diff_id"
    cp "$blob" "$work/plain"

    get -H 'Accept-Encoding: zstd'
    equal "$name, zstd accepted: zstd" "$(header Content-Encoding)" zstd
    equal "$name, zstd decodes to the digest" "$(zstd -dcq <"$blob" | sum)" "$diff_id"
    check "$name, zstd: Vary" grep -qi '^vary:.*accept-encoding' "$blob_head"
    at_most "$name, zstd is smaller" "$(stat -c %s "$blob")" $((size * 95 / 100))

    get -H 'Accept-Encoding: gzip'
    equal "$name, gzip accepted: gzip" "$(header Content-Encoding)" gzip
    equal "$name, gzip decodes to the digest" "$(gzip -dcq <"$blob" | sum)" "$diff_id"
    check "$name, gzip is whole" gzip -t "$blob"
    check "$name, gzip: Vary" grep -qi '^vary:.*accept-encoding' "$blob_head"

    get --compressed -H 'Accept-Encoding: gzip'
    equal "$name, curl itself decodes gzip" "$(sum <"$blob")" "$diff_id"

    # What containerd 2 sends, then refusals and unknown codings
    while IFS='|' read -r accepted want; do
        get -H "Accept-Encoding: $accepted"
        equal "$name, Accept-Encoding: $accepted" "$(header Content-Encoding)" "$want"
    done <<'END'
zstd;q=1.0, gzip;q=0.8, deflate;q=0.5|zstd
zstd;q=0, gzip|gzip
gzip, zstd|zstd
ZSTD|zstd
END
    for accepted in identity '*' deflate br 'gzip;q=0' 'x-gzip;q=0, zstd;q=0.0'; do
        get -H "Accept-Encoding: $accepted"
        equal "$name, Accept-Encoding: $accepted: identity" \
            "$(coding_and_sum)" "-$diff_id"
    done

    # A layer type asked for by name is that form itself, not a coding of the plain one.
    for form in gzip zstd; do
        get -H "Accept: $oci_layer+$form" -H 'Accept-Encoding: gzip, zstd'
        equal "$name, Accept +$form: type and no coding" \
            "$(header Content-Type) $(header Content-Encoding)" "$oci_layer+$form "
        equal "$name, Accept +$form decodes to the digest" \
            "$("$form" -dcq <"$blob" | sum)" "$diff_id"
        head_ -H "Accept: $oci_layer+$form"
        equal "$name, Accept +$form, HEAD: type" "$(header Content-Type)" "$oci_layer+$form"
        # containerd names the type too, but takes anything: the descriptor's type decides nothing
        get -H "Accept: $oci_layer+$form, */*"
        equal "$name, Accept +$form, */*: identity" \
            "$(coding_and_sum)" "-$diff_id"
    done

    head_ -H 'Accept-Encoding: zstd, gzip'
    equal "$name, HEAD: identity's Content-Length" \
        "$(header Content-Encoding)-$(header Content-Length)" "-$size"

    # Ranges count bytes of the plain layer, whatever codings are accepted.
    while read -r range first last; do
        get -H "Range: bytes=$range" -H 'Accept-Encoding: zstd, gzip'
        equal "$name, bytes=$range: 206, no coding, right place" \
            "$(status) $(header Content-Encoding) $(header Content-Range)" \
            "206  bytes $first-$last/$size"
        tail -c +$((first + 1)) "$work/plain" | head -c $((last - first + 1)) >"$work/slice"
        same "$name, bytes=$range: right slice" "$blob" "$work/slice"
    done <<END
0-0 0 0
0- 0 $((size - 1))
100000-399999 100000 399999
1234567-1234567 1234567 1234567
-1000 $((size - 1000)) $((size - 1))
$((size - 1))-$((size + 5)) $((size - 1)) $((size - 1))
END
    equal "$name, a range past the end: 416" "$(http -o /dev/null -w '%{http_code}' \
        -H "Range: bytes=$size-" "http://$proxy/v2/img/docker/blobs/$diff_id")" 416
done
finish
