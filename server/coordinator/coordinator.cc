#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/control/cluster_history.h"
#include "proto/control/failpoints.h"
#include "proto/control/unproved_state.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/failpoints.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/protocol_rules.h"
#include "server/coordinator/tokens.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

// After a failed Save() of ended leases or new learners, which nobody waits for.
constexpr int64_t kCheckpointRetryNanos = 1000 * kNanosPerMilli;
constexpr int64_t kLongestTokenSleepSeconds = 60;
// A state that is accepted although a newer one existed: more than that one can have given out.
constexpr uint64_t kRevisionsSkipped = uint64_t{1} << 32;
constexpr uint64_t kIncarnationsSkipped = uint64_t{1} << 44;
constexpr uint32_t kTablesSkipped = uint32_t{1} << 24;
// A term gives out ids from a random distance on, at most this, behind those of the loaded state:
// starts on one state give out different ids. Incarnations stay below 2^53, the largest number that
// is exact in all JSON readers, for four million starts. Table ids have 32 bits; they last for
// 131,072 terms in which a table is made.
constexpr uint64_t kIncarnationsApart = uint64_t{1} << 32;
constexpr uint64_t kTablesApart = uint64_t{1} << 16;

std::string RandomClusterId() {
  absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

uint64_t SystemRandom() {
  absl::BitGen random;
  return absl::Uniform<uint64_t>(random);
}

bool IsNew(const CoordinatorState& state) {
  return state.view.ByteSizeLong() == 0 && state.next_incarnation == 1 && state.next_table == 1 &&
         state.answered.empty();
}

absl::Status NotOfHistory(const v1::Seen& seen, uint64_t incarnation) {
  return absl::AbortedError(absl::StrCat(
      "incarnation ", incarnation, ": it has seen ", DescribeSeen(seen),
      ", which is not in the history of this cluster (the coordinator's state was replaced by "
      "an older one); its data belongs to the abandoned history"));
}

}  // namespace

absl::Status Coordinator::Impl::OtherCluster(const v1::Seen& seen, uint64_t incarnation) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "incarnation ", incarnation, " belongs to cluster ", seen.cluster_id(),
      ", and this coordinator serves cluster ", state.view.cluster_id(),
      " (started with another --state, or its state is lost); start it with the state of cluster ",
      seen.cluster_id(), ", or, if that is lost, restart the servers, which makes them empty"));
}

bool Coordinator::Impl::WasHeard(uint64_t server) const {
  const auto it = heard.find(server);
  if (it == heard.end() || turns.Late(Now()) || Now() - it->second > LeaseNanos() / 2) return false;
  return paused_ns < 0 || it->second >= paused_ns + LeaseNanos() / 8;
}

bool Coordinator::Impl::HasUnheardFollower(uint64_t server) const {
  if (VERBENA_FAILPOINT(server, hand_over_unheard)) return false;
  const auto& partitions = state.view.partitions();
  return std::any_of(partitions.begin(), partitions.end(), [&](const v1::Partition& p) {
    return p.primary() == server &&
           std::any_of(p.followers().begin(), p.followers().end(), [&](const v1::Replica& r) {
             return IsAlive(r.server(), state.view) && !WasHeard(r.server());
           });
  });
}

bool Coordinator::Impl::AcceptsState() const {
  const Terms& terms = state.terms;
  auto it = std::find_if(terms.begin(), terms.end(), [&](const v1::Term& term) {
    return options.accept_older_state != 0 && term.id() == options.accept_older_state;
  });
  if (it == terms.end()) return false;
  return std::none_of(++it, terms.end(), [](const v1::Term& term) { return term.accepted(); });
}

// A loaded state may be an old one, in which the next ids may be in use already. This cannot be
// known in time: every member that could prove it may be cut off, or gone.
void Coordinator::Impl::SkipIds() {
  first_table = 0;
  // Nobody has a state of this cluster.
  if (state.view.term() == 0 || VERBENA_FAILPOINT(server, reuse_ids)) return;
  state.next_incarnation += 1 + options.random() % kIncarnationsApart;
  const uint64_t table = state.next_table + 1 + options.random() % kTablesApart;
  first_table =
      static_cast<uint32_t>(std::min<uint64_t>(table, std::numeric_limits<uint32_t>::max()));
}

absl::Status Coordinator::Impl::BeginTerm() {
  v1::ClusterView& view = state.view;
  // An earlier version kept only the terms in the view.
  if (state.terms.empty()) state.terms = view.terms();
  const bool accepts = AcceptsState();
  if (accepts) {
    if (state.next_table > std::numeric_limits<uint32_t>::max() - kTablesSkipped) {
      return absl::ResourceExhaustedError(
          "coordinator state: it cannot be accepted (no table ids are left that were never given "
          "out); move the state directory away to start a new and empty cluster");
    }
    view.set_revision(view.revision() + kRevisionsSkipped);
    state.next_incarnation += kIncarnationsSkipped;
    state.next_table += kTablesSkipped;
  }
  SkipIds();
  view.set_term(view.term() + 1);
  v1::Term* term = state.terms.Add();
  term->set_number(view.term());
  term->set_id(std::max<uint64_t>(options.random(), 1));
  term->set_revision(view.revision());
  term->set_accepted(accepts);
  *view.add_terms() = *term;
  const int extra = state.terms.size() - kTermsRecorded;
  if (extra > 0) state.terms.DeleteSubrange(0, extra);
  const int unlisted = view.terms_size() - options.terms_listed;
  if (unlisted > 0) view.mutable_terms()->DeleteSubrange(0, unlisted);
  return absl::OkStatus();
}

absl::Status Coordinator::Impl::CheckSeen(const v1::Seen& seen, bool server, uint64_t incarnation) {
  if (!refusal.ok()) return refusal;
  const Terms& terms = VERBENA_FAILPOINT(history, forgets_terms) ? state.view.terms() : state.terms;
  switch (CompareHistory(state.view, terms, seen)) {
    case History::kContinues:
      if (server && seen.revision() > 0) unheard.erase(incarnation);
      return absl::OkStatus();
    case History::kBehind:
    case History::kRolledBack:
      if (!server && !VERBENA_FAILPOINT(server, believe_workers)) {
        // A worker that joined an older state by mistake would report the same about the right one.
        // Servers have a lease's time to prove which it is.
        if (Now() < in_office_since_ns + LeaseNanos()) {
          return absl::UnavailableError(absl::StrCat(
              "coordinator state: incarnation ", incarnation, " has seen ", DescribeSeen(seen),
              ", which is not in its history; waiting for servers to show whether it is too old"));
        }
        return NotOfHistory(seen, incarnation);
      }
      Refuse(seen, server, incarnation);
      return refusal;
    case History::kForeign:
      if (server) {
        Refuse(seen, server, incarnation);
        return refusal;
      }
      [[fallthrough]];
    case History::kAbandoned:
    case History::kOtherIdentity:
      return NotOfHistory(seen, incarnation);
    case History::kOtherCluster:
      // Which of the two states is the wrong one, only an operator knows: nobody ends.
      return OtherCluster(seen, incarnation);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Impl::CheckHeard() const {
  if (unheard.empty() || VERBENA_FAILPOINT(server, trusts_loaded_state)) return absl::OkStatus();
  std::vector<std::string> names;
  for (const v1::Server& server : state.view.servers()) {
    if (unheard.contains(server.incarnation())) names.push_back(server.name());
  }
  return UnprovedState(absl::StrCat("loaded ", (Now() - in_office_since_ns) / kNanosPerMilli,
                                    " ms ago; not heard since: server ", absl::StrJoin(names, ", "),
                                    "; retry, for a lease (", options.lease_ms, " ms) at most"));
}

// Where a server starts at its old address, the one that was there has ended.
absl::Status Coordinator::Impl::MayChange(const v1::JoinServerRequest& request) const {
  for (const v1::Server& server : state.view.servers()) {
    const bool restarted = server.name() == request.name() && server.address() == request.address();
    if (restarted) return absl::OkStatus();
  }
  return CheckHeard();
}

void Coordinator::Impl::Refuse(const v1::Seen& seen, bool server, uint64_t incarnation) {
  refusal = absl::FailedPreconditionError(absl::StrCat(
      "coordinator state: it is not the one that the cluster goes on from (the state is at ",
      DescribeSeen(SeenOf(state.view)), "; ", server ? "server" : "worker", " incarnation ",
      incarnation, " has seen ", DescribeSeen(seen),
      ", which is not in its history); stop this coordinator and put the newer state back, or, if "
      "there is none, start it with --accept-older-state=",
      absl::Hex(state.terms.rbegin()->id(), absl::kZeroPad16),
      ", start the servers again, and restore their tables from checkpoints"));
  for (ViewPolls::Poll& poll : polls.TakeAll()) poll.reply(refusal);
}

// Redundancy does not end because an option was forgotten.
absl::Status Coordinator::Impl::KeepSettings() {
  const auto keep = [](uint32_t kept, uint32_t* option) {
    if (*option == 0) *option = std::max<uint32_t>(kept, 1);
  };
  keep(state.view.expected_servers(), &options.expected_servers);
  keep(state.view.replicas(), &options.replicas);
  keep(state.view.min_replicas(), &options.min_replicas);
  if (options.min_replicas <= options.replicas) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("min_replicas is ", options.min_replicas, "; allowed: 1 to replicas, which is ",
                   options.replicas, " (the state has ", state.view.min_replicas(), " and ",
                   state.view.replicas(), ")"));
}

absl::Status Coordinator::Impl::TakeOffice() {
  if (!options.random) options.random = SystemRandom;
  absl::StatusOr<CoordinatorState> loaded = store->Load();
  if (!loaded.ok()) return loaded.status();
  state = *std::move(loaded);
  if (IsNew(state)) {
    state.view.set_protocol(options.protocols.oldest);
    state.view.set_cluster_id(options.cluster_id.empty() ? RandomClusterId() : options.cluster_id);
    for (uint32_t id = 0; id < options.partitions; ++id) {
      v1::Partition* partition = state.view.add_partitions();
      partition->set_id(id);
      partition->set_epoch(1);
      partition->set_configuration(1);
    }
  }
  if (absl::Status status = CheckState(state); !status.ok()) return status;
  if (absl::Status status = CheckTokens(state); !status.ok()) return status;
  if (absl::Status status = CheckStateProtocol(options, state.view); !status.ok()) return status;
  editor.CountMemoryBy(options.chunk_memory);
  editor.Index();
  for (size_t i = 0; i < state.answered.size(); ++i) {
    answer_numbers[state.answered[i].request_id] = i;
  }
  BeginChange();
  for (const v1::Partition& partition : state.view.partitions()) {
    if (partition.configuration() != 0) continue;
    // An older version wrote none.
    editor.EditPartition(static_cast<int>(partition.id()))->set_configuration(partition.epoch());
  }
  // An older version kept jobs that had ended.
  std::vector<std::string> jobs;
  for (const v1::Job& job : state.view.jobs()) jobs.push_back(job.name());
  for (const std::string& job : jobs) editor.RemoveIfEnded(job);
  if (absl::Status status = BeginTerm(); !status.ok()) return status;
  in_office_since_ns = Now();
  if (absl::Status status = KeepSettings(); !status.ok()) return status;
  state.view.set_lease_ms(options.lease_ms);
  state.view.set_expected_servers(options.expected_servers);
  state.view.set_replicas(options.replicas);
  state.view.set_min_replicas(options.min_replicas);
  state.view.set_move_rate(options.move_rate);
  moves.Begin(state.view, options.log);
  if (absl::Status status = EndChange(nullptr, Extent::kWhole); !status.ok()) return status;
  // One that an operator has accepted is known to be old.
  if (state.terms.rbegin()->accepted()) return absl::OkStatus();
  for (const v1::Server& server : state.view.servers()) {
    if (server.state() == v1::Server::ALIVE) unheard.insert(server.incarnation());
  }
  return absl::OkStatus();
}

// ---- time ----

// A live member has at least three quarters of its lease left when a pause begins, because it sends
// a heartbeat every quarter. The pause is not counted, so it has that time to send the next one
// afterwards, even if its messages during the pause were lost.
void Coordinator::Impl::ExtendLeases(int64_t pause_ns, int64_t now) {
  if (VERBENA_FAILPOINT(server, count_pauses)) return;
  const int64_t whole = now + LeaseNanos();
  // After a long one also connections may have to be made again.
  const bool long_one = pause_ns >= LeaseNanos() && !turns.always_late();
  leases.ExtendAll(long_one ? whole : pause_ns, whole);
  restores.ExtendAll(pause_ns, now + RestoreLeaseNanos());
}

bool Coordinator::Impl::EndLeases(int64_t now) {
  if (leases.NextDueNanos() > now || next_checkpoint_ns > now) return false;
  BeginChange();
  // An incarnation with a lease is known, so there is no error to look at.
  for (const uint64_t incarnation : leases.Due(now))
    RemoveMember(incarnation, &state, &editor).IgnoreError();
  const absl::Status saved = EndChange(nullptr);
  next_checkpoint_ns = saved.ok() ? 0 : now + kCheckpointRetryNanos;
  return true;
}

// Nobody loads them any more.
bool Coordinator::Impl::EndRestores(int64_t now) {
  if (restores.NextDueNanos() > now || next_checkpoint_ns > now) return false;
  BeginChange();
  for (const uint64_t table : restores.Due(now)) {
    v1::DropTableRequest request;
    request.set_id(static_cast<uint32_t>(table));
    request.set_only_restoring(true);
    RemoveTable(request, &editor).IgnoreError();  // one with a lease is in the view
  }
  const absl::Status saved = EndChange(nullptr);
  next_checkpoint_ns = saved.ok() ? 0 : now + kCheckpointRetryNanos;
  return true;
}

// Nobody may wait for a drain, or for a missing replica.
void Coordinator::Impl::LogFullServers() {
  for (const uint64_t server : bars.TakeBegun()) {
    const auto full = bars.full().find(server);
    const v1::Server* const of = FindServer(server, state.view);
    if (!options.log || of == nullptr || full == bars.full().end()) continue;
    std::vector<uint32_t> refused;
    bool drains = false;
    for (const auto& [partition, when] : full->second.refused) {
      const v1::Partition& p = state.view.partitions(static_cast<int>(partition));
      if (!WantsReplica(p, state.view)) continue;
      refused.push_back(partition);
      drains |= 1 + static_cast<uint32_t>(p.followers_size()) >= state.view.replicas();
    }
    if (refused.empty()) continue;
    options.log(absl::StrCat("server '", of->name(), "' has no memory for replicas of ",
                             refused.size(), refused.size() == 1 ? " partition" : " partitions",
                             ": ", drains ? "a drain waits for them" : "they are missing",
                             "; raise its --memory-limit, add a "
                             "server, or drop tables"));
  }
}

// Learners may be put again where they were dropped a lease ago.
bool Coordinator::Impl::EndBars(int64_t now) {
  if (bars.NextDueNanos() > now || next_checkpoint_ns > now) return false;
  BeginChange();
  if (AddLearners(bars, now, &editor)) {
    if (!EndChange(nullptr).ok()) {
      next_checkpoint_ns = now + kCheckpointRetryNanos;
      return true;
    }
  } else {
    UndoChange();
  }
  bars.EndDue(now);
  return true;
}

// The host's date may be set meanwhile: it is looked at now and then.
void Coordinator::Impl::FollowTokens() {
  if (!options.tokens) return;
  access.Clear();
  *access.add_tokens() = options.operator_token;
  access.MergeFrom(state.access);
  const int64_t expiry = NextTokenExpiry(state);
  next_token_ns = ends_unsaved ? Now() + kCheckpointRetryNanos : kNever;
  if (expiry == kNever) return;
  const int64_t seconds =
      std::clamp<int64_t>(expiry - options.wall_clock(), 0, kLongestTokenSleepSeconds);
  next_token_ns = std::min(next_token_ns, Now() + seconds * 1000 * kNanosPerMilli);
}

bool Coordinator::Impl::EndTokens(int64_t now) {
  if (next_token_ns > now) return false;
  BeginChange();
  KeepAccess();
  const Effect ended = EndExpiredTokens(options.wall_clock(), &state, &editor);
  if (ended == Effect::kNone && !ends_unsaved) {
    UndoChange();
    FollowTokens();
    return false;
  }
  KeepAccess();  // they are over, saved or not
  // Also undo the other changes that depend on them.
  if (std::exchange(ends_unsaved, false)) RetireEnded(state, &editor);
  if (!EndChange(nullptr).ok()) {
    ends_unsaved = true;
    FollowTokens();
  }
  return true;
}

v1::GetViewResponse Coordinator::Impl::ViewAnswer(uint64_t known, bool takes_changes) const {
  v1::GetViewResponse response;
  // Also when the caller knows a greater revision: it followed a cluster that is no more.
  if (known == state.view.revision()) return response;
  response.set_changed(true);
  if (!takes_changes || !changes.Since(known, &response)) *response.mutable_view() = state.view;
  return response;
}

void Coordinator::Impl::AnswerPolls() {
  const int64_t began = Now();
  int64_t now = began;
  bool published = false;
  unpublished = false;
  // Replies may call the coordinator again.
  while (std::optional<ViewPolls::Poll> poll = polls.Take(now)) {
    published |= poll->known != state.view.revision();
    poll->reply(ViewAnswer(poll->known, poll->takes_changes));
    now = Now();
    if (now - began >= ViewPolls::kTurnNanos && !VERBENA_FAILPOINT(server, answer_all_polls)) break;
  }
  if (published) polls.Published(began, now);
}

}  // namespace verbena::server
