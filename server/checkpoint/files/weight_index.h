// The index of a model in several safetensors files, as Hugging Face's libraries write it
// (model.safetensors.index.json):
//
//     {"metadata": {"total_size": 4096}, "weight_map": {"head.weight":
//     "model-00001-of-00002.safetensors"}}
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. Files that an index names are in its directory: a name is no path.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_WEIGHT_INDEX_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_WEIGHT_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace verbena::checkpoint {

inline constexpr uint64_t kMaxIndexBytes = 100'000'000;  // as a safetensors header may have

// Tensor -> file. Members other than "weight_map" are ignored. DATA_LOSS names `path`, the tensor,
// the problem and the allowed values.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(const std::string& path,
                                                                    std::string_view text);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_WEIGHT_INDEX_H_
