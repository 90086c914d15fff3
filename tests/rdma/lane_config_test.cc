// Sizes of a lane: the formulas derived from them, and the sizes that are refused.
#include "rdma/lane/lane_config.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("lane configuration: formulas and limits") {
  const LaneConfig config;  // the defaults
  CHECK(config.Validate().ok());
  CHECK(config.ring_bytes() == 64 * 4096 + 4 * (4096 + 262144));
  CHECK(config.mailbox_bytes() == 65 * 192);
  CHECK(config.worker_receives() == 64 + 68 + 2);
  CHECK(config.shard_receives() == 68);
  CHECK(config.worker_sends() == 68 + 1);
  CHECK(config.shard_sends() == 2 * 64 + 68 + 1);
  CHECK(config.shard_memory_bytes() == config.ring_bytes() + 2 * 64 * 192 + 64);
  CHECK(config.worker_memory_bytes() == config.mailbox_bytes() + 68 * 4096);

  const auto refused = [](std::function<void(LaneConfig*)> change) {
    LaneConfig bad;
    change(&bad);
    return Message(bad.Validate());
  };
  CHECK_THAT(refused([](LaneConfig* c) { c->small_slots = 0; }), Contains("small_slots is 0"));
  CHECK_THAT(refused([](LaneConfig* c) { c->large_slots = 193; }),
             Contains("large_slots is 193; allowed: 0..192 beside 64 small slots"));
  CHECK_THAT(refused([](LaneConfig* c) { c->small_slot_bytes = 4100; }),
             Contains("small_slot_bytes is 4100; allowed: a multiple of 64 in 4096.."));
  CHECK_THAT(refused([](LaneConfig* c) { c->large_slot_bytes = 2048; }),
             Contains("large_slot_bytes is 2048"));
  CHECK_THAT(refused([](LaneConfig* c) { c->operations = 65537; }),
             Contains("operations is 65537; allowed: 1..65536"));
}

}  // namespace
}  // namespace verbena::rdma
