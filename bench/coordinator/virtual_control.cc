#include "bench/coordinator/virtual_control.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {

struct VirtualControl::Call {
  using Ended = std::deque<absl::AnyInvocable<void()>>;

  bool finished = false;
  ControlChannel::Done done;
  std::shared_ptr<google::protobuf::Message> response;
  std::weak_ptr<Ended> ended;  // of the channel, which its process may have taken along

  static void Finish(const std::shared_ptr<Call>& call, absl::Status status) {
    if (call->finished) return;
    call->finished = true;
    if (const auto ended = call->ended.lock()) {
      ended->push_back([call, status = std::move(status)] { call->done(status); });
    }
  }
};

class VirtualChannelOf final : public VirtualChannel {
 public:
  explicit VirtualChannelOf(VirtualControl* control) : control_(control) {}

  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    auto call = std::make_shared<VirtualControl::Call>();
    call->done = std::move(done);
    call->response = std::move(response);
    call->ended = ended_;
    const int64_t now = control_->clock_->NowNanos();
    control_->At(
        now + absl::ToInt64Nanoseconds(timeout), [weak = std::weak_ptr(call), address, method] {
          const auto late = weak.lock();
          if (late == nullptr) return;
          VirtualControl::Call::Finish(
              late, absl::DeadlineExceededError(absl::StrCat(address, method, ": no reply")));
        });
    control_->At(now + control_->Latency(),
                 [control = control_, call, address, method, bytes = request.SerializeAsString()] {
                   control->Arrive(address, method, bytes, call);
                 });
    // A call whose message and reply are lost is kept by this alone.
    calls_.push_back(std::move(call));
    if (calls_.size() >= 32) {
      std::erase_if(calls_, [](const auto& known) { return known->finished; });
    }
  }

  bool RunOnce() override {
    bool worked = false;
    while (!ended_->empty()) {
      absl::AnyInvocable<void()> end = std::move(ended_->front());
      ended_->pop_front();
      end();
      worked = true;
    }
    return worked;
  }
  int wake_fd() const override { return -1; }
  bool pending() const override { return !ended_->empty(); }

 private:
  VirtualControl* const control_;
  std::vector<std::shared_ptr<VirtualControl::Call>> calls_;
  std::shared_ptr<VirtualControl::Call::Ended> ended_ =
      std::make_shared<VirtualControl::Call::Ended>();
};

std::unique_ptr<VirtualChannel> VirtualControl::NewChannel() {
  return std::make_unique<VirtualChannelOf>(this);
}

void VirtualControl::Serve(const std::string& address, Handler handler) {
  services_[address] = {};
  services_[address].handler = std::move(handler);
}

void VirtualControl::Stop(const std::string& address, End end) {
  Service& service = services_[address];
  service.handler = nullptr;
  service.end = end;
  const std::vector<std::weak_ptr<Call>> calls = std::move(service.calls);
  service.calls.clear();
  if (end == End::kSilent) return;
  for (const std::weak_ptr<Call>& weak : calls) {
    const auto call = weak.lock();
    if (call == nullptr) continue;
    At(clock_->NowNanos() + Latency(), [call, address] {
      Call::Finish(call, absl::UnavailableError(absl::StrCat(address, ": connection reset")));
    });
  }
}

void VirtualControl::Arrive(const std::string& address, const std::string& method,
                            const std::string& request, const std::shared_ptr<Call>& call) {
  Service& service = services_[address];
  if (service.handler == nullptr) {
    if (service.end == End::kSilent) return;
    At(clock_->NowNanos() + Latency(), [call, address] {
      Call::Finish(call, absl::UnavailableError(absl::StrCat(address, ": connection refused")));
    });
    return;
  }
  service.calls.push_back(call);
  if (service.calls.size() >= service.prune_at) {
    std::erase_if(service.calls, [](const auto& weak) {
      const auto known = weak.lock();
      return known == nullptr || known->finished;
    });
    service.prune_at = 2 * service.calls.size() + 64;
  }
  const Handler handler = service.handler;
  handler(method, request, [this, weak = std::weak_ptr(call)](absl::StatusOr<std::string> reply) {
    At(clock_->NowNanos() + Latency() + member_ns_, [weak, reply = std::move(reply)] {
      const auto known = weak.lock();
      if (known == nullptr || known->finished) return;
      absl::Status status = reply.status();
      if (status.ok() && !known->response->ParseFromString(*reply)) {
        status = absl::InternalError("the reply does not parse");
      }
      Call::Finish(known, std::move(status));
    });
  });
}

void VirtualControl::At(int64_t ns, absl::AnyInvocable<void()> what) {
  due_.emplace(ns, std::move(what));
}

int64_t VirtualControl::Latency() {
  return std::uniform_int_distribution<int64_t>(latency_ns_ / 2, latency_ns_ * 3 / 2)(random_);
}

bool VirtualControl::RunOnce() {
  bool worked = false;
  while (!due_.empty() && due_.begin()->first <= clock_->NowNanos()) {
    absl::AnyInvocable<void()> what = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    what();
    worked = true;
  }
  return worked;
}

int64_t VirtualControl::NextTimerNanos() const {
  return due_.empty() ? std::numeric_limits<int64_t>::max() : due_.begin()->first;
}

}  // namespace verbena::bench
