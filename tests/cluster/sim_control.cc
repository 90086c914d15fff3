#include "tests/cluster/sim_control.h"

#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::test {

// One process's channel. Ends of calls are queued and run in its RunOnce(), as with gRPC. A call's
// state outlives the channel, so a late answer to a crashed process finds nobody.
class SimControlChannel final : public SimChannel {
 public:
  SimControlChannel(SimControl* net, std::string host)
      : net_(net), host_(std::move(host)), ended_(std::make_shared<Ended>()) {}

  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    auto call = std::make_shared<CallState>();
    call->done = std::move(done);
    call->response = std::move(response);
    call->ended = ended_;
    net_->At(absl::ToInt64Nanoseconds(timeout), [call, address, method] {
      Finish(call, absl::DeadlineExceededError(absl::StrCat(address, method, ": no answer")));
    });
    if (net_->observer_) net_->observer_(host_, method, request);
    const std::string peer = address.substr(0, address.find(':'));
    if (net_->Lost(host_, peer)) return;
    net_->At(net_->Delay(), [net = net_, call, host = host_, peer, address, method,
                             bytes = request.SerializeAsString()] {
      auto it = net->handlers_.find(address);
      if (it == net->handlers_.end()) {
        Finish(call, absl::UnavailableError(absl::StrCat(address, ": connection refused")));
        return;
      }
      SimControl::Handler handler = it->second;
      handler(method, bytes, [net, call, host, peer](absl::StatusOr<std::string> answer) {
        if (net->Lost(peer, host)) return;
        net->At(net->Delay(), [call, answer = std::move(answer)] {
          if (answer.ok() && !call->finished) {
            if (!call->response->ParseFromString(*answer)) {
              Finish(call, absl::InternalError("answer does not parse"));
              return;
            }
          }
          Finish(call, answer.status());
        });
      });
    });
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
  using Ended = std::deque<absl::AnyInvocable<void()>>;
  struct CallState {
    bool finished = false;
    Done done;
    std::shared_ptr<google::protobuf::Message> response;
    std::weak_ptr<Ended> ended;
  };

  static void Finish(const std::shared_ptr<CallState>& call, absl::Status status) {
    if (call->finished) return;
    call->finished = true;
    if (auto ended = call->ended.lock()) {
      ended->push_back([call, status = std::move(status)] { call->done(status); });
    }
  }

  SimControl* net_;
  const std::string host_;
  std::shared_ptr<Ended> ended_;
};

std::unique_ptr<SimChannel> SimControl::NewChannel(const std::string& host) {
  return std::make_unique<SimControlChannel>(this, host);
}

void SimControl::Cut(const std::string& from, const std::string& to, bool cut) {
  if (cut) {
    cut_.emplace(from, to);
  } else {
    cut_.erase({from, to});
  }
}

void SimControl::At(int64_t delay_ns, absl::AnyInvocable<void()> what) {
  const int64_t now = clock_->NowNanos();
  const int64_t limit = std::numeric_limits<int64_t>::max() - now;
  due_.emplace(now + std::min(delay_ns, limit), std::move(what));
}

int64_t SimControl::Delay() {
  return std::uniform_int_distribution<int64_t>(faults_.min_delay_ns,
                                                faults_.max_delay_ns)(random_);
}

bool SimControl::Lost(const std::string& from, const std::string& to) {
  if (cut_.contains({from, to})) return true;
  return faults_.loss > 0 && std::bernoulli_distribution(faults_.loss)(random_);
}

bool SimControl::RunOnce() {
  bool worked = false;
  while (!due_.empty() && due_.begin()->first <= clock_->NowNanos()) {
    absl::AnyInvocable<void()> what = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    what();
    worked = true;
  }
  return worked;
}

int64_t SimControl::NextTimerNanos() const {
  return due_.empty() ? std::numeric_limits<int64_t>::max() : due_.begin()->first;
}

}  // namespace verbena::test
