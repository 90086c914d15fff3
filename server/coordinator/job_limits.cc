#include "server/coordinator/job_limits.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "proto/job_limits.h"
#include "proto/routing.h"
#include "proto/table_spec.h"
#include "server/coordinator/jobs.h"

namespace verbena::server {
namespace {

bool Same(const v1::JobLimits& a, const v1::JobLimits& b) {
  return a.memory_bytes() == b.memory_bytes() && a.tables() == b.tables() && a.lanes() == b.lanes();
}

bool HasLimits(const v1::JobLimits& limits) {
  return limits.memory_bytes() > 0 || limits.tables() > 0 || limits.lanes() > 0;
}

// One that replaces another comes in its place. (Their memory is taken twice meanwhile.)
absl::Status CheckTables(const v1::Job& job, const v1::Table& added, const v1::ClusterView& view) {
  const uint32_t limit = job.limits().tables();
  if (limit == 0 || added.replaces() != 0) return absl::OkStatus();
  const auto tables =
      std::count_if(view.tables().begin(), view.tables().end(), [&](const v1::Table& table) {
        return table.spec().job() == job.name() && table.replaces() == 0;
      });
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
                         const ChunkMemory& chunk_memory, const v1::ClusterView& view) {
  const uint64_t limit = job.limits().memory_bytes();
  if (limit == 0 || added.spec().dim() > 0) return absl::OkStatus();
  std::map<uint64_t, uint64_t> before, after, partitions;
  for (const v1::Table& table : view.tables()) {
    if (table.spec().job() == job.name()) AddMemory(table, chunk_memory, view, &before);
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

bool SetLimits(const std::string& name, const v1::JobLimits& limits, v1::ClusterView* view) {
  v1::Job* job = FindJob(name, view);
  const v1::JobLimits before = job == nullptr ? v1::JobLimits() : job->limits();
  if (Same(before, limits)) return false;
  if (job == nullptr) job = AddJob(name, view);
  if (HasLimits(limits)) {
    *job->mutable_limits() = limits;
    return true;
  }
  job->clear_limits();
  const bool nothing = job->generation() == view->ended_generation() + 1 &&
                       job->expected_workers() == 0 && job->members_size() == 0 &&
                       job->departed_ranks_size() == 0;
  if (nothing) {
    auto* jobs = view->mutable_jobs();
    jobs->erase(std::find_if(jobs->begin(), jobs->end(),
                             [&](const v1::Job& other) { return other.name() == name; }));
  }
  return true;
}

absl::Status CheckLimits(const v1::Table& table, const ChunkMemory& chunk_memory,
                         const v1::ClusterView& view) {
  for (const v1::Job& job : view.jobs()) {
    if (job.name() != table.spec().job() || !job.has_limits()) continue;
    if (absl::Status status = CheckTables(job, table, view); !status.ok()) return status;
    return CheckMemory(job, table, chunk_memory, view);
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
