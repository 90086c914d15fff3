#include "client/core/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/failpoints.h"
#include "proto/control/cluster_history.h"
#include "proto/control/view_change.h"
#include "proto/control/view_tables.h"
#include "proto/control/view_terms.h"
#include "proto/protocol_version.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {
namespace {

constexpr uint32_t kWatchMilliseconds = 10'000;

std::string Method(const char* name) { return absl::StrCat("/verbena.v1.Cluster/", name); }

}  // namespace

Session::Session(SessionOptions options, ControlChannel* control, const Clock* clock,
                 Random* random, LeaseKeeper* keeper, Listener listener)
    : options_(std::move(options)),
      control_(control),
      clock_(clock),
      random_(random),
      keeper_(keeper),
      listener_(std::move(listener)),
      calls_(control, clock, random) {
  if (options_.job.empty()) options_.job = "default";  // same default as in the coordinator
}

// ---- joining and leaving ------------------------------------------------------------------------

void Session::Join(int64_t deadline_ns, std::function<void(absl::Status)> done) {
  state_ = State::kJoining;
  const int64_t began = clock_->NowNanos();
  v1::JoinWorkerRequest request;
  request.set_request_id(calls_.NewRequestId());
  request.set_job(options_.job);
  request.set_name(options_.name);
  request.set_expected_workers(options_.expected_workers);
  request.set_max_workers(options_.observer ? 0 : options_.max_workers);
  request.set_rank(options_.rank);
  request.set_observer(options_.observer);
  SetProtocols(SpokenProtocols(), request.mutable_protocol());
  calls_.Start<v1::JoinWorkerResponse>(
      options_.cluster, Method("JoinWorker"), std::move(request), deadline_ns,
      [this, began, deadline_ns,
       done = std::move(done)](absl::StatusOr<v1::JoinWorkerResponse> response) {
        if (state_ != State::kJoining) return done(absl::CancelledError("left while joining"));
        if (!response.ok()) {
          state_ = State::kNew;
          return done(response.status());
        }
        Confirm(began, deadline_ns, std::make_shared<v1::JoinWorkerResponse>(*std::move(response)),
                done);
      },
      // The worker that has the place may have been killed: then its lease ends.
      [](const absl::Status& status) { return absl::IsAlreadyExists(status); });
}

// The coordinator granted the lease some time after `began`. If that was long ago, for example
// because this process did not run meanwhile, the lease may have ended without a renewal.
void Session::Confirm(int64_t began, int64_t deadline_ns,
                      std::shared_ptr<v1::JoinWorkerResponse> granted,
                      std::function<void(absl::Status)> done) {
  const int64_t now = clock_->NowNanos();
  lease_ms_ = std::max<uint32_t>(granted->lease_ms(), 1);
  renewed_at_ = began;
  if (RenewedRecently()) return Joined(granted.get(), deadline_ns, std::move(done));
  v1::HeartbeatRequest request;
  request.set_incarnation(granted->incarnation());
  calls_.Start<v1::HeartbeatResponse>(
      options_.cluster, Method("Heartbeat"), std::move(request), deadline_ns,
      [this, now, deadline_ns, granted,
       done = std::move(done)](absl::StatusOr<v1::HeartbeatResponse> response) {
        if (state_ != State::kJoining) return done(absl::CancelledError("left while joining"));
        if (response.ok()) return Confirm(now, deadline_ns, granted, done);
        if (absl::IsNotFound(response.status())) return Join(deadline_ns, done);
        state_ = State::kNew;
        done(response.status());
      });
}

bool Session::RenewedRecently() const {
  return clock_->NowNanos() - renewed_at_ < lease_ms_ * kMillisecond / 2 ||
         VERBENA_FAILPOINT(client, trust_late_grants);
}

void Session::Joined(v1::JoinWorkerResponse* granted, int64_t deadline_ns,
                     std::function<void(absl::Status)> done) {
  state_ = State::kJoined;
  incarnation_ = granted->incarnation();
  rank_ = granted->rank();
  heartbeat_at_ = clock_->NowNanos() + lease_ms_ * kMillisecond / 4;
  keeper_->Start(incarnation_, lease_ms_ * kMillisecond);
  watch_at_ = 0;
  admitted_ = std::move(done);
  admit_by_ = deadline_ns;
  TakeView(std::move(*granted->mutable_view())).IgnoreError();  // the first view is always accepted
  FollowAdmission();
}

const v1::Worker* Session::Admitted() const {
  const v1::Job* job = OwnJob();
  const v1::Worker* own = job == nullptr ? nullptr : FindMember(incarnation_, *job);
  return own == nullptr || own->joining() ? nullptr : own;
}

void Session::FollowAdmission() {
  if (admitted_ == nullptr) return;
  const v1::Worker* own = Admitted();
  if (own == nullptr) return;
  // This process may not have run since: the lease may have ended after that view.
  if (!RenewedRecently()) {
    heartbeat_at_ = 0;
    return;
  }
  rank_ = own->rank();
  EndJoin(absl::OkStatus());
}

void Session::EndJoin(absl::Status status) {
  admit_by_ = kNever;
  if (auto done = std::exchange(admitted_, nullptr)) done(std::move(status));
}

void Session::AdmitMembers(const v1::AdmitMembersRequest& request, int64_t deadline_ns) {
  v1::AdmitMembersRequest mine = request;
  mine.set_request_id(calls_.NewRequestId());
  calls_.Start<v1::AdmitMembersResponse>(
      options_.cluster, Method("AdmitMembers"), std::move(mine), deadline_ns,
      [this](absl::StatusOr<v1::AdmitMembersResponse> response) {
        if (response.ok() && response->revision() > view_.revision()) Refresh();
      });
}

void Session::Leave(int64_t deadline_ns, std::function<void(absl::Status)> done) {
  const State before = state_;
  keeper_->Stop();
  heartbeat_at_ = watch_at_ = refresh_at_ = kNever;
  calls_.CancelAll(absl::CancelledError("the client is leaving"));
  state_ = before == State::kExpired ? State::kExpired : State::kLeaving;
  EndJoin(absl::CancelledError("left while joining"));
  v1::LeaveRequest request;
  request.set_request_id(calls_.NewRequestId());
  request.set_incarnation(incarnation_);
  if (before != State::kJoined) {
    // No call is necessary; a join in progress ends with its lease.
    if (state_ != State::kExpired) state_ = State::kLeft;
    return done(absl::OkStatus());
  }
  calls_.Start<v1::LeaveResponse>(
      options_.cluster, Method("Leave"), std::move(request), deadline_ns,
      [this, done = std::move(done)](absl::StatusOr<v1::LeaveResponse> response) {
        state_ = State::kLeft;
        done(response.status());
      });
}

void Session::AskForLease() {
  if (state_ != State::kJoined || heartbeat_out_) return;
  // Each refused record calls this, so limit it to 16 times between two regular heartbeats.
  heartbeat_at_ = std::min(heartbeat_at_, beat_sent_ + lease_ms_ * kMillisecond / 64);
}

void Session::Expire(std::string_view who) {
  if (state_ != State::kJoined) return;
  state_ = State::kExpired;
  keeper_->Stop();
  heartbeat_at_ = watch_at_ = refresh_at_ = kNever;
  expired_ = absl::AbortedError(absl::StrCat("outcome unknown: the lease of incarnation ",
                                             incarnation_, " ended (according to ",
                                             absl::string_view(who.data(), who.size()), ")"));
  listener_.on_expired(expired_);
  EndJoin(expired_);
}

absl::Status Session::Usable() const {
  switch (state_) {
    case State::kJoined:
      return absl::OkStatus();
    case State::kNew:
    case State::kJoining:
      return absl::FailedPreconditionError("this client has not joined a cluster yet");
    case State::kLeaving:
    case State::kLeft:
      return absl::FailedPreconditionError("this client has left the cluster");
    case State::kExpired:
      break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the lease of incarnation ", incarnation_,
                   " ended; connect again to get a new one (Client::Connect)"));
}

// ---- tables -------------------------------------------------------------------------------------

void Session::CreateTable(const v1::TableSpec& spec, uint64_t ended_steps, int64_t deadline_ns,
                          std::function<void(absl::StatusOr<v1::Table>)> done) {
  v1::CreateTableRequest request;
  request.set_request_id(calls_.NewRequestId());
  *request.mutable_spec() = spec;
  request.set_ended_steps(ended_steps);
  calls_.Start<v1::CreateTableResponse>(
      options_.cluster, Method("CreateTable"), std::move(request), deadline_ns,
      [this, deadline_ns,
       done = std::move(done)](absl::StatusOr<v1::CreateTableResponse> response) {
        if (!response.ok()) return done(response.status());
        // The table is in a view that this client may not have yet.
        FollowView(deadline_ns, [table = std::move(*response->mutable_table()),
                                 done](const absl::Status& followed) {
          if (!followed.ok()) return done(followed);
          done(table);
        });
      });
}

void Session::OpenTable(const std::string& name, int64_t deadline_ns,
                        std::function<void(absl::StatusOr<v1::Table>)> done) {
  FollowView(deadline_ns, [this, name, done = std::move(done)](const absl::Status& followed) {
    if (!followed.ok()) return done(followed);
    if (const v1::Table* table = FindTableNamed(name, false, view_)) {
      if (absl::Status status = CheckJob(*table); !status.ok()) return done(std::move(status));
      return done(*table);
    }
    if (const v1::Table* other = FindTableNamed(name, true, view_)) {
      return done(absl::UnavailableError(
          absl::StrCat(BeingRestored(*other), "; it is there when all of it is loaded")));
    }
    std::string names;
    for (const v1::Table& table : view_.tables()) {
      if (table.restoring()) continue;
      absl::StrAppend(&names, names.empty() ? "'" : ", '", table.spec().name(), "'");
    }
    done(absl::NotFoundError(absl::StrCat("no table '", name, "' in cluster ", options_.cluster,
                                          "; it has ", names.empty() ? "none" : names)));
  });
}

void Session::DropTable(const std::string& name, int64_t deadline_ns,
                        std::function<void(absl::Status)> done) {
  v1::DropTableRequest request;
  request.set_name(name);
  Drop(std::move(request), deadline_ns, std::move(done));
}

void Session::DropTable(uint32_t id, int64_t deadline_ns, std::function<void(absl::Status)> done) {
  v1::DropTableRequest request;
  request.set_id(id);
  Drop(std::move(request), deadline_ns, std::move(done));
}

void Session::Drop(v1::DropTableRequest request, int64_t deadline_ns,
                   std::function<void(absl::Status)> done) {
  request.set_request_id(calls_.NewRequestId());
  calls_.Start<v1::DropTableResponse>(
      options_.cluster, Method("DropTable"), std::move(request), deadline_ns,
      [this, deadline_ns, done = std::move(done)](absl::StatusOr<v1::DropTableResponse> response) {
        if (!response.ok() || response->revision() <= view_.revision()) {
          return done(response.status());
        }
        // Later calls of this client find the table dropped. It is, whether the view comes or not.
        FollowView(deadline_ns, [done](absl::Status) { done(absl::OkStatus()); });
      });
}

void Session::FollowView(int64_t deadline_ns, std::function<void(absl::Status)> done) {
  v1::GetViewRequest request = ViewRequest();
  calls_.Start<v1::GetViewResponse>(
      options_.cluster, Method("GetView"), std::move(request), deadline_ns,
      [this, deadline_ns, asked_at = view_.revision(),
       done = std::move(done)](absl::StatusOr<v1::GetViewResponse> response) {
        if (!response.ok()) return done(response.status());
        absl::Status status;
        if (!TakeAnswer(&*response, asked_at, &status)) return FollowView(deadline_ns, done);
        done(status);
      });
}

void Session::ListTables(int64_t deadline_ns,
                         std::function<void(absl::StatusOr<std::vector<v1::Table>>)> done) {
  FollowView(deadline_ns, [this, done = std::move(done)](const absl::Status& followed) {
    if (!followed.ok()) return done(followed);
    std::vector<v1::Table> served;
    for (const v1::Table& table : view_.tables()) {
      if (!table.restoring()) served.push_back(table);
    }
    done(std::move(served));
  });
}

// ---- lease and view -----------------------------------------------------------------------------

absl::Status Session::TakeView(v1::ClusterView view) {
  switch (CompareHistory(view, view_)) {
    case History::kContinues:
    case History::kBehind:
      break;
    case History::kRolledBack:
      // Either state may be the old one. The next heartbeat decides: servers prove it, or the
      // coordinator ends this client.
      return absl::FailedPreconditionError(absl::StrCat(
          "cluster ", options_.cluster, ": its coordinator is at ", DescribeSeen(SeenOf(view)),
          ", and this client has seen ", DescribeSeen(SeenOf(view_)),
          " (the state of one of them is an older one that was put back); if it is the "
          "coordinator's, its operator must put the newer state back"));
    case History::kOtherCluster:
      // The servers continue, and may find their coordinator again.
      return absl::FailedPreconditionError(
          absl::StrCat("cluster ", options_.cluster, ": its coordinator serves cluster ",
                       view.cluster_id(), ", and this client joined cluster ", view_.cluster_id(),
                       "; start the coordinator with the state of that cluster"));
    case History::kForeign:
    case History::kAbandoned:
    case History::kOtherIdentity:
      Expire(absl::StrCat("the coordinator: it is at ", DescribeSeen(SeenOf(view)), " of cluster ",
                          view.cluster_id(), ", whose history has no ", DescribeSeen(SeenOf(view_)),
                          " as this client has seen it"));
      return state_ == State::kExpired ? expired_ : Usable();
  }
  // Answers of several calls may be reordered: only a newer view is used.
  if (view.revision() <= view_.revision()) return absl::OkStatus();
  view_ = std::move(view);
  FollowNewView(ViewDifference());
  return absl::OkStatus();
}

void Session::FollowNewView(const ViewDifference& what) {
  if (what.all || what.placement) FollowSilence();
  if (state_ != State::kJoined) return;
  if (what.all || what.jobs.contains(options_.job)) {
    // This client was retired but does not know it yet: send a heartbeat at once.
    const v1::Job* job = OwnJob();
    if (job == nullptr || FindMember(incarnation_, *job) == nullptr) heartbeat_at_ = 0;
  }
  listener_.on_view(what);
  FollowAdmission();
}

void Session::FollowSilence() {
  const int64_t now = clock_->NowNanos();
  std::vector<std::pair<uint64_t, int64_t>> silent;
  for (const v1::Server& server : view_.servers()) {
    if (server.state() != v1::Server::SILENT) continue;
    const int64_t since = SilentSince(server.incarnation());
    silent.emplace_back(server.incarnation(), since != 0 ? since : now);
  }
  silent_ = std::move(silent);
}

void Session::Heartbeat() {
  heartbeat_out_ = true;
  heartbeat_at_ = kNever;
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation_);
  *request.mutable_seen() = SeenOf(view_);
  const int64_t sent = clock_->NowNanos();
  beat_sent_ = sent;
  const int64_t interval = lease_ms_ * kMillisecond / 4;
  // An admitted worker has not joined before an answer (FollowAdmission()): a slow one will do,
  // too.
  const int64_t patience = admitted_ != nullptr ? 2 * interval : interval;
  Call<v1::HeartbeatResponse>(
      *control_, options_.cluster, Method("Heartbeat"), request, absl::Nanoseconds(patience),
      [this, alive = alive_, sent, interval](absl::StatusOr<v1::HeartbeatResponse> response) {
        if (!*alive) return;
        heartbeat_out_ = false;
        if (state_ != State::kJoined) return;
        if (response.status().code() == absl::StatusCode::kNotFound) {
          return Expire("the coordinator");
        }
        if (response.status().code() == absl::StatusCode::kAborted) {
          return Expire(absl::StrCat("the coordinator: ", response.status().message()));
        }
        // A coordinator that does not respond ends nothing: data continues to flow, and a new one
        // renews all leases when its term starts.
        const int64_t now = clock_->NowNanos();
        if (response.ok()) {
          refused_at_ = kNever;
          renewed_at_ = sent;
          keeper_->Renewed(sent);
        } else if (RefusesCaller(response.status())) {
          // The token is no longer valid, so the lease is not renewed.
          refused_at_ = std::min(refused_at_, now);
          if (now - refused_at_ >= lease_ms_ * kMillisecond) {
            return Expire(absl::StrCat("the coordinator, which refuses to renew it: ",
                                       response.status().message()));
          }
        }
        heartbeat_at_ = response.ok()
                            ? sent + interval
                            : std::max(sent + interval / 2, now + std::min(interval / 4, kSecond));
        if (response.ok() && response->revision() > view_.revision()) Refresh();
        if (response.ok()) FollowAdmission();
      });
}

v1::GetViewRequest Session::ViewRequest() const {
  v1::GetViewRequest request;
  request.set_known_revision(view_.revision());
  request.set_incarnation(incarnation_);
  *request.mutable_seen() = SeenOf(view_);
  request.set_takes_changes(!needs_whole_view_);
  return request;
}

// Changes are applied in place: with many tables a copy costs more than everything else.
bool Session::TakeAnswer(v1::GetViewResponse* response, uint64_t asked_at, absl::Status* status) {
  needs_whole_view_ = false;
  if (!response->changes().empty()) {
    const uint64_t before = view_.revision();
    needs_whole_view_ = !ApplyChanges(*response, &view_);
    if (view_.revision() == before) return !needs_whole_view_;
    ViewChangeList applied;
    for (v1::ViewChange& change : *response->mutable_changes()) {
      const bool is_new = change.base_revision() >= before;
      if (is_new && change.revision() <= view_.revision()) applied.push_back(std::move(change));
    }
    FollowNewView(DifferenceOf(before, view_, applied));
    return !needs_whole_view_;
  }
  if (!response->changed()) return true;
  if (!WasCompared(response->view(), asked_at, view_)) return false;
  *status = TakeView(std::move(*response->mutable_view()));
  return true;
}

void Session::GetView(uint32_t wait_ms, std::function<void(absl::Status)> done) {
  v1::GetViewRequest request = ViewRequest();
  request.set_wait_ms(wait_ms);
  Call<v1::GetViewResponse>(
      *control_, options_.cluster, Method("GetView"), request,
      absl::Milliseconds(wait_ms) + absl::Seconds(5),
      [this, alive = alive_, asked_at = view_.revision(),
       done = std::move(done)](absl::StatusOr<v1::GetViewResponse> response) mutable {
        if (!*alive) return;
        absl::Status status = response.status();
        if (status.ok() && response->changed() && state_ == State::kJoined) {
          if (!TakeAnswer(&*response, asked_at, &status)) Refresh();
        }
        done(std::move(status));
      });
}

void Session::Watch() {
  watch_out_ = true;
  watch_at_ = kNever;
  const int64_t sent = clock_->NowNanos();
  GetView(kWatchMilliseconds, [this, sent](absl::Status status) {
    watch_out_ = false;
    if (state_ != State::kJoined) return;
    if (status.ok()) watch_backoff_.Reset();
    // Changes in a burst are fetched together.
    watch_at_ =
        status.ok() ? sent + kFirstBackoff : clock_->NowNanos() + watch_backoff_.Next(*random_);
  });
}

void Session::Refresh() {
  if (state_ != State::kJoined) return;
  if (refresh_out_) {
    refresh_again_ = true;
  } else if (refresh_at_ == kNever) {
    refresh_at_ = 0;
  }
}

bool Session::RunOnce(int64_t now) {
  bool worked = calls_.RunOnce(now);
  if (admit_by_ <= now) {
    EndJoin(absl::DeadlineExceededError(
        Admitted() ? "the coordinator has not renewed the lease of this worker in time"
                   : absl::StrCat("no worker of the run of job '", options_.job,
                                  "' has let this one join in time; the run's workers answer "
                                  "while they run")));
    worked = true;
  }
  if (heartbeat_at_ <= now && !heartbeat_out_) {
    Heartbeat();
    worked = true;
  }
  if (watch_at_ <= now && !watch_out_) {
    Watch();
    worked = true;
  }
  if (refresh_at_ <= now && !refresh_out_) {
    refresh_out_ = true;
    refresh_again_ = false;
    refresh_at_ = kNever;
    GetView(0, [this](absl::Status status) {
      refresh_out_ = false;
      if (state_ != State::kJoined) return;
      if (status.ok()) refresh_backoff_.Reset();
      if (status.ok() && !refresh_again_) ++refreshes_;
      if (!status.ok() || refresh_again_) {
        refresh_at_ = clock_->NowNanos() + refresh_backoff_.Next(*random_);
      }
    });
    worked = true;
  }
  return worked;
}

int64_t Session::NextTimerNanos() const {
  int64_t next = std::min(calls_.NextTimerNanos(), admit_by_);
  if (!heartbeat_out_) next = std::min(next, heartbeat_at_);
  if (!watch_out_) next = std::min(next, watch_at_);
  if (!refresh_out_) next = std::min(next, refresh_at_);
  return next;
}

// ---- lookup -------------------------------------------------------------------------------------

const v1::Server* Session::FindServer(uint64_t incarnation) const {
  for (const v1::Server& server : view_.servers()) {
    if (server.incarnation() == incarnation) return &server;
  }
  return nullptr;
}

const v1::Table* Session::FindTable(uint32_t id) const { return FindTableById(id, view_); }

const v1::Job* Session::OwnJob() const { return FindJobNamed(options_.job, view_); }

absl::Status Session::CheckJob(const v1::Table& table) const {
  const std::string& own = options_.job;
  const std::string& of = table.spec().job();
  if (of == own) return absl::OkStatus();
  if (!options_.observer) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", table.spec().name(), "' belongs to job '", of, "', and this client is a worker ",
        "of job '", own, "'; connect as a worker of job '", of, "', or as an observer to read it"));
  }
  const v1::Job* job = OwnJob();
  if (job == nullptr) return absl::OkStatus();
  const v1::Worker* own_entry = FindMember(incarnation_, *job);
  if (own_entry != nullptr && !own_entry->only_job().empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "table '", table.spec().name(), "' belongs to job '", of, "', and the token of this ",
        "observer is restricted to job '", own_entry->only_job(),
        "'; use one of role read-only that "
        "names no job"));
  }
  return absl::OkStatus();
}

int64_t Session::SilentSince(uint64_t incarnation) const {
  for (const auto& [server, since] : silent_) {
    if (server == incarnation) return since;
  }
  return 0;
}

}  // namespace verbena::client
