#include "worker/job_progress.h"

#include <algorithm>
#include <cmath>

namespace verbena::worker {
namespace {

// Integers below 2^24 are exact in f32, and so are their differences.
constexpr int kDigitBits = 21;

}  // namespace

Tensor JobProgress::StepsTensor(uint64_t workers) {
  return {.name = "steps", .shape = {workers, kRow}, .counter = true};
}

Tensor JobProgress::StopTensor() { return {.name = "stop", .shape = {kDigits}, .counter = true}; }

JobProgress::JobProgress(ParameterStore* store, const JobProgressOptions& options)
    : store_(*store), options_(options) {}

void JobProgress::Write(uint64_t number, float* digits) {
  for (size_t i = 0; i < kDigits; ++i) {
    digits[i] = static_cast<float>(number >> (i * kDigitBits) & ((1 << kDigitBits) - 1));
  }
}

uint64_t JobProgress::Read(const float* digits) {
  uint64_t number = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    number += static_cast<uint64_t>(std::max(0L, std::lround(digits[i]))) << (i * kDigitBits);
  }
  return number;
}

const float* JobProgress::Pulled(size_t tensor) const {
  return store_.parameters() + store_.layout().offset(tensor);
}

float* JobProgress::Gradient(size_t tensor) const {
  return store_.gradient() + store_.layout().offset(tensor);
}

JobProgress::Counts JobProgress::CountsOf(uint64_t rank) const {
  const float* row = Pulled(*options_.steps_tensor) + rank * kRow;
  return {Read(row), Read(row + kDigits), Read(row + 2 * kDigits)};
}

uint64_t JobProgress::Begin() {
  if (options_.stop_tensor) {
    std::copy_n(Pulled(*options_.stop_tensor), kDigits, stop_at_start_.begin());
    stops_run_ = options_.run == 0 ? Read(stop_at_start_.data()) + 1 : options_.run;
  }
  if (!options_.steps_tensor) return 0;
  uint64_t most = 0, shares = 0, rest = 0;
  for (uint64_t rank = 0; rank < options_.workers; ++rank) {
    const Counts counts = CountsOf(rank);
    const bool began = options_.run != 0 && counts.run == options_.run;
    const uint64_t behind = began ? counts.at_start : counts.steps;
    if (rank == options_.rank) counted_ = at_start_ = behind;
    most = std::max(most, behind);
    shares += behind / options_.workers;
    rest += behind % options_.workers;
  }
  std::copy_n(Pulled(*options_.steps_tensor) + options_.rank * kRow, kRow, row_.begin());
  return options_.together ? most : shares + rest / options_.workers;
}

void JobProgress::Push(bool stop) {
  if (options_.steps_tensor) {
    Row next = {};
    Write(++counted_, next.data());
    if (options_.run != 0) {
      Write(at_start_, next.data() + kDigits);
      Write(options_.run, next.data() + 2 * kDigits);
    }
    float* gradient = Gradient(*options_.steps_tensor);
    std::fill_n(gradient, options_.workers * kRow, 0.0f);
    for (size_t i = 0; i < kRow; ++i) gradient[options_.rank * kRow + i] = row_[i] - next[i];
    row_ = next;
  }
  if (!options_.stop_tensor) return;
  float* gradient = Gradient(*options_.stop_tensor);
  std::fill_n(gradient, kDigits, 0.0f);
  if (!stop || said_) return;
  said_ = true;
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
