#include "proto/control/view_change.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace verbena {
namespace {

using google::protobuf::RepeatedPtrField;

uint64_t TermId(const v1::ClusterView& view) {
  return view.terms().empty() ? 0 : view.terms().rbegin()->id();
}

// The identity of entries.
uint64_t Key(const v1::Server& server) { return server.incarnation(); }
uint64_t Key(const v1::Worker& worker) { return worker.incarnation(); }
uint32_t Key(const v1::Table& table) { return table.id(); }
const std::string& Key(const v1::Job& job) { return job.name(); }

// These comparisons run for every entry at every change, so they read fields instead of
// serializing. view_change_test.cc checks by reflection that none is missing.
bool Same(const v1::Server& a, const v1::Server& b) {
  return a.incarnation() == b.incarnation() && a.state() == b.state() && a.shards() == b.shards() &&
         a.name() == b.name() && a.address() == b.address() && a.zone() == b.zone() &&
         a.cold_tier() == b.cold_tier() && a.memory_bytes() == b.memory_bytes() &&
         a.draining() == b.draining() && a.protocol().oldest() == b.protocol().oldest() &&
         a.protocol().newest() == b.protocol().newest() && a.version() == b.version();
}

bool Same(const v1::Worker& a, const v1::Worker& b) {
  return a.incarnation() == b.incarnation() && a.rank() == b.rank() && a.name() == b.name() &&
         a.token() == b.token() && a.only_job() == b.only_job() && a.may_write() == b.may_write() &&
         a.joining() == b.joining() && a.admission() == b.admission();
}

bool Same(const RepeatedPtrField<v1::Replica>& a, const RepeatedPtrField<v1::Replica>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const v1::Replica& x, const v1::Replica& y) {
        return x.server() == y.server() && x.shard() == y.shard() && x.since() == y.since();
      });
}

bool Same(const v1::Partition& a, const v1::Partition& b) {
  return a.id() == b.id() && a.configuration() == b.configuration() && a.epoch() == b.epoch() &&
         a.renewed_epoch() == b.renewed_epoch() && a.released_epoch() == b.released_epoch() &&
         a.move_to() == b.move_to() && a.move_from() == b.move_from() &&
         a.last_move() == b.last_move() && a.unwanted() == b.unwanted() &&
         a.primary() == b.primary() && a.shard() == b.shard() &&
         Same(a.followers(), b.followers()) && Same(a.learners(), b.learners());
}

// A table's specification never changes, nor do the ranges of its optimizer's values.
bool Same(const v1::Table& a, const v1::Table& b) {
  return a.id() == b.id() && a.restoring() == b.restoring() && a.replaces() == b.replaces() &&
         a.restored_steps() == b.restored_steps() && a.restorer() == b.restorer() &&
         std::equal(a.lost_partitions().begin(), a.lost_partitions().end(),
                    b.lost_partitions().begin(), b.lost_partitions().end());
}

bool SameLimits(const v1::Job& a, const v1::Job& b) {
  return a.has_limits() == b.has_limits() &&
         a.limits().memory_bytes() == b.limits().memory_bytes() &&
         a.limits().tables() == b.limits().tables() && a.limits().lanes() == b.limits().lanes();
}

bool Same(const v1::MemberAdmission& a, const v1::MemberAdmission& b) {
  return a.number() == b.number() &&
         std::equal(a.first_steps().begin(), a.first_steps().end(), b.first_steps().begin(),
                    b.first_steps().end(), [](const v1::FirstStep& x, const v1::FirstStep& y) {
                      return x.table() == y.table() && x.step() == y.step() && x.open() == y.open();
                    });
}

bool SameAdmissions(const v1::Job& a, const v1::Job& b) {
  return a.max_workers() == b.max_workers() && a.admission() == b.admission() &&
         std::equal(
             a.admissions().begin(), a.admissions().end(), b.admissions().begin(),
             b.admissions().end(),
             [](const v1::MemberAdmission& x, const v1::MemberAdmission& y) { return Same(x, y); });
}

// Compares everything except the members.
bool SameJob(const v1::Job& a, const v1::Job& b) {
  return a.name() == b.name() && a.generation() == b.generation() &&
         a.expected_workers() == b.expected_workers() && SameLimits(a, b) && SameAdmissions(a, b) &&
         std::equal(a.departed_ranks().begin(), a.departed_ranks().end(),
                    b.departed_ranks().begin(), b.departed_ranks().end());
}

bool SameMembers(const v1::Job& a, const v1::Job& b) {
  return std::equal(a.members().begin(), a.members().end(), b.members().begin(), b.members().end(),
                    [](const v1::Worker& x, const v1::Worker& y) { return Same(x, y); });
}

// Finds the differences between two lists. Calls `changed` with each entry of `to` that is new
// (with null) or different (with the old entry), and `removed` with each entry that is gone. False:
// kept entries are in another order, or a new entry is not at the end; changes cannot express that.
template <typename Entry, typename Equal, typename Changed, typename Removed>
bool Compare(const RepeatedPtrField<Entry>& from, const RepeatedPtrField<Entry>& to, Equal equal,
             Changed changed, Removed removed) {
  int at = 0;
  const int shorter = std::min(from.size(), to.size());
  // The lists are nearly always aligned, so lookups are rare.
  for (; at < shorter && Key(from[at]) == Key(to[at]); ++at) {
    if (!equal(from[at], to[at])) changed(&from[at], to[at]);
  }
  using KeyOf = std::decay_t<decltype(Key(from[0]))>;
  absl::flat_hash_set<KeyOf> rest;
  for (int i = at; i < to.size() && at < from.size(); ++i) rest.insert(Key(to[i]));
  for (int i = at; i < from.size(); ++i) {
    if (!rest.contains(Key(from[i]))) {
      removed(from[i]);
      continue;
    }
    if (Key(from[i]) != Key(to[at])) return false;
    if (!equal(from[i], to[at])) changed(&from[i], to[at]);
    ++at;
  }
  for (; at < to.size(); ++at) changed(nullptr, to[at]);
  return true;
}

template <typename Entry, typename Keys>
void Remove(const Keys& keys, RepeatedPtrField<Entry>* list) {
  if (keys.empty()) return;
  using KeyOf = std::decay_t<decltype(*keys.begin())>;
  const absl::flat_hash_set<KeyOf> removed(keys.begin(), keys.end());
  // Moves only pointers; erase() would move the contents of all later entries.
  for (int i = list->size() - 1; i >= 0; --i) {
    if (removed.contains(Key(list->Get(i)))) list->DeleteSubrange(i, 1);
  }
}

// Replaces the entries with these keys, and appends those that are new.
template <typename Entry>
void Replace(const RepeatedPtrField<Entry>& entries, RepeatedPtrField<Entry>* list) {
  if (entries.empty()) return;
  using KeyOf = std::decay_t<decltype(Key(entries[0]))>;
  absl::flat_hash_map<KeyOf, const Entry*> replaced;
  for (const Entry& entry : entries) replaced.emplace(Key(entry), &entry);
  for (Entry& entry : *list) {
    const auto it = replaced.find(Key(entry));
    if (it == replaced.end()) continue;
    entry = *it->second;
    replaced.erase(it);
    if (replaced.empty()) return;
  }
  for (const Entry& entry : entries) {
    if (replaced.contains(Key(entry))) *list->Add() = entry;
  }
}

// Tables are in the order of their ids, so one is found without reading all. -1: it is not there,
// or they are in another order.
int PlaceOfTable(uint32_t id, const RepeatedPtrField<v1::Table>& tables) {
  const auto it =
      std::lower_bound(tables.begin(), tables.end(), id,
                       [](const v1::Table& table, uint32_t wanted) { return table.id() < wanted; });
  return it != tables.end() && it->id() == id ? static_cast<int>(it - tables.begin()) : -1;
}

void RemoveTables(const google::protobuf::RepeatedField<uint32_t>& ids,
                  RepeatedPtrField<v1::Table>* tables) {
  std::vector<uint32_t> others;
  for (const uint32_t id : ids) {
    const int place = PlaceOfTable(id, *tables);
    if (place < 0) {
      others.push_back(id);
    } else {
      tables->DeleteSubrange(place, 1);
    }
  }
  Remove(others, tables);
}

void ReplaceTables(const RepeatedPtrField<v1::Table>& changed,
                   RepeatedPtrField<v1::Table>* tables) {
  RepeatedPtrField<v1::Table> others;
  for (const v1::Table& table : changed) {
    const int place = PlaceOfTable(table.id(), *tables);
    if (place >= 0) {
      *tables->Mutable(place) = table;
    } else if (tables->empty() || tables->rbegin()->id() < table.id()) {
      *tables->Add() = table;
    } else {
      *others.Add() = table;
    }
  }
  Replace(others, tables);
}

void SetHeader(const v1::Job& job, v1::Job* header) {
  header->set_name(job.name());
  header->set_generation(job.generation());
  header->set_expected_workers(job.expected_workers());
  *header->mutable_departed_ranks() = job.departed_ranks();
  if (job.has_limits()) *header->mutable_limits() = job.limits();
  header->set_max_workers(job.max_workers());
  header->set_admission(job.admission());
  *header->mutable_admissions() = job.admissions();
}

bool AddJobChange(const v1::Job* from, const v1::Job& to, v1::ViewChange* change) {
  v1::JobChange* job = change->add_jobs();
  SetHeader(to, job->mutable_job());
  return Compare(
      from != nullptr ? from->members() : v1::Job::default_instance().members(), to.members(),
      [](const v1::Worker& a, const v1::Worker& b) { return Same(a, b); },
      [&](const v1::Worker*, const v1::Worker& worker) { *job->add_members() = worker; },
      [&](const v1::Worker& worker) { job->add_removed_members(worker.incarnation()); });
}

void ApplyJobChange(const v1::JobChange& change, v1::ClusterView* view) {
  // From the end, where new jobs are.
  auto it = std::find_if(view->mutable_jobs()->rbegin(), view->mutable_jobs()->rend(),
                         [&](const v1::Job& job) { return job.name() == change.job().name(); });
  v1::Job* job = it != view->mutable_jobs()->rend() ? &*it : view->add_jobs();
  RepeatedPtrField<v1::Worker> members;
  members.Swap(job->mutable_members());
  Remove(change.removed_members(), &members);
  Replace(change.members(), &members);
  *job = change.job();
  members.Swap(job->mutable_members());
}

// The settings that stay the same within a term, or change rarely.
bool SameSettings(const v1::ClusterView& a, const v1::ClusterView& b) {
  return TermId(a) != 0 && TermId(a) == TermId(b) && a.term() == b.term() &&
         a.cluster_id() == b.cluster_id() && a.lease_ms() == b.lease_ms() &&
         a.expected_servers() == b.expected_servers() && a.replicas() == b.replicas() &&
         a.min_replicas() == b.min_replicas() && a.protocol() == b.protocol() &&
         a.move_rate() == b.move_rate() && a.terms_size() == b.terms_size() &&
         a.partitions_size() == b.partitions_size();
}

}  // namespace

std::optional<v1::ViewChange> ViewChangeOf(const v1::ClusterView& from, const v1::ClusterView& to) {
  if (!SameSettings(from, to)) return std::nullopt;
  v1::ViewChange change;
  change.set_base_revision(from.revision());
  change.set_revision(to.revision());
  change.set_term_id(TermId(to));
  bool members_described = true;
  bool described = Compare(
      from.servers(), to.servers(),
      [](const v1::Server& a, const v1::Server& b) { return Same(a, b); },
      [&](const v1::Server*, const v1::Server& server) { *change.add_servers() = server; },
      [&](const v1::Server& server) { change.add_removed_servers(server.incarnation()); });
  described &= Compare(
      from.jobs(), to.jobs(),
      [](const v1::Job& a, const v1::Job& b) { return SameJob(a, b) && SameMembers(a, b); },
      [&](const v1::Job* old, const v1::Job& job) {
        members_described &= AddJobChange(old, job, &change);
      },
      [&](const v1::Job& job) { change.add_removed_jobs(job.name()); });
  described &= Compare(
      from.tables(), to.tables(), [](const v1::Table& a, const v1::Table& b) { return Same(a, b); },
      [&](const v1::Table*, const v1::Table& table) { *change.add_tables() = table; },
      [&](const v1::Table& table) { change.add_removed_tables(table.id()); });
  if (!described || !members_described) return std::nullopt;
  for (int i = 0; i < to.partitions_size(); ++i) {
    if (!Same(from.partitions(i), to.partitions(i))) *change.add_partitions() = to.partitions(i);
  }
  return change;
}

bool ApplyViewChange(const v1::ViewChange& change, v1::ClusterView* view) {
  if (change.base_revision() != view->revision() || change.term_id() != TermId(*view)) return false;
  for (const v1::Partition& partition : change.partitions()) {
    const auto index = static_cast<int64_t>(partition.id());
    if (index >= view->partitions_size()) return false;
  }
  for (const v1::Partition& partition : change.partitions()) {
    *view->mutable_partitions(static_cast<int>(partition.id())) = partition;
  }
  Remove(change.removed_servers(), view->mutable_servers());
  Replace(change.servers(), view->mutable_servers());
  Remove(change.removed_jobs(), view->mutable_jobs());
  for (const v1::JobChange& job : change.jobs()) ApplyJobChange(job, view);
  RemoveTables(change.removed_tables(), view->mutable_tables());
  ReplaceTables(change.tables(), view->mutable_tables());
  view->set_revision(change.revision());
  return true;
}

bool ApplyChanges(const v1::GetViewResponse& response, v1::ClusterView* view) {
  const uint64_t term = TermId(*view);
  for (const v1::ViewChange& change : response.changes()) {
    if (change.term_id() == term && change.revision() <= view->revision()) continue;
    if (!ApplyViewChange(change, view)) return false;
  }
  return true;
}

}  // namespace verbena
