// Where etcd is, and how the coordinator uses it.
//
// **Thread safety**: plain data.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_ETCD_OPTIONS_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_ETCD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "verbena/tls_options.h"

namespace verbena::server {

struct EtcdOptions {
  std::vector<std::string> endpoints = {};  // HOST:PORT of members
  TlsOptions tls = {};                      // no file: without TLS
  std::string user = {};                    // empty: without authentication
  std::string password_file = {};           // of `user`
  std::string prefix = "/verbena/";         // of all keys; ends with a slash
  // Of the leader's key, in seconds; etcd allows no less than 1.5 of its election timeouts. More: a
  // dead leader is replaced later. Less: a short delay of etcd, as a change of its own leader,
  // replaces a leader that is well.
  uint32_t lease_s = 5;
  // One member's time for one answer. More: a stopped member delays a change longer. Less: a slow
  // disk of etcd is taken for a stopped member.
  absl::Duration attempt = absl::Seconds(1);
  absl::Duration pause = absl::Milliseconds(50);  // before a repetition
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_ETCD_OPTIONS_H_
