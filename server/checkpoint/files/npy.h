// NumPy's .npy files (numpy.lib.format, version 1.0): one array each.
//
// **Thread safety**: one thread an object.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_NPY_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_NPY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {

// The bytes before the array's; empty: NumPy has no such type (bf16, 8-bit floats).
std::string NpyHeader(TensorType type, absl::Span<const uint64_t> shape);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_NPY_H_
