// In which order training visits its examples: how far a shuffle reaches.
//
// **Thread safety**: immutable.
#ifndef VERBENA_WORKER_DATA_INPUT_ORDER_H_
#define VERBENA_WORKER_DATA_INPUT_ORDER_H_

#include <cstdint>

namespace verbena::worker {

// Examples are cut into `streams` parts that are read side by side, and each part into windows
// that are shuffled as a whole. A window that holds all examples makes one stream of them.
struct InputOrder {
  uint64_t streams = 1;
  uint64_t window = UINT64_MAX;  // examples
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_INPUT_ORDER_H_
