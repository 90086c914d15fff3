// Planted bugs that the swarm finds: what it draws has them in reach, and its invariants show them.
//
// By hand: VERBENA_PLANTED=NAME searches one of them alone, in seeds VERBENA_PLANTED_FROM (1) to
// VERBENA_PLANTED_SEEDS, of those that have the features VERBENA_PLANTED_WITH (comma-separated).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/core/planted_bugs.h"
#include "proto/cluster_history.h"
#include "rdma/sim/sim_network.h"
#include "server/checkpoint/planted_bugs.h"
#include "server/coordinator/planted_bugs.h"
#include "shard/planted_bugs.h"
#include "tests/cluster/swarm.h"
#include "tests/cluster/swarm_plan.h"

namespace verbena::test {
namespace {

struct PlantedFault {
  const char* name;
  std::vector<bool*> bugs;         // planted together: one of them may be hidden by a second guard
  uint64_t found_by;               // is tried first; 0: it is searched by hand alone
  std::vector<std::string> shows;  // the violation has one of these; none: any shows it
};

// After a change of the swarm another seed may find it: seeds from 1 on.
constexpr uint64_t kSeedsAtMost = 40;

std::vector<PlantedFault> Faults() {
  shard::PlantedBugs& shard = shard::planted_bugs();
  rdma::PlantedBugs& client = rdma::planted_bugs();
  checkpoint::PlantedBugs& saves = checkpoint::planted_bugs();
  const std::vector<std::string> content = {"is not what its primary", "acknowledged pushes",
                                            "mismatches of its replicas"};
  const std::vector<std::string> saved = {"is not what its shard had", "of which it was made",
                                          "saved after"};
  const std::vector<std::string> steps = {"of generation", "acknowledged push", "lease has ended"};
  // Each hides the others: an older state gets no members, these have other ids, and no lanes.
  const std::vector<bool*> reuse_ids = {&server::coordinator_planted_bugs().reuse_ids,
                                        &server::coordinator_planted_bugs().trusts_loaded_state,
                                        &history_planted_bugs().compare_revisions};
  const std::vector<bool*> one_history = {&history_planted_bugs().one_history,
                                          &server::coordinator_planted_bugs().reuse_ids};
  return {
      {"skip_dedupe", {&shard.skip_dedupe}, 2, {"more than was pushed"}},
      {"acknowledge_early", {&shard.acknowledge_early}, 4, content},
      {"read_unacknowledged", {&shard.read_unacknowledged}, 0, {"acknowledged pushes"}},
      {"reset_promoted", {&shard.reset_promoted}, 0, {}},
      {"rows_never_come", {&shard.rows_never_come}, 5, content},
      {"rows_never_come, unproved", {&shard.rows_never_come, &shard.skip_proof}, 5, content},
      {"cursor_before_apply", {&shard.cursor_before_apply}, 0, content},
      {"cursor_before_apply, unproved",
       {&shard.cursor_before_apply, &shard.skip_proof},
       100,
       content},
      {"skip_next_table", {&shard.skip_next_table}, 648, content},
      {"skip_next_table, unproved", {&shard.skip_next_table, &shard.skip_proof}, 648, content},
      {"forget_proved", {&shard.forget_proved}, 6, content},
      {"forget_proved, proved once", {&shard.forget_proved, &shard.prove_once}, 6, content},
      {"unbounded_notes", {&shard.unbounded_notes}, 0, {"beyond its limits"}},
      {"unbounded_log", {&shard.unbounded_log}, 14, {"beyond its limits"}},
      {"one_history", one_history, 755, {"acknowledged pushes"}},
      {"trusts_loaded_state",
       {&server::coordinator_planted_bugs().trusts_loaded_state},
       95,
       {"was acknowledged, and it is"}},
      {"keep_ranks", {&server::coordinator_planted_bugs().keep_ranks}, 4, {"beyond its"}},
      {"reuse_ids", reuse_ids, 1565, {"must not", "acknowledged pushes"}},
      // A member then follows another history: any of these may show it first.
      {"forgets_terms",
       {&history_planted_bugs().forgets_terms},
       165,
       {"says that a table is not there", "acknowledged pushes", "is not what its primary",
        "mismatches of its replicas"}},
      {"count_pauses",
       {&server::coordinator_planted_bugs().count_pauses},
       1,
       {"lease has ended", "declared lost"}},
      {"make_late_changes",
       {&server::coordinator_planted_bugs().make_late_changes},
       942,
       {"declared lost", "was left to server"}},
      {"hand_over_unheard",
       {&server::coordinator_planted_bugs().hand_over_unheard},
       181,
       {"which had been dead for"}},
      {"believe_workers",
       {&server::coordinator_planted_bugs().believe_workers},
       650,
       {"not the one that the cluster", "too few followers", "has not joined",
        "has not seen revision"}},
      {"take_uncompared",
       {&server::coordinator_planted_bugs().take_uncompared},
       165,
       {"not recovered", "says that a table is not there"}},
      {"wait_for_polls",
       {&server::coordinator_planted_bugs().wait_for_polls},
       4,
       {"has not seen revision"}},
      {"clock_stops_in_suspend", {&client.clock_stops_in_suspend}, 1753, {"acknowledged pushes"}},
      {"heartbeats_need_owner", {&client.heartbeats_need_owner}, 36, {"lease has ended"}},
      {"hold_last_buffer", {&client.hold_last_buffer}, 0, {"stands still"}},
      {"trust_late_grants", {&client.trust_late_grants}, 84, {"lease has ended"}},
      {"refusals_are_final", {&client.refusals_are_final}, 2, {"failed before its deadline"}},
      {"learn_losses_late",
       {&verbena::client::planted_bugs().learn_losses_late},
       23,
       {"which this client knows"}},
      {"awaits_before_pulls",
       {&verbena::client::planted_bugs().awaits_before_pulls},
       0,
       {"not recovered", "standstill", "stands still"}},
      {"keep_norm_steps",
       {&verbena::client::planted_bugs().keep_norm_steps},
       470,
       {"has not used table", "was not saved"}},
      {"keep_patience", {&client.keep_patience}, 11, {"has woken nobody"}},
      {"expire_other_jobs", {&shard.expire_other_jobs}, 8, {"has not used table"}},
      {"lost_by_old_view",
       {&shard.lost_by_old_view},
       92,
       {"has not used table", "says that data is lost"}},
      {"evict_named", {&shard.evict_named}, 102, {"evictions leave"}},
      {"evict_alike", {&shard.evict_alike}, 74, {"evictions leave"}},
      {"waiting_rows_are_latest",
       {&shard.waiting_rows_are_latest, &shard.restore_as_next},
       765,
       {"evictions leave"}},
      {"lose_what_is_reset", {&shard.lose_what_is_reset}, 0, {"says that data is lost"}},
      {"keep_refused_sweep", {&shard.keep_refused_sweep}, 0, {"evictions leave"}},
      {"keep_former_steps", {&saves.keep_former_steps}, 0, {"was not saved"}},
      {"count_unnamed", {&shard.count_unnamed}, 0, {"evictions leave"}},
      {"keep_lost", {&shard.keep_lost}, 458, {"more than was pushed"}},
      {"save_what_changes", {&shard.save_what_changes}, 3, saved},
      {"forget_changed_rows", {&shard.forget_changed_rows}, 145, saved},
      {"compact_oldest", {&saves.compact_oldest}, 0, {"of which it was made"}},
      {"prune_bases", {&saves.prune_bases}, 67, {"/checkpoint-"}},
      {"prune_unread", {&saves.prune_unread}, 0, {"and is gone"}},
      {"merge_key_by_key", {&saves.merge_key_by_key}, 0, saved},
      {"read_unverified", {&saves.read_unverified}, 196, {"/checkpoint-"}},
      {"reuse_attempts",
       {&saves.reuse_attempts},
       0,
       {"is not in its manifest", "found files of another"}},
      {"reload_unread", {&saves.reload_unread}, 0, {"still being restored"}},
      {"forget_former_runs", {&saves.forget_former_runs}, 0, {"and is gone"}},
      {"share_directories", {&saves.share_directories}, 62, {"and is gone"}},
      {"forget_moved", {&saves.forget_moved}, 0, {"is not what /"}},
      {"commit_unsynced", {&saves.commit_unsynced}, 3, {"/checkpoint-"}},
      {"end_before_notes", {&shard.end_before_notes}, 0, content},
      {"forget_inherited", {&shard.forget_inherited}, 1242, {"says that data is lost"}},
      {"restart_windows",
       {&shard.restart_windows},
       320,
       {"nothing was restored", "being restored"}},
      {"forget_cold_changes", {&shard.forget_cold_changes}, 7, content},
      {"forget_owed", {&shard.forget_owed}, 154, steps},
      {"pass_early", {&shard.pass_early}, 6, steps},
      {"ignore_copy_room", {&shard.ignore_copy_room}, 0, {"has no memory for its rows"}},
      {"settle_refused", {&shard.settle_refused}, 0, {"acknowledged pushes"}},
      {"norm_of_first_table",
       {&client.norm_of_first_table},
       28,
       {"of generation", "more than was pushed"}},
      {"act_on_send_completion", {&client.act_on_send_completion}, 1, {}},
      {"release_buffer_at_deadline", {&client.release_buffer_at_deadline}, 11, {}},
      {"reply_before_receive", {&client.reply_before_receive}, 1, {}},
      {"replay_before_dead", {&client.replay_before_dead}, 2, {"settled buffer"}},
      {"never_probe", {&client.never_probe}, 464, {"not recovered", "not finished"}},
      {"trust_writes", {&client.trust_writes}, 5, {"not recovered"}},
      {"pull_early", {&shard.pull_early}, 53, {"acknowledged pushes"}},
      {"answer_unapplied", {&shard.answer_unapplied}, 0, {"acknowledged pushes"}},
      {"skip_given_lease", {&shard.skip_given_lease}, 0, {"acknowledged pushes"}},
  };
}

struct PlantedTogether {
  explicit PlantedTogether(const std::vector<bool*>& bugs) : bugs_(bugs) {
    for (bool* bug : bugs_) *bug = true;
  }
  ~PlantedTogether() {
    for (bool* bug : bugs_) *bug = false;
  }
  const std::vector<bool*>& bugs_;
};

bool Finds(const PlantedFault& fault, uint64_t seed) {
  for (const std::string& violation : RunSwarm(seed).violations) {
    if (fault.shows.empty()) {
      std::fprintf(stderr, "%s is found by seed %llu: %s\n", fault.name,
                   static_cast<unsigned long long>(seed), violation.c_str());
      return true;
    }
    for (const std::string& text : fault.shows) {
      if (violation.find(text) == std::string::npos) continue;
      std::fprintf(stderr, "%s is found by seed %llu: %s\n", fault.name,
                   static_cast<unsigned long long>(seed), violation.c_str());
      return true;
    }
    std::fprintf(stderr, "%s, seed %llu: %s\n", fault.name, static_cast<unsigned long long>(seed),
                 violation.c_str());
  }
  return false;
}

// Whether the seed's description has all that VERBENA_PLANTED_WITH lists.
bool Wanted(uint64_t seed) {
  const char* with = std::getenv("VERBENA_PLANTED_WITH");
  if (with == nullptr) return true;
  const std::string plan = DrawPlan(seed).Describe();
  const std::vector<std::string> texts = absl::StrSplit(with, ',');
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return plan.find(text) != std::string::npos; });
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST_CASE("planted bugs: the swarm finds each") {
  const char* only = std::getenv("VERBENA_PLANTED");
  for (const PlantedFault& fault : Faults()) {
    if (only == nullptr ? fault.found_by == 0 : std::string_view(only) != fault.name) continue;
    CAPTURE(fault.name);
    const PlantedTogether planted(fault.bugs);
    bool found = only == nullptr && Finds(fault, fault.found_by);
    const uint64_t last = FromEnvironment("VERBENA_PLANTED_SEEDS", kSeedsAtMost);
    uint64_t seed = FromEnvironment("VERBENA_PLANTED_FROM", 1);
    for (; !found && seed <= last; ++seed) found = Wanted(seed) && Finds(fault, seed);
    CHECK(found);
  }
}

}  // namespace
}  // namespace verbena::test
