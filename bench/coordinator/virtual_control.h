// Control calls on virtual time: each message takes the network's latency.
//
// **Thread safety**: one thread.
#ifndef VERBENA_BENCH_COORDINATOR_VIRTUAL_CONTROL_H_
#define VERBENA_BENCH_COORDINATOR_VIRTUAL_CONTROL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"

namespace verbena::bench {

// The channel of one process. Replies wait until RunOnce().
class VirtualChannel : public ControlChannel {
 public:
  virtual bool pending() const = 0;
};

class VirtualControl {
 public:
  // Gets a serialized request; replies with a serialized response, at once or later.
  using Respond = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
  using Handler =
      std::function<void(const std::string& method, const std::string& request, Respond respond)>;
  enum class End {
    kReset,  // the process ends: calls to it are refused, those in flight fail
    kSilent  // the machine ends: nothing is answered, calls run into their deadlines
  };

  // One way takes 0.5 to 1.5 times `latency_ns`. `clock` outlives it.
  VirtualControl(uint64_t seed, const Clock* clock, int64_t latency_ns)
      : random_(seed), clock_(clock), latency_ns_(latency_ns) {}

  void Serve(const std::string& address, Handler handler);
  void Stop(const std::string& address, End end);
  std::unique_ptr<VirtualChannel> NewChannel();
  // From now on, a process takes so long before it sees a reply.
  void set_member_ns(int64_t ns) { member_ns_ = ns; }
  void At(int64_t ns, absl::AnyInvocable<void()> what);

  // Does all work that is due. Returns whether there was any.
  bool RunOnce();
  int64_t NextTimerNanos() const;

 private:
  friend class VirtualChannelOf;
  struct Call;
  struct Service {
    Handler handler;  // null: it has ended
    End end = End::kReset;
    std::vector<std::weak_ptr<Call>> calls;  // that it may have to end; pruned now and then
    size_t prune_at = 64;
  };
  void Arrive(const std::string& address, const std::string& method, const std::string& request,
              const std::shared_ptr<Call>& call);
  int64_t Latency();

  std::mt19937_64 random_;
  const Clock* const clock_;
  const int64_t latency_ns_;
  int64_t member_ns_ = 0;
  std::map<std::string, Service> services_;
  std::multimap<int64_t, absl::AnyInvocable<void()>> due_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_VIRTUAL_CONTROL_H_
