#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/leases.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/tokens.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

constexpr int64_t kNanosPerMilli = 1000000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// A poll longer than this would outlive what routers and firewalls keep of an idle connection.
constexpr uint32_t kMaxWaitMs = 30000;
// After a failed Save() of ended leases, which nobody waits for.
constexpr int64_t kSaveRetryNanos = 1000 * kNanosPerMilli;
constexpr int64_t kLongestTokenSleepSeconds = 60;

std::string RandomClusterId() {
  absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

bool IsNew(const CoordinatorState& state) {
  return state.view.ByteSizeLong() == 0 && state.next_incarnation == 1 && state.next_table == 1 &&
         state.answered.empty();
}

// The views in answers are not remembered: they are large, and a caller that repeats a call wants
// the current one.
void SetView(const v1::ClusterView& view, v1::JoinServerResponse* r) { *r->mutable_view() = view; }
void SetView(const v1::ClusterView& view, v1::JoinWorkerResponse* r) { *r->mutable_view() = view; }
void SetView(const v1::ClusterView& view, v1::CreateTableResponse* r) { *r->mutable_view() = view; }
void SetView(const v1::ClusterView&, v1::LeaveResponse*) {}
void SetView(const v1::ClusterView&, v1::DropTableResponse*) {}
void SetView(const v1::ClusterView&, v1::CreateTokenResponse*) {}
void SetView(const v1::ClusterView&, v1::RevokeTokenResponse*) {}
void SetView(const v1::ClusterView&, v1::SetJobLimitsResponse*) {}

uint64_t JoinedIncarnation(const v1::JoinServerResponse& r) { return r.incarnation(); }
uint64_t JoinedIncarnation(const v1::JoinWorkerResponse& r) { return r.incarnation(); }
template <typename Response>
uint64_t JoinedIncarnation(const Response&) {
  return 0;
}

}  // namespace

struct Coordinator::Impl {
  struct Poll {
    uint64_t known;
    int64_t due_ns;
    Reply<v1::GetViewResponse> reply;
  };
  // What a mutation may change and a failed one gets back.
  struct Undo {
    v1::ClusterView view;
    v1::AccessRules access;
    uint64_t next_incarnation;
    uint32_t next_table;
  };

  CoordinatorOptions options;
  const Clock* clock;
  Store* store;
  CoordinatorState state;
  v1::AccessRules access;  // the state's, and the operator's own token
  int64_t next_token_ns = kNever;
  Leases leases;
  std::set<uint64_t> left;  // servers that said so; a late heartbeat does not revive them
  std::vector<Poll> polls;
  int64_t next_poll_ns = kNever;
  int64_t next_save_ns = 0;  // after a failed Save() of ended leases

  int64_t Now() const { return clock->NowNanos(); }
  int64_t LeaseNanos() const { return options.lease_ms * kNanosPerMilli; }
  v1::ClusterView* view() { return &state.view; }

  absl::Status TakeOffice();
  Undo BeginChange();
  void Restore(Undo undo);
  absl::Status EndChange(Undo undo, CoordinatorState::Answered* answered);
  void FollowView();
  const CoordinatorState::Answered* FindAnswer(const std::string& request_id) const;
  std::vector<Poll> TakePolls(int64_t now);
  void AnswerPolls(std::vector<Poll> due) const;
  v1::GetViewResponse ViewAnswer(uint64_t known) const;

  // Runs `apply` (Response* -> StatusOr<Effect>) on the state, once per request id.
  template <typename Request, typename Response, typename Apply>
  void Mutate(const char* method, const Request& request, Reply<Response> reply, Apply apply);
  template <typename Response>
  void Repeat(const CoordinatorState::Answered& before, const std::string& fingerprint,
              Reply<Response> reply);

  bool EndLeases(int64_t now);
  bool EndTokens(int64_t now);
  void FollowTokens();
};

// ---- changes ----

Coordinator::Impl::Undo Coordinator::Impl::BeginChange() {
  Undo undo{state.view, state.access, state.next_incarnation, state.next_table};
  state.view.set_revision(state.view.revision() + 1);
  return undo;
}

void Coordinator::Impl::Restore(Undo undo) {
  state.view = std::move(undo.view);
  state.access = std::move(undo.access);
  state.next_incarnation = undo.next_incarnation;
  state.next_table = undo.next_table;
}

absl::Status Coordinator::Impl::EndChange(Undo undo, CoordinatorState::Answered* answered) {
  if (answered != nullptr) state.answered.push_back(*answered);
  const absl::Status saved = store->Save(state, answered);
  if (!saved.ok()) {
    if (answered != nullptr) state.answered.pop_back();
    Restore(std::move(undo));
    return saved;
  }
  if (state.answered.size() > kAnswersKept) {
    state.answered.erase(state.answered.begin(), state.answered.end() - kAnswersKept);
  }
  FollowView();
  FollowTokens();
  return absl::OkStatus();
}

// Whoever the view calls alive has a lease, and nobody else.
void Coordinator::Impl::FollowView() {
  std::set<uint64_t> alive;
  for (const v1::Server& server : state.view.servers()) {
    if (server.state() == v1::Server::ALIVE) alive.insert(server.incarnation());
  }
  for (const v1::Job& job : state.view.jobs()) {
    for (const v1::Worker& member : job.members()) alive.insert(member.incarnation());
  }
  leases.Retain(alive);
  std::erase_if(left, [&](uint64_t server) { return FindServer(server, view()) == nullptr; });
  const int64_t until = Now() + LeaseNanos();
  for (const uint64_t incarnation : alive) {
    if (!leases.Has(incarnation)) leases.Grant(incarnation, until);
  }
}

const CoordinatorState::Answered* Coordinator::Impl::FindAnswer(
    const std::string& request_id) const {
  // The newest first: what is repeated was asked a moment ago.
  const auto it =
      std::find_if(state.answered.rbegin(), state.answered.rend(),
                   [&](const CoordinatorState::Answered& a) { return a.request_id == request_id; });
  return it == state.answered.rend() ? nullptr : &*it;
}

template <typename Response>
void Coordinator::Impl::Repeat(const CoordinatorState::Answered& before,
                               const std::string& fingerprint, Reply<Response> reply) {
  if (before.method != fingerprint) {
    reply(absl::InvalidArgumentError(
        "request_id was used before for another request; every new request needs its own"));
    return;
  }
  Response response;
  if (!response.ParseFromString(before.response)) {
    reply(absl::InternalError("the answer kept for this request_id is unreadable"));
    return;
  }
  // The caller has only now a chance to send heartbeats.
  leases.Renew(JoinedIncarnation(response), Now() + LeaseNanos());
  SetView(state.view, &response);
  reply(std::move(response));
}

template <typename Request, typename Response, typename Apply>
void Coordinator::Impl::Mutate(const char* method, const Request& request, Reply<Response> reply,
                               Apply apply) {
  if (absl::Status status = CheckRequestId(request.request_id()); !status.ok()) {
    reply(std::move(status));
    return;
  }
  CoordinatorState::Answered answered{request.request_id(), Fingerprint(method, request), ""};
  if (const CoordinatorState::Answered* before = FindAnswer(request.request_id())) {
    Repeat<Response>(*before, answered.method, std::move(reply));
    return;
  }
  Undo undo = BeginChange();
  Response response;
  const absl::StatusOr<Effect> effect = apply(&response);
  if (!effect.ok() || *effect == Effect::kNone) {
    Restore(std::move(undo));
    if (!effect.ok()) {
      reply(effect.status());
      return;
    }
  } else {
    answered.response = response.SerializeAsString();
    if (absl::Status saved = EndChange(std::move(undo), &answered); !saved.ok()) {
      reply(std::move(saved));
      return;
    }
  }
  SetView(state.view, &response);
  // Taken before any reply runs: replies may call the coordinator again.
  std::vector<Poll> due = TakePolls(Now());
  reply(std::move(response));
  AnswerPolls(std::move(due));
}

absl::Status Coordinator::Impl::TakeOffice() {
  absl::StatusOr<CoordinatorState> loaded = store->Load();
  if (!loaded.ok()) return loaded.status();
  state = *std::move(loaded);
  if (IsNew(state)) {
    state.view.set_cluster_id(options.cluster_id.empty() ? RandomClusterId() : options.cluster_id);
    for (uint32_t id = 0; id < options.partitions; ++id) {
      v1::Partition* partition = state.view.add_partitions();
      partition->set_id(id);
      partition->set_epoch(1);
    }
  }
  if (absl::Status status = CheckState(state); !status.ok()) return status;
  if (absl::Status status = CheckTokens(state); !status.ok()) return status;
  Undo undo = BeginChange();
  state.view.set_term(state.view.term() + 1);
  state.view.set_lease_ms(options.lease_ms);
  state.view.set_expected_servers(options.expected_servers);
  return EndChange(std::move(undo), nullptr);
}

// ---- time ----

bool Coordinator::Impl::EndLeases(int64_t now) {
  const int64_t first = leases.NextDueNanos();
  if (first > now || next_save_ns > now) return false;
  if (now - std::max(first, next_save_ns) > LeaseNanos() / 2) {
    leases.RenewAll(now + LeaseNanos());
    return true;
  }
  Undo undo = BeginChange();
  // An incarnation with a lease is known, so there is no error to look at.
  for (const uint64_t incarnation : leases.Due(now))
    RemoveMember(incarnation, &state).IgnoreError();
  const absl::Status saved = EndChange(std::move(undo), nullptr);
  next_save_ns = saved.ok() ? 0 : now + kSaveRetryNanos;
  return true;
}

// The host's date may be set meanwhile: it is looked at now and then.
void Coordinator::Impl::FollowTokens() {
  if (!options.tokens) return;
  access.Clear();
  *access.add_tokens() = options.operator_token;
  access.MergeFrom(state.access);
  const int64_t expiry = NextTokenExpiry(state);
  next_token_ns = kNever;
  if (expiry == kNever) return;
  const int64_t seconds =
      std::clamp<int64_t>(expiry - options.wall_clock(), 0, kLongestTokenSleepSeconds);
  next_token_ns = Now() + seconds * 1000 * kNanosPerMilli;
}

bool Coordinator::Impl::EndTokens(int64_t now) {
  if (next_token_ns > now) return false;
  Undo undo = BeginChange();
  if (EndExpiredTokens(options.wall_clock(), &state) == Effect::kNone) {
    Restore(std::move(undo));
    FollowTokens();
    return false;
  }
  undo.access = state.access;  // they are over, saved or not
  const absl::Status saved = EndChange(std::move(undo), nullptr);
  if (!saved.ok()) {
    FollowTokens();
    next_token_ns = now + kSaveRetryNanos;
  }
  return true;
}

std::vector<Coordinator::Impl::Poll> Coordinator::Impl::TakePolls(int64_t now) {
  std::vector<Poll> due, waiting;
  next_poll_ns = kNever;
  for (Poll& poll : polls) {
    if (poll.known != state.view.revision() || poll.due_ns <= now) {
      due.push_back(std::move(poll));
    } else {
      next_poll_ns = std::min(next_poll_ns, poll.due_ns);
      waiting.push_back(std::move(poll));
    }
  }
  polls = std::move(waiting);
  return due;
}

v1::GetViewResponse Coordinator::Impl::ViewAnswer(uint64_t known) const {
  v1::GetViewResponse response;
  // Also when the caller knows a greater revision: it followed a cluster that is no more.
  if (known != state.view.revision()) {
    response.set_changed(true);
    *response.mutable_view() = state.view;
  }
  return response;
}

void Coordinator::Impl::AnswerPolls(std::vector<Poll> due) const {
  for (Poll& poll : due) poll.reply(ViewAnswer(poll.known));
}

// ---- the interface ----

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const CoordinatorOptions& options,
                                                                 const Clock* clock, Store* store) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->clock = clock;
  impl->store = store;
  if (absl::Status status = impl->TakeOffice(); !status.ok()) return status;
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

void Coordinator::JoinServer(const v1::JoinServerRequest& request,
                             Reply<v1::JoinServerResponse> reply) {
  impl_->Mutate("JoinServer", request, std::move(reply), [&](v1::JoinServerResponse* response) {
    return AddServer(request, impl_->options, &impl_->state, response);
  });
}

void Coordinator::JoinWorker(const v1::JoinWorkerRequest& request, const std::string& token,
                             Reply<v1::JoinWorkerResponse> reply) {
  impl_->Mutate("JoinWorker", request, std::move(reply), [&](v1::JoinWorkerResponse* response) {
    return AddWorker(request, token, impl_->options, &impl_->state, response);
  });
}

void Coordinator::Heartbeat(const v1::HeartbeatRequest& request,
                            Reply<v1::HeartbeatResponse> reply) {
  Impl& impl = *impl_;
  const uint64_t incarnation = request.incarnation();
  std::vector<Impl::Poll> due;
  if (!impl.leases.Renew(incarnation, impl.Now() + impl.LeaseNanos())) {
    const v1::Server* silent = FindServer(incarnation, impl.view());
    if (silent == nullptr || impl.left.contains(incarnation)) {
      reply(absl::NotFoundError(
          absl::StrCat("incarnation ", incarnation,
                       " is retired: its lease has ended, it has left, or a newer "
                       "incarnation has joined under its name")));
      return;
    }
    Impl::Undo undo = impl.BeginChange();
    FindServer(incarnation, impl.view())->set_state(v1::Server::ALIVE);
    if (absl::Status saved = impl.EndChange(std::move(undo), nullptr); !saved.ok()) {
      reply(std::move(saved));
      return;
    }
    due = impl.TakePolls(impl.Now());
  }
  v1::HeartbeatResponse response;
  response.set_revision(impl.state.view.revision());
  response.set_term(impl.state.view.term());
  reply(std::move(response));
  impl.AnswerPolls(std::move(due));
}

void Coordinator::Leave(const v1::LeaveRequest& request, Reply<v1::LeaveResponse> reply) {
  impl_->Mutate(
      "Leave", request, std::move(reply), [&](v1::LeaveResponse*) -> absl::StatusOr<Effect> {
        absl::StatusOr<Effect> effect = RemoveMember(request.incarnation(), &impl_->state);
        if (effect.ok() && FindServer(request.incarnation(), impl_->view()) != nullptr) {
          impl_->left.insert(request.incarnation());
        }
        return effect;
      });
}

void Coordinator::CreateTable(const v1::CreateTableRequest& request,
                              Reply<v1::CreateTableResponse> reply) {
  impl_->Mutate("CreateTable", request, std::move(reply), [&](v1::CreateTableResponse* response) {
    return AddTable(request.spec(), impl_->options, &impl_->state, response->mutable_table());
  });
}

void Coordinator::DropTable(const v1::DropTableRequest& request,
                            Reply<v1::DropTableResponse> reply) {
  impl_->Mutate("DropTable", request, std::move(reply), [&](v1::DropTableResponse* response) {
    response->set_revision(impl_->state.view.revision());
    return RemoveTable(request.name(), &impl_->state);
  });
}

void Coordinator::SetJobLimits(const v1::SetJobLimitsRequest& request,
                               Reply<v1::SetJobLimitsResponse> reply) {
  impl_->Mutate("SetJobLimits", request, std::move(reply), [&](v1::SetJobLimitsResponse* response) {
    return ChangeLimits(request, &impl_->state, response);
  });
}

void Coordinator::GetView(const v1::GetViewRequest& request, Reply<v1::GetViewResponse> reply) {
  Impl& impl = *impl_;
  if (request.known_revision() != impl.state.view.revision() || request.wait_ms() == 0) {
    reply(impl.ViewAnswer(request.known_revision()));
    return;
  }
  const int64_t wait = std::min(request.wait_ms(), kMaxWaitMs) * kNanosPerMilli;
  impl.polls.push_back({request.known_revision(), impl.Now() + wait, std::move(reply)});
  impl.next_poll_ns = std::min(impl.next_poll_ns, impl.polls.back().due_ns);
}

void Coordinator::CreateToken(const v1::CreateTokenRequest& request,
                              Reply<v1::CreateTokenResponse> reply) {
  impl_->Mutate("CreateToken", request, std::move(reply),
                [&](v1::CreateTokenResponse* response) -> absl::StatusOr<Effect> {
                  if (!impl_->options.tokens) {
                    return absl::FailedPreconditionError(
                        "this cluster asks for no tokens: start its coordinator with "
                        "--operator-token-file");
                  }
                  return AddToken(request, impl_->options.wall_clock(), &impl_->state, response);
                });
}

void Coordinator::ListTokens(const v1::ListTokensRequest&, Reply<v1::ListTokensResponse> reply) {
  v1::ListTokensResponse response;
  *response.mutable_tokens() = impl_->access.tokens();
  for (v1::Token& token : *response.mutable_tokens()) token.clear_hash();
  reply(std::move(response));
}

void Coordinator::RevokeToken(const v1::RevokeTokenRequest& request,
                              Reply<v1::RevokeTokenResponse> reply) {
  impl_->Mutate(
      "RevokeToken", request, std::move(reply),
      [&](v1::RevokeTokenResponse* response) -> absl::StatusOr<Effect> {
        if (impl_->options.tokens && request.id() == impl_->options.operator_token.id()) {
          return absl::FailedPreconditionError(
              "that is the token in the coordinator's --operator-token-file: put another one there "
              "and start the coordinator again");
        }
        return EndToken(request.id(), impl_->options.wall_clock(), &impl_->state, response);
      });
}

bool Coordinator::RunOnce() {
  Impl& impl = *impl_;
  const int64_t now = impl.Now();
  bool ended = impl.EndLeases(now);
  ended |= impl.EndTokens(now);
  if (!ended && impl.next_poll_ns > now) return false;
  impl.AnswerPolls(impl.TakePolls(now));
  return true;
}

int64_t Coordinator::NextTimerNanos() const {
  // What could not be saved is tried again later, not in a loop.
  const int64_t leases = std::max(impl_->leases.NextDueNanos(), impl_->next_save_ns);
  return std::min({leases, impl_->next_poll_ns, impl_->next_token_ns});
}

const v1::ClusterView& Coordinator::view() const { return impl_->state.view; }

const v1::AccessRules* Coordinator::access() const {
  return impl_->options.tokens ? &impl_->access : nullptr;
}

int64_t WallClockSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace verbena::server
