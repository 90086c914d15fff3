#include "client/core/errors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/operations/request_handler.h"
#include "client/staging/device_staging.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/record_check.h"

namespace verbena::client {
namespace {

std::string Seconds(int64_t ns) { return absl::StrFormat("%.1f s", double(ns) / 1e9); }

std::string Name(const PendingRequest& entry) { return std::string(entry.handler->name()); }

// "a push", "a prefetch".
std::string NameWithArticle(const PendingRequest& entry) {
  const std::string name = Name(entry);
  return absl::StrCat(
      std::string_view("aeiou").find(name[0]) != std::string_view::npos ? "an " : "a ", name);
}

absl::string_view Name(ReplyStatus status) {
  const std::string_view name = ReplyStatusName(status);
  return {name.data(), name.size()};
}

// "server 'ps-0' (incarnation 3, 127.0.0.1:7001)"
std::string DescribeServer(const v1::Server& server) {
  return absl::StrCat("server '", server.name(), "' (incarnation ", server.incarnation(), ", ",
                      server.address(), ")");
}

std::string DescribeOperation(const Operation& operation) {
  return absl::StrCat(absl::string_view(operation.name.data(), operation.name.size()),
                      " on table '", operation.table->name(), "' after ",
                      Seconds(operation.deadline_ns - operation.started_ns));
}

// The members that a step may be waiting for, according to the view.
std::string DescribeMembers(const Session& session) {
  const v1::Job* job = session.OwnJob();
  if (job == nullptr) return "";
  std::vector<int> others;
  uint32_t members = 0;
  for (const v1::Worker& worker : job->members()) {
    if (worker.rank() < 0) continue;
    ++members;
    if (worker.incarnation() != session.incarnation()) others.push_back(worker.rank());
  }
  const uint32_t joined = members + static_cast<uint32_t>(job->departed_ranks_size());
  if (joined < job->expected_workers()) {
    return absl::StrCat("job '", job->name(), "' has ", joined, " of ", job->expected_workers(),
                        " workers joined");
  }
  if (others.empty() && session.options().observer) return "no worker has made it";
  if (others.empty()) {
    return "this worker is the only one left: EndStep() was not called, or is still being applied";
  }
  std::sort(others.begin(), others.end());
  return absl::StrCat("not every other worker has ended it (rank ", absl::StrJoin(others, ", "),
                      ")");
}

// An additional cause of waiting for a table with a cold tier.
absl::string_view DescribeDisk(const TableState& table) {
  if (HotBytes(table.info.spec()) == 0) return "";
  return "; it may wait for rows on the server's disk: see verbena_shard_cold_write_failures_total "
         "and its log for failed writes";
}

absl::Status StreamTrouble(const Session& session, const std::string& subject, const Stream& stream,
                           int64_t now) {
  if (stream.server == 0) {
    return absl::UnavailableError(
        absl::StrCat(subject, ": no server has the table's partition at the moment"));
  }
  const std::string server = DescribeServer(session, stream);
  if (const int64_t since = session.SilentSince(stream.server); since != 0) {
    return absl::UnavailableError(
        absl::StrCat(subject, ": ", server, " has not responded for ", Seconds(now - since)));
  }
  if (!stream.open()) {
    const std::string why = stream.last_error.ok()
                                ? absl::StrCat(" within ", Seconds(now - stream.changed_at))
                                : absl::StrCat("; last: ", stream.last_error.message());
    const std::string text = absl::StrCat(subject, ": no lane to ", server, why);
    // The server is available, and has no free lane.
    if (absl::IsResourceExhausted(stream.last_error)) return absl::ResourceExhaustedError(text);
    return absl::UnavailableError(text);
  }
  return absl::OkStatus();
}

absl::Status PostedStatus(const Session& session, const std::string& subject,
                          const PendingRequest& entry, int64_t now) {
  const std::string server = DescribeServer(session, *entry.stream);
  const bool pull = TraitsOf(entry).reads;
  if (pull && entry.table->ssp) {
    const uint32_t bound = entry.table->info.spec().staleness();
    return absl::DeadlineExceededError(
        absl::StrCat(subject, ": this worker has ended ", entry.min_version, " steps and may be ",
                     bound, " ahead; waiting for the others to end ",
                     entry.min_version > bound ? entry.min_version - bound : 0, " at ", server,
                     "; ", DescribeMembers(session), DescribeDisk(*entry.table)));
  }
  if (pull && entry.min_version > 0) {
    const bool chunk = TraitsOf(entry).chunk;
    return absl::DeadlineExceededError(
        absl::StrCat(subject, ": waiting for version ", entry.min_version,
                     chunk ? " of chunk " : " of partition ", chunk ? entry.chunk : entry.parts[0],
                     " at ", server, "; ", DescribeMembers(session), DescribeDisk(*entry.table)));
  }
  const Stream& stream = *entry.stream;
  // Contributions are summed in rank order, so a push is answered after those of lower ranks.
  const bool in_turn = PushesChunk(entry) && entry.table->sync;
  return absl::DeadlineExceededError(absl::StrCat(
      subject, ": ", server, " has not answered ", NameWithArticle(entry), " for ",
      Seconds(now - entry.posted_at), "; the lane over ", stream.transport, " has been open for ",
      Seconds(now - stream.changed_at), ", and last received data ",
      Seconds(now - stream.watch.heard_at()), " ago",
      in_turn ? absl::StrCat("; step ", entry.step, ": ", DescribeMembers(session)) : "",
      DescribeDisk(*entry.table)));
}

absl::Status QueuedStatus(const Session& session, const std::string& subject,
                          const PendingRequest& entry) {
  const std::string server = DescribeServer(session, *entry.stream);
  if (entry.refused == ReplyStatus::kResourceExhausted) {
    const v1::Job* job = session.OwnJob();
    const uint64_t limit = job == nullptr ? 0 : job->limits().memory_bytes();
    return absl::ResourceExhaustedError(absl::StrCat(
        subject, ": ", server,
        " refuses it because memory or operations are short; 'verbena status' names tables that "
        "are not served for lack of memory",
        limit == 0
            ? ""
            : absl::StrCat("; job '", job->name(), "' has a memory limit of ", limit,
                           " bytes on all servers together ('verbena limits ", job->name(), "')")));
  }
  if (entry.refused != ReplyStatus::kOk) {
    return absl::UnavailableError(
        absl::StrCat(subject, ": ", server, " keeps answering \"", Name(entry.refused), "\""));
  }
  if (entry.awaited_from != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        subject, ": no staging buffer of ", entry.awaited_bytes, " bytes for ", server,
        " became free by the deadline (staging_bytes: ", entry.awaited_from->limit(), ")"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      subject, ": no slot or operation of the lane to ", server, " became free by the deadline"));
}

bool MarkPassed(const PendingRequest& entry) {
  const auto& mark = entry.operation->marks[TraitsOf(entry).contributes ? 0 : 1];
  const absl::StatusOr<bool> passed = mark == nullptr ? true : mark->Passed();
  return !passed.ok() || *passed;
}

bool WaitsForCopy(const PendingRequest& entry) {
  if (entry.device == nullptr) return false;
  // It waits for its lane; the stream's mark is checked below.
  if (entry.direct) return !MarkPassed(entry);
  if (entry.state == PendingRequest::State::kCopying) return true;
  return PushesChunk(entry) && entry.state == PendingRequest::State::kQueued &&
         entry.copy != PendingRequest::Copy::kDone;
}

absl::Status CopyStatus(const std::string& subject, const PendingRequest& entry) {
  const bool push = PushesChunk(entry);
  const std::string name = entry.device->device().name();
  if (!MarkPassed(entry)) {
    return absl::DeadlineExceededError(
        absl::StrCat(subject, ": work that was enqueued in the stream of ", name,
                     " before this call is not done; the region is not touched before that"));
  }
  const bool running = !push || entry.copy == PendingRequest::Copy::kRunning;
  return absl::DeadlineExceededError(absl::StrCat(
      subject, ": chunk ", entry.chunk, running ? " is being copied " : " waits to be copied ",
      push ? "from " : "to ", name, running ? "" : " (all pinned buffers are in use)"));
}

bool WaitsForStep(const PendingRequest& entry) {
  if (!entry.table->sync || entry.state != PendingRequest::State::kQueued) return false;
  if (PushesChunk(entry)) {
    return entry.table->chunk_version[entry.chunk] < entry.step;
  }
  return TraitsOf(entry).contributes &&
         std::any_of(entry.parts.begin(), entry.parts.end(), [&](uint32_t part) {
           return entry.table->parts[part].committed < entry.step;
         });
}

// The cause of this worker's wait may itself wait, through another worker, for a server that this
// worker does not use.
absl::Status WithSilentServers(const Session& session, const absl::Status& status, int64_t now) {
  std::string message(status.message());
  for (const v1::Server& server : session.view().servers()) {
    const int64_t since = session.SilentSince(server.incarnation());
    if (since == 0) continue;
    absl::StrAppend(&message, "; ", DescribeServer(server), " has not responded for ",
                    Seconds(now - since));
  }
  return {status.code(), message};
}

absl::Status StepStatus(const Session& session, const std::string& subject, const TableState& table,
                        uint64_t step) {
  return absl::DeadlineExceededError(absl::StrCat(subject, ": waiting for step ", step,
                                                  " of table '", table.name(), "' to commit; ",
                                                  DescribeMembers(session), DescribeDisk(table)));
}

// `waiting`: its first unanswered record; null: it waits for a commit.
absl::Status WaitStatus(const Session& session, const std::string& subject,
                        const Operation& operation, const PendingRequest* waiting, int64_t now) {
  if (waiting == nullptr) return StepStatus(session, subject, *operation.table, operation.step);
  if (WaitsForStep(*waiting)) {
    return StepStatus(session, subject, *operation.table, waiting->step - 1);
  }
  if (WaitsForCopy(*waiting)) return CopyStatus(subject, *waiting);
  return waiting->state == PendingRequest::State::kPosted
             ? PostedStatus(session, subject, *waiting, now)
             : QueuedStatus(session, subject, *waiting);
}

}  // namespace

std::string DescribeServer(const Session& session, const Stream& stream) {
  const v1::Server* server = session.FindServer(stream.server);
  if (server == nullptr) {
    return absl::StrCat("server incarnation ", stream.server, " (gone) shard ", stream.shard);
  }
  return absl::StrCat(DescribeServer(*server), " shard ", stream.shard);
}

std::string DescribeRequest(const PendingRequest& entry) {
  std::string text = Name(entry);
  if (entry.parts.empty()) {
    const bool chunk = TraitsOf(entry).chunk;
    absl::StrAppend(&text, chunk ? " of chunk " : " of partition ",
                    chunk ? entry.chunk : entry.part);
  }
  absl::StrAppend(&text, " of table '", entry.table->name(), "'");
  if (IsPull(entry)) return text;
  if (entry.table->sync) {
    absl::StrAppend(&text, " in step ", entry.step);
  } else if (PushesChunk(entry)) {
    absl::StrAppend(&text, ", sequence ", entry.step);
  }
  return text;
}

absl::Status RefusalStatus(const PendingRequest& entry, ReplyStatus status) {
  const std::string subject = absl::StrCat(DescribeRequest(entry), ": ");
  switch (status) {
    case ReplyStatus::kUnknownTable:
      return absl::NotFoundError(absl::StrCat("table '", entry.table->name(), "' was dropped"));
    case ReplyStatus::kOtherJob:
      return absl::FailedPreconditionError(
          absl::StrCat(subject, "the table belongs to job '", entry.table->info.spec().job(),
                       "', which this client is not a member of; connect as a worker of that job, "
                       "or as an observer whose token names no other job"));
    case ReplyStatus::kPermissionDenied:
      return absl::PermissionDeniedError(subject +
                                         "the server does not let this client change the table (an "
                                         "observer needs a token that may write)");
    default:
      break;
  }
  return absl::InternalError(absl::StrCat(subject, "the server answers \"", Name(status), "\" (",
                                          entry.elements, " elements, part ", entry.part,
                                          ", least version ", entry.min_version, ")"));
}

namespace {

// The server that keeps the partition's replica, as far as the view has it.
std::string DescribeFollower(const Session& session, uint32_t partition) {
  const v1::ClusterView& view = session.view();
  if (partition < static_cast<uint32_t>(view.partitions_size())) {
    for (const v1::Replica& follower : view.partitions(static_cast<int>(partition)).followers()) {
      for (const v1::Server& server : view.servers()) {
        if (server.incarnation() == follower.server()) return DescribeServer(server);
      }
    }
  }
  return absl::StrCat("the follower of partition ", partition);
}

}  // namespace

absl::Status MemoryLimitStatus(const Session& session, const PendingRequest& entry, uint32_t part,
                               ReplyStatus status, uint32_t detail) {
  const std::string server = DescribeServer(session, *entry.stream);
  const std::string& job = entry.table->info.spec().job();
  const bool of_job = status == ReplyStatus::kJobMemoryLimit;
  const bool of_copy = status == ReplyStatus::kCopyMemoryLimit;
  const uint64_t hot_bytes = HotBytes(entry.table->info.spec());
  if (!of_job && detail == kPartitionIsFull) {
    return absl::ResourceExhaustedError(absl::StrCat(
        DescribeRequest(entry), ": partition ", entry.table->parts[part].partition, " at ", server,
        " has as many rows as one partition of a table may have, ", kMaxRowsOfPartition,
        ", and some of these are new; nothing of this record was applied there. Existing rows can "
        "be pushed; make a cluster of more partitions (--partitions), or evict rows"));
  }
  if (!of_job && !of_copy && detail == 0 && hot_bytes > 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        DescribeRequest(entry), ": it names more rows of partition ",
        entry.table->parts[part].partition, " than may be in memory together at ", server,
        ": of this table cold_tier.hot_bytes is ", hot_bytes,
        ", and a record, or all pushes to a partition in a step, may name at most half of "
        "a server's share, or less if its memory is short; nothing of this record was "
        "applied there. Push fewer rows at a time, or "
        "create the table with more hot_bytes"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      DescribeRequest(entry), ": ",
      of_job ? absl::StrCat("job '", job, "' has reached its memory limit at ", server,
                            ", whose share of it is ", detail, " MiB")
             : absl::StrCat(
                   of_copy ? DescribeFollower(session, entry.table->parts[part].partition) : server,
                   " has reached its memory limit of ", detail, " MiB",
                   of_copy ? " and has to keep a replica of these rows" : ""),
      ", and some of the rows are new; nothing of this record was applied to partition ",
      entry.table->parts[part].partition, ". Existing rows can be pushed; ",
      of_job ? absl::StrCat("raise the job's limit ('verbena limits ", job, " --memory BYTES')")
             : "raise --memory-limit or add servers"));
}

absl::Status DataLossStatus(const Session& session, const TableState& table, uint32_t part) {
  const PartState& state = table.parts[part];
  std::string message = absl::StrCat("the only replica of partition ", state.partition,
                                     " of table '", table.name(), "' is gone");
  if (state.stream != nullptr && state.stream->server != 0) {
    absl::StrAppend(&message, "; it is assigned to ", DescribeServer(session, *state.stream));
  }
  return absl::DataLossError(absl::StrCat(
      message,
      ". An operator can restore the table ('verbena checkpoint restore --replace'), reset the "
      "lost partitions to initial values ('verbena partition reset'), or drop it ('verbena table "
      "drop')"));
}

namespace {

absl::Status WaitedFor(const Session& session, const Operation& operation, int64_t now) {
  const std::string subject = DescribeOperation(operation);
  const PendingRequest* waiting = nullptr;
  for (const PendingRequest* entry = operation.entries.front(); entry != nullptr;
       entry = entry->operation_links.next) {
    if (entry->stream == nullptr) continue;
    if (absl::Status s = StreamTrouble(session, subject, *entry->stream, now); !s.ok()) return s;
    if (waiting == nullptr) waiting = entry;
  }
  if (waiting == nullptr) {
    // All its records are answered: it waits for a commit.
    for (const PartState& part : operation.table->parts) {
      if (part.committed > operation.step || part.stream == nullptr) continue;
      if (absl::Status s = StreamTrouble(session, subject, *part.stream, now); !s.ok()) return s;
    }
  }
  return WithSilentServers(session, WaitStatus(session, subject, operation, waiting, now), now);
}

}  // namespace

absl::Status DeadlineStatus(const Session& session, const Operation& operation, int64_t now) {
  absl::Status status = WaitedFor(session, operation, now);
  if (operation.not_now.ok()) return status;
  // Nothing was sent, so the transport's reason is the useful one.
  return absl::Status(
      operation.not_now.code(),
      absl::StrCat(status.message(),
                   "; the transport refused its memory until then: ", operation.not_now.message()));
}

}  // namespace verbena::client
