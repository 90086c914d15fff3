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
// A table is dense (a shape: Push(), Pull(), PushPull()) or an embedding table (`dim`: a row of dim
// numbers for each uint64 key: PushRows(), Lookup(), LookupBags(), Scan()):
//
//     verbena::Ticket rows = (*client)->Lookup(*items, keys, *activations);
//     ...
//     verbena::Ticket push = (*client)->PushRows(*items, keys, *gradients);
//     verbena::Ticket end = (*client)->EndStep(*items);
//
// **Thread safety**: Client, Table, Region and Ticket may be used from any thread, also one object
// from several at once; but one thread assigns to or destroys an object, when no other uses it.
// Concurrent pushes to one table must not overlap; calls of one step and its EndStep() are ordered
// by the caller.
//
// fork(): in a child every call ends at once with FAILED_PRECONDITION, also Connect(), because gRPC
// works in no fork of a process that has used it. Objects may be destroyed there; the parent does
// not notice. Start processes that need a client with exec, or before the first Connect().
//
// Every operation ends by its deadline (default ClientOptions::timeout) with a status:
//   OK; INVALID_ARGUMENT (the call is wrong: says which argument, its value and what is allowed);
//   NOT_FOUND (no such table); ALREADY_EXISTS; DEADLINE_EXCEEDED (says what was waited for, such as
//   the rank that has not ended the step); UNAVAILABLE (the server is silent or gone);
//   DATA_LOSS (the partition's only copy is gone); ABORTED (outcome unknown: this worker's lease
//   ended); RESOURCE_EXHAUSTED (no credit or lane by the deadline; memory that the transport
//   refuses until then, such as by RLIMIT_MEMLOCK; new rows at the memory limit of a server or of
//   the job; a limit of the job: 'verbena limits'); CANCELLED; FAILED_PRECONDITION (the client is
//   closed or its lease has ended; an observer pushes); UNAUTHENTICATED (TLS: one of the two sides
//   does not believe the other, or only one of them uses it; or the token is missing or not good:
//   says why, and what to do); PERMISSION_DENIED (the token is not for this job, or not for this
//   call).
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
#include "absl/types/span.h"
#include "client/rdma_options.h"
#include "proto/export.h"
#include "proto/half.h"
#include "proto/tls_options.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "rdma/memory/memory_kind.h"

namespace verbena {

// Where memory lies: kHost, kPinned, kCuda.
using rdma::MemoryKind;

// How to join a cluster; every default but `cluster` is good for a job of one worker.
struct ClientOptions {
  std::string cluster = {};     // host:port of the coordinator
  std::string job = "default";  // whose tables and clock this worker shares
  std::string name = {};        // shown to operators; default: host-pid
  // Of the job: step 0 of a sync table waits for so many, and so does the step clock of ssp tables.
  uint32_t expected_workers = 1;
  int rank = -1;          // -1: any free one. Sums are in rank order
  bool observer = false;  // only pulls, any job's tables; counts in no step
  // How data travels. auto: to each server shard the best of shm (same host), verbs (RDMA) and ofi
  // (libfabric, over TCP) that works; a named one never falls back: Connect() says why it cannot be
  // had.
  std::string transport = "auto";
  RdmaOptions rdma = {};                       // of verbs
  FabricOptions fabric = {};                   // of ofi
  absl::Duration timeout = absl::Seconds(30);  // default deadline of every call
  // Who makes progress.
  enum class Progress {
    kBackground,  // a thread takes over whenever records are unanswered and nobody waits
    kCaller,      // only threads inside Wait()
  } progress = Progress::kBackground;  // who makes progress
  // Memory for pulls into what shm cannot share and for rows that are looked up; and as much again
  // for rows that are pushed. Of each GPU whose memory is pushed or pulled to, as much again for
  // either, page-locked. In bytes, taken when it is needed.
  size_t staging_bytes = 16 << 20;
  // TLS for everything but the parameters and gradients themselves; `ca` turns it on: servers are
  // believed only when their certificate is by one of these and for the host they are reached by.
  // `cert` and `key` are shown to servers that want them (mutual TLS).
  TlsOptions tls = {};
  // File with the token that the cluster's operator gave to this job, where the cluster asks for
  // one. Looked at again once in a second, so it may be replaced; beyond this host it needs TLS.
  std::string token_file = {};
};

// Memory known to the data plane. Destroying the last handle while tickets use it closes the lanes
// they are on, so that nothing touches it afterwards; their records are resent as empty ones.
// A default-constructed one is empty: no memory, and calls with it are INVALID_ARGUMENT.
class VERBENA_EXPORT Region {
 public:
  // The first byte; null when empty. Of kCuda an address on the device.
  std::byte* data() const;
  // The same as f32 numbers: size() / 4 of them. For what is f32 in a table's specification.
  float* floats() const { return reinterpret_cast<float*>(data()); }
  // The same as numbers of 16 bits (half.h converts them): size() / 2 of them. For bf16 and f16.
  uint16_t* halves() const { return reinterpret_cast<uint16_t*>(data()); }
  // In bytes; 0 when empty.
  size_t size() const;
  // Where the memory lies.
  MemoryKind kind() const;
  // Made by AllocateRegion(): shared over shm, without a copy through staging.
  bool allocated() const;

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// Named parameters of the cluster. A handle: copies mean the same table, dropping it is
// Client::DropTable(). A default-constructed one is empty: no name, 0 elements, and calls with it
// are INVALID_ARGUMENT.
class VERBENA_EXPORT Table {
 public:
  // As in its specification; lives as long as this handle.
  const std::string& name() const;
  // The cluster's number for it, never used again; 0 when empty.
  uint32_t id() const;
  // What it was created with, defaults filled in.
  const v1::TableSpec& spec() const;
  // Whether it is an embedding table: it has rows by key, and no shape.
  bool embedding() const;
  // Numbers in a row of an embedding table; 0 of a dense one.
  uint32_t dim() const;
  // The product of its shape; 0 of an embedding table.
  uint64_t elements() const;
  // What its parameters are as pulled; DTYPE_UNSPECIFIED when empty. Servers keep those of 16 bits
  // in f32, too, and train these; what is pulled is them rounded to the nearest.
  v1::DType dtype() const;
  // What its gradients are as pushed; DTYPE_UNSPECIFIED when empty.
  v1::DType gradient_dtype() const;
  // Of one parameter as pulled: 4 of f32, 2 of bf16 and f16; 0 when empty.
  size_t element_bytes() const;
  // Of one number of a gradient as pushed: 4 of f32, 2 of bf16; 0 when empty.
  size_t gradient_element_bytes() const;
  // Of all parameters as pulled: elements() * element_bytes().
  size_t bytes() const;
  // Of a gradient of the whole table as pushed: elements() * gradient_element_bytes().
  size_t gradient_bytes() const;
  // Elements of a chunk: ranges start at a multiple of this. 0 of an embedding table.
  uint32_t chunk_elements() const;

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// One asynchronous operation. Cheap to copy; copies mean the same operation. A default-constructed
// one is done, with FAILED_PRECONDITION.
class VERBENA_EXPORT Ticket {
 public:
  // Waits until the operation has ended, which it does by its deadline; makes progress meanwhile.
  // Returns what it ended with.
  absl::Status Wait();
  // As Wait(), but for `at_most`: then DEADLINE_EXCEEDED ("still running"), and the operation goes
  // on.
  absl::Status Wait(absl::Duration at_most);
  // Whether the operation has ended. Makes no progress.
  bool Done() const;
  // What the operation ended with. FAILED_PRECONDITION before Done().
  absl::Status status() const;
  // Ends the operation with CANCELLED, unless it is done. The transfer may still be under way: see
  // BufferReleased().
  void Cancel();
  // Whether the library will neither read nor write the region for this operation any more. May be
  // false for a while after a deadline or cancel; destroying the region ends it at once. A push to
  // a sync table of a cluster that keeps copies: not before its step is committed, because a server
  // that takes over needs it again.
  bool BufferReleased() const;
  // Calls `done` once, with what the operation ended with, from a thread that makes progress (at
  // once, from this one, when already done). It must not block; it may start operations, but not
  // close or destroy the client. Several calls add up.
  void OnDone(std::function<void(absl::Status)> done);

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// Of calls about tables.
struct CallOptions {
  std::optional<absl::Duration> timeout;  // default: ClientOptions::timeout
};

// Which part of the table (elements; starts at a chunk boundary and ends at one or at the table's
// end) and where it lies in the region (bytes; a multiple of what an element has there, which is
// Table::gradient_element_bytes() of a push and Table::element_bytes() of a pull).
struct Range {
  uint64_t first = 0;           // element of the table, a multiple of Table::chunk_elements()
  uint64_t count = UINT64_MAX;  // elements; UINT64_MAX: to the end of the table
  size_t region_offset = 0;     // bytes from the region's start to the first element
};

// Of Push(), PushPull() and EndStep().
struct PushOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // Of regions on a GPU: the stream (cudaStream_t, CUstream) of the work that comes first, such as
  // the kernels that write the gradient. What was enqueued in it before this call is done before
  // the region is touched; the stream itself waits for nothing. Default: the GPU's default stream.
  void* stream = nullptr;
};

// Of Pull().
struct PullOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // Least version to be answered. Default: sync, the steps this worker has ended; async, 0. ssp: as
  // though this worker's clock were that; default: the steps it has ended, from where it joined.
  std::optional<uint64_t> min_version = {};
  // As PushOptions::stream: what still reads the region.
  void* stream = nullptr;
};

// Of PushRows().
struct RowOptions {
  size_t region_offset = 0;                    // bytes to the first row; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
};

// Of Lookup().
struct LookupOptions {
  size_t region_offset = 0;                    // bytes to the first row; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // Least version to be answered, as PullOptions::min_version.
  std::optional<uint64_t> min_version = {};
};

// What LookupBags() makes of the rows of a bag.
enum class BagMode : uint8_t {
  kSum,    // their sum
  kMean,   // the sum divided by their number, or by the sum of the weights
  kSqrtN,  // the sum divided by the square root of either their number or of the weights' squares
};

// Of LookupBags().
struct BagOptions {
  BagMode mode = BagMode::kSum;  // what is made of the rows of a bag
  // One for each key, by which its row is multiplied. Any float. Empty: all 1.
  absl::Span<const float> weights = {};
  size_t region_offset = 0;                    // bytes to the first bag's sum; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // Least version to be answered, as PullOptions::min_version.
  std::optional<uint64_t> min_version = {};
};

// Of Intend().
struct IntentOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
};

// Of Scan().
struct ScanOptions {
  // Of each record that is asked for, so of RowScan::Next(); default: ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};
};

// A walk through the rows of an embedding table, by Client::Scan(). A handle: copies go on from the
// same place. A default-constructed one is empty.
//
// **Thread safety**: one thread at a time.
class VERBENA_EXPORT RowScan {
 public:
  // The next rows, in no particular order: sets *keys to n keys and *rows to n x Table::dim() f32,
  // one row after the other, n >= 1, and returns true. False, and both empty: that was all.
  // INVALID_ARGUMENT: an argument is null; FAILED_PRECONDITION: the scan is empty, or the client
  // closed; NOT_FOUND: the table was dropped; DATA_LOSS, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED,
  // CANCELLED and RESOURCE_EXHAUSTED as at the top. After an error every call returns it.
  absl::StatusOr<bool> Next(std::vector<uint64_t>* keys, std::vector<float>* rows);

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// What a client has done since it connected.
struct ClientStatistics {
  uint64_t bytes_pushed = 0;    // of gradients (of rows: with their keys), sent for the first time
  uint64_t bytes_pulled = 0;    // of parameters that arrived, those of rows too
  uint64_t pushes = 0;          // records of pushes: one a chunk; of rows, one a slot
  uint64_t pulls = 0;           // records of pulls: one a chunk; of lookups and scans, one a slot
  uint64_t records_resent = 0;  // after a lane was lost, or refused for the time being
  uint64_t lanes_opened = 0;    // of all servers and shards
  uint64_t lanes_lost = 0;      // that ended before the client did
  uint64_t credit_stalls = 0;   // times a record waited for a slot or an operation
  uint64_t staged_bytes = 0;    // by way of staging: chunks that shm cannot reach, of GPUs; rows
  // Of bytes_pushed: read by servers where they lie (shm, allocated regions), not copied there.
  uint64_t referenced_bytes = 0;
  // Of memory of GPUs, pushed and pulled: read and written by the RDMA device itself.
  uint64_t direct_bytes = 0;
  uint64_t rail_moves = 0;  // times a table's partition went from one rail to another
  // Pulls (records) of ssp tables, by how many steps the slowest worker was behind this one when
  // the server answered: 0, 1, ... 31, and 32 or more.
  std::vector<uint64_t> staleness;
  // A connection to a server's shard.
  struct Lane {
    uint64_t server = 0;    // its incarnation
    uint32_t shard = 0;     // of that server
    std::string transport;  // "shm", "verbs", "ofi"
    std::string reason;     // why not a better one; empty: there is none
    std::string state;      // as in ARCHITECTURE.md: "open", "opening", ...
    std::string device;     // this side's, "mlx5_0:1"; empty: the transport has none
    uint32_t rail = 0;      // which of the devices or addresses of ClientOptions
  };
  // Those there are now.
  std::vector<Lane> lanes;
  // How a transport reaches memory of a GPU that was pushed or pulled to.
  struct GpuPath {
    std::string gpu;        // "cuda:0 (NVIDIA H100 80GB HBM3)"
    std::string transport;  // "verbs"
    std::string device;     // "mlx5_0:1"; empty: the transport has none
    std::string path;       // "dma-buf", "peer memory" (both GPUDirect) or "staging"
    std::string reason;     // why this one and no better one; empty: there is none
    std::string refusal;    // why some memory goes through staging all the same; empty: none does
  };
  std::vector<GpuPath> gpu_paths;  // one for each pair that there was reason to look at
  // Transports that this process does not have, "verbs: no RDMA device ...".
  std::vector<std::string> missing_transports;
};

// A worker's place in a job of a cluster.
class VERBENA_EXPORT Client {
 public:
  // Joins the job; ends by options.timeout. INVALID_ARGUMENT names the option that is wrong;
  // UNAVAILABLE: nothing answers at `cluster`, or the transport that was named cannot be had;
  // ALREADY_EXISTS: the rank is taken; FAILED_PRECONDITION: the job has all its workers, its run
  // goes on without that rank, or a file of options.tls cannot be used (says which, and why);
  // UNAUTHENTICATED: as at the top.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  // Close().
  ~Client();
  // Leaves the job (at most one second), ends every ticket with CANCELLED, settles every buffer.
  // Calls under way in other threads return; later ones end with FAILED_PRECONDITION, and handles
  // stay valid. A second call does nothing. Not from a callback of OnDone().
  void Close();

  // Creates the table, or opens it when it exists with the same specification. Shape: 1 to 8
  // dimensions, at most 2^40 elements. INVALID_ARGUMENT names the field, its value and what is
  // allowed; ALREADY_EXISTS the first field that differs from the existing table's;
  // RESOURCE_EXHAUSTED: it is beyond the job's limit of tables or of memory (says which);
  // UNAVAILABLE: the coordinator does not answer, waits for servers, or the table is being
  // restored.
  absl::StatusOr<Table> CreateTable(const v1::TableSpec& spec, const CallOptions& options = {});
  // Opens an existing table. NOT_FOUND; UNAVAILABLE: the coordinator does not answer, or the table
  // is being restored.
  absl::StatusOr<Table> OpenTable(std::string_view name, const CallOptions& options = {});
  // All tables of the cluster but those that are being restored. UNAVAILABLE: the coordinator does
  // not answer.
  absl::StatusOr<std::vector<v1::Table>> ListTables(const CallOptions& options = {});
  // Drops the table and its parameters for everybody; operations on it end with NOT_FOUND.
  // NOT_FOUND; UNAVAILABLE: the coordinator does not answer.
  absl::Status DropTable(std::string_view name, const CallOptions& options = {});
  // Drops this table, and none that has taken its name since.
  absl::Status DropTable(const Table& table, const CallOptions& options = {});

  // Memory for gradients or parameters. kHost, kPinned: zeroed and page-aligned, shared with
  // servers on this machine. kPinned (page-locked for copies from and to GPUs) and kCuda (on a GPU,
  // not zeroed) want CUDA's driver on this machine, and `device`, its number of the GPU. Rows of
  // embedding tables travel from and to memory of the host only. INVALID_ARGUMENT: 0 bytes, or no
  // such GPU; RESOURCE_EXHAUSTED: there is no such memory, or too little may be locked (says what
  // to do); UNAVAILABLE: there is no driver, or the GPU is lost.
  absl::StatusOr<Region> AllocateRegion(size_t bytes, MemoryKind kind = MemoryKind::kHost,
                                        int device = 0);
  // Makes known `bytes` of the caller's memory, who keeps it alive until the region is destroyed:
  // with kCuda a tensor on that GPU; kPinned is as kHost. INVALID_ARGUMENT also: null, or memory
  // that is not of that GPU (says whose it is).
  absl::StatusOr<Region> RegisterRegion(void* data, size_t bytes,
                                        MemoryKind kind = MemoryKind::kHost, int device = 0);

  // Pushes a gradient (`range.count` numbers of table.gradient_dtype()) of the step that is open
  // for this worker. sync: done when the step is committed, so call EndStep() before waiting.
  // async, ssp: done when applied. The region is read until Ticket::BufferReleased().
  // Of a table with a push_codec the gradient is encoded in this call, on this thread, with what
  // encoding has lost of earlier pushes of these elements; what it loses now is kept in this client
  // (an f32 an element, in host memory) for the next one, also when the push fails. That is not in
  // checkpoints: it is gone when the worker ends. So push what belongs to the same elements in
  // order, from one client. INVALID_ARGUMENT then, too: the region is not of the host.
  // INVALID_ARGUMENT: a handle is empty or of another client, the range is not of whole chunks or
  // the region too small, the chunk was pushed in this step already, or the gradient has a NaN or
  // infinity and the table rejects these; NOT_FOUND: the table was dropped; FAILED_PRECONDITION:
  // this is an observer; RESOURCE_EXHAUSTED: too many operations are outstanding; and as at the
  // top.
  Ticket Push(const Table& table, const Region& gradient, const Range& range = {},
              const PushOptions& options = {});
  // Pulls parameters (numbers of table.dtype()) into the region; done when they are there. One that
  // is too large for f16 comes as an infinity, while the servers keep it. Of a table with a
  // pull_codec they come encoded, and are decoded by whoever makes progress: what is there then has
  // lost a little, the same for all who pull that version (docs/codecs.md). Errors as Push();
  // INVALID_ARGUMENT of such a table, too: the region is not of the host.
  Ticket Pull(const Table& table, const Region& destination, const Range& range = {},
              const PullOptions& options = {});
  // Push, then pull what includes it. `range.region_offset` is of both regions. The destination may
  // be the gradient's region where both have as many bytes an element, else INVALID_ARGUMENT.
  // sync: pulls version step + 1; when the range is the whole table, also ends the step. Errors as
  // Push().
  Ticket PushPull(const Table& table, const Region& gradient, const Region& destination,
                  const Range& range = {}, const PushOptions& options = {});
  // This worker has pushed all of its open step of this table. What it did not push counts as
  // zero. sync: done when the step is committed on every partition. The next step is open at once.
  // With clip_global_norm a step is committed once it is ended on all tables of the job that set
  // it: end it on each before waiting, and create them before the first step. FAILED_PRECONDITION
  // (also of a PushPull() that ends the step): one of them is at another step; RESOURCE_EXHAUSTED:
  // 64 steps are ended and not committed; other errors as Push().
  Ticket EndStep(const Table& table, const PushOptions& options = {});

  // Pushes gradients of rows: keys[i]'s are `table.dim()` f32 at
  // options.region_offset + i * dim * 4 bytes. Keys are copied, in any order; those that repeat are
  // summed in f32, in the order they have here. A row that does not exist is made. Any number of
  // these may be pushed in a step, and count once each. sync: done when the step is committed on
  // the partitions of these keys, so call EndStep() before waiting. async, ssp: done when applied.
  // The region is read until Ticket::BufferReleased(); after a deadline or Cancel() that is at
  // once. With a push_codec each row's sum is encoded by whoever makes progress, and what that
  // loses is lost. Without keys there is nothing to do. INVALID_ARGUMENT: more than 4194304 keys; a
  // handle is empty or of another client; the table is dense; the region is too small or its offset
  // no multiple of 4; or a gradient has a NaN or infinity and the table rejects these (what was in
  // the same record and partition contributes zero, the rest counts); NOT_FOUND: the table was
  // dropped; FAILED_PRECONDITION: this is an observer; RESOURCE_EXHAUSTED: too many operations are
  // outstanding, or a server at its memory limit, or the job at its own, has no room for rows that
  // are new (nothing that was in the same record and partition is applied, the rest is); DATA_LOSS:
  // a partition of these keys; and as at the top.
  Ticket PushRows(const Table& table, absl::Span<const uint64_t> keys, const Region& gradients,
                  const RowOptions& options = {});
  // Looks up rows: keys[i]'s come as `table.dim()` f32 to options.region_offset + i * dim * 4
  // bytes. Keys are copied, in any order, and may repeat. A row that does not exist comes as it
  // would be made, and is not made. With a pull_codec rows come encoded, and are decoded by whoever
  // makes progress. Done when all are there. Errors as PushRows(), but for those of
  // gradients and of memory limits; after one, which rows have come is not known.
  Ticket Lookup(const Table& table, absl::Span<const uint64_t> keys, const Region& rows,
                const LookupOptions& options = {});
  // Looks up rows and sums them by bag, on the servers: as many vectors come as there are bags, not
  // rows (torch.nn.EmbeddingBag, TensorFlow's embedding_lookup_sparse). Bag i has the keys from
  // keys[offsets[i]] up to keys[offsets[i + 1]], the last one up to the end; offsets[0] is 0. It
  // comes as `table.dim()` f32 to options.region_offset + i * dim * 4 bytes. A key that is in a bag
  // twice counts twice; a bag without keys is zero, and so is one whose divisor is zero. Keys,
  // offsets and weights are copied. Done when all bags are there; nothing is written before, and
  // after an error nothing was. The order in which rows are summed is by where they are: the bits
  // are the same as long as partitions stay there. Needs memory for the sums of each record, at
  // most for as many rows as there are keys. INVALID_ARGUMENT: more than 4194304 keys or bags, or
  // no bag; offsets that do not begin with 0, that descend or are beyond the keys; weights that are
  // not as many as keys; other errors as Lookup(). Gradients are pushed by row: PushRows().
  Ticket LookupBags(const Table& table, absl::Span<const uint64_t> keys,
                    absl::Span<const uint64_t> offsets, const Region& sums,
                    const BagOptions& options = {});
  // Tells the servers that rows of these keys will be looked up or pushed soon (of the batch after
  // this one, say), so that those on disk (TableSpec::cold_tier) come to memory meanwhile. Changes
  // no result, and nobody waits for the rows: what there is no room for, beside the rows that calls
  // under way wait for, is not brought. Keys are copied, in any order, and may repeat; those
  // without a row are passed over. Done when the servers have been told; of a table without a cold
  // tier at once. Errors as Lookup().
  Ticket Intend(const Table& table, absl::Span<const uint64_t> keys,
                const IntentOptions& options = {});
  // Starts a walk through all rows of an embedding table that were pushed, over all servers at
  // once. Not a snapshot: of what is pushed meanwhile, by anybody, it shows some or none, row by
  // row. INVALID_ARGUMENT: the table is empty, dense or of another client; NOT_FOUND: it was
  // dropped; FAILED_PRECONDITION: the client is closed.
  absl::StatusOr<RowScan> Scan(const Table& table, const ScanOptions& options = {});

  // Of this worker; never used again by another. 0 when closed.
  uint64_t incarnation() const;
  // Its place in sums; -1: an observer, or closed.
  int rank() const;
  // Identifies this run of the job: the same for all workers of the run, another one for every
  // other run, of this cluster or another. Less than 2^63; 0 when closed.
  uint64_t run() const;
  // Workers of the job that are alive now, observers not counted; 0 when closed.
  uint32_t live_workers() const;
  // What it has done; all 0 when closed.
  ClientStatistics statistics() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_CLIENT_H_
