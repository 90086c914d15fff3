// The token bucket of planned moves.
#include "server/replication/move_pace.h"

#include <catch2/catch.hpp>

namespace verbena::server {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("move pace: no more bytes than the rate over any time, and all of them when it is used") {
  const uint64_t rate = GENERATE(1, 1000, 1 << 30);
  const int64_t record = GENERATE(1, 700, 300'000);
  CAPTURE(rate, record);
  MovePace pace;
  int64_t now = 5 * kSecond;
  pace.SetRate(rate, now);
  CHECK(pace.Refill(now) == 0);
  const int64_t begun = now;
  double sent = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    const int64_t next = pace.NextNanos();
    REQUIRE(next > now);
    now = next;
    const int64_t allowed = pace.Refill(now);
    REQUIRE(allowed > 0);
    const int64_t bytes = (allowed + record - 1) / record * record;
    sent += static_cast<double>(bytes);
    pace.Left(allowed, allowed - bytes);
    const double most = static_cast<double>(rate) * static_cast<double>(now - begun) / 1e9;
    REQUIRE(sent <= most + static_cast<double>(record));
    REQUIRE(sent >= most - 1 - 0.1 * static_cast<double>(rate));
  }
}

TEST_CASE("move pace: unused time makes no burst, and no limit is none") {
  MovePace pace;
  CHECK(pace.Refill(kSecond) == MovePace::kNoLimit);
  CHECK(pace.NextNanos() == kNever);
  pace.SetRate(1'000'000, kSecond);
  CHECK(pace.Refill(1000 * kSecond) == 100'000);
  pace.SetRate(0, kSecond);
  CHECK(pace.Refill(1001 * kSecond) == MovePace::kNoLimit);
}

TEST_CASE("move pace: the shards of a server share its rate") {
  v1::ClusterView view;
  v1::Server* const server = view.add_servers();
  server->set_incarnation(7);
  server->set_shards(4);
  CHECK(MoveRateOf(view, 7) == 0);
  view.set_move_rate(1000);
  CHECK(MoveRateOf(view, 7) == 250);
  view.set_move_rate(2);
  CHECK(MoveRateOf(view, 7) == 1);
}

}  // namespace
}  // namespace verbena::server
