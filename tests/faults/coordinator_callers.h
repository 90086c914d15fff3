// Callers of coordinators that record each call and its answer: tables are made and dropped,
// workers join, and views are read at every coordinator by itself.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_FAULTS_COORDINATOR_CALLERS_H_
#define VERBENA_TESTS_FAULTS_COORDINATOR_CALLERS_H_

#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/control/grpc_control_channel.h"
#include "tests/server/etcd/call_history.h"

namespace verbena::test {

// One call of the coordinator, to its end.
template <typename Response>
absl::StatusOr<Response> CallCluster(GrpcControlChannel& channel, const std::string& address,
                                     const std::string& method,
                                     const google::protobuf::Message& request,
                                     absl::Duration timeout) {
  // Shared with the call.
  auto answer = std::make_shared<std::optional<absl::StatusOr<Response>>>();
  Call<Response>(
      channel, address, absl::StrCat("/verbena.v1.Cluster/", method), request, timeout,
      [answer](absl::StatusOr<Response> response) { answer->emplace(std::move(response)); });
  while (!answer->has_value()) {
    pollfd descriptor{channel.wake_fd(), POLLIN, 0};
    poll(&descriptor, 1, 1000);
    channel.RunOnce();
  }
  return **std::move(answer);
}

// The job of their tables and workers.
inline constexpr char kCallersJob[] = "callers";
inline constexpr char kRecordedTables[] = "recorded-";  // their names begin so

class CoordinatorCallers {
 public:
  explicit CoordinatorCallers(std::vector<std::string> coordinators);
  ~CoordinatorCallers() { End(); }

  void End();
  // After End(): the first violation; empty: the answers are those of one coordinator.
  std::string Violation() const { return test::Violation(history_.calls()); }
  // Calls with an answer, and without.
  std::string Counts() const;

 private:
  void Change(uint64_t seed);
  void Read(uint64_t seed);
  // A change under one request id, until its outcome is known, or given up. Null: it is not known.
  // Some attempts have little time; the coordinator may handle them after that.
  template <typename Request, typename Response>
  std::optional<absl::StatusOr<Response>> Attempt(GrpcControlChannel& channel, const char* method,
                                                  Request request, RecordedCall::Kind kind,
                                                  const std::string& name, std::mt19937_64& random);
  std::string TableName(std::mt19937_64& random);

  const std::vector<std::string> coordinators_;
  const std::string all_;
  CallHistory history_{kRecordedTables};
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> changes_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_COORDINATOR_CALLERS_H_
