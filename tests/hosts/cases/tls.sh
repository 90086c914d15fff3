#!/usr/bin/env bash
# Between hosts with mutual TLS: training as before; a worker without a certificate, or with one of
# another authority, is refused with the reason.
# limit: 90
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
authority() {  # NAME
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj "/CN=$1" -keyout "$1.key" -out "$1.pem" 2>openssl.log
}
certificate() {  # NAME HOST AUTHORITY
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" \
    -keyout "$1.key" -out "$1.csr" 2>openssl.log
  printf 'subjectAltName = IP:10.77.0.%s\n' "$2" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$3.pem" -CAkey "$3.key" -CAcreateserial -days 2 \
    -extfile "$1.ext" -out "$1.pem" 2>openssl.log
}
authority ours
authority theirs
for host in 1 2 3 4 5; do certificate "host-$host" "$host" ours; done
certificate stranger 5 theirs
security=(--tls-ca ours.pem --tls-cert host-%N%.pem --tls-key host-%N%.key)
start_cluster

refused() {  # NAME OPTIONS...: of a worker; its output is in NAME.log
  local what=$1
  shift
  if on 5 "$BUILD/verbena-train" --cluster 10.77.0.1:7000 --transport ofi --timeout 10 --steps 1 \
    --format text --data /usr/share/common-licenses/GPL-2 "$@" >"$what.out" 2>"$what.log"; then
    fail "$what: a worker was let in"
  fi
  head -n 1 "$what.log"
}
refused plain
assert_says plain.log "TLS"
refused nobody --tls-ca ours.pem
assert_says nobody.log "certificate"
refused stranger --tls-ca ours.pem --tls-cert stranger.pem --tls-key stranger.key
assert_says stranger.log "certificate"

client_security=(--tls-ca ours.pem --tls-cert host-%N%.pem --tls-key host-%N%.key)
train_start
train_wait
expect_reference
stop_cluster
