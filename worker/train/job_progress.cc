#include "worker/train/job_progress.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::worker {
namespace {

// Integers below 2^24 are exact in f32, and so are their differences.
constexpr int kDigitBits = 21;
constexpr uint64_t kFewestRanks = 64;

// Steps to train stand in digits of the settings that have room: each is a digit of the row, the
// first bit that its own number leaves, and the number of bits that it takes.
struct Part {
  size_t digit;
  int from, bits;
};
constexpr Part kStepsToTrain[] = {{1, 5, 16}, {5, 1, 20}, {8, 17, 4}};
constexpr uint64_t Ones(int bits) { return (uint64_t{1} << bits) - 1; }

}  // namespace

uint64_t JobProgress::Ranks(uint64_t workers) {
  return std::max(kFewestRanks, std::bit_ceil(workers));
}

Tensor JobProgress::StepsTensor(uint64_t workers) {
  return {.name = "steps", .shape = {Ranks(workers) + 1, kRow}, .counter = true};
}

Tensor JobProgress::StopTensor() { return {.name = "stop", .shape = {kDigits}, .counter = true}; }

JobProgress::JobProgress(ParameterStore* store, const JobProgressOptions& options)
    : store_(*store), options_(options) {}

void JobProgress::Write(uint64_t number, float* digits, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t digit = number >> (i * kDigitBits) & ((1 << kDigitBits) - 1);
    digits[i] = static_cast<float>(digit);
  }
}

uint64_t JobProgress::Read(const float* digits, size_t count) {
  uint64_t number = 0;
  for (size_t i = 0; i < count; ++i) {
    number += static_cast<uint64_t>(std::max(0L, std::lround(digits[i]))) << (i * kDigitBits);
  }
  return number;
}

JobProgress::Row JobProgress::RowOf(const Counts& counts) {
  Row row = {};
  Write(counts.made, &row[0]);
  Write(counts.at_start, &row[3]);
  Write(counts.run, &row[6]);
  Write(counts.number, &row[9], 1);
  Write(counts.unequal.lacks, &row[10], 1);
  const auto ahead = static_cast<uint64_t>(counts.unequal.ahead) & kAheadMask;
  Write(counts.workers | counts.flags | ahead << kAheadShift, &row[11], 1);
  return row;
}

JobProgress::Counts JobProgress::CountsOf(uint64_t rank) const {
  const float* row = PulledRow(rank);
  const auto ahead = static_cast<int64_t>(Read(row + 11, 1) >> kAheadShift);
  return {.made = Read(row),
          .at_start = Read(row + 3),
          .run = Read(row + 6),
          .number = Read(row + 9, 1),
          .workers = Read(row + 11, 1) & kWorkersMask,
          .flags = Read(row + 11, 1) & kFlagsMask,
          .unequal = {.ahead = ahead > kMostAhead ? ahead - (kMostAhead + 1) * 2 : ahead,
                      .lacks = Read(row + 10, 1)}};
}

JobProgress::Row JobProgress::RowOf(const ResumedSettings& settings) {
  Row row = {};
  Write(settings.batch, &row[0], 2);
  Write(settings.seed, &row[2], 4);
  Write(settings.data_bytes, &row[6]);
  Write(settings.data_hash, &row[9]);
  uint64_t steps = settings.steps;
  for (const Part& part : kStepsToTrain) {
    row[part.digit] += static_cast<float>((steps & Ones(part.bits)) << part.from);
    steps >>= part.bits;
  }
  return row;
}

std::optional<ResumedSettings> JobProgress::SettingsKept() const {
  Row row;
  std::copy_n(PulledRow(Ranks(options_.workers)), kRow, row.begin());
  uint64_t steps = 0;
  int shift = 0;
  for (const Part& part : kStepsToTrain) {
    const uint64_t digit = Read(&row[part.digit], 1);
    steps |= digit >> part.from << shift;
    shift += part.bits;
    row[part.digit] = static_cast<float>(digit & Ones(part.from));
  }
  const ResumedSettings kept = {.batch = Read(&row[0], 2),
                                .seed = Read(&row[2], 4),
                                .data_bytes = Read(&row[6]),
                                .data_hash = Read(&row[9]),
                                .steps = steps};
  if (kept.batch == 0) return std::nullopt;
  return kept;
}

const float* JobProgress::Pulled(size_t tensor) const {
  return store_.parameters() + store_.layout().offset(tensor);
}

const float* JobProgress::PulledRow(uint64_t row) const {
  return Pulled(*options_.steps_tensor) + row * kRow;
}

float* JobProgress::Gradient(size_t tensor) const {
  return store_.gradient() + store_.layout().offset(tensor);
}

uint64_t JobProgress::StepsOf(const Counts& run) const {
  uint64_t most = 0, shares = 0, rest = 0;
  for (uint64_t rank = 0; rank < Ranks(options_.workers); ++rank) {
    const Counts counts = CountsOf(rank);
    if (counts.number != run.number) continue;
    most = std::max(most, counts.made);
    shares += counts.made / run.workers;
    rest += counts.made % run.workers;
  }
  return run.at_start + (options_.together ? most : shares + rest / run.workers);
}

template <typename F>
void JobProgress::ForRun(F&& use) const {
  for (uint64_t rank = 0; rank < Ranks(options_.workers); ++rank) {
    const Counts counts = CountsOf(rank);
    if (counts.number == counted_.number && counts.run == counted_.run) use(rank, counts);
  }
}

uint64_t JobProgress::Made() const {
  uint64_t most = 0;
  ForRun([&](uint64_t, const Counts& counts) { most = std::max(most, counts.made); });
  return most;
}

uint64_t JobProgress::steps() const {
  return ((counted_.flags & kResumes) != 0 ? counted_.at_start : 0) + Made();
}

std::vector<uint64_t> JobProgress::members() const {
  std::vector<uint64_t> members;
  bool any = false;
  const uint64_t most = Made();
  ForRun([&](uint64_t rank, const Counts& counts) {
    any = true;
    if (counts.made == most && (counts.flags & kLeaves) == 0) members.push_back(rank);
  });
  if (any) return members;
  for (uint64_t rank = 0; rank < options_.begins_with; ++rank) members.push_back(rank);
  return members;
}

bool JobProgress::drained() const {
  bool drained = false;
  if (!options_.steps_tensor) return false;
  ForRun([&](uint64_t, const Counts& counts) { drained |= (counts.flags & kDrains) != 0; });
  return drained;
}

uint64_t JobProgress::Begin() {
  if (options_.stop_tensor) {
    std::copy_n(Pulled(*options_.stop_tensor), kDigits, stop_at_start_.begin());
    stops_run_ = options_.run == 0 ? Read(stop_at_start_.data()) + 1 : options_.run;
  }
  if (!options_.steps_tensor) return 0;
  Counts newest;
  for (uint64_t rank = 0; rank < Ranks(options_.workers); ++rank) {
    const Counts counts = CountsOf(rank);
    if (counts.number > newest.number && counts.workers > 0) newest = counts;
  }
  std::copy_n(PulledRow(options_.rank), kRow, row_.begin());
  std::copy_n(PulledRow(Ranks(options_.workers)), kRow, settings_row_.begin());
  resumed_ = SettingsKept();
  if (options_.run != 0 && newest.run == options_.run) {
    // Another worker of this run has begun, or this one had before it was started again.
    const Counts own = CountsOf(options_.rank);
    counted_ = newest;
    counted_.made = own.number == newest.number ? own.made : 0;
    counted_.flags = newest.flags & kResumes;
    joined_ = options_.begins_with > 0;
  } else {
    begins_ = true;
    counted_ = {.at_start = newest.number == 0 ? 0 : StepsOf(newest),
                .run = options_.run,
                .number = newest.number + 1,
                .workers = options_.workers,
                .flags = options_.resume && options_.begins_with > 0 ? kResumes : 0,
                .unequal = newest.unequal};
  }
  return counted_.at_start;
}

std::string JobProgress::TakeUnequal(absl::Span<const AppliedSteps> applied) {
  if (!options_.steps_tensor || !options_.together || applied.empty() || !begins_) return "";
  const size_t counter = *options_.steps_tensor;
  uint64_t most = 0;
  for (size_t i = 0; i < counter; ++i) most = std::max(most, applied[i].greatest);
  // A part that was lost and reset has taken far fewer, and lacks no step of a run.
  const auto lack = [most](uint64_t steps) { return most - steps <= kMostLack ? most - steps : 0; };
  const Unequal before = counted_.unequal;
  const auto ahead = static_cast<int64_t>(most) - static_cast<int64_t>(applied[counter].greatest);
  counted_.unequal = {.ahead = std::clamp(ahead, -kMostAhead - 1, kMostAhead)};
  std::vector<std::string> lacking;
  for (size_t i = 0; i < counter; ++i) {
    const uint64_t lacks = lack(applied[i].least) + lack(applied[i].greatest);
    counted_.unequal.lacks = std::min(counted_.unequal.lacks + lacks, kMostLacks);
    if (lacks > 0 || counted_.unequal.ahead + 1 == before.ahead) {
      lacking.push_back(store_.layout()[i].name);
    }
  }
  // Before the first run parameters may have been assigned.
  if (counted_.number == 1 || counted_.unequal == before) return "";
  if (counted_.unequal.ahead == before.ahead + 1) {
    ++counted_.at_start;
    lacking.push_back(store_.layout()[counter].name);
  } else if (counted_.unequal.lacks == before.lacks && counted_.unequal.ahead + 1 != before.ahead) {
    return "";  // an operator has assigned tables since
  }
  return absl::StrCat("the run before ended inside step ", counted_.at_start, ", which ",
                      lacking.size() == 1 ? "table " : "tables ", absl::StrJoin(lacking, ", "),
                      lacking.size() == 1 ? " lacks" : " lack");
}

absl::Status JobProgress::CheckResumed() const {
  if (!resumed_) return absl::OkStatus();
  const auto differs = [this](const char* option, uint64_t kept, uint64_t given) {
    if (joined_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--max-workers: ", option, " is ", given, ", and the run that this worker joins has ",
          kept, "; give all workers of a job the same options"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "--resume: ", option, " is ", given, ", and the run that is resumed had ", kept,
        ", so its examples would not go on where it was; give ", option, " ", kept,
        ", or train these tables on without --resume, which counts steps from 0"));
  };
  const ResumedSettings& given = options_.settings;
  if (given.batch != 0 && given.batch != resumed_->batch) {
    return differs("--batch", resumed_->batch, given.batch);
  }
  if (given.batch != 0 && given.seed != resumed_->seed) {
    return differs("--seed", resumed_->seed, given.seed);
  }
  if (joined_ && given.steps != 0 && resumed_->steps != 0 && given.steps != resumed_->steps) {
    return differs("--steps (or the steps of --epochs)", resumed_->steps, given.steps);
  }
  return absl::OkStatus();
}

std::string JobProgress::DataDifference() const {
  const ResumedSettings& given = options_.settings;
  if (!resumed_ || resumed_->data_bytes == 0 || given.data_bytes == 0) return "";
  if (resumed_->data_bytes != given.data_bytes) {
    return absl::StrCat("--data has ", given.data_bytes, " bytes, and the run that is resumed had ",
                        resumed_->data_bytes);
  }
  if (resumed_->data_hash == given.data_hash) return "";
  return absl::StrCat(
      "--data has other contents, or --input-memory gives another order, than the run that is "
      "resumed had (checksums ",
      absl::Hex(given.data_hash, absl::kZeroPad16), " and ",
      absl::Hex(resumed_->data_hash, absl::kZeroPad16), ")");
}

void JobProgress::Push(const Marks& marks) {
  if (options_.steps_tensor) {
    float* gradient = Gradient(*options_.steps_tensor);
    std::fill_n(gradient, (Ranks(options_.workers) + 1) * kRow, 0.0f);
    const auto push = [&](uint64_t row, const Row& next, Row* pushed) {
      for (size_t i = 0; i < kRow; ++i) gradient[row * kRow + i] = (*pushed)[i] - next[i];
      *pushed = next;
    };
    const bool elastic = options_.begins_with > 0;
    // Without a batch: see members().
    counted_.made = !elastic ? counted_.made + 1 : Made() + (members().empty() ? 0 : 1);
    Counts marked = counted_;
    marked.flags |= (marks.leaves ? kLeaves : 0) | (marks.drains ? kDrains : 0);
    push(options_.rank, RowOf(marked), &row_);
    const bool settles = elastic ? marks.settles : options_.rank == 0;
    if (settles && options_.settings.batch != 0) {
      // Of an elastic job, another worker has perhaps written it.
      if (elastic) std::copy_n(PulledRow(Ranks(options_.workers)), kRow, settings_row_.begin());
      push(Ranks(options_.workers), RowOf(options_.settings), &settings_row_);
    }
  }
  if (!options_.stop_tensor) return;
  float* gradient = Gradient(*options_.stop_tensor);
  std::fill_n(gradient, kDigits, 0.0f);
  if (!marks.stop || asked_) return;
  asked_ = true;
  std::array<float, kDigits> word;
  Write(stops_run_, word.data());
  for (size_t i = 0; i < kDigits; ++i) gradient[i] = stop_at_start_[i] - word[i];
}

bool JobProgress::stopped() const {
  if (!options_.stop_tensor) return false;
  const float* now = Pulled(*options_.stop_tensor);
  return Read(now) == stops_run_ || !std::equal(now, now + kDigits, stop_at_start_.begin());
}

}  // namespace verbena::worker
