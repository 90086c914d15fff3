// The swarm's operator: creates, drops and resets tables, by calls to the coordinator that are
// repeated with the same id until they are answered. The models follow the coordinator's view, so
// nothing depends on when an answer comes.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_OPERATOR_H_
#define VERBENA_TESTS_CLUSTER_SWARM_OPERATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/control/control_channel.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmOperator {
 public:
  explicit SwarmOperator(SwarmWorld* world);
  void Run();
  // Nothing is left to do for the recovery.
  bool idle() const;
  std::string Describe() const;

 private:
  SwarmTable* AnyTable();
  bool Reset();  // whether a job's workers leave
  bool HasWorkers(const SwarmJob& job) const;
  // Jobs with sync tables begin again: workers that come late cannot join them, and tables that are
  // spanned by one norm begin together.
  void Restart();
  void Create();
  void Drop(const SwarmTable& table);
  void Remove();
  bool Runs(const v1::Server& server) const;  // its process
  // Acknowledged changes are in effect, also those that an older coordinator state acknowledged.
  void CheckAcknowledged();
  // kEagerTables: one that catches up.
  bool AnyLearner() const;
  template <typename Response>
  using OnOk = std::function<void(const Response&)>;
  template <typename Response, typename Request>
  void Call(const char* method, Request request, OnOk<Response> on_ok = nullptr);
  template <typename Response, typename Request>
  void Send(const char* method, std::shared_ptr<Request> request, OnOk<Response> on_ok);

  SwarmWorld* const world_;
  std::unique_ptr<ControlChannel> channel_;
  int calls_ = 0;
  std::vector<uint32_t> made_, dropped_;  // ids of tables, as acknowledged and not yet seen
  bool tried_old_state_ = false;
  int64_t next_at_ = 0;
  absl::Status last_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_OPERATOR_H_
