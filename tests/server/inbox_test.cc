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

TEST_CASE("an owner with something posted is not let to sleep, and a stale wake-up is emptied") {
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
  FairQueue queue;
  std::string ran;
  const auto post = [&](const std::string& caller, char letter) {
    Inbox::Closure closure = [&ran, letter] { ran += letter; };
    return queue.Post(caller, closure);
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

}  // namespace
}  // namespace verbena::server
