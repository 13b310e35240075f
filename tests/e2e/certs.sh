# shellcheck shell=bash
# shellcheck disable=SC2154 # variables of lib.sh
# SPDX-License-Identifier: Apache-2.0
#
# certs.sh - a private CA, and registries behind TLS.
#
#     make_ca                    $work/tls/ca.crt
#     add_address                $outside, an address that no client takes for its own machine: from
#                                127.0.0.0/8 docker would take any certificate, and plain HTTP
#     make_cert NAME SUBJECTALTNAME [DAYS]   $work/tls/NAME.crt and .key; negative DAYS: expired
#     trust_ca                   programs of this sandbox, and of the sid tree if it runs, trust the CA
#     cert_serial FILE           of a certificate in a file, or on standard input
#     tls_registry NAME ADDRESS CERT DIR     a registry over DIR; its log tells each request

outside=10.99.0.1
add_address() { ip address add "$outside/32" dev lo; }
make_ca() {
    mkdir -p "$work/tls"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=recask test CA" \
        -keyout "$work/tls/ca.key" -out "$work/tls/ca.crt" \
        -addext keyUsage=critical,keyCertSign,cRLSign 2>"$work/log/openssl.log"
}
make_cert() {
    local to=$work/tls/$1 days=${3:-30} began=-1
    [ "$days" -gt 0 ] || began=-10
    openssl req -new -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout "$to.key" -out "$to.csr" \
        2>>"$work/log/openssl.log" || return 1
    printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' "$2" \
        >"$to.ext"
    # "openssl x509" cannot date back, "openssl ca" can.
    [ -e "$work/tls/index" ] || : >"$work/tls/index"
    echo "unique_subject = no" >"$work/tls/index.attr"
    cat >"$work/tls/ca.cnf" <<END
[ca]
default_ca = x
[x]
database = $work/tls/index
new_certs_dir = $work/tls
policy = p
default_md = sha256
rand_serial = yes
[p]
CN = supplied
END
    openssl ca -batch -notext -config "$work/tls/ca.cnf" -in "$to.csr" \
        -cert "$work/tls/ca.crt" -keyfile "$work/tls/ca.key" -extfile "$to.ext" \
        -startdate "$(date -u -d "$began day" +%y%m%d%H%M%SZ)" \
        -enddate "$(date -u -d "$days day" +%y%m%d%H%M%SZ)" -out "$to.crt.new" \
        2>>"$work/log/openssl.log" || return 1
    mv "$to.crt.new" "$to.crt"
}
trust_ca() {
    cat "$work/tls/ca.crt" >>/etc/ssl/certs/ca-certificates.crt
    [ -z "$sid_pid" ] ||
        in_sid /bin/sh -c "cat '$work/tls/ca.crt' >>/etc/ssl/certs/ca-certificates.crt"
}
cert_serial() { openssl x509 -noout -serial ${1:+-in "$1"} | sed 's/serial=//'; }
tls_registry() {
    cat >"$work/$1.yml" <<END
version: 0.1
log: {level: warn, accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: $4}}
http: {addr: "$2", tls: {certificate: $work/tls/$3.crt, key: $work/tls/$3.key}}
END
    start "$1" docker-registry serve "$work/$1.yml"
    wait_for 20 http -f -k "https://$2/v2/"
}
