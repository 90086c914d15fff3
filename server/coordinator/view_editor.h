// Changes the view of a cluster and records the replaced content, so that undoing, saving and
// publishing a change cost as much as the change.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
//  1. The view is changed through its editor only, between Begin() and Hold() or Undo().
//  2. Undo() restores exactly the view of Begin(), the order of entries included; and Describe()
//     leads from that to the view of now. Also where a job has ended and begun again meanwhile.
//     UndoHeld() restores the view of the first Begin() since Commit().
//  3. Tables are in the order of their ids, which is that of their creation.
//  4. A job has an entry while it has members, tables or limits. The generation of a new entry is
//     greater than those of all removed entries, so no generation of a name is used twice.
//
// The cost of servers is an exception: a change of one copies the list of servers.
#ifndef VERBENA_SERVER_COORDINATOR_VIEW_EDITOR_H_
#define VERBENA_SERVER_COORDINATOR_VIEW_EDITOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/coordinator/job_sums.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class ViewEditor {
 public:
  using Servers = google::protobuf::RepeatedPtrField<v1::Server>;

  // The difference of one change, and the callers that have to learn of it at once.
  struct Concern {
    bool everyone = false;
    std::set<std::string> jobs;  // members of these: another run, or other workers
  };
  struct Change {
    // Without the servers if they are not `described`.
    v1::ViewChange view;
    bool described = true;  // false: members need the whole view
    bool servers = false;   // some server is new, different or gone
    std::vector<uint64_t> gone_members;
    Concern concern;
  };

  // The two outlive the editor.
  ViewEditor(v1::ClusterView* view, uint32_t* ended_generation)
      : view_(view), ended_generation_(ended_generation) {}
  // The view has been replaced, or changed otherwise: its tables and jobs are indexed again.
  void Index();
  // How SumsOf() counts memory, from the next Index() on.
  void CountMemoryBy(ChunkMemory chunk_memory) { chunk_memory_ = std::move(chunk_memory); }

  const v1::ClusterView& view() const { return *view_; }

  // ---- look-ups, which do not pass over tables or jobs; null: there is none ----
  const v1::Table* FindTable(uint32_t id) const;
  // The table of that name; a name may have one table that is served and one that is being
  // restored.
  const v1::Table* FindTable(const std::string& name, bool restoring) const;
  // In the order of their ids.
  const std::map<uint32_t, const v1::Table*>& TablesOf(const std::string& job) const;
  const JobSums& SumsOf(const std::string& job) const;
  const JobSums& sums() const { return sums_; }  // of all tables
  const v1::Job* FindJob(const std::string& name) const;
  // The job that has this member.
  const v1::Job* JobOf(uint64_t member) const;

  // ---- changes ----
  void Begin();  // the view has the next revision now
  void Undo();
  Change Describe() const;
  void Hold();      // it is complete, and may still be undone by UndoHeld()
  void UndoHeld();  // all changes that are held
  void Commit();    // changes that are held can no longer be undone

  void AddTable(const v1::Table& table);  // its id is greater than all others
  // Without a change of its id, name and job. Pointers stay valid until the table is removed.
  v1::Table* EditTable(uint32_t id);
  void SetServed(uint32_t id);  // it was being restored
  void RemoveTable(uint32_t id);
  void AddJob(const std::string& name);
  v1::Job* EditJob(const std::string& name);  // all but its members
  void AddMember(const std::string& job, const v1::Worker& worker);
  // A member's entry but its incarnation. The pointer is valid until the next change of members.
  v1::Worker* EditMember(uint64_t incarnation);
  // Removes a member; its rank counts as departed if steps wait for it.
  void RemoveMember(uint64_t incarnation);
  // Removes the job's entry if the job has neither members nor tables nor limits.
  void RemoveIfEnded(const std::string& job);
  v1::Partition* EditPartition(int id);
  Servers* EditServers();

 private:
  struct OldJob {
    std::optional<v1::Job> header;  // none: the job is new. Without members
    bool removed = false;           // if it is there now, it is another entry
    std::vector<uint64_t> added;    // members; may have been removed again
    std::vector<v1::Worker> removed_members;
    std::map<uint64_t, v1::Worker> edited;  // as they were
  };
  struct JobMove {
    std::optional<int> removed_from;  // the place that it had; none: it was added
    std::string name;
  };
  struct JobTables {
    std::map<uint32_t, const v1::Table*> tables;
    JobSums sums;
  };
  struct NamedTables {
    const v1::Table* served = nullptr;
    const v1::Table* restoring = nullptr;
  };

  // Values that a change has replaced.
  struct Old {
    uint64_t revision = 0;
    uint32_t ended_generation = 0;
    std::map<uint32_t, std::optional<v1::Table>> tables;  // none: it is new
    // In which jobs were touched first; those with new entries in the order of these.
    std::vector<std::string> job_order;
    absl::flat_hash_map<std::string, OldJob> jobs;
    std::vector<JobMove> job_moves;  // in the order in which they were made
    std::map<int, v1::Partition> partitions;
    std::optional<Servers> servers;
  };

  int PlaceOfTable(uint32_t id) const;  // -1: it is not there
  int PlaceOfJob(const v1::Job* job) const;
  v1::Job* FindMutableJob(const std::string& name);
  OldJob& Record(const v1::Job& job);
  void IndexTable(const v1::Table& table);
  void ForgetTable(const v1::Table& table);
  void EraseTable(int place);
  void EraseJob(int place);
  void UndoTables();
  void UndoJobs();
  void UndoMove(const JobMove& move);
  void UndoJob(const std::string& name, OldJob* old);
  void AddJobChange(const std::string& name, const OldJob& old, v1::ViewChange* change) const;
  bool ConcernsMembers(const std::string& name, const OldJob& old) const;
  void DescribeServers(Change* change) const;

  v1::ClusterView* const view_;
  uint32_t* const ended_generation_;
  ChunkMemory chunk_memory_;
  absl::flat_hash_map<std::string, NamedTables> by_name_;
  absl::flat_hash_map<std::string, JobTables> by_job_;
  JobSums sums_;
  absl::flat_hash_map<std::string, v1::Job*> jobs_;
  absl::flat_hash_map<uint64_t, v1::Job*> job_of_member_;

  Old old_;                // of the current change
  std::vector<Old> held_;  // of those before it that are not committed, oldest first
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_VIEW_EDITOR_H_
