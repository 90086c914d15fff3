// Calls of the simulated control plane: the work of the gRPC services of a real process.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SIM_DISPATCH_H_
#define VERBENA_TESTS_CLUSTER_SIM_DISPATCH_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tests/cluster/sim_control.h"

namespace verbena::test {

// Parses, calls, serialises.
template <typename Request, typename Response, typename F>
void Dispatch(const std::string& bytes, SimControl::Respond respond, F call) {
  Request request;
  if (!request.ParseFromString(bytes)) {
    respond(absl::InvalidArgumentError("request does not parse"));
    return;
  }
  call(request, [respond = std::move(respond)](absl::StatusOr<Response> response) mutable {
    if (response.ok()) {
      respond(response->SerializeAsString());
    } else {
      respond(response.status());
    }
  });
}

// Set-up of a test that cannot go on without it.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "simulator set-up: %s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_DISPATCH_H_
