#!/usr/bin/env bash
# The same with IPv6 addresses alone; auto selects ofi, which works between hosts.
# limit: 60
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
family=6 transport=auto server_options=()
for host in 1 2 3 4 5; do ip -n "$NET-$host" addr del "10.77.0.$host/24" dev eth0; done
start_cluster
train_start
train_wait
expect_reference
assert_says server-2.log "over ofi"
assert_says server-3.log "over ofi"
stop_cluster
