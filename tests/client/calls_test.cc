// Control calls: repeated until they are answered, and no longer than their deadline.
#include "client/core/calls.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>

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

}  // namespace
}  // namespace verbena::test
