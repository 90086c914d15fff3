#include "server/coordinator/job_limits.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "proto/job_limits.h"
#include "proto/routing.h"
#include "proto/table_spec.h"

namespace verbena::server {
namespace {

bool Same(const v1::JobLimits& a, const v1::JobLimits& b) {
  return a.memory_bytes() == b.memory_bytes() && a.tables() == b.tables() && a.lanes() == b.lanes();
}

bool HasLimits(const v1::JobLimits& limits) {
  return limits.memory_bytes() > 0 || limits.tables() > 0 || limits.lanes() > 0;
}

// One that replaces another comes in its place. (Their memory is taken twice meanwhile.)
absl::Status CheckTables(const v1::Job& job, const v1::Table& added, const ViewEditor& view) {
  const uint32_t limit = job.limits().tables();
  if (limit == 0 || added.replaces() != 0) return absl::OkStatus();
  const auto& all = view.TablesOf(job.name());
  const auto tables = std::count_if(
      all.begin(), all.end(), [](const auto& table) { return table.second->replaces() == 0; });
  if (tables < static_cast<int64_t>(limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", job.name(), "' is at its limit of tables: it has ", tables,
                   ", allowed are ", limit, ". Drop one, or raise the limit ('verbena limits ",
                   job.name(), " --tables ", tables + 1, "')"));
}

// Adds what a dense table takes, by the server that has it.
void AddMemory(const v1::Table& table, const ChunkMemory& chunk_memory, const v1::ClusterView& view,
               std::map<uint64_t, uint64_t>* servers) {
  const v1::TableSpec& spec = table.spec();
  if (spec.dim() > 0) return;  // rows are made when they are pushed
  const DenseLayout layout = LayoutOf(spec);
  const uint64_t bytes = chunk_memory ? chunk_memory(spec)
                                      : std::min<uint64_t>(layout.elements, layout.chunk_elements) *
                                            layout.parameter_bytes;
  const auto partitions = static_cast<uint32_t>(view.partitions_size());
  for (const v1::Partition& p : view.partitions()) {
    (*servers)[p.primary()] +=
        bytes * ChunksInPartition(table.id(), layout.chunks(), p.id(), partitions);
  }
}

std::string ServerName(uint64_t incarnation, const v1::ClusterView& view) {
  for (const v1::Server& server : view.servers()) {
    if (server.incarnation() == incarnation) return server.name();
  }
  return absl::StrCat("incarnation ", incarnation);
}

absl::Status CheckMemory(const v1::Job& job, const v1::Table& added,
                         const ChunkMemory& chunk_memory, const ViewEditor& editor) {
  const v1::ClusterView& view = editor.view();
  const uint64_t limit = job.limits().memory_bytes();
  if (limit == 0 || added.spec().dim() > 0) return absl::OkStatus();
  std::map<uint64_t, uint64_t> before, after, partitions;
  for (const auto& [id, table] : editor.TablesOf(job.name())) {
    AddMemory(*table, chunk_memory, view, &before);
  }
  after = before;
  AddMemory(added, chunk_memory, view, &after);
  for (const v1::Partition& p : view.partitions()) ++partitions[p.primary()];
  for (const auto& [server, bytes] : after) {
    if (server == 0 || bytes == before[server]) continue;  // on no server, or not on this one
    const uint64_t share = ShareOfServer(limit, partitions[server], view.partitions_size());
    if (bytes <= RoomForTables(share)) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "table '", added.spec().name(), "' does not fit job '", job.name(), "': on server '",
        ServerName(server, view), "' its dense tables would take ", bytes,
        " bytes; allowed: ", RoomForTables(share), ", which is 15/16 of this server's share (",
        share, ", by partitions) of the job's memory limit of ", limit,
        " bytes. Drop a table, or raise the limit ('verbena limits ", job.name(),
        " --memory BYTES')"));
  }
  return absl::OkStatus();
}

}  // namespace

bool SetLimits(const std::string& name, const v1::JobLimits& limits, ViewEditor* view) {
  const v1::Job* job = view->FindJob(name);
  const v1::JobLimits before = job == nullptr ? v1::JobLimits() : job->limits();
  if (Same(before, limits)) return false;
  if (job == nullptr) view->AddJob(name);
  if (HasLimits(limits)) {
    *view->EditJob(name)->mutable_limits() = limits;
    return true;
  }
  view->EditJob(name)->clear_limits();
  view->RemoveIfEnded(name);
  return true;
}

absl::Status CheckLimits(const v1::Table& table, const ChunkMemory& chunk_memory,
                         const ViewEditor& view) {
  const v1::Job* job = view.FindJob(table.spec().job());
  if (job == nullptr || !job->has_limits()) return absl::OkStatus();
  if (absl::Status status = CheckTables(*job, table, view); !status.ok()) return status;
  return CheckMemory(*job, table, chunk_memory, view);
}

}  // namespace verbena::server
