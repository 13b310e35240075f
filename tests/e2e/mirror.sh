#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# mirror.sh - recask as the mirror of docker.io, configured as docker/README.md says. Each client pulls by
# docker.io's own name: first through recask, then, with recask stopped, from "docker.io" itself, which is a
# registry behind TLS on an address that only this sandbox has.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=certs.sh
. "$here/certs.sh"
sandbox
upstream_start

hub=$outside:443
hub_name=docker.io/img/docker:latest
hosts="$outside docker.io index.docker.io registry-1.docker.io auth.docker.io"
docker_io=docker.io=http://$upstream
recask_upstream=$docker_io
config=$(upstream_config img/docker)

# snippet WORDS: the indented lines of docker/README.md below the line that ends in WORDS, with this test's address.
snippet() {
    awk -v words="$1" '
        state == 2 && !/^ / && NF { exit }
        state == 1 && /^    / { state = 2 }
        state == 2 { sub(/^    /, ""); print }
        length($0) >= length(words) && substr($0, length($0) - length(words) + 1) == words { state = 1 }
    ' "$here/../../docker/README.md" | sed "s/127\.0\.0\.1:5000/$proxy/g"
}
through_recask() { grep -c 'path=/v2/img/docker/.* status=200' "$work/log/recask.log"; }
through_hub() { grep -c '"GET /v2/img/docker/.* 200 ' "$work/log/hub.log"; }

add_address
make_ca
make_cert hub "DNS:registry-1.docker.io,DNS:docker.io,DNS:index.docker.io"
check "the registry that plays docker.io" tls_registry hub "$hub" hub "$work/upstream/root"
sid_missing >/dev/null || sid_start
trust_ca
echo "$hosts" >>/etc/hosts
[ -z "$sid_pid" ] || in_sid /bin/sh -c "echo '$hosts' >>/etc/hosts"

docker_more=$(snippet '`/etc/docker/daemon.json`')
mkdir -p /etc/containers/registries.conf.d "$work/certs.d/docker.io" "$work/only.d/docker.io"
podman_conf=/etc/containers/registries.conf.d/recask.conf
snippet "\`$podman_conf\`" >"$work/recask.conf"
cp "$work/recask.conf" "$podman_conf"
[ -z "$sid_pid" ] ||
    in_sid /bin/sh -c "mkdir -p ${podman_conf%/*} && cp '$work/recask.conf' $podman_conf"
snippet '`/etc/containerd/certs.d/docker.io/hosts.toml`' >"$work/certs.d/docker.io/hosts.toml"
snippet '`/etc/containerd/certs.d/docker.io/hosts.toml` without fallback' >"$work/only.d/docker.io/hosts.toml"
check "docker/README.md has each file" test -n "$docker_more" -a -s "$work/recask.conf" \
    -a -s "$work/certs.d/docker.io/hosts.toml" -a -s "$work/only.d/docker.io/hosts.toml"

hosts_dir=$work/certs.d
mirror_pull() {
    case $family in
        docker*) docker_cli pull -q img/docker:latest ;;
        containerd) ctr image pull --hosts-dir "$hosts_dir" "$hub_name" ;;
        podman) podman_cli pull -q "$hub_name" ;;
    esac
}
# mirror_config: the image's ID, under the name that this client knows it by
mirror_config() {
    case $family in
        docker*) client_config img/docker:latest ;;
        *) client_config "$hub_name" ;;
    esac
}

# mirror_checks ID
mirror_checks() {
    local missing before_recask before_hub
    use_client "$1"
    if missing=$(client_missing); then
        skip "$client behind a mirror" "$missing"
        return
    fi
    check "$client starts" client_start || return
    if [ "$family" = containerd ]; then
        # docker.io is not the default here: only ns= leads to it.
        recask_upstream=other.example=http://127.0.0.1:1 recask_fresh --upstream "$docker_io" || return
    else
        recask_fresh || return
    fi
    before_hub=$(through_hub)
    before_recask=$(through_recask)
    if check "$client: pull" mirror_pull; then
        equal "$client: image ID" "$(mirror_config)" "$config"
        at_least "$client: manifest and layers came through recask" $(($(through_recask) - before_recask)) 5
        equal "$client: docker.io itself gave nothing" "$(through_hub)" "$before_hub"
    fi
    wait_jobs
    mirror_more "$1"
    client_clean >/dev/null 2>&1
    recask_stop
    before_hub=$(through_hub)
    if check "$client: pull with recask down" mirror_pull; then
        equal "$client: image ID with recask down" "$(mirror_config)" "$config"
        at_least "$client: docker.io itself gave it" $(($(through_hub) - before_hub)) 3
    fi
    client_clean >/dev/null 2>&1
}
# mirror_more ID: what only containerd can do
mirror_more() {
    local before
    [ "$family" = containerd ] || return 0
    check "$client: forgets" client_clean
    check "$client: warm pull" mirror_pull
    check "$client: gets the view that its header asks for" \
        grep -q 'path=/v2/img/docker/manifests/latest .*view=canonical' "$work/log/recask.log"
    client_clean >/dev/null 2>&1
    hosts_dir=$work/only.d
    check "$client, no fallback: pull" mirror_pull
    client_clean >/dev/null 2>&1
    recask_stop
    before=$(through_hub)
    check "$client, no fallback: no pull with recask down" not mirror_pull
    equal "$client, no fallback: docker.io was not asked" "$(through_hub)" "$before"
    hosts_dir=$work/certs.d
}
not() { ! "$@"; }

for id in docker20 docker28 docker28-containerd containerd1 containerd2 podman-stable podman-sid; do
    mirror_checks "$id"
done
finish
