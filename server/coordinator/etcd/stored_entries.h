// The coordinator's state as entries, a key and a content each, so that a save writes only the
// entries that are different.
//
//   key                 | content                                   | block
//   --------------------+-------------------------------------------+-------
//   servers/BLOCK       | servers, in the view's order              | 64
//   partitions/BLOCK    | partitions, by id                         | 1024
//   terms/BLOCK         | terms, by number                          | 1024
//   tokens/BLOCK        | tokens, in their order                    | 256
//   answers/BLOCK       | answers to request ids, by number         | 16
//   tables/ID           | a table                                   |
//   jobs/NAME           | a job without its members                 |
//   members/INCARNATION | a job with its name and this member alone |
//
// The other fields are in stored.State. Numbers in keys are hexadecimal, with leading zeros.
//
// **Thread safety**: one owner thread; free functions are pure.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_STORED_ENTRIES_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_STORED_ENTRIES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "etcd/stored_state.pb.h"
#include "server/coordinator/store.h"

namespace verbena::server {

using EntryMap = std::map<std::string, std::string>;                    // key -> content
using EntryWrites = std::map<std::string, std::optional<std::string>>;  // none: it is removed

// Of the key and the content: neither can stand for another one.
uint64_t ChecksumOfEntry(const std::string& key, const std::string& content);

// Entries as they are stored, by their checksums, and the values that the next save continues.
class StoredEntries {
 public:
  // The entries that lead from these to `state`, which is that after the last of the changes.
  // `next` gets all fields but the save's own (save_id, staged_parts, entries_sum, entries).
  EntryWrites Collect(const CoordinatorState& state, absl::Span<const StateChange> changes,
                      stored::State* next);
  // The writes of the last Collect() are stored.
  void Keep(const EntryWrites& writes);
  // entries_sum and entries after these writes.
  void SetSums(const EntryWrites& writes, stored::State* next) const;

  // Makes the state of `all` entries. An error has the key that is missing, superfluous or
  // unreadable.
  absl::Status Load(const EntryMap& all, const stored::State& header, CoordinatorState* state);

 private:
  struct Answers {
    uint64_t first = 0, end = 0;
    std::map<uint64_t, CoordinatorState::Answered> last;  // of the block that `end` is in
  };
  struct Loading {
    CoordinatorState* state;
    std::map<uint64_t, CoordinatorState::Answered> answers;
    absl::flat_hash_map<std::string, int> jobs;  // places in the view
  };

  void CollectWhole(const CoordinatorState& state, EntryWrites* writes) const;
  void CollectBlocks(const CoordinatorState& state, bool access, EntryWrites* writes) const;
  void CollectTerms(const Terms& terms, EntryWrites* writes) const;
  void CollectAnswer(const CoordinatorState::Answered& answered, EntryWrites* writes);
  // Removes entries with such keys that `writes` does not write.
  void RemoveOthers(const std::string& kind, EntryWrites* writes) const;
  void LeaveOutEqual(EntryWrites* writes) const;
  static absl::Status LoadEntry(const std::string& key, const std::string& content, Loading* into);

  std::map<std::string, uint64_t> checksums_;  // by key
  uint64_t sum_ = 0;                           // of them
  uint64_t last_term_ = 0;                     // that is stored
  Answers answers_, next_answers_;
  uint64_t next_term_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_STORED_ENTRIES_H_
