// Which examples belong to which step and rank.
//
// Every epoch visits all examples once, in an order of its own, cut into global batches; a batch is
// split evenly by rank. So the global batches are the same for any number of workers, also if that
// changes between two steps.
//
// Where a window holds all examples (2^32 at most), an epoch is a shuffle of them. Else the
// examples are cut into streams, every batch takes from each stream in turn (so that a rank reads
// the streams of its part of the batches, not all), and a stream goes through its windows,
// beginning anywhere, each of them shuffled. The first windows of the streams differ in length, so
// that the streams do not come to new windows all at once.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_TRAIN_SCHEDULE_H_
#define VERBENA_WORKER_TRAIN_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/input_order.h"

namespace verbena::worker {

class Schedule {
 public:
  // examples, batch and workers > 0.
  Schedule(uint64_t examples, uint64_t batch, uint64_t workers, uint64_t rank, uint64_t seed,
           const InputOrder& order = {});

  // From the next Step() on, batches are divided among so many workers, of which this is number
  // `rank`. workers > 0.
  void Divide(uint64_t workers, uint64_t rank) {
    workers_ = workers;
    rank_ = rank;
  }

  uint64_t steps_per_epoch() const { return full_batches_ + (last_batch_ > 0 ? 1 : 0); }
  // Whether it goes by windows, so that the next examples lie close together.
  bool windowed() const { return !whole_; }
  // For how many steps the examples should be read ahead: a small part of a window.
  uint64_t steps_ahead() const;

  struct Share {
    absl::Span<const uint64_t> ids;  // of this rank; valid until the next call
    uint64_t batch = 0;              // examples of all ranks
  };
  Share Step(uint64_t step);

 private:
  struct Stream {
    uint64_t first = 0, examples = 0;
    uint64_t a_batch = 0;       // examples in a full batch
    uint64_t first_window = 0;  // length; the others have window_
    // The window whose order this is.
    uint64_t epoch = UINT64_MAX, begin = UINT64_MAX;
    uint64_t rotation = 0;
    std::vector<uint32_t> order;
  };

  // Where stream s begins in a batch of `size`.
  uint64_t BeginIn(uint64_t size, uint64_t s) const { return size * s / streams_.size(); }
  // The example that comes `position`th in the stream's epoch.
  uint64_t At(uint64_t s, uint64_t epoch, uint64_t position);
  void Shuffle(uint64_t s, uint64_t epoch, uint64_t begin, uint64_t length);

  uint64_t batch_, workers_, rank_, seed_;
  uint64_t full_batches_, last_batch_;  // of an epoch; the latter's examples
  bool whole_;                          // one window has all examples
  uint64_t window_;
  std::vector<Stream> streams_;
  std::vector<uint64_t> ids_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_SCHEDULE_H_
