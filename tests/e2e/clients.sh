# shellcheck shell=bash
# shellcheck disable=SC2154 # variables of lib.sh, which sources this file
# SPDX-License-Identifier: Apache-2.0
#
# clients.sh - every real client behind one set of verbs, and the checks that all of them get.
#
#     use_client ID             docker20, docker28, docker28-containerd, containerd1, containerd2,
#                               podman-stable, podman-sid, skopeo-stable, skopeo-sid, crane, oras
#     client_missing            prints why it cannot run here; fails when it can
#     client_start              its daemons, if it has any
#     client_pull REF           pulls over plain HTTP
#     client_digest REF         digest of the manifest that it recorded for REF
#     client_config REF         digest of the image's config, as the client has it
#     client_list REF FILE      the image's files (mklist.py)
#     client_clean              forgets every image and all content
#
# REF is HOST:PORT/REPOSITORY:TAG. A verb calls <family>_<verb>. Programs are called by absolute
# path, since a machine may have other ones in front, and with a limit on their time.

client=
family=
on=()
use_client() {
    client=$1
    on=()
    case $1 in
        docker20) family=docker ;;
        docker28) family=docker on=(in_sid) ;;
        docker28-containerd) family=docker_containerd on=(in_sid) ;;
        containerd1) family=containerd ;;
        containerd2) family=containerd on=(in_sid) ;;
        *-stable) family=${1%-stable} ;;
        *-sid) family=${1%-sid} on=(in_sid) ;;
        crane | oras) family=$1 on=(in_sid) ;;
        *) echo "no client called $1" >&2; return 1 ;;
    esac
}
client_missing() {
    local program=/usr/bin/$family
    case $client in
        docker20) program=/usr/sbin/dockerd ;;
        containerd1) program=/usr/bin/containerd ;;
    esac
    if [ "${#on[@]}" -gt 0 ]; then
        sid_missing
    elif [ ! -x "$program" ]; then
        echo "no $program (tools/install-e2e.sh installs it)"
    else
        return 1
    fi
}
client_start() {
    [ "${#on[@]}" = 0 ] || sid_start || return 1
    mkdir -p "$work/$client"
    "${family}_start"
}
client_version() { "${family}_version" 2>/dev/null | head -n 1; }
client_pull() { "${family}_pull" "$1"; }
client_digest() { "${family}_digest" "$1"; }
client_config() { "${family}_config" "$1"; }
client_list() { "${family}_list" "$1" >"$2"; }
client_clean() { "${family}_clean"; }
# Where a path that the client mounted is seen from here.
client_path() {
    if [ "${#on[@]}" -gt 0 ]; then echo "/proc/$sid_pid/root$1"; else echo "$1"; fi
}
mklist() { "$python" "$here/mklist.py" "$@"; }

# --- docker: classic store, or containerd's -----------------------------------------------------

docker_cli() { "${on[@]}" timeout 120 /usr/bin/docker -H "unix://$work/$client/docker.sock" "$@"; }
docker_up() { docker_cli version; }
# docker_daemon JSON ARGUMENTS...: $docker_more, if set, is more JSON
docker_daemon() {
    local d=$work/$client config=$1
    shift
    printf '%s\n%s\n' "$config" "${docker_more:-null}" | jq -s '.[0] * (.[1] // {})' >"$d/daemon.json"
    start "$client" "${on[@]}" /usr/sbin/dockerd --config-file "$d/daemon.json" \
        --data-root "$d/data" --exec-root "$d/exec" -H "unix://$d/docker.sock" -p "$d/docker.pid" \
        --iptables=false --bridge=none "$@"
    wait_for 40 docker_up || {
        tail -n 10 "$work/log/$client.log"
        return 1
    }
}
docker_start() {
    if [ "$client" = docker20 ]; then
        docker_daemon '{}'
    else
        containerd_start &&
            docker_daemon '{"features": {"containerd-snapshotter": false}}' --ip6tables=false \
                --containerd "$work/$client/containerd.sock"
    fi
}
docker_version() { docker_cli version --format '{{.Server.Version}}'; }
docker_pull() { docker_cli pull -q "$1"; }
docker_digest() { docker_cli image inspect "$1" | jq -r '.[0].RepoDigests[0]' | sed 's/.*@//'; }
docker_config() { docker_cli image inspect --format '{{.Id}}' "$1"; }
docker_list() {
    local id
    id=$(docker_cli create "$1" /none) || return 1
    docker_cli export "$id" | mklist tar -
    docker_cli rm "$id" >/dev/null
}
docker_clean() {
    local ids
    mapfile -t ids < <(docker_cli images -q | sort -u)
    [ "${#ids[@]}" = 0 ] || docker_cli rmi -f "${ids[@]}"
    [ -z "$(docker_cli images -q)" ]
}

docker_containerd_start() {
    containerd_start &&
        docker_daemon '{"features": {"containerd-snapshotter": true},
            "insecure-registries": ["127.0.0.0/8"]}' --ip6tables=false \
            --containerd "$work/$client/containerd.sock"
}
docker_containerd_version() { docker_version; }
docker_containerd_pull() { docker_pull "$1"; }
docker_containerd_digest() { docker_digest "$1"; }
docker_containerd_config() { ctr_config "$(docker_digest "$1")"; }
docker_containerd_list() { docker_list "$1"; }
docker_containerd_clean() {
    docker_clean && wait_for 15 ctr_content_empty
}

# --- containerd: ctr ----------------------------------------------------------------------------

ctr_namespace() { case $family in docker*) echo moby ;; *) echo default ;; esac; }
ctr() {
    "${on[@]}" timeout 120 /usr/bin/ctr -a "$work/$client/containerd.sock" \
        -n "$(ctr_namespace)" "$@"
}
ctr_up() { ctr version; }
ctr_content_empty() {
    ctr content prune references >/dev/null
    [ -z "$(ctr content ls -q)" ]
}
ctr_platform() {
    jq -r '[.manifests[]? | select(.platform.architecture == "amd64")][0].digest // empty'
}
# ctr_config MANIFEST-DIGEST: an index's amd64 child is looked into
ctr_config() {
    local child
    child=$(ctr content get "$1" | ctr_platform)
    ctr content get "${child:-$1}" | jq -r .config.digest
}
containerd_start() {
    local d=$work/$client version=2
    [ "${#on[@]}" = 0 ] || version=3
    cat >"$d/containerd.toml" <<END
version = $version
root = "$d/containerd-root"
state = "$d/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.erofs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "$d/containerd.sock"
END
    start "$client-containerd" "${on[@]}" /usr/bin/containerd -c "$d/containerd.toml"
    wait_for 20 ctr_up || {
        tail -n 10 "$work/log/$client-containerd.log"
        return 1
    }
}
containerd_version() { ctr version | awk '/Server/ { s = 1 } s && /Version/ { print $2; exit }'; }
containerd_pull() { ctr image pull --plain-http "$1"; }
containerd_digest() { ctr image ls "name==$1" | awk 'NR == 2 { print $3 }'; }
containerd_config() { ctr_config "$(containerd_digest "$1")"; }
containerd_list() {
    local at=$work/$client/mnt
    mkdir -p "$at"
    ctr image mount "$1" "$at" >/dev/null || return 1
    mklist dir "$(client_path "$at")"
    ctr image unmount --rm "$at" >/dev/null
}
containerd_clean() {
    local names
    mapfile -t names < <(ctr image ls -q)
    [ "${#names[@]}" = 0 ] || ctr image rm --sync "${names[@]}"
    wait_for 15 ctr_content_empty
}

# --- podman -------------------------------------------------------------------------------------

podman_cli() {
    "${on[@]}" timeout 120 /usr/bin/podman --root "$work/$client/root" \
        --runroot "$work/$client/run" --storage-driver overlay --cgroup-manager cgroupfs \
        --events-backend file "$@"
}
podman_start() { podman_cli info >/dev/null; }
podman_version() { podman_cli version --format '{{.Client.Version}}'; }
podman_pull() { podman_cli pull -q --tls-verify=false "$1"; }
podman_digest() { podman_cli image inspect --format '{{.Digest}}' "$1"; }
podman_config() { podman_cli image inspect --format 'sha256:{{.Id}}' "$1"; }
podman_list() {
    local at
    at=$(podman_cli image mount "$1") || return 1
    mklist dir "$(client_path "$at")"
    podman_cli image unmount "$1" >/dev/null
}
podman_clean() {
    podman_cli rmi -af >/dev/null
    [ -z "$(podman_cli images -aq)" ]
}

# --- tools that copy images into a directory ----------------------------------------------------

# copy_dir REF: where the copy of REF is kept
copy_dir() { echo "$work/$client/$(printf '%s' "$1" | tr '/:' '__')"; }
copy_clean() { rm -rf "${work:?}/$client" && mkdir -p "$work/$client"; }
layout_digest() { jq -r '.manifests[0].digest' "$(copy_dir "$1")/index.json"; }
layout_config() {
    local digest
    digest=$(layout_digest "$1")
    jq -r .config.digest "$(copy_dir "$1")/blobs/sha256/${digest#sha256:}"
}
layout_list() { mklist layers "$(copy_dir "$1")"; }

skopeo_start() { :; }
skopeo_cli() { "${on[@]}" timeout 120 /usr/bin/skopeo --insecure-policy "$@"; }
skopeo_version() { skopeo_cli --version | awk '{ print $3 }'; }
skopeo_pull() { skopeo_cli copy -q --src-tls-verify=false "docker://$1" "dir:$(copy_dir "$1")"; }
skopeo_digest() { digest_of "$(copy_dir "$1")/manifest.json"; }
skopeo_config() { jq -r .config.digest "$(copy_dir "$1")/manifest.json"; }
skopeo_list() { mklist layers "$(copy_dir "$1")"; }
skopeo_clean() { copy_clean; }

crane_start() { :; }
crane_cli() { "${on[@]}" timeout 120 /usr/bin/crane "$@"; }
# Debian's crane does not know its version.
# shellcheck disable=SC2016 # for dpkg-query to expand
crane_version() { "${on[@]}" dpkg-query -W -f '${Version}' crane; }
crane_pull() { crane_cli pull --insecure --format=oci "$1" "$(copy_dir "$1")"; }
crane_digest() { layout_digest "$1"; }
crane_config() { layout_config "$1"; }
crane_list() { layout_list "$1"; }
crane_clean() { copy_clean; }

oras_start() { :; }
oras_cli() { "${on[@]}" timeout 120 /usr/bin/oras "$@"; }
oras_version() { oras_cli version | awk '{ print $2 }'; }
oras_pull() {
    oras_cli copy --no-tty --from-plain-http "$1" \
        --to-oci-layout "$(copy_dir "$1"):latest"
}
oras_digest() { layout_digest "$1"; }
oras_config() { layout_config "$1"; }
oras_list() { layout_list "$1"; }
oras_clean() { copy_clean; }

# --- asking as a client -------------------------------------------------------------------------

# client_headers: what this client sends when it looks a tag up, learned by letting it ask a
# server that answers 404 and writes the request down. Makes $work/ua/$client, a curl config.
client_headers() {
    [ ! -s "$work/ua/$client" ] || return 0
    start sniffer "$python" "$here/sniffer.py" "${sniffer#*:}" "$work/ua/$client.new"
    local pid=$started
    wait_for 5 http "http://$sniffer/ready"
    client_pull "$sniffer/img/none:latest" >"$work/log/sniff-$client.log" 2>&1
    stop "$pid"
    [ -s "$work/ua/$client.new" ] && mv "$work/ua/$client.new" "$work/ua/$client"
}
# tag_head IMAGE [BASE]: the answer's head when this client looks up IMAGE:latest. A second
# look-up by the other method must agree in everything that a client goes by.
tag_head() {
    http -K "$work/ua/$client" -I "http://${2:-$proxy}/v2/$1/manifests/latest" | tr -d '\r'
}
tag_get() {
    http -K "$work/ua/$client" -D - -o "$work/tag.body" \
        "http://${2:-$proxy}/v2/$1/manifests/latest" | tr -d '\r'
}

# expected_view CLIENT IMAGE cold|warm: from views.tab, the first row that matches
expected_view() {
    awk -v client="$1" -v image="$2" -v column="$([ "$3" = cold ] && echo 3 || echo 4)" '
        /^#/ || NF < 4 { next }
        ($1 == client || $1 == "*") && ($2 == image || $2 == "*") { print $column; exit }
    ' "$here/views.tab"
}

# --- the checks that every client gets ----------------------------------------------------------

# client_checks ID IMAGE...: img/IMAGE pulled cold, warm, and straight from the upstream
client_checks() {
    local image missing
    use_client "$1" || return 1
    shift
    if missing=$(client_missing); then
        for image in "$@"; do skip "$client img/$image" "$missing"; done
        return
    fi
    check "$client starts" client_start || return
    echo "# $client is $(client_version)"
    check "$client: its request for a tag is learned" client_headers || return
    grep '^user-agent' "$work/ua/$client" | sed 's/^/# /'
    for image in "$@"; do client_checks_image "$image"; done
}

client_checks_image() {
    local image=$1 repository=img/$1 ref=$proxy/img/$1:latest direct=$upstream/img/$1:latest
    local id="$client img/$1" up config head view digest served fetched reference
    up=$(upstream_digest "$repository")
    config=$(upstream_config "$repository")
    reference=$work/list/reference-$image
    [ -s "$reference" ] || {
        fetch_image "http://$upstream" "$repository" latest "$work/upstream-$image" &&
            mklist layers "$work/upstream-$image" >"$reference"
    }

    # Cold, asked by curl: whose answer the client would get as the very first.
    recask_fresh || return
    head=$(tag_head "$repository")
    view=$(expected_view "$client" "$image" cold)
    equal "$id cold: view" "$(header_of X-Recask-View <<<"$head")" "$view"
    digest=$(header_of Docker-Content-Digest <<<"$head")
    if [ "$view" = original ]; then
        equal "$id cold: the upstream's digest" "$digest" "$up"
    fi

    # Cold, the client itself: it must be the first to ask, so the store is empty again.
    recask_fresh || return
    client_clean >/dev/null 2>&1
    if check "$id cold: pull" client_pull "$ref"; then
        equal "$id cold: the digest it recorded" "$(client_digest "$ref")" "$digest"
        equal "$id cold: image ID" "$(client_config "$ref")" "$config"
        check "$id cold: files listed" client_list "$ref" "$work/list/cold"
        same "$id cold: the same files" "$work/list/cold" "$reference"
    fi

    # Warm: everything is in recask, nothing is in the client.
    wait_jobs || return
    check "$id: the client forgets" client_clean
    view=$(expected_view "$client" "$image" warm)
    head=$(tag_head "$repository")
    digest=$(header_of Docker-Content-Digest <<<"$head")
    equal "$id warm: view" "$(header_of X-Recask-View <<<"$head")" "$view"
    equal "$id warm: upstream's digest is told" \
        "$(header_of X-Recask-Upstream-Digest <<<"$head")" "$up"
    if [ "$view" = original ]; then
        equal "$id warm: the upstream's digest" "$digest" "$up"
    else
        check "$id warm: another digest than upstream's" [ "$digest" != "$up" ]
    fi
    head_and_get_agree "$id warm: HEAD and GET of the tag agree" "$repository"
    served=$(stat_of .served.bytes)
    fetched=$(stat_of .upstream.bytes)
    if check "$id warm: pull" client_pull "$ref"; then
        at_least "$id warm: the bytes came from recask" \
            $(($(stat_of .served.bytes) - served)) 500000
        at_most "$id warm: none came from upstream" $(($(stat_of .upstream.bytes) - fetched)) 50000
        equal "$id warm: the digest it recorded" "$(client_digest "$ref")" "$digest"
        equal "$id warm: image ID" "$(client_config "$ref")" "$config"
        check "$id warm: files listed" client_list "$ref" "$work/list/warm"
        same "$id warm: the same files" "$work/list/warm" "$reference"
    fi
    client_clean >/dev/null 2>&1

    # Straight from the upstream, unless this client cannot read what is there.
    if [ "$(expected_view "$client" "$image" cold)" = original ]; then
        if check "$id direct: pull" client_pull "$direct"; then
            equal "$id direct: image ID" "$(client_config "$direct")" "$config"
            client_list "$direct" "$work/list/direct"
            same "$id direct: the same files" "$work/list/direct" "$reference"
        fi
        client_clean >/dev/null 2>&1
    fi
}

# head_and_get_agree NAME REPOSITORY
head_and_get_agree() {
    local head get part
    head=$(tag_head "$2")
    get=$(tag_get "$2")
    for part in X-Recask-View Docker-Content-Digest Content-Length Content-Type; do
        [ "$(header_of "$part" <<<"$head")" = "$(header_of "$part" <<<"$get")" ] || {
            not_ok "$1" "$head"$'\n'"$get"
            return 1
        }
    done
    equal "$1" "$(digest_of "$work/tag.body")" "$(header_of Docker-Content-Digest <<<"$get")"
}
