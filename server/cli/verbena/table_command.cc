#include "server/cli/verbena/table_command.h"

#include "server/cli/verbena/table_set.h"

namespace verbena::cli {

std::vector<CLI::App*> AddTableActions(CLI::App* command, TableAction* chosen) {
  return {AddTableSet(command, chosen)};
}

absl::StatusOr<std::unique_ptr<Client>> JoinJob(const TableCluster& cluster,
                                                const std::string& job) {
  ClientOptions options;
  options.cluster = cluster.coordinator.address;
  options.job = job;
  options.name = "verbena table";
  options.timeout = cluster.coordinator.timeout;
  options.tls = cluster.tls;
  options.token_file = cluster.token_file;
  return Client::Connect(options);
}

}  // namespace verbena::cli
