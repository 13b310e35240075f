#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# password.sh - recask that wants a password of its clients: each one without any, with a wrong one, with a right one,
# and as a user whom no rule lets read the image. Nobody's password may be in what recask says.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

recask_config=$work/config.json
image=$proxy/img/docker:latest
config=$(upstream_config img/docker)
# Users: alice may read everything, bob one image.
alice='correct horse'
bob='battery_staple'
wrong='wrong-guess'
unknown='unauthori[sz]ed|authentication required|no basic auth|invalid username'
unknown+='|basic credential not found|user and a password'

# users PASSWORD-OF-ALICE: the file, with the hashes that "htpasswd -B" and "mkpasswd -m yescrypt" make
users() {
    "$python" -W ignore - "$1" "$bob" >"$work/htpasswd.new" <<'END'
import crypt, sys
print("# who may read")
print("alice:" + crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=1 << 10)))
print("bob:" + crypt.crypt(sys.argv[2], "$y$j9T$saltsaltsalt$"))
END
    mv "$work/htpasswd.new" "$work/htpasswd"
}
users "$alice"

# guarded RULES: recask on an empty store
guarded() {
    jq -n --arg plain "$proxy" --arg url "http://$upstream" --arg file "$work/htpasswd" --argjson rules "$1" \
        '{listen: [{address: $plain}], known_upstreams: "off", log: {level: "debug"},
          upstreams: [{name: "registry.test", url: $url}], default_upstream: "registry.test",
          auth: {htpasswd: $file, rules: $rules}}' >"$recask_config"
    recask_fresh
}
private='[{"users": ["alice"], "repositories": ["*"]},
          {"users": ["bob"], "repositories": ["registry.test/img/oci"]}]'

# log_in USER PASSWORD: what people do once; containerd and skopeo take user and password with each pull
log_in() {
    case $family in
        docker*) docker_cli login -u "$1" --password-stdin "$proxy" <<<"$2" ;;
        podman) podman_cli login --tls-verify=false -u "$1" --password-stdin "$proxy" <<<"$2" ;;
        crane) crane_cli auth login -u "$1" --password-stdin "$proxy" <<<"$2" ;;
    esac
}
log_out() {
    case $family in
        docker*) docker_cli logout "$proxy" ;;
        podman) podman_cli logout "$proxy" ;;
        crane) crane_cli auth logout "$proxy" ;;
    esac
}
# pull_as USER PASSWORD REF: USER "" has none
pull_as() {
    case $family in
        containerd) ctr image pull --plain-http ${1:+--user "$1:$2"} "$3" ;;
        skopeo)
            skopeo_cli copy -q --src-tls-verify=false ${1:+--src-creds "$1:$2"} "docker://$3" \
                "dir:$(copy_dir "$3")"
            ;;
        oras)
            oras_cli copy --no-tty --from-plain-http ${1:+--from-username "$1" --from-password "$2"} "$3" \
                --to-oci-layout "$(copy_dir "$3"):latest"
            ;;
        *)
            log_out >/dev/null 2>&1
            [ -z "$1" ] || log_in "$1" "$2" || return
            client_pull "$3"
            ;;
    esac
}
# refused NAME WORDS COMMAND...: it fails, and says so in WORDS, an extended regular expression
refused() {
    local name=$1 words=$2 said
    shift 2
    if said=$("$@" 2>&1); then
        not_ok "$name" "it did not fail: $said"
    elif grep -Eiq "$words" <<<"$said"; then
        ok "$name"
    else
        not_ok "$name" "$said"
    fi
}

# password_checks ID
password_checks() {
    local missing
    use_client "$1"
    if missing=$(client_missing); then
        skip "$client with passwords" "$missing"
        return
    fi
    check "$client starts" client_start || return
    echo "# $client is $(client_version)"
    guarded "$private" || return
    refused "$client without a password" "$unknown" pull_as "" "" "$image"
    refused "$client with a wrong password" "$unknown" pull_as alice "$wrong" "$image"
    refused "$client as nobody that is known" "$unknown" pull_as mallory "$wrong" "$image"
    equal "$client: the upstream was not asked for them" "$(stat_of .upstream.requests)" 0
    refused "$client as a user who may not" "denied|forbidden|no rule" pull_as bob "$bob" "$image"
    equal "$client: nor for this one" "$(stat_of .upstream.requests)" 0
    if check "$client with the right password, nothing cached" pull_as alice "$alice" "$image"; then
        equal "$client: image ID" "$(client_config "$image")" "$config"
    fi
    client_clean >/dev/null 2>&1
    wait_jobs
    refused "$client as a user who may not, now cached" "denied|forbidden|no rule" pull_as bob "$bob" "$image"
    refused "$client without a password, now cached" "$unknown" pull_as "" "" "$image"
    check "$client with the right password, cached" pull_as alice "$alice" "$image"
    client_clean >/dev/null 2>&1
    check "$client as the other user, what that may read" pull_as bob "$bob" "$proxy/img/oci:latest"
    client_clean >/dev/null 2>&1
    log_out >/dev/null 2>&1
}

clients=(docker20 docker28 docker28-containerd podman-stable podman-sid containerd1 containerd2 skopeo-stable
    skopeo-sid crane oras)
for id in "${clients[@]}"; do
    password_checks "$id"
done

# One image for all, the rest for alice. Then GET /v2/ is for everybody too, and docker's own store, podman and skopeo
# take that for "no passwords here": they show none, and read what everybody may. The others answer a challenge when it
# comes.
guarded '[{"users": ["alice"], "repositories": ["*"]},
          {"users": ["anonymous"], "repositories": ["registry.test/img/oci"]}]'
for id in "${clients[@]}"; do
    use_client "$id"
    ! client_missing >/dev/null || continue
    check "$client, what everybody may read" pull_as "" "" "$proxy/img/oci:latest"
    client_clean >/dev/null 2>&1
    refused "$client, what not everybody may read" "$unknown" pull_as "" "" "$image"
    case $client in
        docker20 | docker28 | podman-* | skopeo-*)
            refused "$client with a password: shows it nowhere" "$unknown" pull_as alice "$alice" "$image"
            ;;
        *) check "$client with a password, what not everybody may read" pull_as alice "$alice" "$image" ;;
    esac
    client_clean >/dev/null 2>&1
    log_out >/dev/null 2>&1
done

# The same by hand. Bodies of refusals are kept for the search below.
# answered REPOSITORY [USER:PASSWORD]: the status
answered() {
    http -o "$work/body" -w '%{http_code}' -H "$any_manifest" ${2:+-u "$2"} "http://$proxy/v2/$1/manifests/latest"
    ! grep -q '"errors"' "$work/body" || cat "$work/body" >>"$work/bodies"
}
: >"$work/bodies"
equal "curl, what everybody may read" "$(answered img/oci)" 200
equal "curl, what not everybody may read" "$(answered img/docker)" 401
equal "curl with a wrong password" "$(answered img/docker "alice:$wrong")" 401
equal "curl as nobody that is known" "$(answered img/docker "mallory:$wrong")" 401
equal "curl as a user who may not" "$(answered img/docker "bob:$bob")" 403
equal "curl with the right password" "$(answered img/docker "alice:$alice")" 200
equal "each refusal has a body" "$(jq -r '.errors[0].code' "$work/bodies" | tr '\n' ' ')" \
    "UNAUTHORIZED UNAUTHORIZED UNAUTHORIZED DENIED "

# The file changes, recask runs on.
is() { [ "$(answered img/docker "$2")" = "$1" ]; }
changed='another st4ple'
running=$recask_pid
users "$changed"
check "a changed password is taken up" wait_for 20 is 200 "alice:$changed"
equal "... and the old one is none any more" "$(answered img/docker "alice:$alice")" 401
if use_client crane && ! client_missing >/dev/null; then
    refused "$client with the old password" "$unknown" pull_as alice "$alice" "$image"
    check "$client with the changed one" pull_as alice "$changed" "$image"
    client_clean >/dev/null 2>&1
    log_out >/dev/null 2>&1
fi
echo "alice:not a hash" >"$work/htpasswd"
said_so() { grep -q 'ev=access.file error=' "$work/log/recask.log"; }
unusable() { answered img/docker && said_so; }
check "a file that cannot be used is said to be that" wait_for 20 unusable
equal "... and the users stay" "$(answered img/docker "alice:$changed")" 200
equal "... and everybody else stays out" "$(answered img/docker)" 401
check "recask ran on" kill -0 "$running"

# Each secret as it is, as it was sent, and as it is stored
{
    "$RECASK_BIN" stats --store "$work/store" && "$RECASK_BIN" stats --json --store "$work/store"
    "$RECASK_BIN" ls --store "$work/store"
    http "http://$admin/api/v1/stats"
    cat "$work/log/recask.log" "$work/bodies"
} >"$work/said" 2>&1
at_least "what recask said is there to be searched" "$(wc -l <"$work/said")" 100
for secret in "alice:$alice" "bob:$bob" "alice:$wrong" "mallory:$wrong" "alice:$changed"; do
    for form in "${secret#*:}" "$(printf %s "$secret" | base64 -w 0)" "$(printf %s "${secret#*:}" | base64 -w 0)"; do
        check "nowhere: a form of the password of ${secret%%:*}" \
            sh -c '! grep -F -- "$0" "$1" >/dev/null' "$form" "$work/said"
    done
done
# More than the names of the schemes, which a message about a bad file tells
check "nowhere: a hash" sh -c '! grep -E "[$](2b[$][0-9]|y[$]j)" "$0" >/dev/null' "$work/said"
finish
