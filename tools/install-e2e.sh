#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# install-e2e.sh - what tests/e2e needs on a Debian 12 machine. Run as root, as often as you like.
#
#   1. packages: the clients and the registry of Debian 12 (no service is started);
#   2. base:     a minimal bookworm tree as a tarball, from which test images are made;
#   3. sid:      a tree with the newest clients (containerd 2, docker 28+, crane, oras, ...);
#   4. conformance: the OCI distribution-spec's test suite, a Go program. It needs Go 1.24: the
#                machine's, else sid's, which is gone again afterwards.
#
# 2 to 4 are kept in ${RECASK_CACHE:-/var/cache/recask} and made again only when a list below
# changes. When one of them cannot be made, the reason goes to base.reason, sid.reason or
# conformance.reason there and the tests that need it skip with that reason; only step 1 makes
# this script fail.
set -euo pipefail

cache=${RECASK_CACHE:-/var/cache/recask}

packages=(docker-registry docker.io containerd runc skopeo podman crun conmon buildah debootstrap
    iproute2 zstd jq curl python3 xz-utils util-linux ca-certificates)
sid_packages=(skopeo podman buildah containerd docker.io docker-cli runc crun conmon netavark
    iptables crane oras cosign ca-certificates)

# A changed list, or a changed number, rebuilds.
base_stamp="base 1"
sid_stamp="sid 1: ${sid_packages[*]}"
conformance=github.com/opencontainers/distribution-spec/conformance@v0.0.0-20260831232431-97274622c111
conformance_stamp="conformance 1: $conformance"

say() { printf 'install-e2e: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "must run as root"
command -v apt-get >/dev/null || die "needs a Debian system"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt=(apt-get -q -o DPkg::Lock::Timeout=600)

# --- 1. packages --------------------------------------------------------------------------------

missing_packages() {
    local p
    for p in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

# While this is in force no package's service starts. An existing policy comes back afterwards.
policy=/usr/sbin/policy-rc.d
policy_saved=
policy_on() {
    if [ -e "$policy" ]; then
        policy_saved=$(mktemp "$policy.recask.XXXXXX")
        cp -a "$policy" "$policy_saved"
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy.recask-new"
    chmod 755 "$policy.recask-new"
    mv "$policy.recask-new" "$policy"
}
policy_off() {
    if [ -n "$policy_saved" ]; then
        mv "$policy_saved" "$policy"
        policy_saved=
    else
        rm -f "$policy"
    fi
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" = 0 ]; then
        say "packages: all there"
        return
    fi
    say "packages: installing ${missing[*]}"
    "${apt[@]}" update
    trap policy_off EXIT
    policy_on
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
    policy_off
    trap - EXIT
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" = 0 ] || die "still missing: ${missing[*]}"
}

# --- 2 and 3. trees -----------------------------------------------------------------------------

# The mirror and the proxies that this machine's apt uses; nothing is named here.
# shellcheck disable=SC2016 # $(REPO_URI) is for apt-get to expand
apt_mirror() {
    local uri
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
        'Codename: bookworm' | head -n 1)
    # Before the first "apt-get update" the release files are not there to be asked.
    [ -n "$uri" ] || uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        'Component: main' | head -n 1)
    printf '%s\n' "$uri"
}
apt_proxies() {
    local scheme value
    for scheme in http https; do
        value=$(apt-config shell V "Acquire::$scheme::Proxy" | sed -n "s/^V='\(.*\)'$/\1/p")
        if [ -n "$value" ] && [ "$value" != DIRECT ]; then
            export "${scheme}_proxy=$value"
        fi
    done
}

# bootstrap SUITE DIR PACKAGES: in namespaces of its own, so that neither a mount nor a process
# that a package's script starts is left behind.
bootstrap() {
    local suite=$1 dir=$2 include=$3 args=(--variant=minbase)
    [ -z "$include" ] || args+=("--include=$include")
    unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
        debootstrap "${args[@]}" "$suite" "$dir" "$(apt_mirror)"
}

# build NAME STAMP FUNCTION: runs FUNCTION TMPDIR unless $cache/NAME has this stamp already.
build() {
    local name=$1 stamp=$2 make=$3 tmp began=$SECONDS
    if [ -e "$cache/$name" ] && [ "$(cat "$cache/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
        say "$name: already there"
        return 0
    fi
    say "$name: making it"
    rm -rf "$cache/$name.tmp".*
    tmp=$(mktemp -d "$cache/$name.tmp.XXXXXX")
    chmod 755 "$tmp"
    # Not "if (...)": in a condition the shell would not stop at the first failing command.
    (set -e; "$make" "$tmp") >"$cache/$name.log" 2>&1 &
    if wait $!; then
        rm -rf "${cache:?}/$name" "$cache/$name.stamp" "$cache/${name%%.*}.reason"
        if [ -e "$tmp/result" ]; then
            mv "$tmp/result" "$cache/$name"
            rm -rf "$tmp"
        else
            mv "$tmp" "$cache/$name"
        fi
        printf '%s\n' "$stamp" >"$cache/$name.stamp"
        say "$name: made in $((SECONDS - began)) s"
    else
        printf '%s could not be made: %s\n' "$name" "$(tail -n 1 "$cache/$name.log")" \
            >"$cache/${name%%.*}.reason"
        rm -rf "$tmp"
        say "$(cat "$cache/${name%%.*}.reason") (log: $cache/$name.log)"
    fi
}

make_base() {
    bootstrap bookworm "$1/tree" ""
    rm -rf "$1"/tree/var/cache/apt/* "$1"/tree/var/lib/apt/lists/* "$1"/tree/var/log/*
    tar -C "$1/tree" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --sort=name \
        -cf "$1/result" .
}

make_sid() {
    local include
    include=$(IFS=,; echo "${sid_packages[*]}")
    bootstrap sid "$1" "$include"
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/* \
        "$1"/usr/share/{doc,man,locale,info}
}

# machine_go: prints the path of a Go that is new enough.
machine_go() {
    local go
    for go in "$(command -v go)" /usr/local/go/bin/go; do
        if [ -x "$go" ] && GOTOOLCHAIN=local "$go" version |
            awk '{ split(substr($3, 3), v, "."); exit !(v[1] > 1 || v[2] >= 24) }'; then
            echo "$go"
            return
        fi
    done
    return 1
}
# go_install GO DIR: GO's view of DIR gets bin/, and caches that are thrown away.
go_install() {
    env -u GOFLAGS GOTOOLCHAIN=local GOPATH="$2/path" GOCACHE="$2/cache" GOBIN="$2/bin" CGO_ENABLED=0 \
        "$1" install -modcacherw -trimpath -ldflags=-s "$conformance"
}
make_conformance() {
    local go tree=$1/tree
    if go=$(machine_go); then
        go_install "$go" "$1"
        mv "$1/bin/conformance" "$1/result"
        return
    fi
    bootstrap sid "$tree" golang-go,ca-certificates
    # The certificates that this machine trusts, and no others; its proxies are in the environment.
    cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
    cp -L /etc/resolv.conf /etc/hosts "$tree/etc/"
    export -f go_install
    conformance=$conformance unshare --mount --propagation private --pid --fork --kill-child \
        bash -euc 'mount -t proc proc "$1/proc"; chroot "$1" /bin/bash -euc "go_install go /root"' sh "$tree"
    mv "$tree/root/bin/conformance" "$1/result"
}

main() {
    local began=$SECONDS
    install_packages
    mkdir -p "$cache"
    exec 9>"$cache/install.lock"
    flock 9
    apt_proxies
    build base.tar "$base_stamp" make_base &
    build sid "$sid_stamp" make_sid &
    build conformance "$conformance_stamp" make_conformance &
    wait
    say "done in $((SECONDS - began)) s; cache: $cache"
}
main "$@"
