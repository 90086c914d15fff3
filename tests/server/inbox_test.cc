// Closures from many threads reach an owner that sleeps, and those of many callers in turn.
#include "server/executor/inbox.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/executor/fair_queue.h"

namespace verbena::server {
namespace {

class StepClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_; }
  void Advance(int64_t ns) { now_ += ns; }

 private:
  int64_t now_ = 0;
};

TEST_CASE("closures run once, in order, and may post") {
  Inbox inbox;
  std::vector<int> ran;
  REQUIRE_FALSE(inbox.RunOnce());
  inbox.Post([&] {
    ran.push_back(1);
    inbox.Post([&] { ran.push_back(3); });
  });
  inbox.Post([&] { ran.push_back(2); });
  REQUIRE(inbox.RunOnce());
  REQUIRE(ran == std::vector<int>{1, 2});
  REQUIRE(inbox.RunOnce());
  REQUIRE(ran == std::vector<int>{1, 2, 3});
  REQUIRE_FALSE(inbox.RunOnce());
}

TEST_CASE("an owner with a posted closure does not sleep, and a stale wake-up is cleared") {
  Inbox inbox;
  pollfd descriptor{inbox.wake_fd(), POLLIN, 0};
  inbox.Post([] {});
  REQUIRE_FALSE(inbox.Arm());
  REQUIRE(poll(&descriptor, 1, 0) == 0);  // nobody slept: no system call was made for it
  inbox.RunOnce();
  REQUIRE(inbox.Arm());
  inbox.Post([] {});
  REQUIRE(poll(&descriptor, 1, 0) == 1);
  inbox.Disarm();
  REQUIRE(poll(&descriptor, 1, 0) == 0);
  REQUIRE(inbox.RunOnce());
}

TEST_CASE("no wake-up is lost") {
  constexpr int kThreads = 3, kEach = 20000;
  Inbox inbox;
  int ran = 0;
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) inbox.Post([&] { ++ran; });
    });
  }
  while (ran < kThreads * kEach) {
    if (inbox.RunOnce()) continue;
    if (inbox.Arm()) {
      pollfd descriptor{inbox.wake_fd(), POLLIN, 0};
      // The limit is only there so that a lost wake-up fails instead of hanging.
      REQUIRE(poll(&descriptor, 1, 60000) == 1);
    }
    inbox.Disarm();
  }
  for (std::thread& producer : producers) producer.join();
}

TEST_CASE("callers have turns, each with its calls in order, and none takes all places") {
  StepClock clock;
  FairQueue queue(&clock);
  std::string ran;
  const auto post = [&](const std::string& caller, char letter) {
    Inbox::Closure closure = [&ran, letter] { ran += letter; };
    return queue.Post(caller, closure, [](const absl::Status&) {});
  };
  for (const char letter : std::string("abcd")) REQUIRE(post("one", letter).ok());
  REQUIRE(post("two", 'x').ok());
  REQUIRE(post("three", 'y').ok());
  while (queue.RunOne()) {
  }
  CHECK(ran == "axybcd");
  CHECK(queue.empty());
  for (size_t i = 0; i < FairQueue::kMostOfCaller; ++i) REQUIRE(post("one", 'a').ok());
  CHECK(post("one", 'b').code() == absl::StatusCode::kUnavailable);
  REQUIRE(post("two", 'x').ok());
  ran.clear();
  queue.RunOne();
  queue.RunOne();
  CHECK(ran == "ax");
  CHECK(post("one", 'c').ok());
}

// Each call takes 10 ms, and an attempt is given up after 5 s, as clients do.
TEST_CASE("regression: calls that run are answered in time, though thousands of callers retry") {
  constexpr int kCallers = 5000;
  constexpr int64_t kCallNanos = 10'000'000, kAttemptNanos = 5'000'000'000;
  StepClock clock;
  FairQueue queue(&clock);
  struct Caller {
    int64_t attempt_ns = 0, retry_ns = 0;  // of the attempt in progress; retry_ns: there is none
    bool waits = false, answered = false;
  };
  std::vector<Caller> callers(kCallers);
  int ran = 0, answered = 0;
  const auto attempt = [&](Caller* caller) {
    const int64_t now = clock.NowNanos();
    caller->attempt_ns = now;
    Inbox::Closure closure = [&, caller, now] {
      ++ran;
      clock.Advance(kCallNanos);
      // Given up meanwhile?
      if (!caller->waits || caller->attempt_ns != now) return;
      if (clock.NowNanos() - now > kAttemptNanos) return;
      caller->answered = true;
      ++answered;
    };
    caller->waits = queue
                        .Post("all", closure,
                              [&, caller, now](const absl::Status& status) {
                                CHECK(absl::IsUnavailable(status));
                                if (caller->attempt_ns != now) return;
                                caller->waits = false;
                                caller->retry_ns = clock.NowNanos() + 500'000'000;
                              })
                        .ok();
    if (!caller->waits) caller->retry_ns = now + 500'000'000;
  };
  for (Caller& caller : callers) attempt(&caller);
  while (clock.NowNanos() < 30'000'000'000) {
    if (!queue.RunOne()) clock.Advance(kCallNanos);
    const int64_t now = clock.NowNanos();
    for (Caller& caller : callers) {
      if (caller.answered) continue;
      if (caller.waits && now - caller.attempt_ns > kAttemptNanos) {
        caller.waits = false;
        caller.retry_ns = now + 500'000'000;
      }
      if (!caller.waits && caller.retry_ns <= now) attempt(&caller);
    }
  }
  INFO(ran);
  CHECK(answered > ran * 9 / 10);
  CHECK(answered > 2500);
}

TEST_CASE("a few calls wait for a slow owner as long as it takes") {
  StepClock clock;
  FairQueue queue(&clock);
  int ran = 0;
  for (size_t i = 0; i < FairQueue::kCrowd; ++i) {
    Inbox::Closure closure = [&] { ++ran; };
    REQUIRE(queue.Post("one", closure, [](const absl::Status&) { FAIL(); }).ok());
  }
  clock.Advance(10 * FairQueue::kLongestWaitNanos);
  while (queue.RunOne()) {
  }
  CHECK(ran == FairQueue::kCrowd);
}

}  // namespace
}  // namespace verbena::server
