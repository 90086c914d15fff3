// A client of a cluster of real processes, as most tests want it.
//
// **Thread safety**: as Catch2: the test's thread alone.
#ifndef VERBENA_TESTS_SUPPORT_CONNECTED_H_
#define VERBENA_TESTS_SUPPORT_CONNECTED_H_

#include <memory>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "verbena/client.h"

namespace verbena::test {

inline std::unique_ptr<Client> Connected(const ProcessCluster& cluster,
                                         const std::string& job = ClientOptions().job) {
  ClientOptions options;
  options.cluster = cluster.address();
  options.job = job;
  options.transport = TestTransport();
  return Value(Client::Connect(options));
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_CONNECTED_H_
