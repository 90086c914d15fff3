// Changes of a coordinator's state: made, staged, saved together or undone, and followed.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "proto/protocol_version.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/failpoints.h"
#include "server/coordinator/moves.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/protocol_rules.h"

namespace verbena::server {

void Coordinator::Impl::BeginChange() {
  undo = {std::nullopt, state.next_incarnation, state.next_table, bars, state.view.protocol()};
  editor.Begin();
}

void Coordinator::Impl::UndoChange() {
  editor.Undo();
  UndoBeside(&undo);
}

void Coordinator::Impl::UndoBeside(Undo* before) {
  if (before->access) state.access = *std::move(before->access);
  state.next_incarnation = before->next_incarnation;
  state.next_table = before->next_table;
  bars = std::move(before->bars);
  state.view.set_protocol(before->protocol);
}

absl::Status Coordinator::Impl::EndChange(const CoordinatorState::Answered* answered,
                                          Extent extent) {
  FollowServers(&editor);
  FollowMoves(&editor);
  AddLearners(bars, Now(), &editor);
  // A setting: members get the whole view.
  if (const uint32_t next = NextProtocolInForce(options, state.view);
      next != ProtocolInForce(state.view)) {
    state.view.set_protocol(next);
    extent = Extent::kWhole;
  }
  ViewEditor::Change change = editor.Describe();
  if (extent == Extent::kWhole) change.described = false;
  const bool tokens = extent == Extent::kWhole || undo.access.has_value() || ends_unsaved;
  editor.Hold();
  staged.push_back({std::move(undo), std::move(change), extent, tokens, std::nullopt});
  if (answered != nullptr) staged.back().answered = *answered;
  // A call after the end of a token must not be allowed by it.
  return grouping && !tokens ? absl::OkStatus() : Flush();
}

absl::Status Coordinator::Impl::SaveStaged() {
  std::vector<StateChange> saved;
  for (const Staged& made : staged) {
    StateChange& change = saved.emplace_back();
    change.view = made.extent == Extent::kWhole ? nullptr : &made.change.view;
    change.gone_members = made.change.gone_members;
    change.access = made.access;
    change.answered = made.answered ? &*made.answered : nullptr;
  }
  if (absl::Status status = store->SaveAll(state, saved); !status.ok()) {
    editor.UndoHeld();
    for (; !staged.empty(); staged.pop_back()) UndoBeside(&staged.back().undo);
    return status;
  }
  editor.Commit();
  for (const Staged& made : std::exchange(staged, {})) OnSaved(made);
  return absl::OkStatus();
}

absl::Status Coordinator::Impl::Flush() {
  const absl::Status saved = staged.empty() ? absl::OkStatus() : SaveStaged();
  // They may call the coordinator.
  for (auto& then : std::exchange(waiting, {})) then(saved);
  return saved;
}

void Coordinator::Impl::OnSaved(const Staged& made) {
  if (made.answered) KeepAnswer(*made.answered);
  if (!made.change.view.removed_tables().empty()) bars.Freed(Now());
  changes.Add(made.change, state.view);
  if (made.change.described) {
    moves.Follow(made.change.view.partitions(), state.view);
  } else {
    moves.Follow(state.view.partitions(), state.view);
  }
  ViewEditor::Concern concern = made.change.concern;
  concern.everyone |= !made.change.described || made.access;
  polls.Changed(concern);
  unpublished = true;
  if (made.extent == Extent::kWhole || made.change.servers) {
    FollowView();
  } else {
    FollowChange(made.change);
  }
  if (made.access) FollowTokens();
}

void Coordinator::Impl::WhenSaved(absl::AnyInvocable<void(const absl::Status& saved)> then) {
  if (staged.empty() || VERBENA_FAILPOINT(server, answer_unsaved)) return then(absl::OkStatus());
  waiting.push_back(std::move(then));
}

void Coordinator::Impl::PutOff(absl::AnyInvocable<void()> call) {
  waiting.push_back([call = std::move(call)](const absl::Status&) mutable { call(); });
}

void Coordinator::Impl::GrantLease(uint64_t incarnation) {
  // Members that were cut off by a restart look for the coordinator for a while.
  const int64_t found_by = in_office_since_ns + options.find_again_ns;
  if (!leases.Has(incarnation)) {
    leases.Grant(incarnation, std::max(Now(), found_by) + LeaseNanos());
  }
}

void Coordinator::Impl::FollowChange(const ViewEditor::Change& change) {
  for (const uint64_t gone : change.gone_members) leases.End(gone);
  for (const v1::JobChange& job : change.view.jobs()) {
    for (const v1::Worker& member : job.members()) GrantLease(member.incarnation());
  }
  for (const uint32_t table : change.view.removed_tables()) restores.End(table);
  for (const v1::Table& table : change.view.tables()) {
    if (!table.restoring()) {
      restores.End(table.id());
    } else if (!restores.Has(table.id())) {
      restores.Grant(table.id(), Now() + RestoreLeaseNanos());
    }
  }
}

// Every member that is alive in the view has a lease, and no other; so has each table that is being
// restored.
void Coordinator::Impl::FollowView() {
  std::set<uint64_t> alive;
  for (const v1::Server& server : state.view.servers()) {
    if (server.state() == v1::Server::ALIVE) alive.insert(server.incarnation());
  }
  for (const v1::Job& job : state.view.jobs()) {
    for (const v1::Worker& member : job.members()) alive.insert(member.incarnation());
  }
  leases.Retain(alive);
  std::erase_if(unheard, [&](uint64_t server) { return !alive.contains(server); });
  std::erase_if(heard, [&](const auto& h) { return FindServer(h.first, state.view) == nullptr; });
  std::erase_if(left, [&](uint64_t server) { return FindServer(server, state.view) == nullptr; });
  for (const uint64_t incarnation : alive) GrantLease(incarnation);
  std::set<uint64_t> restoring;
  for (const v1::Table& table : state.view.tables()) {
    if (table.restoring()) restoring.insert(table.id());
  }
  restores.Retain(restoring);
  for (const uint64_t table : restoring) {
    if (!restores.Has(table)) restores.Grant(table, Now() + RestoreLeaseNanos());
  }
}

const CoordinatorState::Answered* Coordinator::Impl::FindAnswer(
    const std::string& request_id) const {
  for (const Staged& made : staged) {
    if (made.answered && made.answered->request_id == request_id) return &*made.answered;
  }
  const auto it = answer_numbers.find(request_id);
  return it == answer_numbers.end() ? nullptr : &state.answered[it->second - first_answer];
}

void Coordinator::Impl::KeepAnswer(const CoordinatorState::Answered& answered) {
  answer_numbers[answered.request_id] = first_answer + state.answered.size();
  state.answered.push_back(answered);
  if (state.answered.size() <= kAnswersKept) return;
  const auto oldest = answer_numbers.find(state.answered.front().request_id);
  if (oldest != answer_numbers.end() && oldest->second == first_answer)
    answer_numbers.erase(oldest);
  state.answered.pop_front();
  ++first_answer;
}

}  // namespace verbena::server
