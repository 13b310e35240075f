#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fixtures.sh - makes the test images, once per recipe, and prints the name of the folder in the
# cache that has them (as the storage of a registry). On failure it prints the reason instead and
# exits with 77 when something is not installed, else with 1.
#
#   img/docker             docker 20.10: schema 2, Go's gzip; four layers, with whiteouts
#   img/oci                buildah: OCI, gzip
#   img/zstd               buildah: OCI, zstd layers
#   img/multi, attested, liar, share-a, share-b, artifact: mkimage.py
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# The recipe: this file, mkimage.py, and the tree that everything is made from.
recipe=$(cat "$0" "$here/mkimage.py" "$cache/base.tar.stamp" 2>/dev/null | sha256sum)
name=fixtures-${recipe:0:16}

# tree DIR PATH...: these parts of the base tree
tree() {
    local dir=$1
    shift
    mkdir -p "$dir"
    tar -C "$dir" -xf "$cache/base.tar" "${exclude[@]}" "$@"
}

# What makes tar readers trip: odd names, long names, links, modes, owners, incompressible bytes,
# an empty file, a file of zeros, sizes around a block.
odd_files() {
    local d=$1 i long
    mkdir -p "$d/sub/deep" "$d/gone" "$d/opaque"
    long=$(printf 'long-name-%.0s' $(seq 15))
    echo one >"$d/file"
    ln "$d/file" "$d/sub/hardlink"
    ln -s ../file "$d/sub/symlink"
    ln -s "/nowhere/$long$long" "$d/dangling"
    echo long >"$d/sub/deep/$long"
    mkdir -p "$d/$long/$long" && echo longer >"$d/$long/$long/$long"
    echo umlaut >"$d/gr"$'\xc3\xbc'"n"
    echo space >"$d/with space and 'quotes\""
    : >"$d/empty"
    head -c 3000000 /dev/zero >"$d/zeros"
    "$python" -c 'import random, sys
sys.stdout.buffer.write(random.Random(2).randbytes(2500000))' >"$d/random"
    for i in 511 512 513 65535 65536 65537 262144; do head -c "$i" "$d/random" >"$d/size-$i"; done
    chmod 4755 "$d/size-511" && chmod 0600 "$d/size-512" && chown 1000:100 "$d/size-513"
    chmod 1777 "$d/sub" && chown -h 12345:54321 "$d/sub/symlink" && chmod 0 "$d/empty"
    echo gone >"$d/gone/away" && echo hidden >"$d/opaque/before"
}

make_docker() {
    local exclude=(--exclude='./usr/share/locale' --exclude='./usr/share/doc'
        --exclude='./usr/share/man' --exclude='./usr/share/info' --exclude='./usr/share/zoneinfo'
        --exclude='*/gconv' --exclude='*/perl-base' --exclude='./usr/bin/perl*'
        --exclude='./var/lib/dpkg' --exclude='./var/cache')
    mkdir -p "$work/docker/context"
    tree "$work/docker/tree" .
    odd_files "$work/docker/context/odd"
    cat >"$work/docker/context/Dockerfile" <<'END'
FROM base
ENV RECASK=test
COPY odd /opt/odd
RUN rm -r /opt/odd/gone /opt/odd/opaque && mkdir /opt/odd/opaque && \
    echo after >/opt/odd/opaque/after && chmod 711 /opt/odd/sub && rm /usr/bin/tar
RUN cp /usr/bin/bash /opt/odd/bash-again && echo two >>/opt/odd/file
CMD ["/bin/bash"]
END
    use_client docker20 && client_start || return 1
    tar -C "$work/docker/tree" --sort=name -c . | docker_cli import - base >/dev/null || return 1
    DOCKER_BUILDKIT=0 docker_cli build -q --network none -t "$upstream/img/docker:latest" \
        "$work/docker/context" || return 1
    docker_cli push -q "$upstream/img/docker:latest"
}

buildah_cli() {
    /usr/bin/buildah --root "$work/buildah/root" --runroot "$work/buildah/run" \
        --storage-driver vfs "$@"
}
# buildah_image NAME PUSH-OPTIONS: two layers from two trees
buildah_image() {
    local image=$1 container
    shift
    container=$(buildah_cli from scratch) || return 1
    buildah_cli copy -q "$container" "$work/$image/one" / &&
        buildah_cli config --created-by one --cmd /none "$container" &&
        buildah_cli commit -q --format oci "$container" "$image-one" || return 1
    container=$(buildah_cli from --pull-never "localhost/$image-one") &&
        buildah_cli copy -q "$container" "$work/$image/two" / &&
        buildah_cli commit -q --format oci "$container" "$image" &&
        buildah_cli push -q --tls-verify=false --format oci "$@" "localhost/$image" \
            "docker://$upstream/img/$image:latest"
}
make_oci() {
    local exclude=()
    tree "$work/oci/one" ./etc ./usr/lib/x86_64-linux-gnu/perl-base ./usr/share/zoneinfo
    tree "$work/oci/two" ./usr/share/doc ./usr/bin/perl
    buildah_image oci
}
make_zstd() {
    local exclude=()
    tree "$work/zstd/one" ./etc ./usr/lib/apt ./usr/share/info ./usr/sbin
    tree "$work/zstd/two" ./usr/lib/x86_64-linux-gnu/gconv ./usr/share/man
    buildah_image zstd --compression-format zstd
}
make_by_hand() {
    local exclude=()
    tree "$work/hand" ./usr/sbin ./usr/lib/apt ./etc
    "$python" "$here/mkimage.py" "$upstream" "$work/hand"
}

make_all() {
    local part
    mkdir -p "$work/registry"
    upstream_start "$work/registry"
    for part in docker oci zstd by_hand; do
        "make_$part" || { echo "img/$part could not be made"; return 1; }
        echo "made: $part at $SECONDS s"
    done
    upstream_stop
    rm -rf "$cache/$name.new"
    mkdir "$cache/$name.new"
    mv "$work/registry" "$cache/$name.new/registry"
    mv "$cache/$name.new" "$cache/$name"
}

if [ -n "${RECASK_E2E_INSIDE:-}" ]; then
    sandbox
    make_all
    exit
fi

mkdir -p "$cache" || exit 77
exec 9>"$cache/fixtures.lock"
flock 9
if [ ! -d "$cache/$name" ]; then
    if [ ! -s "$cache/base.tar" ]; then
        cat "$cache/base.reason" 2>/dev/null || echo "no base.tar: run tools/install-e2e.sh"
        exit 77
    fi
    for program in docker-registry dockerd buildah; do
        command -v "$program" >/dev/null && continue
        echo "no $program: run tools/install-e2e.sh"
        exit 77
    done
    find "$cache" -maxdepth 1 -name 'fixtures-*' -exec rm -rf {} +
    if ! (RECASK_E2E_PLAIN=1 sandbox) >"$cache/fixtures.log" 2>&1 9>&-; then
        echo "test images could not be made: $(tail -n 1 "$cache/fixtures.log")"
        exit 1
    fi
fi
echo "$name"
