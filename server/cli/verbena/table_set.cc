#include "server/cli/verbena/table_set.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/json.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

struct SetOptions {
  std::string table;
  std::vector<double> rate;             // none, or one
  std::vector<std::string> parameters;  // NAME=VALUE
};

absl::StatusOr<OptimizerChange> ChangeOf(const SetOptions& options) {
  OptimizerChange change;
  if (!options.rate.empty()) change.rate = options.rate[0];
  for (const std::string& text : options.parameters) {
    const size_t at = text.find('=');
    double value = 0;
    if (at == 0 || at == std::string::npos || !absl::SimpleAtod(text.substr(at + 1), &value)) {
      return absl::InvalidArgumentError(absl::StrCat("--param is '", Printable(text),
                                                     "'; allowed: NAME=NUMBER, as in beta1=0.95"));
    }
    change.parameters[text.substr(0, at)] = value;
  }
  return change;
}

// An observer of the table's job: it takes no rank from the workers, and ends no step.
absl::StatusOr<std::unique_ptr<Client>> Observe(const TableCluster& cluster,
                                                const std::string& job) {
  ClientOptions options;
  options.cluster = cluster.coordinator.address;
  options.job = job;
  options.name = "verbena table set";
  options.observer = true;
  options.timeout = cluster.coordinator.timeout;
  options.tls = cluster.tls;
  options.token_file = cluster.token_file;
  return Client::Connect(options);
}

std::string InForce(const v1::TableSpec& spec, const StepRange& steps) {
  if (spec.consistency() != v1::CONSISTENCY_SYNC) return "in force now";
  if (steps.first == steps.last) return absl::StrCat("in force from step ", steps.first, " on");
  return absl::StrCat("in force from steps ", steps.first, " to ", steps.last, " on, by partition");
}

absl::StatusOr<TableReport> Set(const SetOptions& options, const TableCluster& cluster) {
  const absl::StatusOr<OptimizerChange> change = ChangeOf(options);
  if (!change.ok()) return change.status();
  const absl::StatusOr<v1::Table> found = ServedTable(cluster, options.table);
  if (!found.ok()) return found.status();
  auto client = Observe(cluster, found->spec().job());
  if (!client.ok()) return client.status();
  const absl::StatusOr<Table> table = (*client)->OpenTable(options.table);
  if (!table.ok()) return table.status();
  auto steps = std::make_shared<StepRange>();
  const absl::Status status =
      (*client)->SetOptimizer(*table, *change, {.timeout = {}, .in_force = steps}).Wait();
  if (!status.ok()) return status;
  TableReport report;
  if (cluster.json) {
    JsonWriter json;
    json.Add("table", options.table);
    json.Add("first_step", steps->first);
    json.Add("last_step", steps->last);
    report.out = json.ToString() + "\n";
  }
  report.err = absl::StrCat("verbena: the optimizer of table '", Printable(options.table),
                            "' is changed, ", InForce(found->spec(), *steps), "\n");
  return report;
}

}  // namespace

CLI::App* AddTableSet(CLI::App* command, TableAction* chosen) {
  auto options = std::make_shared<SetOptions>();
  CLI::App* action =
      command->add_subcommand("set", "Change the rate or parameters of a table's optimizer");
  action->add_option("TABLE", options->table, "Its name")->type_name("")->required();
  action->add_option("--rate", options->rate, "New learning rate")->type_name("RATE")->expected(1);
  action->add_option("--param", options->parameters, "New value of a parameter; may be repeated")
      ->type_name("NAME=VALUE");
  action->footer(
      "Workers go on meanwhile. In a sync table each partition begins with its next step, and the\n"
      "command prints which; other tables have the values at once. They are in checkpoints.\n\n"
      "Example:\n"
      "  verbena table set tower.weight --rate 0.001 --param weight_decay=0.1");
  action->callback([options, chosen] {
    *chosen = [options](const TableCluster& cluster) { return Set(*options, cluster); };
  });
  return action;
}

}  // namespace verbena::cli
