// The client as a single-threaded state machine: membership, lanes, unfinished requests,
// settlement. client.h adds a lock and threads; the cluster simulator drives it directly.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A record is unfinished from its first Post until its group is settled (kOk, kDuplicate or a
//     final refusal). Unfinished records of a partition are reposted in order, on a new lane or on
//     another rail's lane, only after their old lane is dead.
//  2. A buffer is released only when no lane that may still be alive has an unanswered record with
//     it.
//  3. Every operation ends by its deadline; its record continues until it is settled.
//  4. sync: records of step t + 1 of a chunk are not posted before the commit of its step t is
//     known.
#ifndef VERBENA_CLIENT_CORE_CLIENT_CORE_H_
#define VERBENA_CLIENT_CORE_CLIENT_CORE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
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
#include "proto/control/control_channel.h"
#include "proto/wire/record.h"
#include "rdma/base/clock.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "rdma/selection/transports.h"
#include "rdma/transport.h"
#include "verbena/client_counters.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::client {

struct CoreOptions {
  std::string cluster;
  std::string job;
  std::string name;
  uint32_t expected_workers = 1;
  uint32_t max_workers = 0;
  int rank = -1;
  bool observer = false;
  size_t staging_bytes = 16 << 20;
  uint64_t seed = 1;  // backoff jitter, request ids
  // Endpoints that this process can use, best first, with their OpenLane offers.
  struct Transport {
    rdma::Endpoint* endpoint;
    std::string host;
    uint32_t rail = 0;  // rails of one transport are numbered from 0
  };
  std::vector<Transport> transports;
  bool direct_only = false;  // calls on device memory that a transport cannot access fail
  std::vector<rdma::MissingTransport> missing;  // unavailable transports and the reasons, sent to
                                                // servers
  const Clock* clock = nullptr;
  ControlChannel* control = nullptr;
  // Receives a line about a call that takes long; null: none. Called by the threads of
  // lease_keeper() and registrar().
  std::function<void(const std::string&)> log;
};

using OperationId = uint64_t;

// New values for a table's optimizer, and the steps from which they are in force.
struct OptimizerUpdate {
  std::vector<NamedValue> values;
  uint32_t number = 0;  // of this client's changes of the table
  uint64_t first = UINT64_MAX, last = 0;

  // The partitions of a reply have them from such steps on.
  void InForce(uint64_t version, uint32_t more) {
    first = std::min(first, version);
    last = std::max(last, version + more);
  }
};

// The array of the optimizer's state that an assignment replaces, and the chunks' count of applies
// after it. 0: no state.
struct AssignedState {
  uint8_t array = 0;  // 1 + its index
  uint64_t applies = 0;
};

// A pull of an array of the optimizer's state, and the versions and counts of applies of the chunks
// that were read.
struct PulledState {
  uint8_t array = 0;  // 1 + its index; 0: parameters
  uint64_t least_version = UINT64_MAX, greatest_version = 0;
  uint64_t least_applies = UINT64_MAX, greatest_applies = 0;
  bool applies_known = true;  // every server has reported them

  // `protocol`: of the lane. Before version 11 replies have no count of applies.
  void Add(uint32_t protocol, uint64_t version, uint64_t applies) {
    least_version = std::min(least_version, version);
    greatest_version = std::max(greatest_version, version);
    applies_known &= protocol >= 11;
    least_applies = std::min(least_applies, applies);
    greatest_applies = std::max(greatest_applies, applies);
  }
};

// The result of one record of a scan.
struct ScanResult {
  std::vector<uint64_t> keys;
  std::vector<float> rows;  // `dim` for each key
  uint64_t next = 0;        // the cursor of the next record; no keys: the end of the partition
};

struct CoreStatistics : ClientCounters {
  int rank = -1;        // of this worker; -1: it is an observer, or has not joined
  uint64_t tables = 0;  // in use, or dropped and not released yet
  struct Lane {
    uint64_t server = 0;
    uint32_t shard = 0;
    std::string transport, reason, state, device;
    uint32_t rail = 0;
    uint32_t in_flight = 0, queued_pulls = 0;  // records
  };
  std::vector<Lane> lanes;
  // How transports access device memory that was pushed or pulled to.
  struct DevicePath {
    std::string memory, transport, device;
    rdma::DevicePath path;
    absl::Status refusal;  // reason why some of that memory is staged nevertheless
  };
  std::vector<DevicePath> device_paths;
  // By table in use: the step of a sync table with which this worker began; only if it has joined a
  // run of an elastic job.
  std::map<uint32_t, uint64_t> first_steps;
};

enum class Write : uint8_t;  // client/operations/operations.h

class ClientCore {
 public:
  explicit ClientCore(CoreOptions options);
  ~ClientCore();

  using Done = std::function<void(absl::Status)>;

  // ---- control: `done` runs inside RunOnce(), or at once if the client is not joined ----
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

  // ---- data: errors in the call itself are returned; later errors go to `done`, which runs inside
  // RunOnce() and may call every function of this object except its destructor ----
  struct Slice {
    std::shared_ptr<rdma::MemoryBlock> block;
    size_t offset = 0;
    uint64_t first = 0;  // element of the table
    uint64_t count = 0;
    // Device memory is not touched before this has passed; null: it may be touched at once.
    std::shared_ptr<rdma::Device::Mark> after = nullptr;
  };
  // Starts the encoding of a gradient for a table with a push codec; `call` is "push" or
  // "push-pull". The caller's thread executes Run() without this object and then passes the
  // encoding to the call. Null: the table has no codec. Without an encoding the call encodes
  // itself.
  absl::StatusOr<std::unique_ptr<PushEncoding>> StartEncoding(std::string_view call, uint32_t table,
                                                              const Slice& gradient);
  absl::StatusOr<OperationId> Push(uint32_t table, const Slice& slice, int64_t deadline_ns,
                                   Done done, std::unique_ptr<PushEncoding> encoded = nullptr,
                                   Write write = {}, const AssignedState& state = {});
  // `state`: pulls its array of the optimizer's state, or parameters if that is 0, and adds the
  // chunks' versions to it; null: pulls parameters. `max_staleness_ms`: followers may answer an
  // observer with values that their primary had at most this long ago; 0: only primaries answer.
  absl::StatusOr<OperationId> Pull(uint32_t table, const Slice& slice,
                                   std::optional<uint64_t> min_version, int64_t deadline_ns,
                                   Done done, std::shared_ptr<PulledState> state = nullptr,
                                   uint32_t max_staleness_ms = 0);
  absl::StatusOr<OperationId> PushPull(uint32_t table, const Slice& gradient,
                                       const Slice& destination, int64_t deadline_ns, Done done,
                                       std::unique_ptr<PushEncoding> encoded = nullptr);
  absl::StatusOr<OperationId> EndStep(uint32_t table, int64_t deadline_ns, Done done);
  // Rows of embedding tables, in the order of `keys`, which are copied.
  struct Rows {
    std::shared_ptr<rdma::MemoryBlock> block;
    size_t offset = 0;
  };
  // Starts the sort of the keys if there are many (KeySort::kManyKeys). The caller's thread
  // executes Run() without this object and then passes the sort to the call. Null: the call sorts
  // or refuses the keys.
  std::unique_ptr<KeySort> StartKeys(uint32_t table, absl::Span<const uint64_t> keys);
  std::unique_ptr<KeySort> StartBags(uint32_t table, const BagKeys& bags, const Rows& sums);
  absl::StatusOr<OperationId> PushRows(uint32_t table, absl::Span<const uint64_t> keys,
                                       const Rows& rows, int64_t deadline_ns, Done done,
                                       std::unique_ptr<KeySort> sorted = nullptr, Write write = {});
  absl::StatusOr<OperationId> Lookup(uint32_t table, absl::Span<const uint64_t> keys,
                                     const Rows& rows, std::optional<uint64_t> min_version,
                                     int64_t deadline_ns, Done done,
                                     std::unique_ptr<KeySort> sorted = nullptr);
  // Looks up sums of rows by bag, in the order of the bags. The memory that `bags` refers to is
  // copied.
  absl::StatusOr<OperationId> LookupBags(uint32_t table, const BagKeys& bags, const Rows& sums,
                                         std::optional<uint64_t> min_version, int64_t deadline_ns,
                                         Done done, std::unique_ptr<KeySort> sorted = nullptr);
  // Sends new values of the table's optimizer to all partitions. *change gets the steps from which
  // they are in force.
  absl::StatusOr<OperationId> SetOptimizer(uint32_t table, std::shared_ptr<OptimizerUpdate> change,
                                           int64_t deadline_ns, Done done);
  // Requests of tables with a greater priority are posted first. OK, or an error of the table.
  absl::Status SetPriority(uint32_t table, int32_t priority);
  // Prefetch: announces to the servers that rows of these keys will be looked up soon.
  absl::StatusOr<OperationId> Prefetch(uint32_t table, absl::Span<const uint64_t> keys,
                                       int64_t deadline_ns, Done done,
                                       std::unique_ptr<KeySort> sorted = nullptr);
  // Reads one record of rows of `partition`, starting at `cursor`. *result is written before `done`
  // runs with OK, and not after the operation has ended.
  absl::StatusOr<OperationId> Scan(uint32_t table, uint32_t partition, uint64_t cursor,
                                   std::shared_ptr<ScanResult> result, int64_t deadline_ns,
                                   Done done);

  void Cancel(OperationId id);
  bool BufferReleased(OperationId id) const;
  // The memory is about to be freed: closes the lanes whose unanswered records use it. The block
  // may be freed when InUse() is false. This is the case at once on all transports except a stopped
  // shm peer, whose own mapping keeps the pages.
  void ReleaseBlock(uint64_t block_id);
  bool InUse(uint64_t block_id) const;

  // Handles only data from peers, without timers and control answers: cheap enough for spinning.
  // True: call RunOnce() to process the consequences.
  bool Poll();
  // Makes progress: events, completions, control answers, timers. Returns whether there was work.
  bool RunOnce();
  // The last RunOnce() took long, and the next may too: other threads should get the lock first.
  bool long_turn() const;
  // Runs only the part that keeps the lease and follows the view: no data, no `done` of operations.
  bool RunControl();
  // Time at which RunOnce() has work even without events; INT64_MAX: never.
  int64_t NextTimerNanos() const;
  // Whether operations have not ended, or their `done` has not run.
  bool HasOperations() const;
  // Whether records are queued or unanswered, or calls are in flight.
  bool Busy() const;
  // Sleeping on all endpoints and the control channel; see Endpoint. While the only live operation
  // has a few records, replies before the last one of a lane do not wake. Every call that starts or
  // ends an operation withdraws that. NextTimerNanos() is 0 if the sleeping thread must be woken.
  bool Arm();
  void Disarm();
  void AppendDescriptors(std::vector<int>* fds) const;

  // A separate thread calls its RunOnce(), even while another thread is in a call of this object.
  // It lives as long as this object.
  LeaseKeeper& lease_keeper();
  // Separate threads call its Run() in the same way. Before UseThread(), calls register the memory
  // that they need.
  Registrar& registrar();

  uint64_t incarnation() const;
  const v1::ClusterView& view() const;
  CoreStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Membership::first_step of this worker.
uint64_t OwnFirstStep(const ClientCore& core, uint32_t table);

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_CLIENT_CORE_H_
