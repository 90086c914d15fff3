// Control calls: repeated until they are answered, and no longer than their deadline.
#include "client/core/calls.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <utility>

#include "proto/control/standby.h"
#include "proto/control/unproved_state.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now; }
  int64_t now = kSecond;
};

TEST_CASE("a call reaches a peer that answers only shortly before the deadline") {
  for (const int64_t timeout : {kSecond / 5, kSecond, 3 * kSecond, 60 * kSecond}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      ManualClock clock;
      FakeControl control(&clock);
      Random random(seed);
      client::Calls calls(&control, &clock, &random);
      const int64_t start = clock.now, deadline = start + timeout;
      int64_t up_at = deadline - timeout / 10;
      control.Serve("Get", [&](const auto&, const auto&, auto*, int64_t) {
        return std::optional<absl::Status>(
            clock.now >= up_at ? absl::OkStatus() : absl::UnavailableError("nobody listens"));
      });
      for (const bool ever : {true, false}) {
        if (!ever) up_at = INT64_MAX;
        clock.now = start;
        std::optional<absl::Status> ended;
        calls.Start<v1::GetViewResponse>("host:1", "Get", v1::GetViewRequest(), deadline,
                                         [&](const auto& answer) { ended = answer.status(); });
        while (!ended) {
          const bool worked = control.RunOnce() | calls.RunOnce(clock.now);
          if (!worked) clock.now = calls.NextTimerNanos();
        }
        INFO("timeout " << timeout << ", seed " << seed << ": " << *ended);
        CHECK(ended->ok() == ever);
        CHECK(clock.now <= deadline);
        if (!ever) CHECK(clock.now > deadline - kSecond / 50);
      }
    }
  }
}

TEST_CASE("a refusal that may pass is waited for until the deadline, and is then the answer") {
  for (const bool ever : {true, false}) {
    ManualClock clock;
    FakeControl control(&clock);
    Random random(1);
    client::Calls calls(&control, &clock, &random);
    const int64_t passes_at = clock.now + 8 * kSecond, deadline = clock.now + 30 * kSecond;
    control.Serve("Get", [&](const auto&, const auto&, auto*, int64_t) {
      return std::optional<absl::Status>(ever && clock.now >= passes_at
                                             ? absl::OkStatus()
                                             : absl::AlreadyExistsError("it is held"));
    });
    std::optional<absl::Status> ended;
    calls.Start<v1::GetViewResponse>(
        "host:1", "Get", v1::GetViewRequest(), deadline,
        [&](const auto& answer) { ended = answer.status(); },
        [](const absl::Status& status) { return absl::IsAlreadyExists(status); });
    while (!ended) {
      const bool worked = control.RunOnce() | calls.RunOnce(clock.now);
      if (!worked) clock.now = calls.NextTimerNanos();
    }
    CHECK(*ended == (ever ? absl::OkStatus() : absl::AlreadyExistsError("it is held")));
    CHECK(clock.now >= (ever ? passes_at : deadline - kSecond));
    CHECK(clock.now <= deadline);
  }
}

// The longest pause between two attempts in the course of ten seconds in which all get `answer`.
int64_t LongestPause(const absl::Status& answer) {
  ManualClock clock;
  FakeControl control(&clock);
  Random random(1);
  client::Calls calls(&control, &clock, &random);
  int64_t last = clock.now, longest = 0;
  control.Serve("Get", [&](const auto&, const auto&, auto*, int64_t) {
    longest = std::max(longest, clock.now - std::exchange(last, clock.now));
    return std::optional<absl::Status>(answer);
  });
  bool ended = false;
  calls.Start<v1::GetViewResponse>("host:1,host:2", "Get", v1::GetViewRequest(),
                                   clock.now + 60 * kSecond, [&](const auto&) { ended = true; });
  const int64_t end = clock.now + 10 * kSecond;
  while (clock.now < end) {
    if (!(control.RunOnce() | calls.RunOnce(clock.now))) clock.now = calls.NextTimerNanos();
  }
  CHECK_FALSE(ended);
  return longest;
}

TEST_CASE("regression: a call does not wait long for the next attempt while a leader is elected") {
  CHECK(LongestPause(absl::UnavailableError("nobody listens")) > kSecond / 2);
  CHECK(LongestPause(StandbyError("no coordinator leads", "")) <= kSecond / 5);
  CHECK(LongestPause(StandbyError("the leader is host:2", "host:2")) <= kSecond / 5);
  CHECK(LongestPause(UnprovedState("loaded 10 ms ago")) <= kSecond / 5);
}

}  // namespace
}  // namespace verbena::test
