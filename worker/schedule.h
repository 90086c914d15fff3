// Which examples belong to which step and rank.
//
// Every epoch is a fresh shuffle of all examples, cut into global batches; a batch is split evenly
// by rank. So the global batches are the same for any number of workers.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_SCHEDULE_H_
#define VERBENA_WORKER_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/random.h"

namespace verbena::worker {

class Schedule {
 public:
  // examples, batch and workers > 0; examples < 2^32.
  Schedule(uint64_t examples, uint64_t batch, uint64_t workers, uint64_t rank, uint64_t seed)
      : batch_(std::min(batch, examples)), workers_(workers), rank_(rank), seed_(seed) {
    order_.resize(examples);
  }

  uint64_t steps_per_epoch() const { return (order_.size() + batch_ - 1) / batch_; }

  struct Share {
    absl::Span<const uint32_t> ids;  // of this rank; valid until the next call
    uint64_t batch = 0;              // examples of all ranks
  };
  Share Step(uint64_t step) {
    Shuffle(step / steps_per_epoch());
    const uint64_t begin = step % steps_per_epoch() * batch_;
    const uint64_t size = std::min<uint64_t>(batch_, order_.size() - begin);
    const uint64_t first = begin + size * rank_ / workers_;
    const uint64_t last = begin + size * (rank_ + 1) / workers_;
    return {absl::MakeConstSpan(order_).subspan(first, last - first), size};
  }

 private:
  void Shuffle(uint64_t epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    // From the identity, so that an epoch's order does not depend on the ones visited before.
    std::iota(order_.begin(), order_.end(), uint32_t{0});
    Random random(seed_ * 0xd1342543de82ef95u + epoch);
    for (uint64_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
  }

  uint64_t batch_, workers_, rank_, seed_;
  uint64_t epoch_ = UINT64_MAX;
  std::vector<uint32_t> order_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_SCHEDULE_H_
