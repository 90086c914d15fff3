#include "tests/faults/random_faults_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena::test {
namespace {

TableKind KindNamed(const std::string& name) {
  if (name == "rows") return TableKind::kRows;
  return name == "cold" ? TableKind::kCold : TableKind::kDense;
}

v1::Consistency ConsistencyNamed(const std::string& name) {
  if (name == "ssp") return v1::CONSISTENCY_SSP;
  return name == "sync" ? v1::CONSISTENCY_SYNC : v1::CONSISTENCY_ASYNC;
}

// Small enough for a copy to be made in a second or two, large enough for one to be in progress.
void DrawSize(Draw* draw, TablePlan* table) {
  if (table->embedding()) {
    table->width = static_cast<uint32_t>(draw->Between(1, 4)) * 4;
    table->units = draw->Between(500, 5000);
    return;
  }
  const bool small = draw->OneIn(3);
  table->width = small ? 1024 : 16 * 1024;
  table->units = small ? draw->Between(1, 8) : draw->Between(4, 19);
}

std::vector<std::string> Words(const std::string& text) { return absl::StrSplit(text, ','); }

}  // namespace

const char* NameOf(TableKind kind) {
  switch (kind) {
    case TableKind::kDense:
      return "dense";
    case TableKind::kRows:
      return "rows";
    case TableKind::kCold:
      return "cold";
  }
  return "?";
}

const char* NameOf(v1::Consistency consistency) {
  if (consistency == v1::CONSISTENCY_SYNC) return "sync";
  return consistency == v1::CONSISTENCY_SSP ? "ssp" : "async";
}

Plan MakePlan(const FaultOptions& options) {
  Draw draw(options.seed);
  Plan plan;
  plan.shards = static_cast<int>(draw.Between(1, 2));
  if (options.shards > 0) plan.shards = options.shards;
  plan.partitions = draw.OneIn(3) ? 64 : 32;
  int clients = static_cast<int>(draw.Between(3, 16));
  if (options.clients > 0) clients = options.clients;
  plan.processes = static_cast<int>(draw.Between(2, 4));
  plan.processes = std::min(plan.processes, clients);

  const int jobs = static_cast<int>(draw.Between(1, static_cast<uint64_t>(std::min(3, clients))));
  for (int i = 0; i < jobs; ++i) plan.jobs.push_back({absl::StrCat("job-", i), 0, {}});
  const std::vector<std::string> kinds = Words(options.tables), modes = Words(options.modes);
  // All pairs in turn from a drawn one on, so that a few seeds have them all.
  size_t pair = draw.Between(0, kinds.size() * modes.size() - 1);
  const int tables = std::max<int>(jobs, static_cast<int>(draw.Between(3, 6)));
  for (int i = 0; i < tables; ++i, ++pair) {
    TablePlan table;
    table.index = i;
    table.job = i % jobs;
    table.kind = KindNamed(kinds[pair % kinds.size()]);
    table.consistency = ConsistencyNamed(modes[(pair + pair / kinds.size()) % modes.size()]);
    table.staleness = static_cast<uint32_t>(draw.Between(0, 4));
    DrawSize(&draw, &table);
    table.name = absl::StrCat(NameOf(table.consistency), "-", NameOf(table.kind), "-", i);
    plan.jobs[table.job].tables.push_back(i);
    plan.tables.push_back(table);
  }
  for (int i = 0; i < clients; ++i) {
    ClientPlan client;
    client.index = i;
    client.job = i % jobs;
    client.rank = plan.jobs[client.job].clients++;
    client.process = i % plan.processes;
    const bool shm = !draw.OneIn(2);
    client.transport = options.transport != "mixed" ? options.transport : shm ? "shm" : "ofi";
    client.caller_progress = draw.OneIn(4);
    plan.clients.push_back(client);
  }
  return plan;
}

std::string Describe(const Plan& plan) {
  std::string text =
      absl::StrCat(plan.shards, " shards, ", plan.partitions, " partitions, ", plan.clients.size(),
                   " clients in ", plan.processes, " processes (transports:");
  for (const ClientPlan& client : plan.clients) absl::StrAppend(&text, " ", client.transport);
  absl::StrAppend(&text, ")\n");
  for (const JobPlan& job : plan.jobs) {
    absl::StrAppend(&text, "  ", job.name, ": ", job.clients, " clients;");
    for (const int index : job.tables) {
      const TablePlan& table = plan.tables[index];
      absl::StrAppend(&text, " ", table.name, " (", table.units, " x ", table.width, ")");
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

v1::TableSpec SpecOf(const Plan& plan, const TablePlan& table) {
  v1::TableSpec spec;
  spec.set_name(table.name);
  spec.set_job(plan.jobs[table.job].name);
  spec.set_consistency(table.consistency);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  if (table.consistency == v1::CONSISTENCY_SSP) spec.set_staleness(table.staleness);
  if (!table.embedding()) {
    spec.add_shape(table.elements());
    spec.set_chunk_bytes(table.width * sizeof(float));
    return spec;
  }
  spec.set_dim(table.width);
  // The least there may be, so that most rows are on disk.
  if (table.kind == TableKind::kCold) spec.mutable_cold_tier()->set_hot_bytes(64 << 10);
  return spec;
}

}  // namespace verbena::test
