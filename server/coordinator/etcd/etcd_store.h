// The coordinator's state in etcd: durable at each SaveAll(), and written by the one leader alone.
//
//   key below the prefix      | value
//   --------------------------+-----------------------------------------------------------------
//   leader                    | the leader's address, attached to its lease
//   successor                 | after a planned move: the address of the only candidate
//                             | (leader_election.h), attached to a lease of its own
//   state                     | stored.State
//   entries/...               | an entry (stored_entries.h), after the 8 bytes of its checksum
//   staged/SAVE/PART          | a part of a save that is too large for one transaction
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Each write is a transaction that holds only while the leader's key has the create revision of
//  this
//     leadership and `state` has the revision that this store has read or written. So no two
//     leaders write, and a write that is delayed past the next one is without effect.
//  2. A save of more than a transaction's operations or bytes is staged: its parts are written
//  under keys that
//     nothing reads; then one transaction makes `state` refer to them, which is the save; then the
//     entries are written, and `state` no longer refers. A crash on the way leaves all of the save
//     or nothing: Load() ignores parts without a reference, and completes a save with one.
//  3. A transaction without an answer is repeated as it is: its outcome is then known, since it can
//  hold only
//     once. If that is not known in time the store is in doubt: it refuses all further work, and
//     only a new leadership reads how it ended.
//  4. Entries that are not exactly as written are DATA_LOSS: each has a checksum, and `state` has
//  the sum.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_ETCD_STORE_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_ETCD_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/stored_state.pb.h"
#include "rdma/base/clock.h"
#include "server/coordinator/etcd/etcd_client.h"
#include "server/coordinator/etcd/stored_entries.h"
#include "server/coordinator/store.h"

namespace verbena::server {

// Bounds of one transaction. etcd's defaults are 128 operations and 1.5 MiB (--max-txn-ops,
// --max-request-bytes).
struct EtcdLimits {
  size_t operations = 120;
  size_t bytes = 1 << 20;
  // Of one Load() or SaveAll(): below the deadline of a coordinator's call.
  absl::Duration longest = absl::Seconds(8);
};

class EtcdStore final : public Store {
 public:
  struct Leadership {
    // Of the leader's key.
    int64_t create_revision = 0;
    // When this process must have ended its work as a leader, by the store's clock. Grows.
    std::function<int64_t()> until_ns;
  };
  // `client` and `clock` outlive it.
  EtcdStore(EtcdClient* client, const Clock* clock, Leadership leadership, EtcdLimits limits = {});
  ~EtcdStore() override;

  // UNAVAILABLE: etcd does not answer, or the leadership has ended.
  absl::StatusOr<CoordinatorState> Load() override;
  // UNAVAILABLE: it was not saved; or, if status() is an error then, perhaps it was.
  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override;

  // Not OK: this leadership can write no more: it has ended, or a save is in doubt.
  const absl::Status& status() const { return status_; }
  uint64_t staged_saves() const { return staged_saves_; }
  // Whether there is no state below the prefix. After Load().
  bool empty() const { return empty_; }

 private:
  using Operations = std::vector<etcdserverpb::RequestOp>;

  std::string Key(const std::string& name) const { return client_->options().prefix + name; }
  std::string EntryKey(const std::string& key) const { return Key("entries/") + key; }
  std::string StagedPrefix(const std::string& save_id) const;
  absl::Duration TimeLeft(int64_t began_ns) const;
  etcdserverpb::RequestOp EntryOperation(const std::string& key,
                                         const std::optional<std::string>& content) const;
  etcdserverpb::RequestOp PutState(const stored::State& state) const;

  // Makes the operations, if invariant 1 allows. `state_revision_` follows when they write `state`,
  // whose save_id is `save_id`.
  absl::Status Write(Operations operations, bool writes_state, const std::string& save_id,
                     int64_t began_ns);
  absl::Status EndLeadership(const absl::Status& why);
  absl::Status SaveStaged(const EntryWrites& writes, stored::State* next, int64_t began_ns);
  absl::Status WriteEntries(const EntryWrites& writes, int64_t began_ns);
  // Writes the entries of the save that `state_` refers to, and ends the reference.
  absl::Status CompleteStaged(int64_t began_ns);

  absl::StatusOr<etcdserverpb::RangeResponse> Read(etcdserverpb::RangeRequest request,
                                                   int64_t began_ns);
  absl::StatusOr<CoordinatorState> LoadOnce(int64_t began_ns);
  absl::Status ReadState(int64_t began_ns, int64_t* revision);
  // All keys below `prefix` at `revision`, without it.
  absl::StatusOr<EntryMap> ReadAll(const std::string& prefix, int64_t revision, int64_t began_ns);
  absl::StatusOr<EntryMap> ReadEntries(int64_t revision, int64_t began_ns);
  absl::Status ReadStaged(int64_t revision, int64_t began_ns, EntryMap* entries);
  absl::Status Damaged(const std::string& what) const;

  EtcdClient* const client_;
  const Clock* const clock_;
  const Leadership leadership_;
  const EtcdLimits limits_;
  absl::Status status_;
  bool empty_ = true;
  int64_t state_revision_ = 0;  // of the key `state`; 0: there is none
  stored::State state_;         // as it is in etcd
  EntryWrites staged_;          // of the save that `state_` refers to
  StoredEntries entries_;
  uint64_t staged_saves_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_ETCD_STORE_H_
