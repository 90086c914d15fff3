#include "server/cli/verbena/table_set.h"

#include <poll.h>

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
  OptimizerChange change;
};

// Adds NAME=NUMBER. Else the error.
std::string AddParameter(const std::string& text, OptimizerChange* change) {
  const size_t at = text.find('=');
  double value = 0;
  if (at == 0 || at == std::string::npos || !absl::SimpleAtod(text.substr(at + 1), &value)) {
    return absl::StrCat("'", Printable(text), "' is not allowed: NAME=NUMBER, as in beta1=0.95");
  }
  const std::string name = text.substr(0, at);
  if (change->parameters.emplace(name, value).second) return "";
  return absl::StrCat("'", Printable(name), "' is given twice; allowed: once");
}

// Ends with the operation, at the latest by its deadline. CANCELLED: interrupted.
absl::Status WaitFor(Ticket ticket, const Coordinator& coordinator) {
  while (!ticket.Done()) {
    ticket.Wait(absl::Milliseconds(100)).IgnoreError();
    pollfd interrupt = {coordinator.interrupt_fd, POLLIN, 0};
    if (!ticket.Done() && poll(&interrupt, 1, 0) > 0) return absl::CancelledError("interrupted");
  }
  return ticket.status();
}

std::string InForce(const v1::TableSpec& spec, const StepRange& steps) {
  if (spec.consistency() != v1::CONSISTENCY_SYNC) return "in force now";
  if (steps.first == steps.last) return absl::StrCat("in force from step ", steps.first, " on");
  return absl::StrCat("in force from steps ", steps.first, " to ", steps.last, " on, by partition");
}

absl::StatusOr<TableReport> Set(const SetOptions& options, const TableCluster& cluster,
                                const v1::Table& found) {
  // An observer takes no rank from the workers, and ends no step.
  auto client = JoinJob(cluster, found.spec().job(), "verbena table set", /*observer=*/true);
  if (!client.ok()) return client.status();
  const absl::StatusOr<Table> table = (*client)->OpenTable(options.table);
  if (!table.ok()) return table.status();
  auto steps = std::make_shared<StepRange>();
  const absl::Status status =
      WaitFor((*client)->SetOptimizer(*table, options.change, {.timeout = {}, .in_force = steps}),
              cluster.coordinator);
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
                            "' is changed, ", InForce(found.spec(), *steps), "\n");
  return report;
}

}  // namespace

CLI::App* AddTableSet(CLI::App* command, TableAction* chosen) {
  auto options = std::make_shared<SetOptions>();
  CLI::App* action =
      command->add_subcommand("set", "Change the rate or parameters of a table's optimizer");
  action->add_option("TABLE", options->table, "Its name")->type_name("")->required();
  action
      ->add_option_function<std::string>(
          "--rate",
          [options](const std::string& text) {
            double rate = 0;
            if (!absl::SimpleAtod(text, &rate)) {
              throw CLI::ValidationError(
                  "--rate", absl::StrCat("'", Printable(text), "' is not allowed: a number"));
            }
            options->change.rate = rate;
          },
          "New learning rate")
      ->type_name("RATE");
  action
      ->add_option_function<std::vector<std::string>>(
          "--param",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const std::string wrong = AddParameter(text, &options->change);
              if (!wrong.empty()) throw CLI::ValidationError("--param", wrong);
            }
          },
          "New value of a parameter; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  action->footer(
      "Workers go on meanwhile. In a sync table each partition begins with its next step, and the\n"
      "command prints which; other tables have the values at once. They are in checkpoints.\n\n"
      "Example:\n"
      "  verbena table set tower.weight --rate 0.001 --param weight_decay=0.1");
  action->callback([options, chosen] {
    if (!options->change.rate && options->change.parameters.empty()) {
      throw CLI::RequiredError("--rate RATE or --param NAME=VALUE");
    }
    *chosen = {options->table, [options](const TableCluster& cluster, const v1::Table& found) {
                 return Set(*options, cluster, found);
               }};
  });
  return action;
}

}  // namespace verbena::cli
