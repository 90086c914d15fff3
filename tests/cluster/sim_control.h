// An in-process control plane on virtual time: calls are delayed, and lost, by a seed.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SIM_CONTROL_H_
#define VERBENA_TESTS_CLUSTER_SIM_CONTROL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"

namespace verbena::test {

struct ControlFaults {
  double loss = 0;  // probability that a request, or its answer, is lost
  int64_t min_delay_ns = 20'000;
  int64_t max_delay_ns = 2'000'000;
};

class SimChannel : public ControlChannel {
 public:
  // Whether a call has ended and its owner was not notified.
  virtual bool pending() const = 0;
};

class SimControl {
 public:
  // Gets a serialised request; answers with a serialised response, at once or later.
  using Respond = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
  using Handler =
      std::function<void(const std::string& method, const std::string& request, Respond respond)>;

  SimControl(uint64_t seed, const Clock* clock) : random_(seed), clock_(clock) {}

  void Serve(const std::string& address, Handler handler) { handlers_[address] = handler; }
  void Stop(const std::string& address) { handlers_.erase(address); }
  // A channel of the process of that name.
  std::unique_ptr<SimChannel> NewChannel(const std::string& host);
  // Nothing that `from` sends reaches `to` any more (or again): requests and answers alike, also of
  // calls in flight. Callers that wait are not notified.
  void Cut(const std::string& from, const std::string& to, bool cut);
  void set_faults(const ControlFaults& faults) { faults_ = faults; }
  // Called with each request when it is sent, and the process that sends it.
  using Observer = std::function<void(const std::string& host, const std::string& method,
                                      const google::protobuf::Message& request)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // Does all work that is due. Returns whether there was any.
  bool RunOnce();
  int64_t NextTimerNanos() const;

 private:
  friend class SimControlChannel;
  void At(int64_t delay_ns, absl::AnyInvocable<void()> what);
  int64_t Delay();
  bool Lost(const std::string& from, const std::string& to);

  std::mt19937_64 random_;
  const Clock* clock_;
  ControlFaults faults_;
  Observer observer_;  // may be empty
  std::map<std::string, Handler> handlers_;
  std::set<std::pair<std::string, std::string>> cut_;
  std::multimap<int64_t, absl::AnyInvocable<void()>> due_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_CONTROL_H_
