// The client as a single-threaded state machine: membership, lanes, journal of unfinished records,
// settlement. client.h wraps it in a lock and threads; the cluster simulator drives it directly.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A record is unfinished from its first Post until its group is settled (kOk, kDuplicate or a
//     final refusal); unfinished records of a partition are reposted in order, on a new lane or
//     that of another rail, only after their old lane is dead.
//  2. A buffer is released only when no lane that is not dead has an unanswered record with it.
//  3. Every operation ends by its deadline; the record behind it goes on until settled.
//  4. sync: records of step t + 1 of a chunk are not posted before step t of it is known committed.
#ifndef VERBENA_CLIENT_CORE_CLIENT_CORE_H_
#define VERBENA_CLIENT_CORE_CLIENT_CORE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/core/bag_call.h"
#include "client/core/key_sort.h"
#include "client/core/lease_keeper.h"
#include "client/core/push_encoding.h"
#include "client/registrar.h"
#include "proto/control_channel.h"
#include "proto/record.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "rdma/base/clock.h"
#include "rdma/choice/transports.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "rdma/transport.h"

namespace verbena::client {

struct CoreOptions {
  std::string cluster;
  std::string job;
  std::string name;
  uint32_t expected_workers = 1;
  int rank = -1;
  bool observer = false;
  size_t staging_bytes = 16 << 20;
  uint64_t seed = 1;  // backoff jitter, request ids
  // Endpoints this process can use, best first, with what OpenLane offers for them.
  struct Transport {
    rdma::Endpoint* endpoint;
    std::string host;
    uint32_t rail = 0;  // those of one transport are numbered from 0
  };
  std::vector<Transport> transports;
  bool direct_only = false;  // calls on memory of devices that a transport does not reach fail
  std::vector<rdma::MissingTransport> missing;  // those it cannot use, and why: servers are told
  const Clock* clock = nullptr;
  ControlChannel* control = nullptr;
  // Takes a line about a call that takes long; null: none. From the threads of lease_keeper() and
  // registrar().
  std::function<void(const std::string&)> log;
};

using OperationId = uint64_t;

// What one record of a scan brought.
struct ScanResult {
  std::vector<uint64_t> keys;
  std::vector<float> rows;  // `dim` for each key
  uint64_t next = 0;        // the cursor to go on from; no keys: the partition's end
};

struct CoreStatistics {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;
  uint64_t pushes = 0, pulls = 0;  // records; one for each chunk, of rows for each lane and slotful
  uint64_t records_resent = 0, lanes_opened = 0, lanes_lost = 0;
  uint64_t credit_stalls = 0;
  uint64_t staged_bytes = 0, direct_bytes = 0;
  uint64_t referenced_bytes = 0;
  uint64_t rail_moves = 0;  // of a table's partitions, from a rail to another one
  uint64_t tables = 0;      // in use, and those that were dropped and are not forgotten yet
  std::array<uint64_t, kStalenessBuckets> staleness = {};  // pulls of ssp tables
  struct Lane {
    uint64_t server = 0;
    uint32_t shard = 0;
    std::string transport, reason, state, device;
    uint32_t rail = 0;
    uint32_t in_flight = 0, queued_pulls = 0;  // records
  };
  std::vector<Lane> lanes;
  // How transports reach memory of devices that was pushed or pulled to.
  struct DevicePath {
    std::string memory, transport, device;
    rdma::DevicePath path;
    absl::Status refusal;  // of some memory that is reached by staging all the same
  };
  std::vector<DevicePath> device_paths;
};

class ClientCore {
 public:
  explicit ClientCore(CoreOptions options);
  ~ClientCore();

  using Done = std::function<void(absl::Status)>;

  // ---- control: `done` runs inside RunOnce(), but at once where the client is not joined ----
  void Join(int64_t deadline_ns, Done done);
  void Leave(int64_t deadline_ns, Done done);
  void CreateTable(const v1::TableSpec& spec, int64_t deadline_ns,
                   std::function<void(absl::StatusOr<v1::Table>)> done);
  void OpenTable(const std::string& name, int64_t deadline_ns,
                 std::function<void(absl::StatusOr<v1::Table>)> done);
  void DropTable(const std::string& name, int64_t deadline_ns, Done done);
  void DropTable(uint32_t id, int64_t deadline_ns, Done done);
  void ListTables(int64_t deadline_ns,
                  std::function<void(absl::StatusOr<std::vector<v1::Table>>)> done);

  // ---- data: errors in the call itself are returned; everything later goes to `done`, which runs
  // inside RunOnce() and may call anything of this object but its destructor ----
  struct Slice {
    std::shared_ptr<rdma::MemoryBlock> block;
    size_t offset = 0;
    uint64_t first = 0;  // element of the table
    uint64_t count = 0;
    // Memory of a device: it is not touched before this has passed; null: at once.
    std::shared_ptr<rdma::Device::Mark> after = nullptr;
  };
  // Of a table with a push codec: what encodes the gradient of such a `call` ("push",
  // "push-pull"); its Run() is for the caller's thread, without this object, and then it is handed
  // to the call. Null: the table has none. Without it the call encodes by itself.
  absl::StatusOr<std::unique_ptr<PushEncoding>> StartEncoding(std::string_view call, uint32_t table,
                                                              const Slice& gradient);
  absl::StatusOr<OperationId> Push(uint32_t table, const Slice& slice, int64_t deadline_ns,
                                   Done done, std::unique_ptr<PushEncoding> encoded = nullptr);
  absl::StatusOr<OperationId> Pull(uint32_t table, const Slice& slice,
                                   std::optional<uint64_t> min_version, int64_t deadline_ns,
                                   Done done);
  absl::StatusOr<OperationId> PushPull(uint32_t table, const Slice& gradient,
                                       const Slice& destination, int64_t deadline_ns, Done done,
                                       std::unique_ptr<PushEncoding> encoded = nullptr);
  absl::StatusOr<OperationId> EndStep(uint32_t table, int64_t deadline_ns, Done done);
  // Of embedding tables: one row after the other, in the order of `keys`, which are copied.
  struct Rows {
    std::shared_ptr<rdma::MemoryBlock> block;
    size_t offset = 0;
  };
  // Sorts the keys of such a call if there are many (KeySort::kManyKeys): Run() it on the caller's
  // thread, without this object, and hand it to the call. Null: the call sorts the keys itself, or
  // refuses them.
  std::unique_ptr<KeySort> StartKeys(uint32_t table, absl::Span<const uint64_t> keys);
  std::unique_ptr<KeySort> StartBags(uint32_t table, const BagKeys& bags, const Rows& sums);
  absl::StatusOr<OperationId> PushRows(uint32_t table, absl::Span<const uint64_t> keys,
                                       const Rows& gradients, int64_t deadline_ns, Done done,
                                       std::unique_ptr<KeySort> sorted = nullptr);
  absl::StatusOr<OperationId> Lookup(uint32_t table, absl::Span<const uint64_t> keys,
                                     const Rows& rows, std::optional<uint64_t> min_version,
                                     int64_t deadline_ns, Done done,
                                     std::unique_ptr<KeySort> sorted = nullptr);
  // Sums of rows by bag: one after the other, in the order of the bags. What `bags` refers to is
  // copied.
  absl::StatusOr<OperationId> LookupBags(uint32_t table, const BagKeys& bags, const Rows& sums,
                                         std::optional<uint64_t> min_version, int64_t deadline_ns,
                                         Done done, std::unique_ptr<KeySort> sorted = nullptr);
  // Tells the servers that rows of these keys will be asked for soon.
  absl::StatusOr<OperationId> Intend(uint32_t table, absl::Span<const uint64_t> keys,
                                     int64_t deadline_ns, Done done,
                                     std::unique_ptr<KeySort> sorted = nullptr);
  // One record's rows of `partition` from `cursor` on. *result is written before `done` runs with
  // OK, and not after an operation has ended.
  absl::StatusOr<OperationId> Scan(uint32_t table, uint32_t partition, uint64_t cursor,
                                   std::shared_ptr<ScanResult> result, int64_t deadline_ns,
                                   Done done);

  void Cancel(OperationId id);
  bool BufferReleased(OperationId id) const;
  // The memory is about to go: closes the lanes whose unanswered records use it. Its block may be
  // freed once InUse() is false (at once on every transport but a stopped shm peer, whose own
  // mapping keeps the pages).
  void ReleaseBlock(uint64_t block_id);
  bool InUse(uint64_t block_id) const;

  // Only what peers sent, without timers and control answers: cheap enough to spin on. True: call
  // RunOnce() for what follows from it.
  bool Poll();
  // Makes progress: events, completions, control answers, timers. Returns whether it did anything.
  bool RunOnce();
  // The last RunOnce() took long, and more of that kind may follow: others are to be let in first.
  bool long_turn() const;
  // The part of it that keeps the lease and follows the view: no data, no `done` of operations.
  bool RunControl();
  // When RunOnce() has something to do even if nothing arrives; INT64_MAX: never.
  int64_t NextTimerNanos() const;
  // Operations that have not ended, or whose `done` has not run.
  bool HasOperations() const;
  // Records queued or unanswered, or calls under way.
  bool Busy() const;
  // Sleeping, as Endpoint's: all endpoints and the control channel. While one operation of a few
  // records is live, answers before the last one of a lane do not wake. Every call that starts or
  // ends an operation withdraws that; NextTimerNanos() is 0 where the sleeping thread must be
  // woken.
  bool Arm();
  void Disarm();
  void AppendDescriptors(std::vector<int>* fds) const;

  // Its RunOnce() is for a thread of its own, at any time, also while another thread is in a call
  // of this object; it lives as long as this object.
  LeaseKeeper& lease_keeper();
  // The same of its Run(). Until UseThread() memory is registered in the calls that need it.
  Registrar& registrar();

  uint64_t incarnation() const;
  int rank() const;
  const v1::ClusterView& view() const;
  CoreStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_CLIENT_CORE_H_
