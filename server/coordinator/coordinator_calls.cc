// Calls that a coordinator answers.
#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/protocol_version.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/jobs.h"
#include "server/coordinator/moves.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/tokens.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

// How often the coordinator looks whether it has run, in turns a lease. Two turns are the longest
// pause that counts against leases: with 8 a quarter of a lease, which is how often members send.
constexpr int64_t kTurnsPerLease = 8;

// A longer poll would outlive the time for which routers and firewalls remember an idle connection.
constexpr uint32_t kMaxWaitMs = 30000;

// The views in answers are not remembered: they are large, and a caller that repeats a call wants
// the current one.
void SetView(const v1::ClusterView& view, v1::JoinServerResponse* r) { *r->mutable_view() = view; }
void SetView(const v1::ClusterView& view, v1::JoinWorkerResponse* r) { *r->mutable_view() = view; }
// A caller asks for the view's changes when it needs them: with many tables the view is large.
template <typename Response>
void SetView(const v1::ClusterView&, Response*) {}

// The revision that the caller waits for.
template <typename Response>
void SetRevision(const v1::ClusterView& view, Response* r) {
  if constexpr (requires { r->set_revision(uint64_t{}); }) r->set_revision(view.revision());
}

uint64_t JoinedIncarnation(const v1::JoinServerResponse& r) { return r.incarnation(); }
uint64_t JoinedIncarnation(const v1::JoinWorkerResponse& r) { return r.incarnation(); }
template <typename Response>
uint64_t JoinedIncarnation(const Response&) {
  return 0;
}

}  // namespace

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
  if (!refusal.ok()) return reply(refusal);
  if (absl::Status status = CheckRequestId(request.request_id()); !status.ok()) {
    reply(std::move(status));
    return;
  }
  CoordinatorState::Answered answered{request.request_id(), Fingerprint(method, request), ""};
  if (const CoordinatorState::Answered* before = FindAnswer(request.request_id())) {
    WhenSaved([this, before = *before, fingerprint = answered.method,
               reply = std::move(reply)](const absl::Status& saved) mutable {
      if (!saved.ok()) return reply(saved);
      Repeat<Response>(before, fingerprint, std::move(reply));
    });
    return;
  }
  if (absl::Status status = MayChange(request); !status.ok()) return reply(std::move(status));
  BeginChange();
  Response response;
  absl::StatusOr<Effect> effect = apply(&response);
  const bool changed = effect.ok() && *effect == Effect::kChanged;
  if (!changed) UndoChange();
  SetRevision(state.view, &response);
  if (changed) {
    answered.response = response.SerializeAsString();
    if (absl::Status saved = EndChange(&answered); !saved.ok()) return reply(std::move(saved));
  }
  WhenSaved([this, changed, status = effect.status(), response = std::move(response),
             reply = std::move(reply)](const absl::Status& saved) mutable {
    if (!saved.ok()) return reply(saved);
    if (!status.ok()) return reply(std::move(status));
    SetView(state.view, &response);
    answers_change = changed;
    reply(std::move(response));
    answers_change = false;
  });
  if (!grouping) AnswerPolls();
}

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
  impl->turns = Turns(impl->LeaseNanos() / kTurnsPerLease, impl->Now());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

void Coordinator::JoinServer(const v1::JoinServerRequest& request,
                             Reply<v1::JoinServerResponse> reply) {
  impl_->Mutate("JoinServer", request, std::move(reply), [&](v1::JoinServerResponse* response) {
    absl::StatusOr<Effect> effect =
        AddServer(request, impl_->options, &impl_->state, &impl_->editor, response);
    if (effect.ok()) impl_->heard[response->incarnation()] = impl_->Now();
    return effect;
  });
}

void Coordinator::JoinWorker(const v1::JoinWorkerRequest& request, const std::string& token,
                             Reply<v1::JoinWorkerResponse> reply) {
  impl_->Mutate("JoinWorker", request, std::move(reply), [&](v1::JoinWorkerResponse* response) {
    absl::StatusOr<Effect> added =
        AddWorker(request, token, impl_->options, &impl_->state, &impl_->editor, response);
    if (absl::IsFailedPrecondition(added.status()) && impl_->RunEnds(request)) {
      return absl::StatusOr<Effect>(absl::AlreadyExistsError(absl::StrCat(
          added.status().message(), "; no worker of this run has been heard for ",
          impl_->options.lease_ms / 2, " ms: the next run begins when their leases have ended")));
    }
    return added;
  });
}

// All workers of the run that the join would have to wait for may be dead: none has sent a
// heartbeat for half a lease, two of which are due in it.
bool Coordinator::Impl::RunEnds(const v1::JoinWorkerRequest& request) const {
  const v1::Job* const job = editor.FindJob(request.job().empty() ? "default" : request.job());
  if (job == nullptr || !WaitsForNextRun(request, *job)) return false;
  return std::none_of(job->members().begin(), job->members().end(), [this](const v1::Worker& w) {
    return w.rank() >= 0 && leases.Until(w.incarnation()) - LeaseNanos() / 2 > Now();
  });
}

void Coordinator::Heartbeat(const v1::HeartbeatRequest& request,
                            Reply<v1::HeartbeatResponse> reply) {
  Impl& impl = *impl_;
  if (!impl.staged.empty()) {
    return impl.PutOff([this, request, reply = std::move(reply)]() mutable {
      Heartbeat(request, std::move(reply));
    });
  }
  const uint64_t incarnation = request.incarnation();
  if (absl::Status status = impl.CheckSeen(request.seen(), request.server(), incarnation);
      !status.ok()) {
    return reply(std::move(status));
  }
  if (FindServer(incarnation, impl.view()) != nullptr) {
    impl.heard[incarnation] = impl.Now();
  }
  if (!impl.leases.Renew(incarnation, impl.Now() + impl.LeaseNanos())) {
    const v1::Server* silent = FindServer(incarnation, impl.view());
    if (silent == nullptr || impl.left.contains(incarnation)) {
      reply(absl::NotFoundError(
          absl::StrCat("incarnation ", incarnation,
                       " is retired: its lease has ended, it has left, or a newer "
                       "incarnation has joined under its name, or an operator has removed it")));
      return;
    }
    impl.BeginChange();
    SetServerState(incarnation, v1::Server::ALIVE, &impl.editor);
    if (absl::Status saved = impl.EndChange(nullptr); !saved.ok()) {
      reply(std::move(saved));
      return;
    }
  }
  impl.WhenSaved([&impl, reply = std::move(reply)](const absl::Status& saved) mutable {
    if (!saved.ok()) return reply(saved);
    v1::HeartbeatResponse response;
    response.set_revision(impl.state.view.revision());
    response.set_term(impl.state.view.term());
    reply(std::move(response));
  });
  if (impl.unpublished && !impl.grouping) impl.AnswerPolls();
}

void Coordinator::Leave(const v1::LeaveRequest& request, Reply<v1::LeaveResponse> reply) {
  impl_->Mutate(
      "Leave", request, std::move(reply), [&](v1::LeaveResponse*) -> absl::StatusOr<Effect> {
        if (impl_->HasUnheardFollower(request.incarnation())) {
          return absl::UnavailableError(
              absl::StrCat("server incarnation ", request.incarnation(),
                           " leaves, and a follower of its partitions has not been heard for half "
                           "a lease; retry"));
        }
        absl::StatusOr<Effect> effect =
            RemoveMember(request.incarnation(), &impl_->state, &impl_->editor);
        if (effect.ok() && FindServer(request.incarnation(), impl_->view()) != nullptr) {
          impl_->left.insert(request.incarnation());
          HandOver(request.incarnation(), &impl_->editor);
        }
        return effect;
      });
}

void Coordinator::CreateTable(const v1::CreateTableRequest& request,
                              Reply<v1::CreateTableResponse> reply) {
  impl_->Mutate("CreateTable", request, std::move(reply), [&](v1::CreateTableResponse* response) {
    if (request.restoring()) {
      response->set_restore_lease_ms(static_cast<uint32_t>(RestoreLeaseMillis(impl_->options)));
    }
    // Table ids are few: a term in which no table is made skips none.
    impl_->state.next_table = std::max(impl_->state.next_table, impl_->first_table);
    return AddTable(request, impl_->options, &impl_->state, &impl_->editor,
                    response->mutable_table());
  });
}

void Coordinator::FinishRestore(const v1::FinishRestoreRequest& request,
                                Reply<v1::FinishRestoreResponse> reply) {
  impl_->Mutate("FinishRestore", request, std::move(reply), [&](v1::FinishRestoreResponse*) {
    return server::FinishRestore(request, &impl_->editor);
  });
}

void Coordinator::RenewRestore(const v1::RenewRestoreRequest& request,
                               Reply<v1::RenewRestoreResponse> reply) {
  if (!impl_->staged.empty()) {
    return impl_->PutOff([this, request, reply = std::move(reply)]() mutable {
      RenewRestore(request, std::move(reply));
    });
  }
  if (!impl_->refusal.ok()) return reply(impl_->refusal);
  v1::RenewRestoreResponse response;
  for (const uint32_t id : request.tables()) {
    impl_->restores.Renew(id, impl_->Now() + impl_->RestoreLeaseNanos());
    // One that is served already needs no lease.
    if (impl_->editor.FindTable(id) == nullptr) response.add_missing(id);
  }
  reply(std::move(response));
}

void Coordinator::DropTable(const v1::DropTableRequest& request,
                            Reply<v1::DropTableResponse> reply) {
  impl_->Mutate("DropTable", request, std::move(reply),
                [&](v1::DropTableResponse*) { return RemoveTable(request, &impl_->editor); });
}

void Coordinator::AdmitMembers(const v1::AdmitMembersRequest& request,
                               Reply<v1::AdmitMembersResponse> reply) {
  impl_->Mutate("AdmitMembers", request, std::move(reply), [&](v1::AdmitMembersResponse*) {
    return server::AdmitMembers(request, &impl_->editor);
  });
}

void Coordinator::ForgetJob(const v1::ForgetJobRequest& request,
                            Reply<v1::ForgetJobResponse> reply) {
  impl_->Mutate("ForgetJob", request, std::move(reply),
                [&](v1::ForgetJobResponse*) { return server::ForgetJob(request, &impl_->editor); });
}

void Coordinator::RemoveServer(const v1::RemoveServerRequest& request,
                               Reply<v1::RemoveServerResponse> reply) {
  impl_->Mutate("RemoveServer", request, std::move(reply), [&](v1::RemoveServerResponse* response) {
    return server::RemoveServer(request, &impl_->state, &impl_->editor, response);
  });
}

void Coordinator::MovePartitions(const v1::MovePartitionsRequest& request,
                                 Reply<v1::MovePartitionsResponse> reply) {
  impl_->Mutate("MovePartitions", request, std::move(reply),
                [&](v1::MovePartitionsResponse* response) {
                  return server::MovePartitions(request, &impl_->editor, response);
                });
}

void Coordinator::DrainServer(const v1::DrainServerRequest& request,
                              Reply<v1::DrainServerResponse> reply) {
  impl_->Mutate("DrainServer", request, std::move(reply), [&](v1::DrainServerResponse*) {
    return server::DrainServer(request, &impl_->editor);
  });
}

void Coordinator::ResetTable(const v1::ResetTableRequest& request,
                             Reply<v1::ResetTableResponse> reply) {
  impl_->Mutate("ResetTable", request, std::move(reply), [&](v1::ResetTableResponse* response) {
    return server::ResetTable(request, &impl_->editor, response);
  });
}

void Coordinator::Reconfigure(const v1::ReconfigureRequest& request,
                              Reply<v1::ReconfigureResponse> reply) {
  impl_->Mutate("Reconfigure", request, std::move(reply), [&](v1::ReconfigureResponse* response) {
    return ChangeConfigurations(request, impl_->Now(), impl_->LeaseNanos(), &impl_->bars,
                                &impl_->state, &impl_->editor, response);
  });
  impl_->LogFullServers();
}

void Coordinator::SetJobLimits(const v1::SetJobLimitsRequest& request,
                               Reply<v1::SetJobLimitsResponse> reply) {
  impl_->Mutate("SetJobLimits", request, std::move(reply),
                [&](v1::SetJobLimitsResponse*) { return ChangeLimits(request, &impl_->editor); });
}

void Coordinator::GetView(const v1::GetViewRequest& request, const std::string& caller,
                          Reply<v1::GetViewResponse> reply) {
  Impl& impl = *impl_;
  if (!impl.staged.empty()) {
    return impl.PutOff([this, request, caller, reply = std::move(reply)]() mutable {
      GetView(request, caller, std::move(reply));
    });
  }
  if (absl::Status status = impl.CheckSeen(request.seen(), request.server(), request.incarnation());
      !status.ok()) {
    return reply(std::move(status));
  }
  // A revision names a state only within a term.
  const bool takes_changes = request.takes_changes() &&
                             request.seen().revision() == request.known_revision() &&
                             request.seen().term_id() == SeenOf(impl.state.view).term_id();
  if (request.known_revision() != impl.state.view.revision() || request.wait_ms() == 0) {
    v1::GetViewResponse response = impl.ViewAnswer(request.known_revision(), takes_changes);
    // Programs that look at the cluster get it at once; members wait for its changes.
    if (request.wait_ms() == 0 && request.incarnation() == 0) {
      AddFullServers(impl.bars, impl.Now(), impl.view(), &response);
      SetProtocols(impl.options.protocols, response.mutable_coordinator_protocol());
      response.set_coordinator_version(impl.options.version);
    }
    reply(std::move(response));
    return;
  }
  if (impl.polls.full()) {
    ++impl.polls_beyond;
    return reply(absl::ResourceExhaustedError(
        absl::StrCat("coordinator: ", ViewPolls::kMostInAll,
                     " calls wait for a change of the view, as many as are allowed; retry later, "
                     "or call without wait_ms")));
  }
  const int64_t wait = std::min(request.wait_ms(), kMaxWaitMs) * kNanosPerMilli;
  const v1::Job* job = impl.editor.JobOf(request.incarnation());
  const bool member = job != nullptr || FindServer(request.incarnation(), impl.view()) != nullptr;
  const bool within = impl.polls.Add({.caller = {caller, member ? request.incarnation() : 0},
                                      .known = request.known_revision(),
                                      .due_ns = impl.Now() + wait,
                                      .takes_changes = takes_changes,
                                      .job = job == nullptr ? "" : job->name(),
                                      .reply = std::move(reply)});
  if (!within) ++impl.polls_beyond;
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
                  impl_->KeepAccess();
                  return AddToken(request, impl_->options.wall_clock(), &impl_->state, response);
                });
}

void Coordinator::ListTokens(const v1::ListTokensRequest& request,
                             Reply<v1::ListTokensResponse> reply) {
  if (!impl_->staged.empty()) {
    return impl_->PutOff([this, request, reply = std::move(reply)]() mutable {
      ListTokens(request, std::move(reply));
    });
  }
  if (!impl_->refusal.ok()) return reply(impl_->refusal);
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
        impl_->KeepAccess();
        return EndToken(request.id(), impl_->options.wall_clock(), &impl_->state, &impl_->editor,
                        response);
      });
}

void Coordinator::BeginGroup() { impl_->grouping = true; }

void Coordinator::EndGroup() {
  Impl& impl = *impl_;
  impl.grouping = false;
  impl.Flush().IgnoreError();  // each call has it
  if (impl.unpublished) impl.AnswerPolls();
}

bool Coordinator::RunOnce() {
  Impl& impl = *impl_;
  EndGroup();
  if (!impl.refusal.ok()) return false;
  const int64_t now = impl.Now();
  const int64_t pause_ns = impl.turns.Begin(now);
  if (pause_ns > 0) {
    impl.paused_ns = now;
    impl.ExtendLeases(pause_ns, now);
  }
  bool ended = impl.EndLeases(now);
  ended |= impl.EndRestores(now);
  ended |= impl.EndBars(now);
  ended |= impl.EndTokens(now);
  if (!ended && impl.polls.NextDueNanos() > now) return false;
  impl.AnswerPolls();
  return true;
}

int64_t Coordinator::NextTimerNanos() const {
  if (!impl_->refusal.ok()) return kNever;
  // A change that could not be saved is tried again later, not in a loop.
  const int64_t due = std::min(
      {impl_->leases.NextDueNanos(), impl_->restores.NextDueNanos(), impl_->bars.NextDueNanos()});
  // Without leases nothing depends on how long this has not run.
  const bool any = !impl_->leases.empty() || !impl_->restores.empty();
  const int64_t turn = any ? impl_->turns.NextDueNanos() : kNever;
  return std::min({std::max(due, impl_->next_checkpoint_ns), impl_->polls.NextDueNanos(),
                   impl_->next_token_ns, turn});
}

const absl::Status& Coordinator::status() const { return impl_->refusal; }

uint64_t Coordinator::polls_beyond() const { return impl_->polls_beyond; }

const MoveCounters& Coordinator::moves() const { return impl_->moves.counters(); }

size_t Coordinator::partitions_refused() const {
  return PartitionsRefused(impl_->bars, impl_->state.view).size();
}

bool Coordinator::answers_change() const { return impl_->answers_change; }

const v1::ClusterView& Coordinator::view() const { return impl_->state.view; }

const ViewEditor& Coordinator::index() const { return impl_->editor; }

const v1::AccessRules* Coordinator::access() const {
  return impl_->options.tokens ? &impl_->access : nullptr;
}

int64_t WallClockSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace verbena::server
