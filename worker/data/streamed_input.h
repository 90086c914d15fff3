// Examples of indexed files, read as they are needed, in bounded memory.
//
// Sets that fit into the memory given are kept whole and shuffled whole. Other sets are trained in
// an order by windows (input_order.h) that fit, and a thread reads blocks ahead.
//
// **Thread safety**: one thread per set.
#ifndef VERBENA_WORKER_DATA_STREAMED_INPUT_H_
#define VERBENA_WORKER_DATA_STREAMED_INPUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/byte_set.h"
#include "worker/data/example_set.h"
#include "worker/data/input_parts.h"

namespace verbena::worker {

// Bytes of a block that go well with so much memory for examples.
uint64_t BlockBytesFor(uint64_t memory);

// How examples are ordered that take so many bytes in memory, all together.
InputOrder OrderFor(uint64_t examples, uint64_t bytes, uint64_t memory);

// A part that fits into `memory` is read at once: INVALID_ARGUMENT names the first line that holds
// no example. `max_index` is for libsvm.
absl::StatusOr<ExampleSet> StreamExamples(const InputPart& part, uint64_t memory,
                                          uint64_t max_index);
absl::StatusOr<ByteSet> StreamBytes(const InputPart& part, uint64_t memory);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_STREAMED_INPUT_H_
