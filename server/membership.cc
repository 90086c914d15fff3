#include "server/membership.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/cluster_history.h"
#include "proto/control/standby.h"
#include "proto/control/view_change.h"
#include "proto/control/view_terms.h"
#include "proto/control/view_versions.h"
#include "server/coordinator/failpoints.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

constexpr int64_t kBackoffMs = 100;
constexpr int64_t kMaxBackoffMs = 1000;
// While standbys answer. The next leader lets nobody join, and changes no table, before each server
// has called it, so these wait for the slowest server's pause.
constexpr int64_t kMaxStandbyBackoffMs = 100;
constexpr uint32_t kPollMs = 10000;
// A coordinator that is stopped, not dead, answers nothing: how long one attempt may take.
constexpr absl::Duration kJoinTimeout = absl::Seconds(5);
// How much later than the poll's own wait a view may come.
constexpr absl::Duration kPollSlack = absl::Seconds(5);

// One repeated call: whether it is in flight, and when it is due again.
struct Repeated {
  bool under_way = false;
  int64_t due_ns = 0;
  int failures = 0;

  bool Due(int64_t now) const { return !under_way && due_ns <= now; }
  int64_t NextNanos() const { return under_way ? kNever : due_ns; }
};

}  // namespace

struct Membership::Impl : std::enable_shared_from_this<Impl> {
  enum class State { kJoining, kJoined, kLeaving, kEnded };

  MembershipOptions options;
  const Clock* clock;
  ControlChannel* control;
  OnView on_view;
  std::mt19937_64 random;

  State state = State::kJoining;
  absl::Status end;         // kEnded
  absl::Status last_error;  // of joining or heartbeats, since the last good answer
  int64_t good_ns = 0;      // the last good answer; before it, the start
  std::string join_id;
  Repeated join, heartbeat, poll, leave;
  bool refreshing = false;
  uint64_t polled_at = 0, refreshed_at = 0;  // the view's revision when they were asked for
  uint64_t incarnation = 0;
  int64_t lease_ns = 0;
  ViewVersions versions;
  std::shared_ptr<const v1::ClusterView> view;  // the newest
  // The changes that made it from the view that was given last. Empty: not known.
  ViewChangeList changes;
  std::shared_ptr<const ViewChangeList> given_changes = std::make_shared<ViewChangeList>();
  std::shared_ptr<const v1::AccessRules> access;  // comes with the view
  bool view_is_new = false;                       // not yet given to on_view
  bool needs_whole_view = false;                  // changes that came do not continue the view
  std::string leave_id;
  int64_t leave_deadline_ns = kNever;
  std::function<void(absl::Status)> leave_done;

  std::string RequestId();
  // `why`: the error of the last attempt.
  int64_t Backoff(Repeated* call, const absl::Status& why = absl::OkStatus());
  template <typename Response, typename Request>
  void Send(const char* method, const Request& request, absl::Duration timeout,
            void (Impl::*done)(absl::StatusOr<Response>));
  void SendJoin();
  void SendHeartbeat(int64_t now);
  v1::GetViewRequest ViewRequest(uint64_t* asked_at) const;
  void SendPoll();
  void SendRefresh();
  void SendLeave(int64_t now);
  void OnJoin(absl::StatusOr<v1::JoinServerResponse> response);
  void OnHeartbeat(absl::StatusOr<v1::HeartbeatResponse> response);
  void OnPoll(absl::StatusOr<v1::GetViewResponse> response);
  void OnRefresh(absl::StatusOr<v1::GetViewResponse> response);
  void OnLeave(absl::StatusOr<v1::LeaveResponse> response);
  bool TakeAnswer(v1::GetViewResponse* response, uint64_t asked_at);
  // The changes of an answer. False: they do not continue the view.
  bool TakeChanges(v1::GetViewResponse* response, v1::AccessRules* rules, uint64_t asked_at);
  // Whether the view may be the next one; see TakeView().
  bool Continues(const v1::ClusterView& newer, History history, uint64_t asked_at);
  bool TakeView(v1::ClusterView* newer, v1::AccessRules* rules, uint64_t asked_at);
  void SetView(std::shared_ptr<const v1::ClusterView> newer, v1::AccessRules* rules);
  void GiveView();
  bool StartCalls(int64_t now);
  bool FinishLeave(int64_t now);
  void End(absl::Status why);
  // `why`: the reason that the coordinator gave, as far as it is known.
  void Superseded(const std::string& why);
  // The coordinator follows a history that this server's data does not belong to.
  void Abandoned(absl::string_view why);
};

std::string Membership::Impl::RequestId() {
  std::string id;
  for (int word = 0; word < 2; ++word) {
    const uint64_t bits = random();
    id.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return id;
}

// Half of it is random: servers that lost one coordinator must not come back in step.
int64_t Membership::Impl::Backoff(Repeated* call, const absl::Status& why) {
  const bool standby = why.GetPayload(kStandbyPayload).has_value();
  const int64_t full = std::min(standby ? kMaxStandbyBackoffMs : kMaxBackoffMs,
                                kBackoffMs << std::min(call->failures, 10));
  ++call->failures;
  std::uniform_int_distribution<int64_t> between(full * kNanosPerMilli / 2, full * kNanosPerMilli);
  return between(random);
}

template <typename Response, typename Request>
void Membership::Impl::Send(const char* method, const Request& request, absl::Duration timeout,
                            void (Impl::*done)(absl::StatusOr<Response>)) {
  Call<Response>(*control, options.coordinator, absl::StrCat("/verbena.v1.Cluster/", method),
                 request, timeout,
                 [self = weak_from_this(), done](absl::StatusOr<Response> response) {
                   if (const auto impl = self.lock()) (impl.get()->*done)(std::move(response));
                 });
}

void Membership::Impl::SendJoin() {
  join.under_way = true;
  v1::JoinServerRequest request;
  request.set_request_id(join_id);
  request.set_name(options.name);
  request.set_address(options.address);
  request.set_shards(options.shards);
  request.set_zone(options.zone);
  request.set_cold_tier(options.cold_tier);
  request.set_memory_bytes(options.memory_bytes);
  SetProtocols(options.protocols, request.mutable_protocol());
  request.set_version(options.version);
  Send("JoinServer", request, kJoinTimeout, &Impl::OnJoin);
}

void Membership::Impl::SendHeartbeat(int64_t now) {
  heartbeat.under_way = true;
  heartbeat.due_ns = now + lease_ns / 4;
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation);
  *request.mutable_seen() = SeenOf(*view);
  request.set_server(true);
  Send("Heartbeat", request, absl::Nanoseconds(lease_ns / 2), &Impl::OnHeartbeat);
}

// The coordinator compares `seen` with all of its history.
v1::GetViewRequest Membership::Impl::ViewRequest(uint64_t* asked_at) const {
  *asked_at = view->revision();
  v1::GetViewRequest request;
  request.set_known_revision(view->revision());
  request.set_incarnation(incarnation);
  *request.mutable_seen() = SeenOf(*view);
  request.set_server(true);
  request.set_takes_changes(!needs_whole_view);
  return request;
}

void Membership::Impl::SendPoll() {
  poll.under_way = true;
  v1::GetViewRequest request = ViewRequest(&polled_at);
  request.set_wait_ms(kPollMs);
  Send("GetView", request, absl::Milliseconds(kPollMs) + kPollSlack, &Impl::OnPoll);
}

// A poll may be lost, and waits on for longer than a lease.
void Membership::Impl::SendRefresh() {
  refreshing = true;
  v1::GetViewRequest request = ViewRequest(&refreshed_at);
  if (VERBENA_FAILPOINT(server, take_uncompared)) request.clear_seen();
  Send("GetView", request, absl::Nanoseconds(lease_ns / 2), &Impl::OnRefresh);
}

void Membership::Impl::SendLeave(int64_t now) {
  leave.under_way = true;
  v1::LeaveRequest request;
  request.set_request_id(leave_id);
  request.set_incarnation(incarnation);
  Send("Leave", request, absl::Nanoseconds(std::max<int64_t>(leave_deadline_ns - now, 0)),
       &Impl::OnLeave);
}

void Membership::Impl::OnJoin(absl::StatusOr<v1::JoinServerResponse> response) {
  join.under_way = false;
  if (state == State::kEnded) return;
  const int64_t now = clock->NowNanos();
  if (!response.ok()) {
    last_error = response.status();
    if (absl::IsInvalidArgument(last_error) && state == State::kJoining) {
      End(absl::InvalidArgumentError(
          absl::StrCat("the cluster refused server '", options.name, "': ", last_error.message())));
    }
    join.due_ns = now + Backoff(&join);
    return;
  }
  incarnation = response->incarnation();
  lease_ns = response->lease_ms() * kNanosPerMilli;
  good_ns = now;
  last_error = absl::OkStatus();
  // While leaving, the new incarnation only has to be given back.
  if (state == State::kLeaving) return;
  state = State::kJoined;
  heartbeat.due_ns = now + lease_ns / 4;
  TakeView(response->mutable_view(), response->has_access() ? response->mutable_access() : nullptr,
           0);
}

void Membership::Impl::OnHeartbeat(absl::StatusOr<v1::HeartbeatResponse> response) {
  heartbeat.under_way = false;
  if (state != State::kJoined) return;
  if (response.ok()) {
    good_ns = clock->NowNanos();
    last_error = absl::OkStatus();
    const bool newer = response->revision() > view->revision();
    if (newer && !refreshing && !VERBENA_FAILPOINT(server, wait_for_polls)) SendRefresh();
  } else if (absl::IsNotFound(response.status())) {
    Superseded(absl::StrCat("another verbenad has joined as '", options.name,
                            "', or this one was removed or made to leave by an operator"));
  } else if (absl::IsAborted(response.status())) {
    Abandoned(response.status().message());
  } else {
    last_error = response.status();
  }
}

void Membership::Impl::OnPoll(absl::StatusOr<v1::GetViewResponse> response) {
  poll.under_way = false;
  if (state != State::kJoined) return;
  if (!response.ok()) {
    poll.due_ns = clock->NowNanos() + Backoff(&poll, response.status());
    return;
  }
  if (response->changed() && !TakeAnswer(&*response, polled_at)) {
    poll.due_ns = clock->NowNanos() + Backoff(&poll);
    return;
  }
  poll.failures = 0;
  poll.due_ns = 0;
}

// One that fails is tried again after the next heartbeat.
void Membership::Impl::OnRefresh(absl::StatusOr<v1::GetViewResponse> response) {
  refreshing = false;
  if (state != State::kJoined || !response.ok() || !response->changed()) return;
  TakeAnswer(&*response, refreshed_at);
}

void Membership::Impl::OnLeave(absl::StatusOr<v1::LeaveResponse> response) {
  leave.under_way = false;
  if (state != State::kLeaving) return;
  // NOT_FOUND: it is retired already, so the leave is done.
  if (response.ok() || absl::IsNotFound(response.status())) {
    End(absl::CancelledError("left the cluster"));
    return;
  }
  last_error = response.status();
  leave.due_ns = clock->NowNanos() + Backoff(&leave);
}

bool Membership::Impl::TakeAnswer(v1::GetViewResponse* response, uint64_t asked_at) {
  v1::AccessRules* rules = response->has_access() ? response->mutable_access() : nullptr;
  needs_whole_view = false;
  if (!response->changes().empty()) return TakeChanges(response, rules, asked_at);
  return TakeView(response->mutable_view(), rules, asked_at);
}

bool Membership::Impl::TakeChanges(v1::GetViewResponse* response, v1::AccessRules* rules,
                                   uint64_t asked_at) {
  ViewChangeList news;
  for (v1::ViewChange& change : *response->mutable_changes()) {
    const bool known =
        change.term_id() == SeenOf(*view).term_id() && change.revision() <= view->revision();
    if (!known) news.push_back(std::move(change));
  }
  if (news.empty()) return false;  // another answer brought them
  std::shared_ptr<const v1::ClusterView> newer = versions.Follow(*view, news);
  needs_whole_view = newer == nullptr;
  if (needs_whole_view) return false;
  if (!Continues(*newer, CompareHistory(*newer, *view, news), asked_at)) return false;
  const bool follows = !view_is_new || !changes.empty();
  SetView(std::move(newer), rules);
  if (follows) changes.insert(changes.end(), news.begin(), news.end());
  return true;
}

// False when it is not newer than the present view, or not known to come after it.
bool Membership::Impl::TakeView(v1::ClusterView* newer, v1::AccessRules* rules, uint64_t asked_at) {
  const History history = view == nullptr ? History::kContinues : CompareHistory(*newer, *view);
  if (!Continues(*newer, history, asked_at)) return false;
  SetView(versions.Replace(std::move(*newer)), rules);
  changes.clear();
  return true;
}

void Membership::Impl::SetView(std::shared_ptr<const v1::ClusterView> newer,
                               v1::AccessRules* rules) {
  view = std::move(newer);
  access = rules == nullptr ? nullptr : std::make_shared<v1::AccessRules>(std::move(*rules));
  view_is_new = true;
}

bool Membership::Impl::Continues(const v1::ClusterView& newer, History history, uint64_t asked_at) {
  if (view != nullptr) {
    if (history == History::kAbandoned || history == History::kOtherIdentity) {
      Abandoned(absl::StrCat("the coordinator at ", options.coordinator, " is at ",
                             DescribeSeen(SeenOf(newer)), ", whose history has no ",
                             DescribeSeen(SeenOf(*view)), " as this server has seen it"));
      return false;
    }
    // An older state was put back, or the coordinator was started with another cluster's. The data
    // here may be all that is left, so this server keeps it and serves its own view. The answer to
    // the next heartbeat has the reason.
    if (history == History::kRolledBack || history == History::kForeign ||
        history == History::kOtherCluster) {
      return false;
    }
    if (newer.revision() <= view->revision()) return false;
    // Another answer was taken meanwhile: the coordinator has compared less than was seen.
    if (!WasCompared(newer, asked_at, *view) && !VERBENA_FAILPOINT(server, take_uncompared))
      return false;
  }
  return true;
}

void Membership::Impl::GiveView() {
  view_is_new = false;
  const std::shared_ptr<const v1::ClusterView> given = view;
  given_changes = std::make_shared<ViewChangeList>(std::exchange(changes, {}));
  for (const v1::Server& server : given->servers()) {
    if (server.name() == options.name && server.incarnation() > incarnation) {
      Superseded(absl::StrCat("another verbenad has joined as '", options.name, "'"));
    }
  }
  if (on_view) on_view(incarnation, given);
}

void Membership::Impl::End(absl::Status why) {
  if (state == State::kEnded) return;
  state = State::kEnded;
  end = std::move(why);
}

void Membership::Impl::Superseded(const std::string& why) {
  End(absl::FailedPreconditionError(absl::StrCat(
      why, ": incarnation ", incarnation,
      " (this process) is retired, and its data is lost; give every server its own --name")));
}

void Membership::Impl::Abandoned(absl::string_view why) {
  End(absl::FailedPreconditionError(absl::StrCat(
      "server '", options.name, "' (incarnation ", incarnation,
      "): its cluster goes on from a state without it (", why,
      "); start it again, which makes it empty, and restore its data from a checkpoint")));
}

bool Membership::Impl::StartCalls(int64_t now) {
  switch (state) {
    case State::kJoining:
      if (!join.Due(now)) return false;
      SendJoin();
      return true;
    case State::kJoined: {
      const bool heartbeat_due = heartbeat.Due(now), poll_due = poll.Due(now);
      if (heartbeat_due) SendHeartbeat(now);
      if (poll_due) SendPoll();
      return heartbeat_due || poll_due;
    }
    case State::kLeaving:
      // A join in flight may still succeed; its incarnation then has to leave.
      if (incarnation == 0 || !leave.Due(now)) return false;
      SendLeave(now);
      return true;
    case State::kEnded:
      return false;
  }
  return false;
}

bool Membership::Impl::FinishLeave(int64_t now) {
  if (state == State::kLeaving) {
    if (!join.under_way && incarnation == 0) {
      End(absl::CancelledError("left before it had joined"));
    } else if (leave_deadline_ns <= now) {
      End(absl::CancelledError(
          absl::StrCat("stopped without an answer to Leave; last error: ", last_error.message())));
      if (leave_done) {
        std::exchange(leave_done, nullptr)(absl::DeadlineExceededError(end.message()));
      }
      return true;
    }
  }
  if (state != State::kEnded || !leave_done) return false;
  std::exchange(leave_done, nullptr)(absl::OkStatus());
  return true;
}

Membership::Membership(const MembershipOptions& options, const Clock* clock,
                       ControlChannel* control, OnView on_view)
    : impl_(std::make_shared<Impl>()) {
  impl_->options = options;
  impl_->clock = clock;
  impl_->control = control;
  impl_->on_view = std::move(on_view);
  if (options.seed != 0) {
    impl_->random.seed(options.seed);
  } else {
    std::random_device device;
    std::seed_seq words{device(), device(), device(), device(),
                        device(), device(), device(), device()};
    impl_->random.seed(words);
  }
  impl_->good_ns = clock->NowNanos();
  impl_->join_id = impl_->RequestId();
}

Membership::~Membership() = default;

bool Membership::RunOnce() {
  // Kept alive: a callback may destroy the Membership.
  const std::shared_ptr<Impl> impl = impl_;
  bool worked = impl->control->RunOnce();
  if (impl->view_is_new) {
    impl->GiveView();
    worked = true;
  }
  const int64_t now = impl->clock->NowNanos();
  worked |= impl->StartCalls(now);
  worked |= impl->FinishLeave(now);
  return worked;
}

int64_t Membership::NextTimerNanos() const {
  const Impl& impl = *impl_;
  if (impl.view_is_new) return 0;
  switch (impl.state) {
    case Impl::State::kJoining:
      return impl.join.NextNanos();
    case Impl::State::kJoined:
      return std::min(impl.heartbeat.NextNanos(), impl.poll.NextNanos());
    case Impl::State::kLeaving:
      if (impl.join.under_way) return impl.leave_deadline_ns;
      return impl.incarnation == 0 ? 0 : std::min(impl.leave.NextNanos(), impl.leave_deadline_ns);
    case Impl::State::kEnded:
      return impl.leave_done ? 0 : kNever;
  }
  return kNever;
}

std::shared_ptr<const v1::AccessRules> Membership::access() const { return impl_->access; }

std::shared_ptr<const ViewChangeList> Membership::changes() const { return impl_->given_changes; }

uint64_t Membership::view_copies() const { return impl_->versions.copies(); }

uint64_t Membership::incarnation() const { return impl_->incarnation; }

bool Membership::ended() const { return impl_->state == Impl::State::kEnded; }

absl::Status Membership::status() const {
  const Impl& impl = *impl_;
  if (impl.state == Impl::State::kEnded) return impl.end;
  const std::string since =
      absl::FormatDuration(absl::Milliseconds((impl.clock->NowNanos() - impl.good_ns) / 1000000));
  if (impl.incarnation == 0) {
    return absl::UnavailableError(absl::StrCat(
        "server '", impl.options.name, "' has been trying to join the cluster at ",
        impl.options.coordinator, " for ", since,
        impl.last_error.ok() ? "" : absl::StrCat("; last error: ", impl.last_error.message())));
  }
  if (impl.last_error.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", impl.options.coordinator,
                                             " has not answered for ", since,
                                             "; last error: ", impl.last_error.message()));
}

const absl::Status& Membership::last_error() const { return impl_->last_error; }

void Membership::Leave(absl::Duration timeout, std::function<void(absl::Status)> done) {
  Impl& impl = *impl_;
  if (impl.leave_done || impl.state == Impl::State::kLeaving) return;
  impl.leave_done = std::move(done);
  if (impl.state == Impl::State::kEnded) return;
  impl.state = Impl::State::kLeaving;
  impl.leave_id = impl.RequestId();
  impl.leave_deadline_ns = impl.clock->NowNanos() + absl::ToInt64Nanoseconds(timeout);
}

}  // namespace verbena::server
