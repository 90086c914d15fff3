#include "server/cli/verbena/table_command.h"

#include <poll.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/json.h"
#include "proto/control/view_tables.h"
#include "server/checkpoint/files/disk.h"
#include "server/cli/verbena/checkpoint_progress.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/table_set.h"
#include "server/cli/verbena/table_tensor.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr size_t kKeysOfCall = 4194304;  // Client::AssignRows()

struct AssignOptions {
  std::string table, from, tensor, keys;
};

// Waits for an operation without a deadline of its own: as long as the cluster takes data.
absl::Status WaitFor(Client* client, Ticket* ticket, const Coordinator& coordinator,
                     Progress* progress) {
  absl::Time end = absl::Now() + coordinator.timeout;
  while (true) {
    const absl::Status status = ticket->Wait(absl::Milliseconds(100));
    if (ticket->Done()) return status;
    const uint64_t sent = client->statistics().bytes_pushed;
    if (sent > progress->done()) end = absl::Now() + coordinator.timeout;
    if (absl::Status s = progress->Callback()(sent - std::min(sent, progress->done())); !s.ok()) {
      return s;
    }
    if (absl::Now() > end) {
      ticket->Cancel();
      return absl::DeadlineExceededError(absl::StrCat(
          "the servers have taken no data for ", absl::FormatDuration(coordinator.timeout),
          "; part of the table may be assigned; see 'verbena status', and repeat the command with "
          "a longer --timeout"));
    }
  }
}

// Ends the step of a sync table, and of the tables whose norm it shares: it commits on all of them.
absl::StatusOr<std::vector<Ticket>> EndSteps(Client* client, const Table& table,
                                             const PushOptions& options) {
  std::vector<Ticket> tickets = {client->EndStep(table, options)};
  if (table.spec().optimizer().clip_global_norm() == 0) return tickets;
  const auto tables = client->ListTables();
  if (!tables.ok()) return tables.status();
  for (const v1::Table& other : *tables) {
    const v1::TableSpec& spec = other.spec();
    if (other.id() == table.id() || spec.job() != table.spec().job()) continue;
    if (spec.optimizer().clip_global_norm() == 0) continue;
    const auto opened = client->OpenTable(spec.name());
    if (!opened.ok()) return opened.status();
    tickets.push_back(client->EndStep(*opened, options));
  }
  return tickets;
}

absl::Status Write(Client* client, const Table& table, const TableTensor& tensor,
                   const AssignOptions& options, const Coordinator& coordinator) {
  const absl::StatusOr<std::vector<uint64_t>> keys = tensor.ReadKeys(options.keys);
  if (!keys.ok()) return keys.status();
  if (tensor.bytes() == 0) return absl::OkStatus();
  absl::StatusOr<Region> region = client->AllocateRegion(tensor.bytes());
  if (!region.ok()) return region.status();
  if (absl::Status s = tensor.Read(0, {region->data(), region->size()}); !s.ok()) return s;
  Progress progress(false, "assigned", tensor.bytes(), coordinator.interrupt_fd);
  const absl::Duration no_end = absl::Hours(24 * 365);
  std::vector<Ticket> tickets;
  if (!table.embedding()) tickets.push_back(client->Assign(table, *region, {}, {no_end, nullptr}));
  for (size_t at = 0; at < keys->size(); at += kKeysOfCall) {
    const auto part = absl::MakeConstSpan(*keys).subspan(at, kKeysOfCall);
    tickets.push_back(
        client->AssignRows(table, part, *region,
                           {.region_offset = at * table.dim() * sizeof(float), .timeout = no_end}));
  }
  if (table.spec().consistency() == v1::CONSISTENCY_SYNC) {
    auto ends = EndSteps(client, table, {no_end, nullptr});
    if (!ends.ok()) return ends.status();
    tickets.insert(tickets.end(), ends->begin(), ends->end());
  }
  for (Ticket& ticket : tickets) {
    if (absl::Status s = WaitFor(client, &ticket, coordinator, &progress); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<TableReport> Assign(const AssignOptions& options, const TableCluster& cluster,
                                   const v1::Table& found) {
  const absl::Time began = absl::Now();
  if (!options.keys.empty() && found.spec().dim() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--keys is '", Printable(options.keys),
                                                   "', and table '", Printable(options.table),
                                                   "' is dense; allowed: embedding tables"));
  }
  const std::string& name = options.tensor.empty() ? options.table : options.tensor;
  const auto tensor = TableTensor::Open(checkpoint::PosixDisk(), options.from, name, found.spec());
  if (!tensor.ok()) return tensor.status();
  auto client = JoinJob(cluster, found.spec().job(), "verbena table assign", /*observer=*/false);
  if (!client.ok()) return client.status();
  const absl::StatusOr<Table> table = (*client)->OpenTable(options.table);
  if (!table.ok()) return table.status();
  if (absl::Status s = Write(client->get(), *table, *tensor, options, cluster.coordinator);
      !s.ok()) {
    return s;
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  TableReport report;
  if (cluster.json) {
    JsonWriter json;
    json.Add("table", options.table);
    json.Add("tensor", name);
    json.Add("type", tensor->type_name());
    json.Add("elements", tensor->elements());
    json.Add("rows", tensor->rows());
    json.Add("seconds", seconds);
    report.out = json.ToString() + "\n";
  }
  report.err = absl::StrCat("verbena: table '", Printable(options.table), "' has ",
                            tensor->rows() > 0 ? absl::StrCat(tensor->rows(), " rows")
                                               : absl::StrCat(tensor->elements(), " parameters"),
                            " of tensor '", Printable(name), "' (", tensor->type_name(), ") after ",
                            Fixed(seconds, 1), " s\n");
  return report;
}

CLI::App* AddAssign(CLI::App* command, TableAction* chosen) {
  auto options = std::make_shared<AssignOptions>();
  CLI::App* action = command->add_subcommand("assign", "Write parameters from a safetensors file");
  action->add_option("TABLE", options->table, "Its name")->type_name("")->required();
  action->add_option("--from", options->from, "The file")
      ->type_name("FILE.safetensors")
      ->required();
  action->add_option("--tensor", options->tensor, "Tensor of the file (default: the table's name)")
      ->type_name("NAME");
  action
      ->add_option("--keys", options->keys,
                   "Embedding table: tensor with the rows' keys (default: 0, 1, 2, ...)")
      ->type_name("NAME");
  action->footer(
      "The command joins the table's job as a worker, so a job with sync tables must have no\n"
      "workers meanwhile. A dense table needs a tensor of its shape, an embedding table one of\n"
      "[rows, dim]. Numbers are converted to the table's type. The optimizer's state stays. In a\n"
      "sync table the assignment is one step.\n"
      "--timeout: longest time without progress.\n\n"
      "Examples:\n"
      "  verbena table assign tower.weight --from model.safetensors\n"
      "  verbena table assign items --from emb.safetensors --tensor items.values --keys "
      "items.keys");
  action->callback([options, chosen] {
    *chosen = {options->table, [options](const TableCluster& cluster, const v1::Table& found) {
                 return Assign(*options, cluster, found);
               }};
  });
  return action;
}

}  // namespace

std::vector<CLI::App*> AddTableActions(CLI::App* command, TableAction* chosen) {
  return {AddAssign(command, chosen), AddTableSet(command, chosen)};
}

absl::StatusOr<v1::Table> ServedTable(const Coordinator& coordinator, const std::string& name) {
  const auto view = CallAndWait<v1::GetViewResponse>(coordinator, "GetView", v1::GetViewRequest());
  if (!view.ok()) return view.status();
  const v1::Table* found = FindTableNamed(name, /*restoring=*/false, view->view());
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no table '", Printable(name), "'; 'verbena tables' lists them"));
  }
  return *found;
}

absl::StatusOr<std::unique_ptr<Client>> JoinJob(const TableCluster& cluster, const std::string& job,
                                                const char* name, bool observer) {
  ClientOptions options;
  options.cluster = cluster.coordinator.address;
  options.job = job;
  options.name = name;
  options.observer = observer;
  options.timeout = cluster.coordinator.timeout;
  options.tls = cluster.tls;
  options.token_file = cluster.token_file;
  return Client::Connect(options);
}

}  // namespace verbena::cli
