#!/usr/bin/env bash
# shellcheck disable=SC2154 # variables of lib.sh
# SPDX-License-Identifier: Apache-2.0
#
# bench/pull.sh - inside bench/run.sh: one image, each client, direct | cold | warm in turn, and what lies on disk.
# shellcheck source=../tests/e2e/lib.sh
. "$(dirname "$0")/../tests/e2e/lib.sh"

rounds=3
views=
clients=()
# shellcheck disable=SC2086 # words are wanted
set -- ${RECASK_BENCH_ARGS:-}
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2; shift ;;
        --views) views=yes ;;
        *) clients+=("$1") ;;
    esac
    shift
done
[ "${#clients[@]}" -gt 0 ] || clients=(docker20 docker28 docker28-containerd containerd1 containerd2 podman-stable podman-sid)

image=bench/python
sandbox

seconds() { date +%s.%N; }
# median FILE: "1.23 (1.20-1.31)"
median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { printf "%.2f (%.2f-%.2f)", v[int((NR + 1) / 2)], v[1], v[NR] }'
}
middle() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
ratio() { awk -v a="$(middle "$1")" -v b="$(middle "$2")" 'BEGIN { printf "%.2f", a / b }'; }
mib() { awk -v b="$1" 'BEGIN { printf "%.0f", b / 1048576 }'; }

make_image() {
    local d
    mkdir -p "$work/context/python" "$work/context/postgresql"
    for d in "$cache"/bench-debs/*.deb; do
        case $d in
            */postgresql* | */libllvm* | */libicu*) dpkg-deb -x "$d" "$work/context/postgresql" ;;
            *) dpkg-deb -x "$d" "$work/context/python" ;;
        esac
    done
    printf 'FROM base\nCOPY python /\nCOPY postgresql /\nCMD ["/bin/bash"]\n' >"$work/context/Dockerfile"
    use_client docker20 && client_start || return 1
    docker_cli import - base <"$cache/base.tar" >/dev/null || return 1
    DOCKER_BUILDKIT=0 docker_cli build -q --network none -t "$upstream/$image:latest" "$work/context" || return 1
    docker_cli push -q "$upstream/$image:latest" || return 1
    client_clean
    rm -rf "$work/context"
}

# timed FILE REF: one pull on an emptied client
timed() {
    local from
    client_clean >/dev/null 2>&1
    sync
    from=$(seconds)
    client_pull "$2" >/dev/null || return 1
    awk -v a="$from" -v b="$(seconds)" 'BEGIN { print b - a }' >>"$1"
}

# rounds_of CLIENT [VIEW]
rounds_of() {
    local i t=$work/times/$1${2:+-$2} view=()
    [ -z "${2:-}" ] || view=(--view "$2")
    mkdir -p "$t"
    for ((i = 0; i < rounds; i++)); do
        timed "$t/direct" "$upstream/$image:latest" || return 1
        recask_fresh "${view[@]}" || return 1
        timed "$t/cold" "$proxy/$image:latest" || return 1
        wait_jobs 120 || return 1
        timed "$t/warm" "$proxy/$image:latest" || return 1
    done
    printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$(client_version)" "$1" "${2:-auto}" "$(median "$t/direct")" \
        "$(median "$t/cold")" "$(median "$t/warm")" "$(ratio "$t/direct" "$t/warm")"
}

pulls() {
    local c v
    printf '\n## Pulls\n\nSeconds, %d rounds.\n\n' "$rounds"
    printf '| version | client | view | direct | recask, cold | recask, warm | direct / warm |\n|---|---|---|---|---|---|---|\n'
    for c in "${clients[@]}"; do
        use_client "$c"
        if client_missing >/dev/null; then
            printf '| - | %s | | not here: %s | | | |\n' "$c" "$(client_missing)"
            continue
        fi
        # docker20 made the image: its daemon runs already
        [ "$c" = docker20 ] || client_start >/dev/null || continue
        rounds_of "$c"
        for v in ${views:+canonical zstd}; do
            rounds_of "$c" "$v" || true
        done
        client_clean >/dev/null 2>&1
    done
}

at_rest() {
    local raw gzip policy
    printf '\n## At rest\n\n| what | MiB | of the registry'\''s |\n|---|---|---|\n'
    gzip=$(du -sb "$work/registry" | cut -f 1)
    printf '| docker-registry, gzip layers | %s | 1.00 |\n' "$(mib "$gzip")"
    for policy in auto drop; do
        recask_fresh_with "{\"originals\": \"$policy\"}" || return 1
        fetch_image "http://$proxy" "$image" latest "$work/fetched" || return 1
        wait_jobs 120 || return 1
        raw=$(stat_of .store.bytes_on_disk)
        printf '| recask, originals = %s | %s | %s |\n' "$policy" "$(mib "$raw")" \
            "$(awk -v a="$raw" -v b="$gzip" 'BEGIN { printf "%.2f", a / b }')"
    done
    printf '| (uncompressed) | %s | |\n' "$(mib "$(stat_of .store.canonical_bytes)")"
}
recask_fresh_with() {
    printf '%s\n' "$1" >"$work/recask.json"
    recask_fresh --config "$work/recask.json"
}

# speed FILE URL CURL-ARGUMENTS...: MB/s of body bytes
speed() {
    local file=$1 i
    shift
    for ((i = 0; i < rounds; i++)); do
        curl -sS --noproxy '*' -o /dev/null -w '%{speed_download}\n' "$@" | awk '{ print $1 / 1e6 }' >>"$file"
    done
}
blobs() {
    local gzip canonical s=$work/speed
    mkdir -p "$s"
    recask_fresh || return 1
    fetch_image "http://$proxy" "$image" latest "$work/fetched" || return 1
    wait_jobs 120 || return 1
    gzip=$(jq -r '.layers | max_by(.size).digest' "$work/fetched/manifest")
    canonical=$(http -f -H "Recask-View: canonical" -H "$any_manifest" "http://$proxy/v2/$image/manifests/latest" |
        jq -r '.layers | max_by(.size).digest')
    speed "$s/direct" "http://$upstream/v2/$image/blobs/$gzip"
    speed "$s/original" "http://$proxy/v2/$image/blobs/$gzip"
    speed "$s/zstd" -H 'Accept-Encoding: zstd' "http://$proxy/v2/$image/blobs/$canonical"
    speed "$s/identity" "http://$proxy/v2/$image/blobs/$canonical"
    speed "$s/gzip" -H 'Accept-Encoding: gzip' "http://$proxy/v2/$image/blobs/$canonical"
    printf '\n## One warm blob, one connection\n\nThe largest layer, body bytes as they are on the wire.\n\n'
    printf '| form | MB/s |\n|---|---|\n'
    printf '| docker-registry, gzip as stored | %s |\n' "$(median "$s/direct")"
    printf '| recask, original | %s |\n' "$(median "$s/original")"
    printf '| recask, zstd frames as stored | %s |\n' "$(median "$s/zstd")"
    printf '| recask, identity, decoded | %s |\n' "$(median "$s/identity")"
    printf '| recask, gzip made on the fly | %s |\n' "$(median "$s/gzip")"
}

mkdir -p "$work/registry" "$work/times"
upstream_start "$work/registry"
make_image >"$work/log/make.log" 2>&1 || { cat "$work/log/make.log"; echo "the image could not be made"; finished=yes; exit 1; }
printf 'The image: Debian bookworm minbase, python with numpy and openblas, postgresql with LLVM; three layers, %s MiB as gzip (pushed by docker 20.10).\n' \
    "$(mib "$(du -sb "$work/registry" | cut -f 1)")"
pulls
at_rest
blobs
recask_stop
upstream_stop
# shellcheck disable=SC2034 # lib.sh looks at it when the script ends
finished=yes
