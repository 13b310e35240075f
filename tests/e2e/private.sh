#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# private.sh - registries that want to know who asks: one by password (htpasswd), one by token. recask has accounts
# there, its clients have none, and pull. With a wrong password they get what is known, and nothing new. No password and
# no token is in anything that recask says.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

by_password=127.0.0.1:5101
by_token=127.0.0.1:5102
service=127.0.0.1:5103
recask_config=$work/config.json
config=$(upstream_config img/docker)
user='robot$ci'
password='pa55 w0rd: with "all" of it'
wrong='not the passw0rd'
# An upstream for each way to know the password, and one without an account.
upstreams=(basic.test authfile.test token.test helper.test)

# --- the registries -----------------------------------------------------------------------------

# registry NAME ADDRESS AUTH
registry() {
    cat >"$work/$1.yml" <<END
version: 0.1
log: {level: warn, accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: $work/upstream/root}}
http: {addr: "$2"}
auth: $3
END
    start "$1" docker-registry serve "$work/$1.yml"
    wait_for 20 http "http://$2/v2/"
}
"$python" -W ignore -c 'import crypt, sys
print(sys.argv[1] + ":" + crypt.crypt(sys.argv[2], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=1 << 8)))' \
    "$user" "$password" >"$work/htpasswd"
check "a registry that wants a password" registry by-password "$by_password" \
    "{htpasswd: {realm: private, path: $work/htpasswd}}"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=issuer -keyout "$work/issuer.key" \
    -out "$work/issuer.crt" 2>"$work/log/openssl.log"
jq -n --arg user "$user" --arg password "$password" \
    '{users: {($user): $password}, private: ["img/docker", "img/oci"]}' >"$work/accounts.json"
: >"$work/tokens"
start tokenserver "$python" "$here/tokenserver.py" "${service#*:}" "$work/issuer.crt" "$work/issuer.key" issuer \
    "$work/tokens" "$work/accounts.json"
check "a token service" wait_for 10 http -f "http://$service/token"
check "a registry that wants its tokens" registry by-token "$by_token" \
    "{token: {realm: 'http://$service/token', service: private, issuer: issuer, rootcertbundle: $work/issuer.crt}}"
for at in "$by_password" "$by_token"; do
    equal "$at is private" "$(http -o /dev/null -w '%{http_code}' "http://$at/v2/img/docker/manifests/latest")" 401
done

# --- recask -------------------------------------------------------------------------------------

# know PASSWORD: puts it where recask's configuration looks
know() {
    printf '%s\n' "$1" >"$work/password"
    jq -n --arg host "$by_password" --arg auth "$(printf %s "$user:$1" | base64 -w 0)" \
        '{auths: {($host): {auth: $auth}}}' >"$work/auth.json"
    jq -n --arg user "$user" --arg secret "$1" '{ServerURL: "", Username: $user, Secret: $secret}' >"$work/helper.out"
}
cat >"$work/helper" <<END
#!/bin/sh
[ "\$1" = get ] && cat >>"$work/helper.asked" && echo >>"$work/helper.asked" && cat "$work/helper.out"
END
chmod 700 "$work/helper"
(umask 077 && know "$password")
jq -n --arg plain "$proxy" --arg password "http://$by_password" --arg token "http://$by_token" --arg user "$user" \
    --arg work "$work" '
    {listen: [{address: $plain}], known_upstreams: "off", log: {level: "debug"}, auth_file: "\($work)/auth.json",
     tag_ttl: "1s", negative_ttl: "1s",
     upstreams: [
         {name: "basic.test", url: $password, username: $user, password_file: "\($work)/password"},
         {name: "authfile.test", url: $password},
         {name: "token.test", url: $token, username: $user, password_file: "\($work)/password"},
         {name: "helper.test", url: $token, credential_helper: "\($work)/helper"},
         {name: "anonymous.test", url: $token}]}' >"$recask_config"

# tokens_for REPOSITORY: how many were given with the password
tokens_for() {
    jq -s --arg scope "repository:$1:pull" '[.[] | select(.scope == $scope and .right)] | length' "$work/tokens"
}
# error_of UPSTREAM: status and body of a manifest that cannot be had
error_of() {
    http -H "$any_manifest" -w '%{http_code}\n' "http://$proxy/v2/$1/img/docker/manifests/latest" | tee -a "$work/said"
}

# --- with the right password --------------------------------------------------------------------

: >"$work/said"
clients=(docker20 docker28 docker28-containerd podman-stable podman-sid containerd1 containerd2
    skopeo-stable skopeo-sid)
for id in "${clients[@]}"; do
    use_client "$id"
    if missing=$(client_missing); then
        skip "$client, private upstreams" "$missing"
        continue
    fi
    check "$client starts" client_start || continue
    recask_fresh || continue
    before=$(tokens_for img/docker)
    # How recask knows the password is nothing to the client: the other two ways with two clients only.
    names=(basic.test token.test)
    case $client in docker20 | containerd2) names=("${upstreams[@]}") ;; esac
    for name in "${names[@]}"; do
        ref=$proxy/$name/img/docker:latest
        check "$client pulls from $name" client_pull "$ref" &&
            equal "$client, $name: image ID" "$(client_config "$ref")" "$config"
        client_clean >/dev/null 2>&1
    done
    wait_jobs
    fetched=$(stat_of .upstream.bytes)
    for name in basic.test token.test; do
        ref=$proxy/$name/img/docker:latest
        check "$client pulls from $name, cached" client_pull "$ref" &&
            equal "$client, $name, cached: image ID" "$(client_config "$ref")" "$config"
        client_clean >/dev/null 2>&1
    done
    at_most "$client: cached, the layers came from recask" $(($(stat_of .upstream.bytes) - fetched)) 50000
    # token.test and helper.test have one each, however many requests the pulls were.
    equal "$client: one token for each upstream" $(($(tokens_for img/docker) - before)) $((${#names[@]} / 2))
    http "http://$admin/api/v1/stats" >>"$work/said"
done
equal "the helper was asked for the registry" "$(grep . "$work/helper.asked" | sort -u)" "$by_token"
equal "tokens were asked for pulling, and nothing else" \
    "$(jq -s '[.[] | select(.scope != "" and .only_pull == false)] | length' "$work/tokens")" 0

# Without an account there: what the registry shows everybody, and no more, though the store has the rest by now.
recask_fresh
check "token.test: the private image" fetch_image "http://$proxy" token.test/img/docker latest "$work/mine"
check "anonymous.test: what everybody may read" fetch_image "http://$proxy" anonymous.test/img/zstd latest "$work/got"
check "... with a token of no user" jq -es \
    '[.[] | select(.scope == "repository:img/zstd:pull")] | length > 0 and all(.user == "")' "$work/tokens"
equal "anonymous.test: not the rest" "$(error_of anonymous.test | tail -n 1)" 404
equal "anonymous.test: no blob of it" "$(http -o /dev/null -w '%{http_code}' \
    "http://$proxy/v2/anonymous.test/img/docker/blobs/$config")" 404

# --- with a wrong one ---------------------------------------------------------------------------

# Known images are served on, though the registry refuses to say whether their tags have moved.
recask_fresh
for name in "${upstreams[@]}"; do
    check "$name: known while the password is right" fetch_image "http://$proxy" "$name/img/docker" latest "$work/known"
done
wait_jobs
know "$wrong"
recask_start
for name in "${upstreams[@]}"; do
    head=$(http -I -H "$any_manifest" "http://$proxy/v2/$name/img/docker/manifests/latest")
    check "$name, wrong password: the known image is said to be perhaps out of date" \
        grep -qi "^warning: 299 .*$name cannot be asked" <<<"$head"
done
for id in docker20 containerd2 podman-stable; do
    use_client "$id"
    ! client_missing >/dev/null || continue
    for name in basic.test token.test; do
        ref=$proxy/$name/img/docker:latest
        check "$client, $name, wrong password: the known image" client_pull "$ref" &&
            equal "$client, $name, wrong password: image ID" "$(client_config "$ref")" "$config"
        client_clean >/dev/null 2>&1
    done
done

recask_fresh
for id in docker20 docker28-containerd podman-stable containerd2 skopeo-stable; do
    use_client "$id"
    ! client_missing >/dev/null || continue
    for name in "${upstreams[@]}"; do
        if client_pull "$proxy/$name/img/docker:latest" >"$work/out" 2>&1; then
            not_ok "$client, $name, wrong password: no pull" "$(cat "$work/out")"
        else
            ok "$client, $name, wrong password: no pull"
        fi
        cat "$work/out" >>"$work/said"
    done
done
for name in "${upstreams[@]}"; do
    said=$(error_of "$name")
    if [ "$(tail -n 1 <<<"$said")" = 404 ] && grep -q '"DENIED"' <<<"$said" && grep -Fq "$user" <<<"$said"; then
        ok "$name: the error says who was refused"
    else
        not_ok "$name: the error says who was refused" "$said"
    fi
done
refused=$(jq -s '[.[] | select(.right == false)] | length' "$work/tokens")
at_most "the token service is not asked again and again with it" "$refused" 4

# The right one is taken up without a restart.
know "$password"
pulls() { fetch_image "http://$proxy" "$1/img/docker" latest "$work/again-$1"; }
for name in "${upstreams[@]}"; do
    check "$name: the right password again, without a restart" wait_for 90 pulls "$name"
done

# --- what was said ------------------------------------------------------------------------------

{
    "$RECASK_BIN" stats --store "$work/store"
    "$RECASK_BIN" stats --json --store "$work/store"
    "$RECASK_BIN" ls --store "$work/store"
    "$RECASK_BIN" ls --json --store "$work/store"
    "$RECASK_BIN" inspect --store "$work/store" token.test/img/docker:latest
    http "http://$admin/api/v1/stats" "http://$admin/metrics"
    cat "$work/log/recask.log"
} >>"$work/said" 2>&1
at_least "what recask said is there to be searched" "$(wc -l <"$work/said")" 500
check "... with the user's name, which is no secret" grep -Fq "$user" "$work/said"
# A token's signature is the part that is worth something; the whole of it would be cut in a log line.
jq -r '.token // empty | split(".")[2][:40]' "$work/tokens" | sort -u >"$work/secrets"
at_least "tokens were given" "$(wc -l <"$work/secrets")" 10
for one in "$password" "$wrong"; do
    printf '%s\n' "$one" "$(jq -n --arg x "$one" '$x' | sed 's/^"//; s/"$//')"
    printf '%s' "$one" | base64 -w 0 && echo
    printf '%s' "$user:$one" | base64 -w 0 && echo
    jq -rn --arg x "$one" '$x | @uri'
done >>"$work/secrets"
check "no password and no token in it" sh -c '! grep -F -f "$0" "$1"' "$work/secrets" "$work/said"
check "nor the beginning of a token" sh -c '! grep -E "eyJ[A-Za-z0-9_-]{10}" "$0"' "$work/said"
find "$work/store" -type f -print0 | xargs -0 cat >"$work/stored"
check "none in the store either" sh -c '! grep -a -c -F -f "$0" "$1"' "$work/secrets" "$work/stored"
finish
