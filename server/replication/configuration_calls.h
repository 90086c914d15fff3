// A shard's calls to the coordinator for changes of its partitions' configurations.
//
// **Thread safety**: one owner thread, the shard's.
//
// Invariants:
//  1. At most one call is in flight; every attempt has a request id of its own, because each change
//     is a compare-and-set.
#ifndef VERBENA_SERVER_REPLICATION_CONFIGURATION_CALLS_H_
#define VERBENA_SERVER_REPLICATION_CONFIGURATION_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/control/control_channel.h"
#include "rdma/base/backoff.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Why a primary gives up a replica.
enum class GiveUp : uint8_t { kNo, kSilent, kRefuses, kNoMemory, kDiffers, kSurplus };

struct WantedChange {
  v1::ConfigurationChange change;
  GiveUp why = GiveUp::kNo;  // of DROP_REPLICA
};

// Changes that were made because this shard asked.
struct ConfigurationCounters {
  uint64_t promotions = 0, dropped_copies = 0, admitted = 0;
};

class ConfigurationCalls {
 public:
  // `control` null: nothing is asked. `random`: of request ids; it outlives this. `log` may be
  // empty.
  ConfigurationCalls(ControlChannel* control, Random* random,
                     std::function<void(const std::string&)> log)
      : control_(control), random_(*random), log_(std::move(log)) {}
  ~ConfigurationCalls() { *alive_ = false; }
  ConfigurationCalls(const ConfigurationCalls&) = delete;
  ConfigurationCalls& operator=(const ConfigurationCalls&) = delete;

  // host:port. Before that nothing is asked.
  void SetCoordinator(std::string address) { coordinator_ = std::move(address); }
  bool ready() const { return !asking_ && control_ != nullptr && !coordinator_.empty(); }
  struct Answer {
    bool late = false;   // the request was too old for changes that take something away
    bool again = false;  // to be asked again at once, with the ticket that has come
  };
  using Answered = std::function<void(const std::vector<WantedChange>&, Answer)>;
  // Requests changes as server `self`; ready() is true. Without changes: a ticket. `answered` is
  // called with `wanted` when the coordinator has answered, whether it has made the changes or not.
  void Ask(uint64_t self, std::vector<WantedChange> wanted, absl::Duration timeout, int64_t now_ns,
           Answered answered);
  // The now_ns of the last request that the coordinator answered; 0: none.
  int64_t answered_ns() const { return answered_ns_; }
  const ConfigurationCounters& counters() const { return counters_; }

 private:
  std::string NewRequestId();
  Answer Take(const v1::ReconfigureResponse& response);
  void CountMade(const std::vector<WantedChange>& wanted, const v1::ReconfigureResponse& response);

  ControlChannel* const control_;
  Random& random_;
  const std::function<void(const std::string&)> log_;
  std::string coordinator_;
  bool asking_ = false;
  v1::ReconfigureTicket ticket_;  // of the last answer
  bool late_ = false;             // the coordinator's last answer reported it
  int64_t answered_ns_ = 0;
  ConfigurationCounters counters_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_CONFIGURATION_CALLS_H_
