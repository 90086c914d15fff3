#include "server/checkpoint/restore_task.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "proto/control/unproved_state.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

constexpr int64_t kRestorePauseNanos = 200 * kNanosPerMilli;
// A few lost calls end no restore.
constexpr int64_t kRenewalsPerLease = 4;

}  // namespace

RestoreTask::RestoreTask(RestoreTaskOptions options, const Clock* clock, ControlChannel* control,
                         checkpoint::CheckpointReader reader)
    : options_(std::move(options)),
      clock_(clock),
      control_(*control),
      reader_(std::move(reader)),
      ids_(options_.seed) {}

RestoreTask::~RestoreTask() { *alive_ = false; }

absl::StatusOr<std::unique_ptr<RestoreTask>> RestoreTask::Make(RestoreTaskOptions options,
                                                               const Clock* clock,
                                                               ControlChannel* control,
                                                               checkpoint::Disk* disk) {
  if (options.path.empty() || options.path.front() != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "path '", options.path, "'; wanted: an absolute path, which every server can read"));
  }
  auto reader = checkpoint::CheckpointReader::Open(disk, options.path);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = reader->CheckSizes(); !status.ok()) return status;
  std::unique_ptr<RestoreTask> made(
      new RestoreTask(std::move(options), clock, control, *std::move(reader)));
  if (absl::Status status = made->ChooseTables(); !status.ok()) return status;
  return made;
}

absl::Status RestoreTask::ChooseTables() {
  std::vector<std::string> there;
  for (const v1::CheckpointTable& saved : reader_.manifest().tables()) {
    const std::string& name = saved.spec().name();
    there.push_back(name);
    const auto& wanted = options_.tables;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    Table& table = tables_.emplace_back();
    table.name = name;
    table.spec = saved.spec();
    if (!options_.job.empty()) table.spec.set_job(options_.job);
    const auto renamed = options_.renamed.find(name);
    if (renamed != options_.renamed.end()) table.spec.set_name(renamed->second);
    table.steps = saved.steps();
    if (!options_.state) continue;
    for (const uint64_t applies : saved.partition_applies()) {
      table.applies = std::max(table.applies, applies);
    }
  }
  std::vector<std::string> named = options_.tables;
  for (const auto& [from, to] : options_.renamed) named.push_back(from);
  for (const std::string& name : named) {
    if (std::find(there.begin(), there.end(), name) != there.end()) continue;
    return absl::NotFoundError(absl::StrCat(reader_.path(), " has no table '", name,
                                            "'; it has: ", absl::StrJoin(there, ", ")));
  }
  return absl::OkStatus();
}

template <typename Response, typename Request, typename F>
void RestoreTask::Send(const std::string& address, const char* method, const Request& request,
                       int64_t timeout_ms, F on_answer) {
  Call<Response>(control_, address, method, request, absl::Milliseconds(timeout_ms),
                 [call = call_, alive = alive_, this,
                  on_answer = std::move(on_answer)](absl::StatusOr<Response> response) mutable {
                   if (*alive && call == call_) on_answer(std::move(response));
                 });
}

// ---- tables -------------------------------------------------------------------------------------

void RestoreTask::MakeNext() {
  state_ = State::kMaking;
  const auto next = std::find_if(tables_.begin(), tables_.end(),
                                 [](const Table& table) { return table.id == 0; });
  if (next == tables_.end()) return AskView();
  const auto i = static_cast<size_t>(next - tables_.begin());
  // The same one again when the answer was lost: the table may have been made.
  if (next->make_id.empty()) next->make_id = ids_.RequestId();
  v1::CreateTableRequest request;
  request.set_request_id(next->make_id);
  *request.mutable_spec() = next->spec;
  request.set_restoring(true);
  request.set_restored_steps(options_.state ? next->steps : 0);
  request.set_restorer(options_.restorer);
  request.set_replace(options_.replace);
  request.set_only_unused(options_.replace && options_.only_unused);
  Send<v1::CreateTableResponse>(
      options_.coordinator, "/verbena.v1.Cluster/CreateTable", request, kShardCallMillis,
      [this, i](const absl::StatusOr<v1::CreateTableResponse>& response) { OnMade(i, response); });
}

void RestoreTask::OnMade(size_t table, const absl::StatusOr<v1::CreateTableResponse>& response) {
  if (absl::IsAlreadyExists(response.status()) && options_.drop_first) {
    return DropServedThenMake(table);
  }
  if (!response.ok()) return FailChange(response.status());
  tables_[table].id = response->table().id();
  tables_[table].make_id.clear();
  if (response->restore_lease_ms() > 0 && renew_each_ns_ == 0) {
    renew_each_ns_ = response->restore_lease_ms() * kNanosPerMilli / kRenewalsPerLease;
    renew_ns_ = clock_->NowNanos() + renew_each_ns_;
  }
  MakeNext();
}

// The existing table has only the name in common: an operator has asked to drop it.
void RestoreTask::DropServedThenMake(size_t table) {
  v1::DropTableRequest request;
  request.set_request_id(ids_.RequestId());
  request.set_name(tables_[table].spec.name());
  request.set_only_unused(options_.only_unused);
  Send<v1::DropTableResponse>(options_.coordinator, "/verbena.v1.Cluster/DropTable", request,
                              kShardCallMillis,
                              [this](absl::StatusOr<v1::DropTableResponse> response) {
                                if (!response.ok() && !absl::IsNotFound(response.status())) {
                                  return FailChange(response.status());
                                }
                                MakeNext();
                              });
}

// In every state: answers of a call that was given up meanwhile count, too.
void RestoreTask::Renew() {
  renew_ns_ = kNever;
  v1::RenewRestoreRequest request;
  for (const Table& table : tables_) {
    if (table.id != 0) request.add_tables(table.id);
  }
  const int64_t next = clock_->NowNanos() + renew_each_ns_;
  Call<v1::RenewRestoreResponse>(
      control_, options_.coordinator, "/verbena.v1.Cluster/RenewRestore", request,
      absl::Nanoseconds(renew_each_ns_),
      [alive = alive_, this, next](absl::StatusOr<v1::RenewRestoreResponse> response) {
        if (!*alive) return;
        renew_ns_ = next;
        if (!response.ok() || !open_id_.empty()) return;
        for (const uint32_t id : response->missing()) {
          const bool ours = std::any_of(tables_.begin(), tables_.end(),
                                        [&](const Table& table) { return table.id == id; });
          if (!ours || state_ == State::kDropping || state_ == State::kDone) continue;
          return End(absl::AbortedError(absl::StrCat(
              "table ", id,
              " was dropped while it was being restored: by someone else, or by the coordinator, "
              "which this had not called for too long")));
        }
      });
}

// A table that has lost partitions before it was served has lost no data, but no shard can load
// them: it is made again. Returns whether there are any.
bool RestoreTask::ForgetLost(const v1::ClusterView& view) {
  absl::flat_hash_set<uint32_t> lost;
  for (const v1::Table& table : view.tables()) {
    if (table.lost_partitions_size() > 0) lost.insert(table.id());
  }
  bool any = false;
  for (Table& table : tables_) {
    if (!lost.contains(table.id)) continue;
    drops_.push_back(std::exchange(table.id, 0));
    any = true;
  }
  return any;
}

// ---- parts --------------------------------------------------------------------------------------

void RestoreTask::AskView() {
  state_ = State::kViewing;
  ++call_;
  Send<v1::GetViewResponse>(
      options_.coordinator, "/verbena.v1.Cluster/GetView", v1::GetViewRequest(), kShardCallMillis,
      [this](absl::StatusOr<v1::GetViewResponse> response) { OnView(std::move(response)); });
}

void RestoreTask::OnView(absl::StatusOr<v1::GetViewResponse> response) {
  if (!response.ok()) return Fail(response.status());
  const v1::ClusterView& view = response->view();
  if (ForgetLost(view)) {
    if (++tries_ >= options_.tries) return End(absl::AbortedError("servers are lost all the time"));
    ++call_;
    state_ = State::kMaking;
    return DropNext();
  }
  partitions_ = static_cast<uint32_t>(view.partitions_size());
  parts_.clear();
  for (ShardAddress& shard : PrimaryShards(view)) parts_.emplace_back().at = std::move(shard);
  if (parts_.empty()) return Fail(absl::UnavailableError("no server has partitions yet"));
  state_ = State::kBeginning;
  ++call_;
  restore_ = ids_.Number();
  for (size_t i = 0; i < parts_.size(); ++i) {
    v1::BeginRestoreRequest request;
    request.set_server_incarnation(parts_[i].at.server);
    request.set_shard(parts_[i].at.shard);
    request.set_revision(view.revision());
    request.set_restore(restore_);
    for (const Table& table : tables_) {
      v1::RestoreTable* wanted = request.add_tables();
      wanted->set_table(table.id);
      wanted->set_name(table.name);
      wanted->set_applies(table.applies);
    }
    request.set_path(options_.path);
    request.set_state(options_.state);
    request.set_patience_ms(kShardPatienceMillis);
    Send<v1::BeginRestoreResponse>(
        parts_[i].at.address, "/verbena.v1.Shard/BeginRestore", request, kShardCallMillis,
        [this, i](absl::StatusOr<v1::BeginRestoreResponse> begun) {
          if (!begun.ok()) return Fail(begun.status());
          parts_[i].begun = true;
          if (!std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.begun; })) {
            return;
          }
          state_ = State::kLoading;
          for (size_t p = 0; p < parts_.size(); ++p) Ask(p);
        });
  }
}

void RestoreTask::Ask(size_t part) {
  v1::WaitRestoreRequest request;
  request.set_server_incarnation(parts_[part].at.server);
  request.set_shard(parts_[part].at.shard);
  request.set_restore(restore_);
  request.set_wait_ms(kShardWaitMillis);
  Send<v1::WaitRestoreResponse>(
      parts_[part].at.address, "/verbena.v1.Shard/WaitRestore", request,
      kShardWaitMillis + kShardCallMillis,
      [this, part](absl::StatusOr<v1::WaitRestoreResponse> response) {
        if (!response.ok()) return Fail(response.status());
        parts_[part].read_bytes = response->read_bytes();
        if (!response->done()) return Ask(part);
        parts_[part].done = true;
        parts_[part].groups = response->groups();
        parts_[part].checked.assign(response->checked().begin(), response->checked().end());
        parts_[part].partitions.assign(response->partitions().begin(),
                                       response->partitions().end());
        if (!std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.done; })) {
          return;
        }
        if (absl::Status status = CheckParts(); !status.ok()) return Fail(status);
        Open();
      });
}

// Each shard verifies its part of a group; the one that has its first element or row lists the
// group. If views differed, a group or a whole partition may be in no list.
absl::Status RestoreTask::CheckParts() const {
  std::vector<bool> loaded(partitions_), checked(parts_.front().groups);
  for (const Part& part : parts_) {
    if (part.groups != checked.size()) {
      return absl::AbortedError(absl::StrCat("a shard has found ", part.groups,
                                             " groups of tensors, another ", checked.size()));
    }
    for (const uint32_t group : part.checked) {
      if (group < checked.size()) checked[group] = true;
    }
    for (const uint32_t partition : part.partitions) {
      if (partition < loaded.size()) loaded[partition] = true;
    }
  }
  const auto left = std::find(loaded.begin(), loaded.end(), false);
  if (left != loaded.end() && !VERBENA_FAILPOINT(checkpoint, forget_moved)) {
    return absl::AbortedError(absl::StrCat("nobody has loaded partition ", left - loaded.begin(),
                                           " of ", loaded.size(), ": partitions have moved"));
  }
  const auto missing = std::find(checked.begin(), checked.end(), false);
  if (missing == checked.end()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("nobody has checked group ", missing - checked.begin(),
                                         " of ", checked.size(), ": partitions have moved"));
}

void RestoreTask::Open() {
  state_ = State::kOpening;
  if (open_id_.empty()) {
    open_id_ = ids_.RequestId();
    tries_ = 0;
  }
  v1::FinishRestoreRequest request;
  request.set_request_id(open_id_);
  request.set_only_unused(options_.only_unused);
  for (const Table& table : tables_) request.add_tables(table.id);
  Send<v1::FinishRestoreResponse>(
      options_.coordinator, "/verbena.v1.Cluster/FinishRestore", request, kShardCallMillis,
      [this](absl::StatusOr<v1::FinishRestoreResponse> response) {
        const absl::Status& status = response.status();
        if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
          // It may have been done: workers may be using them.
          if (MayRepeat(status)) return Pause();
          status_ = absl::Status(
              status.code(),
              absl::StrCat("whether the tables are served is not known: ", status.message()));
        } else if (!status.ok()) {
          return End(status);
        }
        state_ = State::kDone;
      });
}

// ---- the end ------------------------------------------------------------------------------------

void RestoreTask::Fail(const absl::Status& status) {
  if (!MayPass(status) || !MayRepeat(status)) return End(status);
  Pause();
}

// A change failed at the coordinator. An error other than these two means that this cannot be
// restored.
void RestoreTask::FailChange(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return End(status);
  Fail(status);
}

// A coordinator that waits for servers ends that by itself: it costs no try.
bool RestoreTask::MayRepeat(const absl::Status& status) {
  return IsUnprovedState(status) || ++tries_ < options_.tries;
}

void RestoreTask::Pause() {
  ++call_;
  state_ = State::kPausing;
  resume_ns_ = clock_->NowNanos() + (kRestorePauseNanos << tries_);
}

void RestoreTask::End(absl::Status status) {
  ++call_;
  status_ = std::move(status);
  state_ = State::kDropping;
  for (Table& table : tables_) {
    if (table.id != 0) drops_.push_back(std::exchange(table.id, 0));
  }
  DropNext();
}

void RestoreTask::DropNext() {
  if (drops_.empty()) {
    if (state_ == State::kMaking) return MakeNext();
    state_ = State::kDone;
    return;
  }
  const uint32_t id = drops_.back();
  v1::DropTableRequest request;
  request.set_request_id(ids_.RequestId());
  request.set_id(id);
  request.set_only_restoring(true);
  drops_.pop_back();
  Send<v1::DropTableResponse>(
      options_.coordinator, "/verbena.v1.Cluster/DropTable", request, kShardCallMillis,
      [this, id](const absl::StatusOr<v1::DropTableResponse>& response) {
        const bool gone = response.ok() || absl::IsNotFound(response.status());
        if (!gone && state_ == State::kMaking) {
          drops_.push_back(id);
          return FailChange(response.status());
        }
        DropNext();
      });
}

void RestoreTask::Cancel() {
  if (state_ == State::kDone || state_ == State::kDropping || !open_id_.empty()) return;
  End(absl::CancelledError("the restore was interrupted"));
}

// From the first thing that is not done: tables to drop, to make, to load.
void RestoreTask::GoOn() {
  state_ = State::kMaking;
  DropNext();
}

bool RestoreTask::RunOnce() {
  if (state_ == State::kNew) {
    MakeNext();
    return true;
  }
  if (state_ == State::kPausing && resume_ns_ <= clock_->NowNanos()) {
    open_id_.empty() ? GoOn() : Open();
    return true;
  }
  if (renew_ns_ <= clock_->NowNanos() && state_ != State::kDropping && state_ != State::kDone) {
    Renew();
    return true;
  }
  return false;
}

int64_t RestoreTask::NextTimerNanos() const {
  if (state_ == State::kNew) return 0;
  if (state_ == State::kDropping || state_ == State::kDone) return kNever;
  return state_ == State::kPausing ? std::min(resume_ns_, renew_ns_) : renew_ns_;
}

std::vector<std::string> RestoreTask::tables() const {
  std::vector<std::string> names;
  for (const Table& table : tables_) names.push_back(table.spec.name());
  return names;
}

RestoreTaskProgress RestoreTask::progress() const {
  RestoreTaskProgress progress;
  progress.total_bytes = reader_.bytes();
  progress.read_bytes = parts_.empty() ? 0 : std::numeric_limits<uint64_t>::max();
  for (const Part& part : parts_) {
    progress.read_bytes =
        std::min(progress.read_bytes, part.done ? progress.total_bytes : part.read_bytes);
  }
  switch (state_) {
    case State::kLoading:
      progress.doing = "loading";
      break;
    case State::kPausing:
      progress.doing = "trying again";
      break;
    case State::kDropping:
      progress.doing = "undoing";
      break;
    case State::kOpening:
      progress.doing = "opening";
      break;
    case State::kDone:
      progress.doing = "done";
      break;
    default:
      progress.doing = "making tables";
      break;
  }
  return progress;
}

}  // namespace verbena::server
