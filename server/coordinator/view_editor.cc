#include "server/coordinator/view_editor.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "proto/control/view_change.h"
#include "server/coordinator/failpoints.h"

namespace verbena::server {
namespace {

uint64_t TermId(const v1::ClusterView& view) {
  return view.terms().empty() ? 0 : view.terms().rbegin()->id();
}

v1::Job HeaderOf(const v1::Job& job) {
  v1::Job header;
  header.set_name(job.name());
  header.set_generation(job.generation());
  header.set_expected_workers(job.expected_workers());
  *header.mutable_departed_ranks() = job.departed_ranks();
  if (job.has_limits()) *header.mutable_limits() = job.limits();
  header.set_max_workers(job.max_workers());
  header.set_admission(job.admission());
  *header.mutable_admissions() = job.admissions();
  return header;
}

// Puts a new last entry in place `to`.
template <typename Entry>
void MoveLastTo(int to, google::protobuf::RepeatedPtrField<Entry>* list) {
  for (int at = list->size() - 1; at > to; --at) list->SwapElements(at, at - 1);
}

// Members come in the order of their incarnations.
int FirstMemberFrom(uint64_t incarnation, const v1::Job& job) {
  const auto& members = job.members();
  const auto it = std::lower_bound(
      members.begin(), members.end(), incarnation,
      [](const v1::Worker& w, uint64_t wanted) { return w.incarnation() < wanted; });
  return static_cast<int>(it - members.begin());
}

int PlaceOfMember(uint64_t incarnation, const v1::Job& job) {
  const int place = FirstMemberFrom(incarnation, job);
  if (place == job.members_size() || job.members(place).incarnation() != incarnation) return -1;
  return place;
}

}  // namespace

void ViewEditor::Index() {
  by_name_.clear();
  by_job_.clear();
  sums_ = {};
  jobs_.clear();
  job_of_member_.clear();
  for (const v1::Table& table : view_->tables()) IndexTable(table);
  for (v1::Job& job : *view_->mutable_jobs()) {
    jobs_[job.name()] = &job;
    for (const v1::Worker& member : job.members()) job_of_member_[member.incarnation()] = &job;
  }
}

void ViewEditor::IndexTable(const v1::Table& table) {
  NamedTables& named = by_name_[table.spec().name()];
  (table.restoring() ? named.restoring : named.served) = &table;
  JobTables& job = by_job_[table.spec().job()];
  job.tables[table.id()] = &table;
  const auto partitions = static_cast<uint32_t>(view_->partitions_size());
  job.sums.Add(table, partitions, chunk_memory_);
  sums_.Add(table, partitions, chunk_memory_);
}

void ViewEditor::ForgetTable(const v1::Table& table) {
  const auto named = by_name_.find(table.spec().name());
  if (named != by_name_.end()) {
    if (named->second.served == &table) named->second.served = nullptr;
    if (named->second.restoring == &table) named->second.restoring = nullptr;
    if (named->second.served == nullptr && named->second.restoring == nullptr) {
      by_name_.erase(named);
    }
  }
  const auto job = by_job_.find(table.spec().job());
  if (job == by_job_.end()) return;
  job->second.tables.erase(table.id());
  const auto partitions = static_cast<uint32_t>(view_->partitions_size());
  job->second.sums.Remove(table, partitions, chunk_memory_);
  sums_.Remove(table, partitions, chunk_memory_);
  if (job->second.tables.empty()) by_job_.erase(job);
}

// ---- look-ups -----------------------------------------------------------------------------------

int ViewEditor::PlaceOfTable(uint32_t id) const {
  const auto& tables = view_->tables();
  const auto it =
      std::lower_bound(tables.begin(), tables.end(), id,
                       [](const v1::Table& t, uint32_t wanted) { return t.id() < wanted; });
  if (it == tables.end() || it->id() != id) return -1;
  return static_cast<int>(it - tables.begin());
}

const v1::Table* ViewEditor::FindTable(uint32_t id) const {
  const int place = PlaceOfTable(id);
  return place < 0 ? nullptr : &view_->tables(place);
}

const v1::Table* ViewEditor::FindTable(const std::string& name, bool restoring) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return nullptr;
  return restoring ? it->second.restoring : it->second.served;
}

const std::map<uint32_t, const v1::Table*>& ViewEditor::TablesOf(const std::string& job) const {
  static const auto* const none = new std::map<uint32_t, const v1::Table*>();
  const auto it = by_job_.find(job);
  return it == by_job_.end() ? *none : it->second.tables;
}

const JobSums& ViewEditor::SumsOf(const std::string& job) const {
  static const auto* const none = new JobSums();
  const auto it = by_job_.find(job);
  return it == by_job_.end() ? *none : it->second.sums;
}

const v1::Job* ViewEditor::FindJob(const std::string& name) const {
  const auto it = jobs_.find(name);
  return it == jobs_.end() ? nullptr : it->second;
}

const v1::Job* ViewEditor::JobOf(uint64_t member) const {
  const auto it = job_of_member_.find(member);
  return it == job_of_member_.end() ? nullptr : it->second;
}

v1::Job* ViewEditor::FindMutableJob(const std::string& name) {
  const auto it = jobs_.find(name);
  return it == jobs_.end() ? nullptr : it->second;
}

// Compares pointers alone: it reads no entry.
int ViewEditor::PlaceOfJob(const v1::Job* job) const {
  const auto& jobs = view_->jobs();
  int place = 0;
  for (auto it = jobs.pointer_begin(); it != jobs.pointer_end() && *it != job; ++it) ++place;
  return place;
}

// ---- changes ------------------------------------------------------------------------------------

void ViewEditor::Begin() {
  old_ = {};
  old_.revision = view_->revision();
  old_.ended_generation = *ended_generation_;
  view_->set_revision(view_->revision() + 1);
}

void ViewEditor::AddTable(const v1::Table& table) {
  old_.tables.try_emplace(table.id());
  v1::Table* added = view_->add_tables();
  *added = table;
  IndexTable(*added);
}

v1::Table* ViewEditor::EditTable(uint32_t id) {
  v1::Table* table = view_->mutable_tables(PlaceOfTable(id));
  const auto [it, is_new] = old_.tables.try_emplace(id);
  if (is_new) it->second = *table;
  return table;
}

void ViewEditor::SetServed(uint32_t id) {
  v1::Table* table = EditTable(id);
  ForgetTable(*table);
  table->set_restoring(false);
  table->clear_restorer();
  table->clear_replaces();
  IndexTable(*table);
}

void ViewEditor::RemoveTable(uint32_t id) {
  const int place = PlaceOfTable(id);
  if (place < 0) return;
  const std::string job = view_->tables(place).spec().job();
  const auto [it, is_new] = old_.tables.try_emplace(id);
  if (is_new) it->second = view_->tables(place);
  EraseTable(place);
  RemoveIfEnded(job);
}

void ViewEditor::EraseTable(int place) {
  ForgetTable(view_->tables(place));
  view_->mutable_tables()->DeleteSubrange(place, 1);
}

ViewEditor::OldJob& ViewEditor::Record(const v1::Job& job) {
  const auto [it, is_new] = old_.jobs.try_emplace(job.name());
  if (is_new) {
    it->second.header = HeaderOf(job);
    old_.job_order.push_back(job.name());
  }
  return it->second;
}

void ViewEditor::AddJob(const std::string& name) {
  v1::Job* job = view_->add_jobs();
  job->set_name(name);
  job->set_generation(VERBENA_FAILPOINT(server, reuse_generations) ? 1 : *ended_generation_ + 1);
  jobs_[name] = job;
  if (!old_.jobs.try_emplace(name).second) std::erase(old_.job_order, name);
  old_.job_order.push_back(name);
  old_.job_moves.push_back({std::nullopt, name});
}

v1::Job* ViewEditor::EditJob(const std::string& name) {
  v1::Job* job = FindMutableJob(name);
  Record(*job);
  return job;
}

void ViewEditor::AddMember(const std::string& name, const v1::Worker& worker) {
  v1::Job* job = FindMutableJob(name);
  Record(*job).added.push_back(worker.incarnation());
  *job->add_members() = worker;
  job_of_member_[worker.incarnation()] = job;
}

v1::Worker* ViewEditor::EditMember(uint64_t incarnation) {
  v1::Job* job = job_of_member_.at(incarnation);
  v1::Worker* worker = job->mutable_members(PlaceOfMember(incarnation, *job));
  Record(*job).edited.try_emplace(incarnation, *worker);
  return worker;
}

void ViewEditor::RemoveMember(uint64_t incarnation) {
  const auto it = job_of_member_.find(incarnation);
  if (it == job_of_member_.end()) return;
  v1::Job* job = it->second;
  const int place = PlaceOfMember(incarnation, *job);
  const v1::Worker worker = job->members(place);
  Record(*job).removed_members.push_back(worker);
  job->mutable_members()->DeleteSubrange(place, 1);
  job_of_member_.erase(it);
  // No step waits for a rank beyond the expected ones.
  const bool expected = worker.rank() < static_cast<int32_t>(job->expected_workers()) ||
                        VERBENA_FAILPOINT(server, keep_ranks);
  if (worker.rank() >= 0 && expected) job->add_departed_ranks(worker.rank());
  RemoveIfEnded(job->name());
}

void ViewEditor::RemoveIfEnded(const std::string& name) {
  v1::Job* job = FindMutableJob(name);
  if (job == nullptr || job->members_size() > 0 || job->has_limits()) return;
  if (!TablesOf(name).empty()) return;
  Record(*job).removed = true;
  const int place = PlaceOfJob(job);
  old_.job_moves.push_back({place, name});
  // A generation that no worker has joined may be used again.
  const uint32_t unused = job->expected_workers() == 0 ? 1 : 0;
  *ended_generation_ = std::max(*ended_generation_, job->generation() - unused);
  EraseJob(place);
}

void ViewEditor::EraseJob(int place) {
  jobs_.erase(view_->jobs(place).name());
  view_->mutable_jobs()->DeleteSubrange(place, 1);
}

v1::Partition* ViewEditor::EditPartition(int id) {
  v1::Partition* partition = view_->mutable_partitions(id);
  old_.partitions.try_emplace(id, *partition);
  return partition;
}

ViewEditor::Servers* ViewEditor::EditServers() {
  if (!old_.servers) old_.servers = view_->servers();
  return view_->mutable_servers();
}

// ---- undoing ------------------------------------------------------------------------------------

void ViewEditor::Undo() {
  UndoTables();
  UndoJobs();
  for (auto& [id, partition] : old_.partitions) view_->mutable_partitions(id)->Swap(&partition);
  if (old_.servers) view_->mutable_servers()->Swap(&*old_.servers);
  view_->set_revision(old_.revision);
  *ended_generation_ = old_.ended_generation;
  old_ = {};
}

void ViewEditor::UndoHeld() {
  while (!held_.empty()) {
    old_ = std::move(held_.back());
    held_.pop_back();
    Undo();
  }
}

void ViewEditor::UndoTables() {
  auto* tables = view_->mutable_tables();
  for (auto& [id, old] : old_.tables) {
    const int place = PlaceOfTable(id);
    if (place >= 0) EraseTable(place);
    if (!old) continue;
    const auto next =
        std::lower_bound(tables->begin(), tables->end(), id,
                         [](const v1::Table& t, uint32_t wanted) { return t.id() < wanted; });
    const int to = static_cast<int>(next - tables->begin());
    tables->Add()->Swap(&*old);
    MoveLastTo(to, tables);
    IndexTable(view_->tables(to));
  }
}

void ViewEditor::UndoJobs() {
  // Places are those of the moment: the last move first.
  for (auto move = old_.job_moves.rbegin(); move != old_.job_moves.rend(); ++move) UndoMove(*move);
  for (auto& [name, old] : old_.jobs) {
    if (old.header) UndoJob(name, &old);
  }
}

void ViewEditor::UndoMove(const JobMove& move) {
  if (!move.removed_from) {
    const v1::Job* job = FindJob(move.name);
    for (const v1::Worker& member : job->members()) job_of_member_.erase(member.incarnation());
    return EraseJob(PlaceOfJob(job));
  }
  v1::Job* job = view_->add_jobs();
  job->set_name(move.name);
  jobs_[move.name] = job;
  MoveLastTo(*move.removed_from, view_->mutable_jobs());
}

void ViewEditor::UndoJob(const std::string& name, OldJob* old) {
  v1::Job* job = FindMutableJob(name);
  google::protobuf::RepeatedPtrField<v1::Worker> members;
  members.Swap(job->mutable_members());
  job->Swap(&*old->header);
  members.Swap(job->mutable_members());
  for (const uint64_t added : old->added) {
    job_of_member_.erase(added);
    const int place = PlaceOfMember(added, *job);
    if (place >= 0) job->mutable_members()->DeleteSubrange(place, 1);
  }
  // Those that were removed as well come back as they were then, and are restored like the others.
  const absl::flat_hash_set<uint64_t> added(old->added.begin(), old->added.end());
  for (const v1::Worker& gone : old->removed_members) {
    if (added.contains(gone.incarnation())) continue;
    const int place = FirstMemberFrom(gone.incarnation(), *job);
    *job->add_members() = gone;
    MoveLastTo(place, job->mutable_members());
    job_of_member_[gone.incarnation()] = job;
  }
  for (auto& [incarnation, worker] : old->edited) {
    const int place = PlaceOfMember(incarnation, *job);
    if (place >= 0) job->mutable_members(place)->Swap(&worker);
  }
}

// ---- changes ------------------------------------------------------------------------------------

void ViewEditor::AddJobChange(const std::string& name, const OldJob& old,
                              v1::ViewChange* change) const {
  const v1::Job* job = FindJob(name);
  if (job == nullptr) {
    if (old.header) change->add_removed_jobs(name);
    return;
  }
  // Its entry is at the end now, which a change shows by removing the one before.
  if (old.header && old.removed) change->add_removed_jobs(name);
  v1::JobChange* changed = change->add_jobs();
  *changed->mutable_job() = HeaderOf(*job);
  for (const uint64_t added : old.added) {
    const int place = PlaceOfMember(added, *job);
    if (place >= 0) *changed->add_members() = job->members(place);
  }
  for (const auto& [incarnation, worker] : old.edited) {
    const bool is_new =
        std::find(old.added.begin(), old.added.end(), incarnation) != old.added.end();
    const int place = PlaceOfMember(incarnation, *job);
    if (place >= 0 && !is_new) *changed->add_members() = job->members(place);
  }
  for (const v1::Worker& worker : old.removed_members) {
    changed->add_removed_members(worker.incarnation());
  }
}

// Whether it is another run, or other workers take part in it. Observers do not.
bool ViewEditor::ConcernsMembers(const std::string& name, const OldJob& old) const {
  const v1::Job* job = FindJob(name);
  if (job == nullptr) return false;
  if (!old.header || old.header->generation() != job->generation() ||
      old.header->expected_workers() != job->expected_workers() ||
      old.header->admission() != job->admission()) {
    return true;
  }
  // Whether one is joining concerns the workers, of which one answers.
  const auto works = [](const v1::Worker& worker) {
    return worker.rank() >= 0 || worker.joining();
  };
  return std::any_of(old.removed_members.begin(), old.removed_members.end(), works) ||
         std::any_of(old.added.begin(), old.added.end(), [&](uint64_t added) {
           const int place = PlaceOfMember(added, *job);
           return place >= 0 && works(job->members(place));
         });
}

// By the function that compares whole views, on views that have nothing but servers.
void ViewEditor::DescribeServers(Change* change) const {
  v1::ClusterView from, to;
  from.add_terms()->set_id(1);
  to.add_terms()->set_id(1);
  *from.mutable_servers() = *old_.servers;
  *to.mutable_servers() = view_->servers();
  std::optional<v1::ViewChange> servers = ViewChangeOf(from, to);
  change->described = servers.has_value();
  change->servers = true;
  if (!servers) return;
  change->servers = !servers->servers().empty() || !servers->removed_servers().empty();
  change->view.mutable_servers()->Swap(servers->mutable_servers());
  change->view.mutable_removed_servers()->Swap(servers->mutable_removed_servers());
}

ViewEditor::Change ViewEditor::Describe() const {
  Change change;
  change.view.set_base_revision(old_.revision);
  change.view.set_revision(view_->revision());
  change.view.set_term_id(TermId(*view_));
  Concern& concern = change.concern;
  for (const auto& [id, old] : old_.tables) {
    const v1::Table* table = FindTable(id);
    concern.everyone |= (table != nullptr && table->lost_partitions_size() > 0) ||
                        (old && old->lost_partitions_size() > 0);
    if (table != nullptr) {
      *change.view.add_tables() = *table;
    } else if (old) {
      change.view.add_removed_tables(id);
    }
  }
  for (const std::string& name : old_.job_order) {
    const OldJob& old = old_.jobs.at(name);
    AddJobChange(name, old, &change.view);
    if (ConcernsMembers(name, old)) concern.jobs.insert(name);
    for (const v1::Worker& worker : old.removed_members) {
      change.gone_members.push_back(worker.incarnation());
    }
  }
  for (const auto& [id, partition] : old_.partitions) {
    *change.view.add_partitions() = view_->partitions(id);
  }
  if (old_.servers) DescribeServers(&change);
  concern.everyone |= change.servers || !old_.partitions.empty();
  return change;
}

void ViewEditor::Hold() { held_.push_back(std::exchange(old_, {})); }

void ViewEditor::Commit() { held_.clear(); }

}  // namespace verbena::server
