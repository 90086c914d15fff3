#include "server/coordinator/job_limits.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/job_limits.h"
#include "server/coordinator/job_sums.h"

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
  const int64_t tables = view.SumsOf(job.name()).tables;
  if (tables < static_cast<int64_t>(limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", job.name(), "' is at its limit of tables: it has ", tables,
                   ", allowed are ", limit, ". Drop one, or raise the limit ('verbena limits ",
                   job.name(), " --tables ", tables + 1, "')"));
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
  const std::vector<uint64_t>& has = editor.SumsOf(job.name()).dense_bytes;
  JobSums more;
  more.Add(added, static_cast<uint32_t>(view.partitions_size()), chunk_memory);
  std::map<uint64_t, uint64_t> before, after, partitions;
  for (const v1::Partition& p : view.partitions()) {
    const uint64_t bytes = has.empty() ? 0 : has[p.id()];
    before[p.primary()] += bytes;
    after[p.primary()] += bytes + more.dense_bytes[p.id()];
    ++partitions[p.primary()];
  }
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

// Bytes of dense tables on a server.
struct DenseBytes {
  uint64_t its = 0, others = 0;
  bool copies = false;  // some of them are copies

  void Add(uint64_t more_its, uint64_t more_others) {
    its += more_its;
    others += more_others;
  }
};

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

// Copies count where they are: they would not be made, or those of all tables would be given up.
absl::Status CheckServerMemory(const v1::Table& table, const ChunkMemory& chunk_memory,
                               const ViewEditor& editor) {
  if (table.spec().dim() > 0) return absl::OkStatus();
  const v1::ClusterView& view = editor.view();
  const auto partitions = static_cast<uint32_t>(view.partitions_size());
  JobSums more, replaced;
  more.Add(table, partitions, chunk_memory);
  const v1::Table* other = table.replaces() == 0 ? nullptr : editor.FindTable(table.replaces());
  if (other != nullptr) replaced.Add(*other, partitions, chunk_memory);
  const std::vector<uint64_t>& all = editor.sums().dense_bytes;
  std::map<uint64_t, DenseBytes> bytes;  // by server
  for (const v1::Partition& p : view.partitions()) {
    const uint64_t its = more.dense_bytes[p.id()];
    const uint64_t others = (all.empty() ? 0 : all[p.id()]) -
                            (replaced.dense_bytes.empty() ? 0 : replaced.dense_bytes[p.id()]);
    bytes[p.primary()].Add(its, others);
    for (const auto* copies : {&p.followers(), &p.learners()}) {
      for (const v1::Replica& copy : *copies) {
        bytes[copy.server()].Add(its, others);
        bytes[copy.server()].copies = true;
      }
    }
  }
  for (const v1::Server& server : view.servers()) {
    const DenseBytes& here = bytes[server.incarnation()];
    const uint64_t limit = server.memory_bytes();
    const uint64_t allowed = here.copies ? RoomForTablesBesideCopies(limit) : RoomForTables(limit);
    if (limit == 0 || here.its == 0 || here.its + here.others <= allowed) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "table '", table.spec().name(), "' does not fit server '", server.name(),
        "': its chunks there", here.copies ? ", with copies," : "", " would take ", here.its,
        " bytes beside ", here.others, " bytes of other dense tables; allowed: ", allowed,
        ", which is ", here.copies ? "7/8" : "15/16", " of its --memory-limit of ", limit,
        ". Drop a table, ", here.copies ? "add a server, " : "", "or raise --memory-limit"));
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
