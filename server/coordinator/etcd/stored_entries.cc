#include "server/coordinator/etcd/stored_entries.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena::server {
namespace {

constexpr int kServersInBlock = 64;
constexpr int kPartitionsInBlock = 1024;
constexpr uint64_t kTermsInBlock = 1024;
constexpr int kTokensInBlock = 256;
// A save writes the last block again: more would cost it more bytes, fewer would cost a group of
// calls more operations of its one transaction.
constexpr uint64_t kAnswersInBlock = 16;

constexpr char kServers[] = "servers/";
constexpr char kPartitions[] = "partitions/";
constexpr char kTerms[] = "terms/";
constexpr char kTokens[] = "tokens/";
constexpr char kAnswers[] = "answers/";
constexpr char kTables[] = "tables/";
constexpr char kJobs[] = "jobs/";
constexpr char kMembers[] = "members/";

std::string KeyOf(const char* kind, uint64_t number) {
  return absl::StrCat(kind, absl::Hex(number, absl::kZeroPad16));
}

// Blocks of a repeated field, in `block`'s field that `field` returns.
template <typename Block, typename Items, typename Field>
void AddBlocks(const char* kind, const Items& items, int size, Field field, EntryWrites* writes) {
  for (int first = 0; first < items.size(); first += size) {
    Block block;
    for (int i = first; i < std::min(first + size, items.size()); ++i)
      *field(block)->Add() = items[i];
    (*writes)[KeyOf(kind, static_cast<uint64_t>(first / size))] = block.SerializeAsString();
  }
}

void WriteTable(const v1::Table& table, EntryWrites* writes) {
  (*writes)[KeyOf(kTables, table.id())] = table.SerializeAsString();
}

// `header`: without members.
void WriteJob(const v1::Job& header, EntryWrites* writes) {
  (*writes)[kJobs + header.name()] = header.SerializeAsString();
}

void WriteMember(const std::string& job, const v1::Worker& member, EntryWrites* writes) {
  v1::Job one;
  one.set_name(job);
  *one.add_members() = member;
  (*writes)[KeyOf(kMembers, member.incarnation())] = one.SerializeAsString();
}

void CollectChange(const v1::ViewChange& change, absl::Span<const uint64_t> gone_members,
                   EntryWrites* writes) {
  for (const uint32_t id : change.removed_tables()) (*writes)[KeyOf(kTables, id)] = std::nullopt;
  for (const v1::Table& table : change.tables()) WriteTable(table, writes);
  for (const std::string& name : change.removed_jobs()) (*writes)[kJobs + name] = std::nullopt;
  for (const uint64_t member : gone_members) (*writes)[KeyOf(kMembers, member)] = std::nullopt;
  for (const v1::JobChange& job : change.jobs()) {
    WriteJob(job.job(), writes);
    for (const v1::Worker& member : job.members()) WriteMember(job.job().name(), member, writes);
  }
}

absl::Status Unreadable(const std::string& key) {
  return absl::DataLossError(absl::StrCat("entry ", key, " is unreadable"));
}

}  // namespace

uint64_t ChecksumOfEntry(const std::string& key, const std::string& content) {
  // With the key's length, so that bytes cannot move from one to the other.
  const std::string all = absl::StrCat(key.size(), ":", key, content);
  return XXH3_64bits(all.data(), all.size());
}

void StoredEntries::RemoveOthers(const std::string& kind, EntryWrites* writes) const {
  for (auto it = checksums_.lower_bound(kind);
       it != checksums_.end() && absl::StartsWith(it->first, kind); ++it) {
    writes->try_emplace(it->first, std::nullopt);
  }
}

void StoredEntries::CollectWhole(const CoordinatorState& state, EntryWrites* writes) const {
  for (const v1::Table& table : state.view.tables()) WriteTable(table, writes);
  for (const v1::Job& job : state.view.jobs()) {
    v1::Job header = job;
    header.clear_members();
    WriteJob(header, writes);
    for (const v1::Worker& member : job.members()) WriteMember(job.name(), member, writes);
  }
  for (const char* kind : {kTables, kJobs, kMembers}) RemoveOthers(kind, writes);
}

void StoredEntries::CollectBlocks(const CoordinatorState& state, bool access,
                                  EntryWrites* writes) const {
  AddBlocks<stored::Servers>(
      kServers, state.view.servers(), kServersInBlock, [](auto& b) { return b.mutable_servers(); },
      writes);
  RemoveOthers(kServers, writes);
  AddBlocks<stored::Partitions>(
      kPartitions, state.view.partitions(), kPartitionsInBlock,
      [](auto& b) { return b.mutable_partitions(); }, writes);
  RemoveOthers(kPartitions, writes);
  if (!access) return;
  AddBlocks<v1::AccessRules>(
      kTokens, state.access.tokens(), kTokensInBlock, [](auto& b) { return b.mutable_tokens(); },
      writes);
  RemoveOthers(kTokens, writes);
}

// They change once a leader. Only the last block does, and the first one where the oldest are
// forgotten.
void StoredEntries::CollectTerms(const Terms& terms, EntryWrites* writes) const {
  std::map<uint64_t, v1::History> blocks;
  for (const v1::Term& term : terms) *blocks[term.number() / kTermsInBlock].add_terms() = term;
  for (const auto& [number, block] : blocks)
    (*writes)[KeyOf(kTerms, number)] = block.SerializeAsString();
  RemoveOthers(kTerms, writes);
}

void StoredEntries::CollectAnswer(const CoordinatorState::Answered& answered, EntryWrites* writes) {
  Answers& next = next_answers_;
  const uint64_t block = next.end / kAnswersInBlock;
  if (next.end % kAnswersInBlock == 0) next.last.clear();
  next.last[next.end++] = answered;
  stored::Answers content;
  for (const auto& [number, answer] : next.last) {
    stored::Answers::Answer* added = content.add_answers();
    added->set_request_id(answer.request_id);
    added->set_method(answer.method);
    added->set_response(answer.response);
  }
  (*writes)[KeyOf(kAnswers, block)] = content.SerializeAsString();
  if (next.end - next.first <= kAnswersKept) return;
  ++next.first;
  // All of a block's answers are forgotten.
  if (next.first % kAnswersInBlock == 0) {
    (*writes)[KeyOf(kAnswers, next.first / kAnswersInBlock - 1)] = std::nullopt;
  }
}

void StoredEntries::LeaveOutEqual(EntryWrites* writes) const {
  std::erase_if(*writes, [this](const auto& write) {
    const auto it = checksums_.find(write.first);
    if (!write.second) return it == checksums_.end();
    return it != checksums_.end() && it->second == ChecksumOfEntry(write.first, *write.second);
  });
}

EntryWrites StoredEntries::Collect(const CoordinatorState& state,
                                   absl::Span<const StateChange> changes, stored::State* next) {
  EntryWrites writes;
  next_answers_ = answers_;
  next_term_ = state.terms.empty() ? 0 : state.terms.rbegin()->number();
  bool access = false, whole = false;
  for (const StateChange& change : changes) {
    access |= change.access;
    whole |= change.view == nullptr;
    if (change.view != nullptr) CollectChange(*change.view, change.gone_members, &writes);
    if (change.answered != nullptr) CollectAnswer(*change.answered, &writes);
  }
  if (whole) {
    // `state` has all of them.
    std::erase_if(writes, [](const auto& write) {
      return absl::StartsWith(write.first, kTables) || absl::StartsWith(write.first, kJobs) ||
             absl::StartsWith(write.first, kMembers);
    });
    CollectWhole(state, &writes);
  }
  CollectBlocks(state, access, &writes);
  if (next_term_ != last_term_) CollectTerms(state.terms, &writes);
  LeaveOutEqual(&writes);
  v1::ClusterView* view = next->mutable_view();
  view->set_cluster_id(state.view.cluster_id());
  view->set_revision(state.view.revision());
  view->set_term(state.view.term());
  view->set_lease_ms(state.view.lease_ms());
  view->set_expected_servers(state.view.expected_servers());
  view->set_replicas(state.view.replicas());
  view->set_min_replicas(state.view.min_replicas());
  view->set_protocol(state.view.protocol());
  view->set_move_rate(state.view.move_rate());
  *view->mutable_terms() = state.view.terms();
  next->set_next_incarnation(state.next_incarnation);
  next->set_next_table(state.next_table);
  next->set_ended_generation(state.ended_generation);
  next->set_first_answer(next_answers_.first);
  next->set_end_answer(next_answers_.end);
  return writes;
}

void StoredEntries::Keep(const EntryWrites& writes) {
  for (const auto& [key, content] : writes) {
    uint64_t& checksum = checksums_[key];
    sum_ -= checksum;
    checksum = content ? ChecksumOfEntry(key, *content) : 0;
    sum_ += checksum;
    if (!content) checksums_.erase(key);
  }
  answers_ = std::move(next_answers_);
  last_term_ = next_term_;
}

void StoredEntries::SetSums(const EntryWrites& writes, stored::State* next) const {
  uint64_t sum = sum_;
  int64_t entries = static_cast<int64_t>(checksums_.size());
  for (const auto& [key, content] : writes) {
    const auto it = checksums_.find(key);
    if (it != checksums_.end()) sum -= it->second, --entries;
    if (content) sum += ChecksumOfEntry(key, *content), ++entries;
  }
  next->set_entries_sum(sum);
  next->set_entries(static_cast<uint64_t>(entries));
}

absl::Status StoredEntries::LoadEntry(const std::string& key, const std::string& content,
                                      Loading* into) {
  CoordinatorState* const state = into->state;
  const auto is = [&](const char* kind) { return absl::StartsWith(key, kind); };
  if (is(kServers)) {
    stored::Servers block;
    if (!block.ParseFromString(content)) return Unreadable(key);
    state->view.mutable_servers()->MergeFrom(block.servers());
  } else if (is(kPartitions)) {
    stored::Partitions block;
    if (!block.ParseFromString(content)) return Unreadable(key);
    state->view.mutable_partitions()->MergeFrom(block.partitions());
  } else if (is(kTerms)) {
    v1::History block;
    if (!block.ParseFromString(content)) return Unreadable(key);
    state->terms.MergeFrom(block.terms());
  } else if (is(kTokens)) {
    v1::AccessRules block;
    if (!block.ParseFromString(content)) return Unreadable(key);
    state->access.MergeFrom(block);
  } else if (is(kTables)) {
    if (!state->view.add_tables()->ParseFromString(content)) return Unreadable(key);
  } else if (is(kJobs)) {
    v1::Job* job = state->view.add_jobs();
    if (!job->ParseFromString(content)) return Unreadable(key);
    into->jobs[job->name()] = state->view.jobs_size() - 1;
  } else if (is(kMembers)) {
    // Keys of jobs come before those of members.
    v1::Job one;
    if (!one.ParseFromString(content) || one.members_size() != 1) return Unreadable(key);
    const auto job = into->jobs.find(one.name());
    if (job == into->jobs.end()) return Unreadable(key);
    state->view.mutable_jobs(job->second)->add_members()->Swap(one.mutable_members(0));
  } else if (is(kAnswers)) {
    stored::Answers block;
    uint64_t number = 0;
    if (!absl::SimpleHexAtoi(key.substr(sizeof(kAnswers) - 1), &number) ||
        !block.ParseFromString(content)) {
      return Unreadable(key);
    }
    number *= kAnswersInBlock;
    for (const stored::Answers::Answer& answer : block.answers()) {
      into->answers[number++] = {answer.request_id(), answer.method(), answer.response()};
    }
  } else {
    return absl::DataLossError(absl::StrCat("entry ", key, " is of no known kind"));
  }
  return absl::OkStatus();
}

absl::Status StoredEntries::Load(const EntryMap& all, const stored::State& header,
                                 CoordinatorState* state) {
  *this = StoredEntries();
  Loading into{state, {}, {}};
  state->view = header.view();
  for (const auto& [key, content] : all) {
    const uint64_t checksum = ChecksumOfEntry(key, content);
    checksums_[key] = checksum;
    sum_ += checksum;
    if (absl::Status loaded = LoadEntry(key, content, &into); !loaded.ok()) return loaded;
  }
  if (all.size() != header.entries() || sum_ != header.entries_sum()) {
    return absl::DataLossError(absl::StrCat("entries are missing or from another save: there are ",
                                            all.size(), ", and the state lists ",
                                            header.entries()));
  }
  state->next_incarnation = header.next_incarnation();
  state->next_table = header.next_table();
  state->ended_generation = header.ended_generation();
  answers_.first = header.first_answer();
  answers_.end = header.end_answer();
  for (uint64_t number = answers_.first; number < answers_.end; ++number) {
    const auto it = into.answers.find(number);
    if (it == into.answers.end())
      return absl::DataLossError(absl::StrCat("answer ", number, " is missing"));
    state->answered.push_back(it->second);
  }
  for (auto& [number, answer] : into.answers) {
    if (number / kAnswersInBlock == answers_.end / kAnswersInBlock)
      answers_.last[number] = std::move(answer);
  }
  if (!state->terms.empty()) last_term_ = state->terms.rbegin()->number();
  return absl::OkStatus();
}

}  // namespace verbena::server
