#include "server/checkpoint/checkpoint_task.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/tensor_file.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

// Doubled with each try: in the end a shard that received nothing has given up.
constexpr int64_t kCheckpointPauseNanos = 500 * kNanosPerMilli;

}  // namespace

CheckpointTask::CheckpointTask(CheckpointTaskOptions options, const Clock* clock,
                               ControlChannel* control, checkpoint::Disk* disk)
    : options_(std::move(options)),
      clock_(clock),
      control_(*control),
      disk_(disk),
      ids_(options_.seed) {}

CheckpointTask::~CheckpointTask() { *alive_ = false; }

// ---- calls --------------------------------------------------------------------------------------

template <typename Response, typename Request>
void CheckpointTask::Send(size_t part, const char* method, const Request& request,
                          int64_t timeout_ms,
                          void (CheckpointTask::*on_answer)(size_t, absl::StatusOr<Response>)) {
  parts_[part].asking = true;
  Call<Response>(control_, parts_[part].at.address, method, request, absl::Milliseconds(timeout_ms),
                 [this, part, on_answer, call = call_, alive = alive_](auto response) {
                   if (!*alive || call != call_) return;
                   parts_[part].asking = false;
                   (this->*on_answer)(part, std::move(response));
                 });
}

void CheckpointTask::AskView() {
  state_ = State::kViewing;
  ++call_;
  Call<v1::GetViewResponse>(control_, options_.coordinator, "/verbena.v1.Cluster/GetView",
                            v1::GetViewRequest(), absl::Milliseconds(kShardCallMillis),
                            [this, call = call_, alive = alive_](auto response) {
                              if (*alive && call == call_) OnView(std::move(response));
                            });
}

void CheckpointTask::OnView(absl::StatusOr<v1::GetViewResponse> response) {
  if (!response.ok()) return End(response.status(), MayPass(response.status()));
  view_ = std::move(*response->mutable_view());
  if (absl::Status status = ChooseTables(); !status.ok()) return End(status, false);
  parts_.clear();
  for (ShardAddress& shard : PrimaryShards(view_)) parts_.emplace_back().at = std::move(shard);
  if (parts_.empty()) {
    return End(absl::UnavailableError("no server has partitions yet"), true);
  }
  Begin();
}

absl::Status CheckpointTask::ChooseJob() {
  std::set<std::string> jobs;
  for (const v1::Table& table : view_.tables()) {
    if (!table.restoring()) jobs.insert(table.spec().job());
  }
  if (jobs.empty()) return absl::NotFoundError("the cluster has no tables");
  if (!options_.job.empty()) {
    job_ = options_.job;
    if (jobs.contains(job_)) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat(
        "job '", job_, "' has no tables; jobs that have: ", absl::StrJoin(jobs, ", ")));
  }
  if (jobs.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint is of one job; name one of those that have tables: ",
                     absl::StrJoin(jobs, ", ")));
  }
  job_ = *jobs.begin();
  return absl::OkStatus();
}

absl::Status CheckpointTask::ChooseTables() {
  if (absl::Status status = ChooseJob(); !status.ok()) return status;
  const std::vector<v1::Table> before = std::exchange(tables_, {});
  std::vector<std::string> missing = options_.tables, there;
  for (const v1::Table& table : view_.tables()) {
    // A table that is being restored is on a disk already.
    if (table.spec().job() != job_ || table.restoring()) continue;
    there.push_back(table.spec().name());
    const auto named = std::find(missing.begin(), missing.end(), table.spec().name());
    if (!options_.tables.empty() && named == missing.end()) continue;
    if (named != missing.end()) missing.erase(named);
    if (table.lost_partitions_size() > 0) {
      return absl::DataLossError(absl::StrCat("table '", table.spec().name(), "' has lost ",
                                              table.lost_partitions_size(),
                                              " partitions: there is nothing whole to save"));
    }
    tables_.push_back(table);
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat("job '", job_, "' has no table '", missing.front(),
                     "'; it has: ", there.empty() ? "none" : absl::StrJoin(there, ", ")));
  }
  // Another try with fewer tables would commit, as the newest, a checkpoint without this one. A
  // restorer may have dropped it to make it anew, and have died.
  for (const v1::Table& table : before) {
    const std::string& name = table.spec().name();
    if (std::find(there.begin(), there.end(), name) != there.end()) continue;
    return absl::AbortedError(absl::StrCat("table '", name, "' was dropped while job '", job_,
                                           "' was being saved: save again"));
  }
  const bool same =
      std::equal(before.begin(), before.end(), tables_.begin(), tables_.end(),
                 [](const v1::Table& a, const v1::Table& b) { return a.id() == b.id(); });
  uint32_t generation = 0;
  bool trained = false;
  for (const v1::Job& job : view_.jobs()) {
    if (job.name() != job_) continue;
    generation = job.generation();
    trained = std::any_of(job.members().begin(), job.members().end(),
                          [](const v1::Worker& worker) { return worker.rank() >= 0; });
  }
  const bool begun_anew = std::exchange(generation_, generation) != generation;
  // The previous run's steps do not predict the steps of this run.
  if (!same || (begun_anew && !VERBENA_FAILPOINT(checkpoint, keep_former_steps)))
    choice_ = StepChoice(tables_.size());
  choice_.SetTrained(trained);
  return absl::OkStatus();
}

// Before any call to shards: the lock shows at once whether another program uses the directory.
// Shards report only that tables are being saved, perhaps for a program that has died, and that
// state ends.
absl::Status CheckpointTask::LockDirectory() {
  if (options_.root.empty() || options_.root.front() != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "directory '", options_.root, "'; wanted: an absolute path, which every server can write"));
  }
  if (directory_ != nullptr) return absl::OkStatus();
  auto opened = checkpoint::CheckpointDirectory::Open(disk_, options_.root, options_.seed);
  if (!opened.ok()) return opened.status();
  directory_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status CheckpointTask::BeginDirectory() {
  auto path = directory_->Begin();
  if (!path.ok()) return path.status();
  path_ = *std::move(path);
  v1::CheckpointManifest wanted = Heading();
  for (const v1::Table& table : tables_) {
    v1::CheckpointTable* out = wanted.add_tables();
    *out->mutable_spec() = table.spec();
    out->set_id(table.id());
  }
  base_ = ChooseBase(disk_, options_.root, wanted, options_.full_every);
  return absl::OkStatus();
}

// ---- beginning ----------------------------------------------------------------------------------

void CheckpointTask::Begin() {
  const bool look = choice_.looking();
  absl::Status status = LockDirectory();
  if (status.ok() && !look) status = BeginDirectory();
  if (!status.ok()) return End(status, false);
  state_ = State::kBeginning;
  ++call_;
  save_ = ids_.Number();
  too_late_ = false;
  newest_.assign(tables_.size(), 0);
  open_.assign(tables_.size(), false);
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.done = false;
    part.begun = !look;
    v1::BeginCheckpointRequest request;
    request.set_server_incarnation(part.at.server);
    request.set_shard(part.at.shard);
    request.set_revision(view_.revision());
    request.set_checkpoint(save_);
    for (size_t t = 0; t < tables_.size(); ++t) {
      v1::TableToCheckpoint* table = request.add_tables();
      table->set_table(tables_[t].id());
      table->set_position(static_cast<uint32_t>(t));
      if (tables_[t].spec().consistency() == v1::CONSISTENCY_SYNC)
        table->set_step(look ? 0 : choice_.steps()[t]);
      if (look || tables_[t].spec().dim() == 0) continue;
      table->set_track(options_.full_every > 1);
      if (base_) table->set_base(base_->save);
    }
    request.set_only_look(look);
    request.set_directory(path_);
    request.set_writer(static_cast<uint32_t>(i));
    request.set_only_writer(parts_.size() == 1);
    request.set_memory_bytes(options_.memory_bytes);
    request.set_bytes_per_second(options_.bytes_per_second / parts_.size());
    request.set_file_bytes(options_.file_bytes);
    request.set_patience_ms(kShardPatienceMillis);
    Send(i, "/verbena.v1.Shard/BeginCheckpoint", request, kShardCallMillis,
         &CheckpointTask::OnBegun);
  }
}

void CheckpointTask::OnBegun(size_t part, absl::StatusOr<v1::BeginCheckpointResponse> response) {
  if (!response.ok()) return End(response.status(), MayPass(response.status()));
  const int known = std::min(response->newest_size(), static_cast<int>(newest_.size()));
  for (int t = 0; t < known; ++t) {
    auto& newest = newest_[static_cast<size_t>(t)];
    newest = std::max(newest, response->newest(t));
  }
  const int told = std::min(response->open_size(), static_cast<int>(open_.size()));
  for (int t = 0; t < told; ++t) {
    if (response->open(t)) open_[static_cast<size_t>(t)] = true;
  }
  if (response->too_late() && !choice_.looking()) {
    too_late_ = true;
    parts_[part].begun = false;
  }
  const bool asking =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.asking; });
  if (asking) return;
  if (choice_.looking()) {
    choice_.Looked(newest_, open_);
    return Begin();
  }
  if (too_late_) {
    if (choice_.TooLate(newest_)) return End(absl::OkStatus(), true);
    return End(absl::AbortedError(absl::StrCat("training was past every step that was tried, ",
                                               progress().step, " at last")),
               false);
  }
  state_ = State::kWriting;
  still_ = progress();
  still_since_ns_ = clock_->NowNanos();
  for (size_t i = 0; i < parts_.size(); ++i) Ask(i);
}

// ---- writing ------------------------------------------------------------------------------------

void CheckpointTask::Ask(size_t part) {
  v1::WaitCheckpointRequest request;
  request.set_server_incarnation(parts_[part].at.server);
  request.set_shard(parts_[part].at.shard);
  request.set_checkpoint(save_);
  request.set_wait_ms(kShardWaitMillis);
  Send(part, "/verbena.v1.Shard/WaitCheckpoint", request, kShardWaitMillis + kShardCallMillis,
       &CheckpointTask::OnWaited);
}

bool CheckpointTask::StandsStill() {
  const CheckpointTaskProgress now = progress();
  const bool moved = now.waiting != still_.waiting || now.written_bytes != still_.written_bytes;
  if (moved || now.waiting == 0) {
    still_ = now;
    still_since_ns_ = clock_->NowNanos();
  }
  return clock_->NowNanos() - still_since_ns_ >= choice_.still_nanos();
}

// Workers may have come since the view was read: the first time it is read again.
void CheckpointTask::OnStandsStill() {
  const bool again = choice_.trained() || choice_.stood() == 0;
  choice_.StoodStill();
  if (choice_.trained() && options_.waits > 0 && choice_.stood() >= options_.waits) {
    return End(absl::UnavailableError(absl::StrCat(
                   "training of job '", job_, "' stands inside a step: ", progress().waiting,
                   " partitions are not at step ", progress().step,
                   ", and a checkpoint has all partitions at one step")),
               false);
  }
  if (again) return End(absl::OkStatus(), true);
  End(absl::FailedPreconditionError(absl::StrCat(
          "job '", job_, "' has no workers, and its last step is incomplete: ", progress().waiting,
          " partitions are not at it, and a checkpoint has all partitions at one step; start the "
          "job's workers again and save while they train, or use an earlier checkpoint")),
      false);
}

void CheckpointTask::OnWaited(size_t part, absl::StatusOr<v1::WaitCheckpointResponse> response) {
  if (!response.ok()) return End(response.status(), MayPass(response.status()));
  parts_[part].reply = *std::move(response);
  if (StandsStill()) return OnStandsStill();
  if (!parts_[part].reply.done()) return Ask(part);
  parts_[part].done = true;
  if (!std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.done; })) return;
  const absl::Status status = Commit();
  End(status, absl::IsAborted(status));
}

// ---- committing ---------------------------------------------------------------------------------

absl::Status CheckpointTask::FillTable(size_t position) {
  const v1::Table& table = tables_[position];
  v1::CheckpointTable* out = manifest_.add_tables();
  *out->mutable_spec() = table.spec();
  out->set_id(table.id());
  const int partitions = view_.partitions_size();
  std::vector<bool> seen(static_cast<size_t>(partitions));
  uint64_t changes = 0;
  for (int p = 0; p < partitions; ++p) {
    out->add_partition_versions(0);
    out->add_partition_applies(0);
  }
  for (const Part& part : parts_) {
    for (const v1::WaitCheckpointResponse::Part& reported : part.reply.parts()) {
      if (reported.table() != table.id()) continue;
      const auto p = static_cast<int>(reported.partition());
      // A partition that moved between two shards' answers.
      if (p >= partitions || seen[reported.partition()]) {
        return absl::AbortedError(absl::StrCat("partition ", reported.partition(), " of table '",
                                               table.spec().name(), "' was saved twice"));
      }
      seen[reported.partition()] = true;
      out->set_partition_versions(p, reported.version());
      out->set_partition_applies(p, reported.applies());
      out->set_rows(out->rows() + reported.rows());
      // A change that some partitions do not have yet was not acknowledged: it may be contained.
      if (reported.optimizer_changes() > changes) {
        changes = reported.optimizer_changes();
        *out->mutable_spec()->mutable_optimizer() = reported.optimizer();
      }
      // Its server did not know the changes since the base.
      const bool whole = manifest_.has_base() && table.spec().dim() > 0 && !reported.incremental();
      if (whole) out->add_whole_partitions(reported.partition());
    }
  }
  std::sort(out->mutable_whole_partitions()->begin(), out->mutable_whole_partitions()->end());
  if (table.spec().consistency() == v1::CONSISTENCY_SYNC) {
    // The servers count from where the table began.
    out->set_steps(table.restored_steps() + choice_.steps()[position]);
    manifest_.set_step(std::max(manifest_.step(), out->steps()));
  }
  const DenseLayout layout = LayoutOf(table.spec());
  const uint32_t chunks = table.spec().dim() > 0 ? 0 : layout.chunks();
  for (int p = 0; p < partitions; ++p) {
    const auto partition = static_cast<uint32_t>(p);
    const bool has =
        table.spec().dim() > 0 ||
        ChunksInPartition(table.id(), chunks, partition, static_cast<uint32_t>(partitions)) > 0;
    if (!has || seen[partition]) continue;
    return absl::AbortedError(absl::StrCat("partition ", p, " of table '", table.spec().name(),
                                           "' (", position, ") was saved by nobody"));
  }
  return absl::OkStatus();
}

// The subject, author and time of the checkpoint.
v1::CheckpointManifest CheckpointTask::Heading() const {
  v1::CheckpointManifest manifest;
  manifest.set_written_by(options_.written_by);
  if (options_.time) manifest.set_time(options_.time());
  manifest.set_cluster_id(view_.cluster_id());
  manifest.set_job(job_);
  manifest.set_partitions(static_cast<uint32_t>(view_.partitions_size()));
  return manifest;
}

absl::Status CheckpointTask::FillManifest() {
  manifest_ = Heading();
  if (options_.full_every > 1) manifest_.set_id(save_);
  // Shards save a table whole if they do not remember its changes: then there may be no base at
  // all.
  const bool changes_only = std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return std::any_of(
        part.reply.parts().begin(), part.reply.parts().end(),
        [](const v1::WaitCheckpointResponse::Part& reported) { return reported.incremental(); });
  });
  if (changes_only) {
    manifest_.mutable_base()->set_name(base_->name);
    manifest_.mutable_base()->set_checksum(base_->checksum);
  }
  manifest_.set_duration_ms(
      static_cast<uint64_t>((clock_->NowNanos() - began_ns_) / kNanosPerMilli));
  for (size_t t = 0; t < tables_.size(); ++t) {
    absl::Status status = FillTable(t);
    if (!status.ok()) return status;
  }
  for (const Part& part : parts_) manifest_.mutable_files()->MergeFrom(part.reply.files());
  const std::string index = checkpoint::IndexText(manifest_);
  if (index.empty()) return absl::OkStatus();
  auto file = checkpoint::WritePlainFile(disk_, path_, checkpoint::kIndexName, index);
  if (!file.ok()) return file.status();
  *manifest_.add_files() = *std::move(file);
  return absl::OkStatus();
}

absl::Status CheckpointTask::Commit() {
  if (absl::Status status = FillManifest(); !status.ok()) return status;
  auto name = directory_->Commit(manifest_);
  if (!name.ok()) return name.status();
  name_ = *std::move(name);
  return absl::OkStatus();
}

// ---- the end ------------------------------------------------------------------------------------

void CheckpointTask::End(absl::Status status, bool again) {
  if (state_ == State::kEnding || state_ == State::kDone) return;
  state_ = State::kEnding;
  ++call_;
  status_ = std::move(status);
  // Another step is no new try.
  again_ = again && !cancelled_ && (status_.ok() ? name_.empty() : ++tries_ < options_.tries);
  for (Part& part : parts_) part.asking = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].begun) continue;
    v1::EndCheckpointRequest request;
    request.set_server_incarnation(parts_[i].at.server);
    request.set_shard(parts_[i].at.shard);
    request.set_checkpoint(save_);
    request.set_committed(!name_.empty());
    parts_[i].asking = true;
    // It gives up by itself if this does not arrive.
    Call<v1::EndCheckpointResponse>(
        control_, parts_[i].at.address, "/verbena.v1.Shard/EndCheckpoint", request,
        absl::Milliseconds(kShardCallMillis), [this, i, call = call_, alive = alive_](auto) {
          if (*alive && call == call_) OnEnded(i);
        });
  }
  Finish();
}

void CheckpointTask::OnEnded(size_t part) {
  parts_[part].asking = false;
  parts_[part].begun = false;
  Finish();
}

void CheckpointTask::Finish() {
  if (std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.asking; })) return;
  if (again_) {
    state_ = State::kPausing;
    resume_ns_ = clock_->NowNanos() + (status_.ok() ? 0 : kCheckpointPauseNanos << tries_);
    return;
  }
  state_ = State::kDone;
  if (name_.empty() && status_.ok()) status_ = absl::CancelledError("the save was interrupted");
  if (name_.empty() && directory_ != nullptr && !path_.empty()) (void)directory_->Abandon();
  directory_.reset();
}

void CheckpointTask::Cancel() {
  if (state_ == State::kDone) return;
  cancelled_ = true;
  if (state_ == State::kPausing) {
    again_ = false;
    status_ = absl::CancelledError("the save was interrupted");
    return Finish();
  }
  if (state_ == State::kEnding) {
    if (again_) status_ = absl::CancelledError("the save was interrupted");
    again_ = false;
    return;
  }
  End(absl::CancelledError("the save was interrupted"), false);
}

// ---- time ---------------------------------------------------------------------------------------

bool CheckpointTask::RunOnce() {
  if (state_ == State::kNew) {
    began_ns_ = clock_->NowNanos();
    AskView();
    return true;
  }
  if (state_ == State::kPausing && resume_ns_ <= clock_->NowNanos()) {
    AskView();
    return true;
  }
  return false;
}

int64_t CheckpointTask::NextTimerNanos() const {
  if (state_ == State::kNew) return 0;
  return state_ == State::kPausing ? resume_ns_ : kNever;
}

CheckpointTaskProgress CheckpointTask::progress() const {
  CheckpointTaskProgress progress;
  progress.job = job_;
  for (const uint64_t step : choice_.steps()) progress.step = std::max(progress.step, step);
  for (const Part& part : parts_) {
    progress.written_bytes += part.reply.written_bytes();
    progress.waiting += part.reply.waiting();
  }
  for (const v1::Table& table : tables_) {
    if (table.spec().dim() > 0) continue;
    for (const checkpoint::ArraySpec& array : checkpoint::DenseArrays(table.spec())) {
      progress.total_bytes += array.elements * (array.dtype == "U64"   ? 8
                                                : array.dtype == "F32" ? 4
                                                                       : 2);
    }
  }
  switch (state_) {
    case State::kWriting:
      progress.doing = progress.waiting > 0 ? "waiting for the step" : "writing";
      break;
    case State::kPausing:
      progress.doing = "trying again";
      progress.failure = std::string(status_.message());
      progress.pause_nanos = std::max<int64_t>(0, resume_ns_ - clock_->NowNanos());
      break;
    case State::kEnding:
      progress.doing = "ending";
      break;
    case State::kDone:
      progress.doing = "done";
      break;
    default:
      progress.doing = "beginning";
      break;
  }
  return progress;
}

}  // namespace verbena::server
