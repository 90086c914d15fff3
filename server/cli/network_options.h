// verbenad's network options: TLS, tokens, RDMA devices, libfabric.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_NETWORK_OPTIONS_H_
#define VERBENA_SERVER_CLI_NETWORK_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "server/node_options.h"

namespace verbena::server {

// Each adds its options to `app`, in a separate group. The structs that they set must outlive
// `app`.
void AddRdmaOptions(CLI::App* app, rdma::VerbsOptions* verbs);
void AddFabricOptions(CLI::App* app, rdma::OfiOptions* ofi);
void AddTlsOptions(CLI::App* app, NodeOptions* node);
void AddAccessOptions(CLI::App* app, NodeOptions* node);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CLI_NETWORK_OPTIONS_H_
