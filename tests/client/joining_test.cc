// A worker that waits for its admission to the run of an elastic job.
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "client/core/failpoints.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace joining_test {

constexpr int64_t kStop = 5 * kSecond;  // more than two leases

struct World {
  World() {
    own()->set_joining(true);
    cluster.core->Join(cluster.now() + 60 * kSecond,
                       [this](absl::Status status) { joined = std::move(status); });
    cluster.RunFor(kSecond);
  }
  ~World() { client::failpoints() = {}; }
  v1::Worker* own() { return cluster.view.mutable_jobs(0)->mutable_members(0); }
  void Admit() {
    own()->set_joining(false);
    cluster.Publish();
  }
  bool Ends() {
    return cluster.RunUntil([&] { return joined.has_value(); });
  }

  FakeCluster cluster;
  std::optional<absl::Status> joined;
};

TEST_CASE("a worker has joined when the view has admitted it") {
  World w;
  CHECK_FALSE(w.joined.has_value());
  w.cluster.RunFor(10 * kSecond);
  CHECK_FALSE(w.joined.has_value());
  w.Admit();
  REQUIRE(w.Ends());
  CHECK(w.joined->ok());
}

TEST_CASE("a worker that was stopped while it waited has joined only if its lease is still there") {
  const bool ended = GENERATE(false, true);
  const bool planted = GENERATE(false, true);
  INFO("lease ended: " << ended << ", planted: " << planted);
  World w;
  client::failpoints().trust_late_grants = planted;
  // The process does not run meanwhile; the coordinator admits it, and its lease ends after that.
  const int64_t continues = w.cluster.now() + kStop;
  while (w.cluster.network.Advance(continues)) {
  }
  w.Admit();
  w.cluster.lease_ended = ended;
  REQUIRE(w.Ends());
  CHECK(w.joined->ok() == (planted || !ended));
  if (ended && !planted) {
    CHECK(w.joined->code() == absl::StatusCode::kAborted);
    CHECK_THAT(std::string(w.joined->message()), Catch::Matchers::Contains("lease"));
  }
}

TEST_CASE("regression: a worker joins where the coordinator takes a third of a lease to answer") {
  World w;
  w.cluster.control.Serve("Heartbeat", [&](auto&, auto&, auto*, int64_t age) {
    return age < 600 * kMilli ? std::nullopt : std::optional<absl::Status>(absl::OkStatus());
  });
  w.cluster.RunFor(5 * kSecond);
  w.Admit();
  REQUIRE(w.Ends());
  CHECK(w.joined->ok());
}

TEST_CASE("an admitted worker without an answer to its heartbeats says so at its deadline") {
  World w;
  w.cluster.control.Serve("Heartbeat", [](auto&, auto&, auto*, int64_t) {
    return std::optional<absl::Status>(absl::UnavailableError("refused"));
  });
  w.cluster.RunFor(5 * kSecond);
  w.Admit();
  REQUIRE(w.cluster.RunUntil([&] { return w.joined.has_value(); }, 70 * kSecond));
  CHECK_THAT(std::string(w.joined->message()),
             Catch::Matchers::Contains("has not renewed the lease"));
}

}  // namespace joining_test
}  // namespace verbena::test
