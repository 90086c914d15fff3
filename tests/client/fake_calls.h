// The begin and the end of tests of the client core.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_FAKE_CALLS_H_
#define VERBENA_TESTS_CLIENT_FAKE_CALLS_H_

#include <catch2/catch.hpp>

#include "tests/client/fake_cluster.h"

namespace verbena::test {

inline void Good(FakeCluster* cluster, const FakeCluster::CallPtr& call) {
  REQUIRE(cluster->Wait(call));
  INFO(call->status);
  REQUIRE(call->status.ok());
}

// A call that no answer ends, within 200 ms: it is cancelled before, or its deadline passes.
inline void EndsUnanswered(FakeCluster* cluster, const FakeCluster::CallPtr& call, bool cancel) {
  if (cancel) {
    cluster->RunFor(100 * kMilli);
    cluster->core->Cancel(call->id);
  }
  REQUIRE(cluster->Wait(call));
  INFO(call->status);
  CHECK(call->status.code() ==
        (cancel ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded));
}

inline FakeCluster::Options Servers(int servers, uint32_t partitions = 8) {
  FakeCluster::Options options;
  options.servers = servers;
  options.partitions = partitions;
  return options;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_FAKE_CALLS_H_
