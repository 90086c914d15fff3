#include "tests/cluster/checkpoint_worker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/heap_block.h"

namespace verbena::test {

std::string TableUse::Describe() const {
  return absl::StrCat(process_->host(), ", ", state_->model.spec(table_).name(), " (id ", id_,
                      "), step ", step_, ", phase ", static_cast<int>(phase_),
                      busy_ ? ", busy" : "", ": ", last_.ToString());
}

// Without faults every call has the time that it needs.
int64_t TableUse::Deadline() {
  const int64_t least = state_->options.faults ? 1 * kMilli : 20 * kSecond;
  return process_->At(state_->now() + state_->Between(least, least + 1500 * kMilli));
}

int64_t TableUse::Begin() {
  busy_ = true;
  return Deadline();
}

bool TableUse::End(const absl::Status& status) {
  busy_ = false;
  last_ = status;
  if (status.ok()) return true;
  if (!state_->options.faults) state_->Violation("without faults: " + Describe());
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      state_->said_lost.insert(id_);
      Leave();
      return false;
    case absl::StatusCode::kNotFound:
      if (id_ != 0) Leave();
      return false;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
      ++state_->result.unanswered;
      return false;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      state_->expired = true;
      return false;
    default:
      state_->Violation(Describe());
      return false;
  }
}

void TableUse::Leave() {
  left_ = id_;
  id_ = 0;
  proved_ = 0;
  phase_ = Phase::kOpen;
}

void TableUse::Run() {
  if (busy_ || state_->now() < next_at_) return;
  next_at_ = state_->now() + state_->Between(0, 50 * kMilli);
  switch (phase_) {
    case Phase::kOpen:
      return Open();
    case Phase::kPush:
      return state_->model.sync(table_) ? PushSync() : Push();
    case Phase::kFirstPull:
    case Phase::kPull:
      return Pull();
  }
}

void TableUse::Open() {
  const auto opened = [this](absl::StatusOr<v1::Table> table) {
    if (End(table.status())) Adopt(*table);
  };
  // A worker creates the table only the first time; later a restore creates it.
  if (made_) return core().OpenTable(state_->model.spec(table_).name(), Begin(), opened);
  core().CreateTable(state_->model.spec(table_), Begin(), opened);
}

void TableUse::Adopt(const v1::Table& table) {
  made_ = true;
  if (table.id() == left_) return;  // not replaced yet
  id_ = table.id();
  step_ = 0;
  phase_ = Phase::kFirstPull;
}

std::shared_ptr<rdma::MemoryBlock> TableUse::Block() const {
  return HeapBlock(state_->model.numbers(table_) * sizeof(float));
}

// ---- pushes -------------------------------------------------------------------------------------

// Sync: the push and the end of the step go on by themselves. Only the pull is waited for.
void TableUse::PushSync() {
  const CheckpointModel& model = state_->model;
  const uint64_t step = life().steps + step_;
  auto block = Block();
  auto* values = reinterpret_cast<float*>(block->data());
  const auto ended = [this](absl::Status status) {
    if (!status.ok() && !state_->options.faults) {
      state_->Violation(absl::StrCat("without faults: ", Describe(), ": ", status.ToString()));
    }
  };
  phase_ = Phase::kPull;
  // One that is given up may count as nothing: then the step would not be the reference's.
  const int64_t deadline = process_->At(state_->now() + 1000 * kSecond);
  absl::StatusOr<client::OperationId> pushed;
  if (model.rows(table_)) {
    std::vector<uint64_t> keys;
    uint64_t next = 0;
    for (const size_t key : model.StepKeys(step)) {
      keys.push_back(model.keys()[key]);
      for (uint64_t d = 0; d < 2; ++d) {
        values[next++] = model.Gradient(table_, rank_, step, key * 2 + d);
      }
    }
    pushed = core().PushRows(id_, keys, {block, 0}, deadline, ended);
  } else {
    const uint64_t count = model.numbers(table_);
    for (uint64_t i = 0; i < count; ++i) values[i] = model.Gradient(table_, rank_, step, i);
    pushed = core().Push(id_, {block, 0, 0, count}, deadline, ended);
  }
  if (pushed.ok()) pushed = core().EndStep(id_, deadline, ended);
  if (!pushed.ok()) End(pushed.status());
}

void TableUse::Push() {
  CheckpointModel& model = state_->model;
  const size_t group = model.NextGroup(life(), rank_);
  std::vector<uint64_t> keys;
  for (const size_t key : model.GroupKeys(group)) keys.push_back(model.keys()[key]);
  auto block = Block();
  std::fill_n(reinterpret_cast<float*>(block->data()), model.numbers(table_),
              model.Gradient(table_, rank_, 0, 0));
  const auto ended = [this, id = id_, group](absl::Status status) {
    TableLife& pushed = state_->model.lives().at(id);
    ++(status.ok() ? pushed.acknowledged[group] : pushed.failed)[rank_];
    if (End(status)) phase_ = state_->Chance(0.4) ? Phase::kPull : Phase::kPush;
  };
  ++life().attempted[group][rank_];
  const int64_t deadline = Begin();
  const auto id = model.rows(table_)
                      ? core().PushRows(id_, keys, {block, 0}, deadline, ended)
                      : core().Push(id_, {block, 0, 0, model.numbers(table_)}, deadline, ended);
  if (!id.ok()) return ended(id.status());
  // Goes on by itself; pulls of the other worker wait for it, where they are too far ahead.
  if (model.ssp(table_)) {
    (void)core().EndStep(id_, process_->At(state_->now() + 1000 * kSecond), [](absl::Status) {});
  }
}

// ---- pulls --------------------------------------------------------------------------------------

void TableUse::Pull() {
  const CheckpointModel& model = state_->model;
  auto block = Block();
  // Pushes that were acknowledged to any worker.
  const GroupCounts least = life().acknowledged;
  const auto ended = [this, block, least](absl::Status status) {
    if (!End(status)) return;
    const auto* values = reinterpret_cast<const float*>(block->data());
    Check({values, values + state_->model.numbers(table_)}, least);
  };
  std::optional<uint64_t> version;
  if (model.sync(table_) && phase_ == Phase::kPull) version = step_ + 1;
  const int64_t deadline = Begin();
  const auto id =
      model.rows(table_)
          ? core().Lookup(id_, model.keys(), {block, 0}, version, deadline, ended)
          : core().Pull(id_, {block, 0, 0, model.numbers(table_)}, version, deadline, ended);
  if (!id.ok()) ended(id.status());
}

void TableUse::Check(const TableValues& values, const GroupCounts& least) {
  ++state_->result.pulls;
  if (state_->faults_stopped) ++proved_;
  if (state_->model.sync(table_) && phase_ == Phase::kPull) ++step_;
  const std::string wrong =
      state_->model.Check(life(), values, life().steps + step_, least, /*one_moment=*/false);
  if (!wrong.empty()) state_->Violation(absl::StrCat(process_->host(), " pulled: ", wrong));
  if (phase_ == Phase::kFirstPull && life().restore > 0) ++state_->result.restored_pulls;
  phase_ = Phase::kPush;
}

}  // namespace verbena::test
