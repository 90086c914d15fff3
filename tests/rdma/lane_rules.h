// Shared parts of the tests of a lane's two ends, each against a peer played by the test.
#ifndef VERBENA_TESTS_RDMA_LANE_RULES_H_
#define VERBENA_TESTS_RDMA_LANE_RULES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rdma/lane/lane_config.h"

namespace verbena::rdma {

inline constexpr uint32_t kLane = 5;
inline constexpr uint32_t kGeneration = 0x12345;  // more than fits an immediate
inline constexpr uint64_t kIncarnation = 77;

inline LaneConfig SmallConfig() {
  LaneConfig config;
  config.small_slots = 2;
  config.large_slots = 1;
  config.large_slot_bytes = 4096 + 65536;
  config.operations = 4;
  return config;
}

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_LANE_RULES_H_
