#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tlsboth.sh - TLS on both sides, by a private CA: clients pull from recask over TLS, and recask from a registry
# over TLS. A certificate that is renewed on disk is served without a restart; one that has expired is told as such.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=certs.sh
. "$here/certs.sh"
sandbox
upstream_start

upstream_name=registry.test:5443
proxy_name=recask.test:5444
recask_config=$work/config.json
hosts="$outside registry.test recask.test"

add_address
make_ca
make_cert registry DNS:registry.test
make_cert recask DNS:recask.test
echo "$hosts" >>/etc/hosts
check "the registry behind TLS" tls_registry registry "$upstream_name" registry "$work/upstream/root"
sid_missing >/dev/null || sid_start
trust_ca
[ -z "$sid_pid" ] || in_sid /bin/sh -c "echo '$hosts' >>/etc/hosts"

# tls_recask [CA-FILE]: on an empty store; both listeners, the plain one for lib.sh
tls_recask() {
    jq -n --arg plain "$proxy" --arg tls "$outside:${proxy_name#*:}" --arg dir "$work/tls" \
        --arg url "https://$upstream_name" --arg ca "${1:-$work/tls/ca.crt}" \
        '{listen: [{address: $plain}, {address: $tls,
             tls: {cert_file: "\($dir)/recask.crt", key_file: "\($dir)/recask.key"}}],
          tag_ttl: "1s", known_upstreams: "off",
          upstreams: [{name: "registry.test", url: $url, ca_file: $ca}]}' >"$recask_config"
    recask_fresh
}
# served_serial: of the certificate on the TLS listener
served_serial() {
    openssl s_client -connect "$proxy_name" -servername recask.test </dev/null \
        2>/dev/null | cert_serial
}
serves() { [ "$(served_serial)" = "$1" ]; }
tls_pull() {
    case $family in
        containerd) ctr image pull "$1" ;;
        podman) podman_cli pull -q "$1" ;;
        skopeo) skopeo_cli copy -q "docker://$1" "dir:$(copy_dir "$1")" ;;
        *) client_pull "$1" ;;
    esac
}

not() { ! "$@"; }

tls_recask || finish
check "curl, with the CA" http -f --cacert "$work/tls/ca.crt" "https://$proxy_name/v2/"
check "without it, it does not trust recask" not http -f --cacert /dev/null "https://$proxy_name/v2/"
config=$(upstream_config img/docker)
ref=$proxy_name/img/docker:latest
for id in docker20 docker28 containerd1 containerd2 podman-stable podman-sid skopeo-stable skopeo-sid; do
    use_client "$id"
    if missing=$(client_missing); then
        skip "$id pulls over TLS" "$missing"
        continue
    fi
    check "$id starts" client_start || continue
    check "$id pulls over TLS" tls_pull "$ref" && equal "$id: image ID" "$(client_config "$ref")" "$config"
    client_clean >/dev/null 2>&1
done

# Renewed while a client reads slowly: what runs goes on, new connections get the new certificate.
layer=$(http -H "$any_manifest" "http://$upstream/v2/img/docker/manifests/latest" |
    jq -r '.layers | max_by(.size).digest')
before=$(cert_serial "$work/tls/recask.crt")
equal "the certificate is the one on disk" "$(served_serial)" "$before"
start slow curl -sS -f --cacert "$work/tls/ca.crt" --limit-rate 3M -o "$work/layer" \
    "https://$proxy_name/v2/img/docker/blobs/$layer"
slow=$started
make_cert recask DNS:recask.test
after=$(cert_serial "$work/tls/recask.crt")
check "another certificate was made" [ "$before" != "$after" ]
check "it is served without a restart" wait_for 20 serves "$after"
check "while the other pull went on" kill -0 "$slow"
check "... to its end" wait "$slow"
equal "... with the right bytes" "$(digest_of "$work/layer")" "$layer"
check "curl trusts the new one" http -f --cacert "$work/tls/ca.crt" -o /dev/null "https://$proxy_name/v2/"
echo garbage >"$work/tls/recask.crt"
sleep 3
equal "a file that is no certificate changes nothing" "$(served_serial)" "$after"
make_cert recask DNS:recask.test

# An upstream that cannot be trusted: each time an error that says why, to the client and in the log.
# upstream_error NAME WORDS: an extended regular expression
upstream_error() {
    local said
    said=$(http -H "$any_manifest" "http://$proxy/v2/img/docker/manifests/latest" |
        jq -r '.errors[0].message')
    if grep -Eq "$2" <<<"$said" && grep 'lvl=warn' "$work/log/recask.log" | grep -Eq "$2"; then
        ok "$1"
    else
        not_ok "$1" "$said"$'\n'"$(tail -n 5 "$work/log/recask.log")"
    fi
}
make_cert expired DNS:registry.test -1
check "a registry with an expired certificate" \
    tls_registry expired registry.test:5445 expired "$work/upstream/root"
upstream_name=registry.test:5445
tls_recask && upstream_error "an expired certificate is said to be expired" "certificate .* expired"
make_cert elsewhere DNS:elsewhere.test
check "a registry with another's certificate" \
    tls_registry elsewhere registry.test:5446 elsewhere "$work/upstream/root"
upstream_name=registry.test:5446
tls_recask && upstream_error "a certificate for another name is said to be that" \
    "certificate .* is for another name"
upstream_name=registry.test:5443
make_cert stranger DNS:stranger.test
tls_recask "$work/tls/stranger.crt" && upstream_error "an unknown authority is said to be that" \
    "certificate .* authority"
finish
