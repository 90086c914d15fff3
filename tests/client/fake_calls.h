// What tests of the client core begin and end with.
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

inline FakeCluster::Options Servers(int servers, uint32_t partitions = 8) {
  FakeCluster::Options options;
  options.servers = servers;
  options.partitions = partitions;
  return options;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_FAKE_CALLS_H_
