#include "worker/train/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/train/random.h"

namespace verbena::worker {
namespace {

// Blocks that are read ahead are in memory beside the windows in use.
constexpr uint64_t kAheadPartOfWindow = 16;
constexpr uint64_t kMostStepsAhead = 32;
// Places in a window have 32 bits.
constexpr uint64_t kMostInWindow = uint64_t{1} << 32;

}  // namespace

Schedule::Schedule(uint64_t examples, uint64_t batch, uint64_t workers, uint64_t rank,
                   uint64_t seed, const InputOrder& order)
    : batch_(std::min(batch, examples)), workers_(workers), rank_(rank), seed_(seed) {
  full_batches_ = examples / batch_;
  last_batch_ = examples % batch_;
  const uint64_t window = std::clamp<uint64_t>(order.window, 1, kMostInWindow);
  whole_ = window >= examples;
  const uint64_t most_streams = std::max<uint64_t>(order.streams, 1);
  streams_.resize(whole_ ? 1 : std::min(most_streams, batch_));
  // Fewer streams have as much in their windows together.
  window_ = whole_ ? examples : std::min(window * most_streams / streams_.size(), kMostInWindow);
  uint64_t first = 0;
  for (uint64_t s = 0; s < streams_.size(); ++s) {
    Stream& stream = streams_[s];
    stream.first = first;
    stream.a_batch = BeginIn(batch_, s + 1) - BeginIn(batch_, s);
    stream.examples =
        full_batches_ * stream.a_batch + BeginIn(last_batch_, s + 1) - BeginIn(last_batch_, s);
    stream.first_window = whole_ ? window_ : std::max<uint64_t>(BeginIn(window_, s + 1), 1);
    first += stream.examples;
  }
}

uint64_t Schedule::steps_ahead() const {
  const uint64_t a_step = std::max<uint64_t>(streams_[0].a_batch, 1);
  return std::clamp<uint64_t>(window_ / a_step / kAheadPartOfWindow, 1, kMostStepsAhead);
}

Schedule::Share Schedule::Step(uint64_t step) {
  const uint64_t epoch = step / steps_per_epoch();
  const uint64_t number = step % steps_per_epoch();
  const uint64_t size = number < full_batches_ ? batch_ : last_batch_;
  const uint64_t first = size * rank_ / workers_;
  const uint64_t last = size * (rank_ + 1) / workers_;
  ids_.clear();
  uint64_t s = 0;
  for (uint64_t j = first; j < last; ++j) {
    while (BeginIn(size, s + 1) <= j) ++s;
    ids_.push_back(At(s, epoch, number * streams_[s].a_batch + j - BeginIn(size, s)));
  }
  return {ids_, size};
}

uint64_t Schedule::At(uint64_t s, uint64_t epoch, uint64_t position) {
  Stream& stream = streams_[s];
  uint64_t begin = 0;
  uint64_t end = stream.first_window;
  if (position >= end) {
    begin = end + (position - end) / window_ * window_;
    end = begin + window_;
  }
  if (epoch != stream.epoch || begin != stream.begin) {
    Shuffle(s, epoch, begin, std::min(end, stream.examples) - begin);
  }
  const uint64_t place = begin + stream.order[position - begin] + stream.rotation;
  return stream.first + place % stream.examples;
}

void Schedule::Shuffle(uint64_t s, uint64_t epoch, uint64_t begin, uint64_t length) {
  Stream& stream = streams_[s];
  const uint64_t of_epoch = seed_ * 0xd1342543de82ef95u + epoch;
  if (epoch != stream.epoch) {
    stream.rotation = streams_.size() == 1 ? 0 : Random(Mix(of_epoch) + s).Below(stream.examples);
  }
  stream.epoch = epoch;
  stream.begin = begin;
  stream.order.resize(length);
  // From the identity, so that an order does not depend on those made before.
  std::iota(stream.order.begin(), stream.order.end(), uint32_t{0});
  Random random(s == 0 && begin == 0 ? of_epoch : of_epoch ^ Mix(stream.first + begin));
  for (uint64_t i = length; i > 1; --i) {
    std::swap(stream.order[i - 1], stream.order[random.Below(i)]);
  }
}

}  // namespace verbena::worker
