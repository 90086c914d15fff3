// Options of verbenad.
//
// **Thread safety**: plain data.
#ifndef VERBENA_SERVER_NODE_OPTIONS_H_
#define VERBENA_SERVER_NODE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "rdma/lane/lane_config.h"
#include "rdma/selection/transports.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/etcd/etcd_options.h"
#include "server/executor/shard_executor.h"
#include "shard/replica/log_limits.h"
#include "verbena/tls_options.h"

namespace verbena::server {

struct NodeOptions {
  std::string listen = "127.0.0.1:7000";  // of the control plane; port 0: any free one
  // HOST or HOST:PORT for peers; empty: the listening address
  std::string advertise;
  bool coordinator = false;
  // host:port of the coordinator, when it is not us; or of several, of which one leads
  std::string join;
  uint32_t shards = 1;
  TlsOptions tls;  // of the control plane; no certificate: without TLS
  // With tls.ca: peers must present a certificate of one of these authorities (mutual TLS).
  bool tls_require_client_cert = true;
  bool insecure = false;  // beyond loopback without TLS, deliberately
  // Coordinator: the operator's token, created when there is no such file. Turns tokens on.
  std::string operator_token_file;
  std::string token_file;  // of another server: the token that it joins with
  std::string audit_log;   // file; empty: the lines go to the daemon's log
  std::string metrics;     // host:port of /metrics and /healthz; empty: none
  std::string state;       // directory of the coordinator's state; empty: in memory
  EtcdOptions etcd;        // with endpoints: of the coordinator's state, and of the election of one
  // Coordinator: confirms that the state is an old one, and that nothing newer is left.
  std::string accept_older_state;  // 16 hexadecimal digits; empty: none
  // Coordinator: interval at which each job's tables are written to checkpoints below this
  // directory (of all servers), and the number of checkpoints kept for a job. Empty: only when an
  // operator requests one.
  std::string checkpoint_dir;
  uint32_t checkpoint_every_s = 600;    // 0: not by time
  uint64_t checkpoint_every_steps = 0;  // besides; 0: not by steps
  uint32_t checkpoint_keep_last = checkpoint::Retention().keep_last;
  uint64_t checkpoint_keep_every = 0;  // steps; besides, the first of each so many
  uint32_t checkpoint_full_every = 1;  // more: between them only rows that have changed
  uint32_t checkpoint_on_exit_s = 0;   // wait so long for last ones when it is to end; 0: make none
  uint64_t checkpoint_rate = 0;        // bytes a second, all servers together; 0: no limit
  std::string name;
  uint32_t lease_ms = CoordinatorOptions().lease_ms;
  uint32_t partitions = CoordinatorOptions().partitions;
  // Coordinator. 0: the state's value; 1 in a new cluster.
  uint32_t expected_servers = 0;
  uint32_t replicas = 0;      // replicas of each partition, counting the primary
  uint32_t min_replicas = 0;  // with fewer, pushes wait
  uint64_t move_rate = 0;     // bytes a second of planned moves, of each server; 0: no limit
  // Coordinator: spreads the bytes over the servers by itself, where they differ by more percent of
  // the average.
  bool rebalance = false;
  uint32_t rebalance_above = 20;
  uint32_t rebalance_every_s = 10;
  std::string zone;  // replicas are kept in different ones; empty: one of its own
  rdma::LaneConfig lane;
  rdma::TransportSettings transports;  // of every shard, each with its own endpoints
  uint64_t lane_memory_limit = ShardExecutorOptions().lane_memory_limit;  // of each shard
  shard::ReplicaLogLimits replica_log;                                    // of each shard
  int64_t replica_audit_ms = 1000;  // between two turns of each shard; 0: none
  uint64_t memory_limit = 0;        // of all tables; 0: DefaultMemoryLimit()
  std::string cold_dir;             // of rows that are not in memory; empty: no table may have such
  bool pin = false;
  int32_t spin_us = -1;  // -1: as long as waking a thread takes, measured at start
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_OPTIONS_H_
