// Options that name etcd: of verbenad, and of commands of verbena that read or write its state.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_ETCD_OPTIONS_H_
#define VERBENA_SERVER_CLI_ETCD_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <string>

#include "server/coordinator/etcd/etcd_options.h"

namespace verbena::server {

// Adds --etcd and --etcd-... in one group. `etcd` outlives `app`.
void AddEtcdOptions(CLI::App* app, EtcdOptions* etcd, bool with_lease);

// The problem of the options together; empty: none. `insecure`: addresses beyond this host may be
// used without TLS.
std::string CheckEtcdOptions(const EtcdOptions& etcd, bool insecure);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CLI_ETCD_OPTIONS_H_
