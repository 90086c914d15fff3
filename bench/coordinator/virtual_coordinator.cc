#include "bench/coordinator/virtual_coordinator.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

// Calls that wait for the coordinator are taken up together, and saved in one write.
constexpr int kGroup = 16;

// Whether the reply has a whole view.
template <typename Response>
bool HasView(const Response& response) {
  if constexpr (requires { response.has_view(); }) return response.has_view();
  return false;
}

template <typename Response>
bool HasChanges(const Response& response) {
  if constexpr (std::is_same_v<Response, v1::GetViewResponse>) return response.changed();
  return false;
}

}  // namespace

VirtualCoordinator::VirtualCoordinator(std::string address, uint64_t seed, const Costs* costs,
                                       const Clock* clock, VirtualControl* control)
    : address_(std::move(address)),
      random_(seed),
      costs_(costs),
      clock_(clock),
      control_(control) {}

absl::Status VirtualCoordinator::Start(const server::CoordinatorOptions& given) {
  server::CoordinatorOptions options = given;
  options.random = [this] { return random_(); };
  // The host's date would make two runs differ.
  options.wall_clock = [this] { return clock_->NowNanos() / 1'000'000'000; };
  auto made = server::Coordinator::Create(options, clock_, &store_);
  if (!made.ok()) return made.status();
  coordinator_ = *std::move(made);
  busy_until_ = clock_->NowNanos();
  charged_saves_ = store_.saves;
  ++life_;
  control_->Serve(address_, [this](const std::string& method, const std::string& request,
                                   VirtualControl::Respond respond) {
    waiting_.push_back({method, request, std::move(respond)});
  });
  return absl::OkStatus();
}

void VirtualCoordinator::Stop() {
  control_->Stop(address_, VirtualControl::End::kReset);
  coordinator_.reset();
  waiting_.clear();
}

// The reply leaves when the thread has made it: after what it had to do before.
template <typename Request, typename Response>
void VirtualCoordinator::To(
    void (server::Coordinator::*method)(const Request&, server::Coordinator::Reply<Response>),
    Waiting* call) {
  Request request;
  if (!request.ParseFromString(call->request)) {
    return call->respond(absl::InvalidArgumentError("the request does not parse"));
  }
  if constexpr (std::is_same_v<Request, v1::ReconfigureRequest>) {
    if (observer_) observer_(request);
  }
  (coordinator_.get()->*method)(request, [this, life = life_, respond = std::move(call->respond)](
                                             absl::StatusOr<Response> response) mutable {
    Charge(costs_->save * static_cast<double>(store_.saves - charged_saves_));
    charged_saves_ = store_.saves;
    absl::StatusOr<std::string> reply = absl::UnknownError("no reply");
    if (!response.ok()) {
      reply = response.status();
    } else {
      if (HasView(*response)) {
        Charge(costs_->whole_answer);
      } else if (HasChanges(*response)) {
        Charge(costs_->answer);
      }
      reply = response->SerializeAsString();
    }
    control_->At(busy_until_,
                 [this, life, respond = std::move(respond), reply = std::move(reply)]() mutable {
                   if (life == life_ && running()) respond(std::move(reply));
                 });
  });
}

void VirtualCoordinator::Handle(Waiting* call) {
  using server::Coordinator;
  Charge(costs_->call);
  const std::string name = call->method.substr(call->method.rfind('/') + 1);
  if (name == "Heartbeat") return To(&Coordinator::Heartbeat, call);
  if (name == "Reconfigure") return To(&Coordinator::Reconfigure, call);
  if (name == "JoinServer") return To(&Coordinator::JoinServer, call);
  if (name == "CreateTable") return To(&Coordinator::CreateTable, call);
  if (name == "AdmitMembers") return To(&Coordinator::AdmitMembers, call);
  if (name == "GetView") {
    return To<v1::GetViewRequest, v1::GetViewResponse>(&Coordinator::GetView, call);
  }
  if (name == "JoinWorker") {
    return To<v1::JoinWorkerRequest, v1::JoinWorkerResponse>(&Coordinator::JoinWorker, call);
  }
  call->respond(absl::UnimplementedError(call->method));
}

bool VirtualCoordinator::RunOnce() {
  const int64_t now = clock_->NowNanos();
  if (!running() || now < busy_until_) return false;
  busy_until_ = now;
  bool worked = coordinator_->RunOnce();
  if (!waiting_.empty()) {
    coordinator_->BeginGroup();
    for (int i = 0; i < kGroup && !waiting_.empty(); ++i) {
      Waiting call = std::move(waiting_.front());
      waiting_.pop_front();
      Handle(&call);
    }
    coordinator_->EndGroup();
    worked = true;
  }
  Charge(costs_->save * static_cast<double>(store_.saves - charged_saves_));
  charged_saves_ = store_.saves;
  return worked;
}

int64_t VirtualCoordinator::NextTimerNanos() const {
  if (!running()) return std::numeric_limits<int64_t>::max();
  if (!waiting_.empty()) return busy_until_;
  return std::max(busy_until_, coordinator_->NextTimerNanos());
}

}  // namespace verbena::bench
