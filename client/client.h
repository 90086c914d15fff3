// What a training worker links: a connection to a Verbena cluster.
//
//     auto client = verbena::Client::Connect({.cluster = "127.0.0.1:7000", .job = "demo"});
//     auto table = (*client)->CreateTable(spec);
//     auto grad = (*client)->AllocateRegion(bytes);
//     ...
//     verbena::Ticket push = (*client)->Push(*table, *grad);
//     verbena::Ticket end = (*client)->EndStep(*table);
//     verbena::Ticket pull = (*client)->Pull(*table, *params);
//     absl::Status status = pull.Wait();
//
// **Thread safety**: Client, Table, Region and Ticket may be used from any thread. Concurrent
// pushes to one table must not overlap; calls of one step and its EndStep() are ordered by the
// caller.
//
// Every operation ends by its deadline (default CallOptions::timeout) with a status:
//   OK; INVALID_ARGUMENT (the call is wrong: says which argument, its value and what is allowed);
//   NOT_FOUND (no such table); ALREADY_EXISTS; DEADLINE_EXCEEDED (says what was waited for, such as
//   the rank that has not ended the step); UNAVAILABLE (the server is silent or gone);
//   DATA_LOSS (the partition's only copy is gone); ABORTED (outcome unknown: this worker's lease
//   ended); RESOURCE_EXHAUSTED (no credit by the deadline); CANCELLED; FAILED_PRECONDITION.
#ifndef VERBENA_CLIENT_CLIENT_H_
#define VERBENA_CLIENT_CLIENT_H_

#include <cstddef>
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
#include "client/rdma_options.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "rdma/memory/memory.h"

namespace verbena {

using rdma::MemoryKind;

struct ClientOptions {
  std::string cluster = {};  // host:port of the coordinator
  std::string job = "default";
  std::string name = {};          // shown to operators; default: host-pid
  uint32_t expected_workers = 1;  // of the job: step 0 of a sync table waits for so many
  int rank = -1;                  // -1: any free one. Sums are in rank order
  bool observer = false;          // only pulls; counts in no step
  // How data travels. auto: to each server shard the best of shm (same host) and verbs (RDMA) that
  // works; a named one ("shm", "verbs") never falls back: Connect() says why it cannot be had.
  std::string transport = "auto";
  RdmaOptions rdma = {};                       // of verbs
  absl::Duration timeout = absl::Seconds(30);  // default deadline of every call
  // caller: only threads inside Wait() make progress. background: a thread takes over whenever
  // records are unanswered and nobody waits.
  enum class Progress { kBackground, kCaller } progress = Progress::kBackground;
  size_t staging_bytes = 16 << 20;  // for pulls into memory that shm cannot share
};

// Memory known to the data plane. Destroying the last handle while tickets use it closes the lanes
// they are on, so that nothing touches it afterwards; their records are resent as empty ones.
class Region {
 public:
  std::byte* data() const;
  float* floats() const { return reinterpret_cast<float*>(data()); }
  size_t size() const;  // bytes
  MemoryKind kind() const;
  bool allocated() const;  // shared over shm without a copy through staging

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

class Table {
 public:
  const std::string& name() const;
  uint32_t id() const;
  const v1::TableSpec& spec() const;
  uint64_t elements() const;
  size_t bytes() const;             // of the parameters as pulled
  uint32_t chunk_elements() const;  // ranges of pushes start at a multiple of this

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// One asynchronous operation. Cheap to copy; copies mean the same operation.
class Ticket {
 public:
  // Waits until the operation has ended or its deadline has passed; makes progress meanwhile.
  absl::Status Wait();
  absl::Status Wait(absl::Duration at_most);  // DEADLINE_EXCEEDED leaves the operation running
  bool Done() const;
  absl::Status status() const;  // once Done()
  // Ends the wait with CANCELLED. The transfer may still be under way: see BufferReleased().
  void Cancel();
  // Whether the library will neither read nor write the region for this operation any more. May be
  // false for a while after a deadline or cancel; destroying the region ends it at once.
  bool BufferReleased() const;
  // Calls `done` once, from a thread that makes progress (at once when already done). It must not
  // block; it may start operations.
  void OnDone(std::function<void(absl::Status)> done);

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

struct CallOptions {
  std::optional<absl::Duration> timeout;
};

// Which part of the table (elements; starts at a chunk boundary and ends at one or at the table's
// end) and where it lies in the region (bytes; multiple of 4).
struct Range {
  uint64_t first = 0;
  uint64_t count = UINT64_MAX;  // to the end of the table
  size_t region_offset = 0;
};

struct PushOptions {
  std::optional<absl::Duration> timeout;
};

struct PullOptions {
  std::optional<absl::Duration> timeout;
  // Least version to be answered. Default: sync, the steps this worker has ended; async, 0.
  std::optional<uint64_t> min_version;
};

struct ClientStatistics {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;
  uint64_t pushes = 0, pulls = 0;
  uint64_t records_resent = 0, lanes_opened = 0, lanes_lost = 0;
  uint64_t credit_stalls = 0;
  uint64_t staged_bytes = 0;  // pulled by way of staging
  struct Lane {
    uint64_t server = 0;
    uint32_t shard = 0;
    std::string transport, reason, state;
    std::string device;  // this side's, "mlx5_0:1"; empty: the transport has none
  };
  std::vector<Lane> lanes;
  // Transports that this process does not have, "verbs: no RDMA device ...".
  std::vector<std::string> missing_transports;
};

class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  // Leaves the job (at most one second), ends every ticket with CANCELLED, settles every buffer.
  ~Client();

  // Creates the table, or opens it when it exists with the same specification.
  absl::StatusOr<Table> CreateTable(const v1::TableSpec& spec, const CallOptions& options = {});
  absl::StatusOr<Table> OpenTable(std::string_view name, const CallOptions& options = {});
  absl::StatusOr<std::vector<v1::Table>> ListTables(const CallOptions& options = {});
  absl::Status DropTable(std::string_view name, const CallOptions& options = {});

  absl::StatusOr<Region> AllocateRegion(size_t bytes, MemoryKind kind = MemoryKind::kHost);
  // The caller keeps the memory alive until the region is destroyed.
  absl::StatusOr<Region> RegisterRegion(void* data, size_t bytes,
                                        MemoryKind kind = MemoryKind::kHost);

  // Pushes a gradient of the step that is open for this worker. sync: done when the step is
  // committed, so call EndStep() before waiting. async: done when applied.
  Ticket Push(const Table& table, const Region& gradient, const Range& range = {},
              const PushOptions& options = {});
  Ticket Pull(const Table& table, const Region& destination, const Range& range = {},
              const PullOptions& options = {});
  // Push, then pull what includes it. The destination may be the gradient's region.
  // sync: pulls version step + 1; when the range is the whole table, also ends the step.
  Ticket PushPull(const Table& table, const Region& gradient, const Region& destination,
                  const Range& range = {}, const PushOptions& options = {});
  // This worker has pushed all of its open step of this table. What it did not push counts as
  // zero. sync: done when the step is committed on every partition. The next step is open at once.
  Ticket EndStep(const Table& table, const PushOptions& options = {});

  uint64_t incarnation() const;
  int rank() const;
  // Workers of the job that are alive now, and its generation.
  uint32_t live_workers() const;
  ClientStatistics statistics() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_CLIENT_H_
