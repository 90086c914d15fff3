// The client library: a worker's connection to a Verbena cluster.
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
// A table is either dense (it has a shape; Push(), Pull(), PushPull()) or an embedding table (it
// has a row of `dim` numbers for each uint64 key; PushRows(), Lookup(), LookupBags(), Scan()):
//
//     verbena::Ticket rows = (*client)->Lookup(*items, keys, *activations);
//     ...
//     verbena::Ticket push = (*client)->PushRows(*items, keys, *gradients);
//     verbena::Ticket end = (*client)->EndStep(*items);
//
// **Thread safety**: Client, Table, Region and Ticket may be used from any thread, and one object
// may be used by several threads at once. Assigning to an object and destroying it need exclusive
// access. Concurrent pushes to one table must not overlap. The caller orders the calls of a step
// before its EndStep().
//
// **fork()**: gRPC does not work in a forked child of a process that has used it. In such a child
// every call, Connect() included, ends at once with FAILED_PRECONDITION. Objects may be destroyed
// there; the parent is not affected. Fork before the first Connect(), or call exec in the child.
//
// **Errors**: every operation ends by its deadline (default: ClientOptions::timeout) with a status.
//   OK
//   INVALID_ARGUMENT     an argument is wrong; the message has its name, value and allowed values
//   NOT_FOUND            there is no such table
//   ALREADY_EXISTS       the name or rank is taken
//   DEADLINE_EXCEEDED    the message names the cause, such as the rank that has not ended the step
//   UNAVAILABLE          the server or coordinator does not respond
//   DATA_LOSS            the last replica of a partition is lost
//   ABORTED              this worker's lease ended; the outcome of the operation is unknown
//   RESOURCE_EXHAUSTED   no credit or lane became free by the deadline; the transport could not
//                        register memory (for example RLIMIT_MEMLOCK); a server or the job is at
//                        its memory limit; or another limit of the job ('verbena limits')
//   CANCELLED            Cancel() or Close()
//   FAILED_PRECONDITION  the client is closed, its lease has ended, or an observer pushes
//   UNAUTHENTICATED      TLS verification failed, or only one side uses TLS; or the token is
//                        missing or not valid. The message has the cause and the fix
//   PERMISSION_DENIED    the token does not allow this job or this call
#ifndef VERBENA_CLIENT_H_
#define VERBENA_CLIENT_H_

#include <cstddef>
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
#include "verbena/client_counters.h"
#include "verbena/export.h"
#include "verbena/half.h"
#include "verbena/handles.h"
#include "verbena/memory_kind.h"
#include "verbena/rdma_options.h"
#include "verbena/tls_options.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Options of Connect(). `cluster` is required; the other defaults suit a job of one worker.
struct ClientOptions {
  // host:port of the coordinator, or of several, of which one leads: host:port,host:port
  std::string cluster = {};
  std::string job = "default";  // workers of one job share its tables and step clock
  std::string name = {};        // shown to operators; default: host-pid
  // Number of workers of the job, the same for all of them. Step 0 of sync tables and the clock of
  // ssp tables wait until so many workers have joined.
  uint32_t expected_workers = 1;
  // Not 0: the job is elastic, with up to so many workers; the same for all of them. A run begins
  // when expected_workers have joined. Others may join it, also in place of workers that have left:
  // Connect() waits until a worker of the run has answered, and each sync table has a first step
  // that counts the new worker (membership()).
  uint32_t max_workers = 0;
  int rank = -1;          // -1: any free rank. Gradients are summed in rank order
  bool observer = false;  // may pull from tables of any job; takes part in no step
  // Transport of parameters and gradients: "shm" (same host), "verbs" (RDMA), "ofi" (libfabric over
  // TCP) or "auto", which uses for each shard the first of these that works. With a named transport
  // there is no fallback; Connect() fails with the reason if it is not available.
  std::string transport = "auto";
  RdmaOptions rdma = {};                       // for verbs
  FabricOptions fabric = {};                   // for ofi
  absl::Duration timeout = absl::Seconds(30);  // default deadline of every call
  // The threads that process completions.
  enum class Progress {
    kBackground,  // threads in Wait(), and a background thread while no thread waits
    kCaller,      // threads in Wait() only
  } progress = Progress::kBackground;  // default: waiting threads, else a background thread
  // Bytes of a staging pool, allocated on demand. One pool is for received data (pulls into regions
  // that shm cannot share, looked-up rows), one for pushed rows. Each GPU whose memory is used has
  // two more, page-locked.
  size_t staging_bytes = 16 << 20;
  // TLS of the control plane; parameters and gradients are not encrypted. Setting `ca` turns TLS
  // on: a server's certificate must be signed by one of these authorities and match the host name.
  // `cert` and `key` identify this client where servers require it (mutual TLS).
  TlsOptions tls = {};
  // File with this job's token, where the cluster requires tokens. The client checks the file every
  // second, so the token can be replaced. Connections to other hosts need TLS.
  std::string token_file = {};
};

// Options of calls about tables.
struct CallOptions {
  std::optional<absl::Duration> timeout;  // default: ClientOptions::timeout
};

// A range of a dense table, and its place in the region. The range starts at a chunk boundary, and
// ends at one or at the end of the table. The offset is a multiple of the element's size:
// Table::gradient_element_bytes() in a push, Table::element_bytes() in a pull.
struct Range {
  uint64_t first = 0;           // element of the table, a multiple of Table::chunk_elements()
  uint64_t count = UINT64_MAX;  // elements; UINT64_MAX: to the end of the table
  size_t region_offset = 0;     // bytes from the region's start to the first element
};

// Options of Push(), Assign(), PushPull() and EndStep().
struct PushOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // For regions on a GPU: the stream (cudaStream_t, CUstream) with the work that must come first,
  // such as the kernels that write the gradient. The region is accessed after all work that was
  // enqueued before this call; the stream does not wait. Default: the GPU's default stream.
  void* stream = nullptr;
  // PushPull(): bytes from the start of the destination to its first element. Default:
  // Range::region_offset, which then applies to both regions.
  std::optional<size_t> destination_offset = {};
};

// The chunks that Pull() or PullState() has read.
struct StateVersions {
  uint64_t least_version = 0, greatest_version = 0;  // of parameters and state
  // Counts of applies since initialisation, by which schedules and bias corrections go: the `step`
  // of torch.optim. Not known where a server of protocol version 10 has answered: then the least is
  // UINT64_MAX and the greatest 0.
  uint64_t least_applies = 0, greatest_applies = 0;
};

// The replicas that may answer a pull.
enum class ReadFrom : uint8_t {
  kPrimary,  // the primary, which has every acknowledged push
  kAny,      // also a follower, as PullOptions::max_staleness allows
};

// Options of Pull().
struct PullOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // The pull waits for this version or a later one. Default for sync: the number of steps that this
  // worker has ended; for async: 0. For ssp it stands for this worker's clock; default: the clock
  // at which the worker joined and the steps that it has ended since.
  std::optional<uint64_t> min_version = {};
  // As PushOptions::stream, with the work that still reads the region.
  void* stream = nullptr;
  // Set when the ticket is done without an error.
  std::shared_ptr<StateVersions> versions = nullptr;
  // kAny, for observers: followers share the reads of dense sync and async tables. Their values are
  // never older than the last values that this client has read of the chunk in this run of the job,
  // and are never lost in a failover. If no follower can answer, and in other clients and tables,
  // the primary answers.
  ReadFrom read_from = ReadFrom::kPrimary;
  // kAny: maximum age of a follower's values: the primary had them, or newer ones, at this time
  // before the pull. 1 ms to 49 days. The primary updates its followers every eighth of the
  // cluster's lease: with less than about 0.4 of the lease, the primary answers most pulls.
  absl::Duration max_staleness = absl::Seconds(2);
};

// Options of PushRows().
struct RowOptions {
  size_t region_offset = 0;                    // bytes to the first row; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
};

// Options of Lookup().
struct LookupOptions {
  size_t region_offset = 0;                    // bytes to the first row; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // As PullOptions::min_version.
  std::optional<uint64_t> min_version = {};
};

// How LookupBags() combines the rows of a bag.
enum class BagMode : uint8_t {
  kSum,    // the sum
  kMean,   // the sum divided by the number of keys, or by the sum of the weights
  kSqrtN,  // the sum divided by the square root of the number of keys, or of the sum of the squares
           // of the weights
};

// Options of LookupBags().
struct BagOptions {
  BagMode mode = BagMode::kSum;  // how the rows of a bag are combined
  // A factor for the row of each key; any float. Empty: all are 1.
  absl::Span<const float> weights = {};
  size_t region_offset = 0;                    // bytes to the first bag's sum; a multiple of 4
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // As PullOptions::min_version.
  std::optional<uint64_t> min_version = {};
};

// Options of Prefetch().
struct PrefetchOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
};

// New values for a table's optimizer (SetOptimizer()).
struct OptimizerChange {
  std::optional<double> rate = {};  // the learning rate
  // By name: "beta1", "momentum", "weight_decay", ...; also "clip_value" and "clip_chunk_norm"
  // where the table was created with that clipping.
  std::map<std::string, double> parameters = {};
};

// Steps of a table, `first` to `last`.
struct StepRange {
  uint64_t first = 0, last = 0;  // both are in the range
};

// Options of SetOptimizer().
struct OptimizerOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // Set when the ticket is done without an error: the steps from which the values are in force,
  // over all partitions; 0 to 0 for async and ssp: at once.
  std::shared_ptr<StepRange> in_force = nullptr;
};

// Options of PullState().
struct StateOptions {
  std::optional<absl::Duration> timeout = {};  // default: ClientOptions::timeout
  // As PullOptions::min_version.
  std::optional<uint64_t> min_version = {};
  // As PullOptions::stream.
  void* stream = nullptr;
  // Set when the ticket is done without an error.
  std::shared_ptr<StateVersions> versions = nullptr;
};

// Options of Scan().
struct ScanOptions {
  // Timeout of each RowScan::Next(); default: ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};
};

// A worker of a job's run. A step of a sync table waits for the workers whose first step is not
// later, and that have neither left nor lost their lease.
struct Member {
  uint64_t incarnation = 0;  // of the worker
  std::string name;          // of the worker
  int rank = -1;             // place in the order of summation
  uint64_t first_step = 0;   // of the table; 0 as well when it is over
};

// The part that a job's workers have in the steps of a table.
struct Membership {
  // Step with which this worker begins: its first push is a part of it, and a pull waits for the
  // steps before. 0 unless it has joined a run of an elastic job.
  uint64_t first_step = 0;
  std::vector<Member> members = {};  // the run's live workers by rank, as this client last heard
};

// A job's run, from its first worker's join until all have left.
struct JobRun {
  // The same for all workers of the run, and different from all other runs of any cluster. Less
  // than 2^63.
  uint64_t id = 0;
  uint64_t incarnation = 0;   // this client's id, unique in the cluster and never reused
  uint32_t live_workers = 0;  // number of the job's live workers, without observers
};

// Counters of a client since it connected, and its current lanes.
struct ClientStatistics : ClientCounters {
  // A connection to a shard.
  struct Lane {
    uint64_t server = 0;    // the server's incarnation
    uint32_t shard = 0;     // number of the shard in that server
    std::string transport;  // "shm", "verbs", "ofi"
    std::string reason;     // why a better transport is not used; empty: there is none
    std::string state;      // as in ARCHITECTURE.md: "open", "opening", ...
    std::string device;     // this host's device, "mlx5_0:1"; empty: the transport has none
    uint32_t rail = 0;      // index of the device or address in ClientOptions
  };
  // Current lanes.
  std::vector<Lane> lanes;
  // The path between a transport and the memory of a GPU.
  struct GpuPath {
    std::string gpu;        // "cuda:0 (NVIDIA H100 80GB HBM3)"
    std::string transport;  // "verbs"
    std::string device;     // "mlx5_0:1"; empty: the transport has none
    std::string path;       // "dma-buf", "peer memory" (both GPUDirect) or "staging"
    std::string reason;     // why a better path is not used; empty: there is none
    std::string refusal;    // why some memory goes through staging in spite of `path`; else empty
  };
  std::vector<GpuPath> gpu_paths;  // of each pair of GPU and transport in use
  // Transports that are not available in this process, with reasons: "verbs: no RDMA device ...".
  std::vector<std::string> missing_transports;
};

// A worker or observer of a job.
class VERBENA_EXPORT Client {
 public:
  // Joins the job; ends by options.timeout. INVALID_ARGUMENT: an option is wrong. UNAVAILABLE: the
  // coordinator does not respond at `cluster`, or the named transport is not available.
  // ALREADY_EXISTS: for all of the timeout the rank was taken, or the job had all its workers; the
  // place of one that was killed is free after its lease. FAILED_PRECONDITION: that rank
  // has left the current run, or a file of options.tls is not usable. UNAUTHENTICATED: as at the
  // top of this file.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  // Close().
  ~Client();
  // Leaves the job, which takes at most 1 s. Operations in flight end with CANCELLED, and all
  // regions are released. Calls in other threads return; later calls end with FAILED_PRECONDITION.
  // Handles stay valid. A second call has no effect. Must not be called from an OnDone() callback.
  void Close();

  // Creates the table, or opens the existing table if its specification is the same. A shape has 1
  // to 8 dimensions and at most 2^40 elements. INVALID_ARGUMENT: a field is wrong. ALREADY_EXISTS:
  // the existing table differs; the message names the first field. RESOURCE_EXHAUSTED: the job's
  // limit of tables or memory. UNAVAILABLE: the coordinator does not respond or waits for servers,
  // or the table is being restored.
  absl::StatusOr<Table> CreateTable(const v1::TableSpec& spec, const CallOptions& options = {});
  // Opens an existing table. NOT_FOUND: there is none. UNAVAILABLE: the coordinator does not
  // respond, or the table is being restored.
  absl::StatusOr<Table> OpenTable(std::string_view name, const CallOptions& options = {});
  // Lists all tables of the cluster except those that are being restored. UNAVAILABLE: the
  // coordinator does not respond.
  absl::StatusOr<std::vector<v1::Table>> ListTables(const CallOptions& options = {});
  // Drops the table of this name and its parameters. Operations of all workers on it end with
  // NOT_FOUND, and so do later ones of this client, for which the call waits until its deadline.
  // NOT_FOUND: there is none. UNAVAILABLE: the coordinator does not respond.
  absl::Status DropTable(std::string_view name, const CallOptions& options = {});
  // Drops this table, but not a later table of the same name.
  absl::Status DropTable(const Table& table, const CallOptions& options = {});

  // Allocates memory for gradients or parameters. kHost and kPinned: zeroed, page-aligned, shared
  // with servers on this host. kPinned is page-locked for copies from and to GPUs. kCuda is memory
  // of a GPU, not zeroed. kPinned and kCuda need the CUDA driver; `device` is the driver's number
  // of the GPU. Rows of embedding tables need kHost or kPinned. INVALID_ARGUMENT: 0 bytes, or there
  // is no such GPU. RESOURCE_EXHAUSTED: out of memory, or the limit of locked memory is too low.
  // UNAVAILABLE: there is no driver, or the GPU failed.
  absl::StatusOr<Region> AllocateRegion(size_t bytes, MemoryKind kind = MemoryKind::kHost,
                                        int device = 0);
  // Registers `bytes` bytes of the caller's memory, which must stay valid until the region is
  // destroyed. kCuda: memory of that GPU; kPinned is treated as kHost. Errors as AllocateRegion();
  // also INVALID_ARGUMENT: `data` is null, or does not belong to that GPU.
  absl::StatusOr<Region> RegisterRegion(void* data, size_t bytes,
                                        MemoryKind kind = MemoryKind::kHost, int device = 0);

  // Pushes a gradient of `range.count` numbers of table.gradient_dtype() for this worker's open
  // step. sync: done when the step is committed, so call EndStep() before waiting. async, ssp: done
  // when the gradient is applied. The region is read until Ticket::BufferReleased().
  //
  // With a push_codec this call encodes the gradient, after adding the encoding error of earlier
  // pushes of the same elements. The new error is kept in this client (f32, in host memory) for the
  // next push, also if this push fails. It is not part of checkpoints. Therefore push the same
  // elements in order and from one client. The region must be in host memory.
  //
  // INVALID_ARGUMENT: a handle is empty or belongs to another client; the range does not consist of
  // whole chunks; the region is too small; the chunk was already pushed in this step; or the
  // gradient has a NaN or infinity and the table rejects these. NOT_FOUND: the table was dropped.
  // FAILED_PRECONDITION: this is an observer. RESOURCE_EXHAUSTED: too many operations are in
  // flight. Others as at the top of this file.
  Ticket Push(const Table& table, const Region& gradient, const Range& range = {},
              const PushOptions& options = {});
  // Writes parameters (numbers of table.dtype()) as they are in place of those of the range, for
  // example a model's own weights to start from. Applied once, in the order of this worker's pushes
  // of the same chunks. The optimizer's state stays (ftrl, whose parameters follow from its state:
  // the state becomes that of the new ones). From the first gradient on the assignment counts as
  // one apply for schedules and bias corrections. A push_codec is not used.
  // sync: a chunk takes one contribution of a worker in a step, a gradient or an assignment. When
  // the step is committed, the chunk has the assigned parameters, which Pull() of version step + 1
  // reads; gradients of other workers for this chunk and step have no effect. If several workers
  // assign it, the one with the highest rank counts. Done when the step is committed, so call
  // EndStep() before waiting. async, ssp: done when they are written.
  // A NaN or infinity is treated as in a gradient (TableSpec::non_finite): `reject` and `skip`
  // leave the chunk as it is. Errors as Push(); the region is read as by Push().
  Ticket Assign(const Table& table, const Region& parameters, const Range& range = {},
                const PushOptions& options = {});
  // Pulls an array of the optimizer's state of a dense table, by its name in table.state_arrays(),
  // as f32. Otherwise as Pull(): sync tables are read at a version, so a worker that pulls
  // parameters and state before it ends its next step has those of one step.
  // INVALID_ARGUMENT: also a name that the table does not have, or an embedding table, whose
  // state only checkpoints have.
  Ticket PullState(const Table& table, std::string_view array, const Region& destination,
                   const Range& range = {}, const StateOptions& options = {});
  // Writes an array of the optimizer's state (f32) as it is in place of that of the range, and the
  // chunks' count of applies. Applied once, replicated, and ordered with this worker's pushes, as
  // Assign(). The parameters and other arrays stay, except that "master" gives the parameters, too.
  // Assign parameters before state: that counts as an apply, and changes the state of ftrl.
  // sync: a contribution to the open step in place of a gradient or Assign(), as with Assign(); so
  // each array takes a step. Errors as Assign() and PullState().
  Ticket AssignState(const Table& table, std::string_view array, uint64_t applies,
                     const Region& state, const Range& range = {}, const PushOptions& options = {});
  // Pulls parameters (numbers of table.dtype()) into the region; done when they are written. A
  // parameter beyond the range of f16 is pulled as an infinity. With a pull_codec the parameters
  // are sent encoded: the result is an approximation, the same for all pulls of that version
  // (docs/codecs.md), and the region must be in host memory. Errors as Push().
  Ticket Pull(const Table& table, const Region& destination, const Range& range = {},
              const PullOptions& options = {});
  // Pushes, then pulls parameters that include the push. `range.region_offset` applies to both
  // regions unless options.destination_offset is set. The destination may be the gradient itself if
  // both element sizes are equal; any other overlap is INVALID_ARGUMENT.
  // sync: pulls version step + 1; if the range is the whole table, it also ends the step. Errors as
  // Push().
  Ticket PushPull(const Table& table, const Region& gradient, const Region& destination,
                  const Range& range = {}, const PushOptions& options = {});
  // Ends this worker's open step of the table; elements without a push count as zero. The next step
  // is open at once. sync: done when the step is committed on every partition.
  // With clip_global_norm a step is committed when all workers have ended it on all tables of the
  // job that have this option: create these tables before the first step, and end the step on each
  // of them before waiting. FAILED_PRECONDITION (also from a PushPull() that ends the step): one of
  // these tables is at another step. RESOURCE_EXHAUSTED: 64 ended steps are not committed yet.
  // Others as Push().
  Ticket EndStep(const Table& table, const PushOptions& options = {});

  // Changes the rate or named parameters of the table's optimizer while the table lives; values
  // that are not given stay. Done when all partitions, with their replicas, have the change. Meant
  // for learning-rate schedulers: call it each step, and do not wait.
  //
  // sync: the values are in force exactly from a step on, in all partitions: the open step, or the
  // next one if this worker has pushed to the table in the open step. Pushes of that step wait for
  // the servers' replies to this call. If several workers give the same value for the same step,
  // the one of the greatest rank counts; one worker is enough. async, ssp: in force at once, after
  // the earlier pushes of this worker and before its later ones. An observer whose token may write
  // may call it, too. Then each partition begins with the first step that it has not begun to
  // apply and for which no worker has given these values, see OptimizerOptions::in_force.
  //
  // A new rate replaces TableSpec::optimizer.rate, and the schedule goes on with it at its step; a
  // piecewise schedule lists its rates, so its rate cannot be changed. The values are in
  // checkpoints, and stay when the job restarts. A partition that is lost and reset has the values
  // of the specification. After an error some partitions may have the change: call it again.
  //
  // INVALID_ARGUMENT: no value is given; the optimizer has no such value, or it is outside its
  // range (the message has the allowed ones); a handle is empty or belongs to another client.
  // NOT_FOUND: the table was dropped. PERMISSION_DENIED: an observer whose token may not write.
  // FAILED_PRECONDITION: the table belongs to another job. RESOURCE_EXHAUSTED: too many operations
  // are in flight. DATA_LOSS: a partition is lost. Others as at the top of this file.
  Ticket SetOptimizer(const Table& table, const OptimizerChange& change,
                      const OptimizerOptions& options = {});

  // Sets the priority of this client's requests for a table; any number, initially 0. Where
  // requests wait for a lane, those of tables with greater numbers are posted first, and those of
  // one table in the order of the calls. It lets the parameters that are needed next arrive before
  // others that were requested earlier. It applies to queued pushes and to pulls from now on, and
  // changes no result. NOT_FOUND: the table was dropped. Others as at the top of this file.
  absl::Status SetPriority(const Table& table, int32_t priority);

  // Pushes gradients of rows. The gradient of keys[i] is `table.dim()` f32 at byte
  // options.region_offset + i * dim * 4 of the region. Keys are copied; their order is free.
  // Gradients of a repeated key are summed in f32, in the order of `keys`. A missing row is
  // created. A step may have any number of these pushes, and each counts once. sync: done when the
  // step is committed on the partitions of these keys, so call EndStep() before waiting. async,
  // ssp: done when the gradients are applied. The region is read until Ticket::BufferReleased(),
  // which a deadline or Cancel() makes true at once. With a push_codec the sum of each row is
  // encoded, and the encoding error is dropped. Without keys the operation is done at once.
  //
  // INVALID_ARGUMENT: more than 4194304 keys; a handle is empty or belongs to another client; the
  // table is dense; the region is too small, or its offset is not a multiple of 4; or a gradient
  // has a NaN or infinity and the table rejects these (then the rows of the same request and
  // partition count as zero, others count). NOT_FOUND: the table was dropped. FAILED_PRECONDITION:
  // this is an observer. RESOURCE_EXHAUSTED: too many operations are in flight; or a server or the
  // job is at its memory limit and has no room for new rows (then no row of the same request and
  // partition is applied, others are). DATA_LOSS: a partition of these keys is lost. Others as at
  // the top of this file.
  Ticket PushRows(const Table& table, absl::Span<const uint64_t> keys, const Region& gradients,
                  const RowOptions& options = {});
  // Writes rows as they are in place of those of the keys, as Assign() does for chunks. The row of
  // keys[i] is `table.dim()` f32 at byte options.region_offset + i * dim * 4 of the region. Of a
  // repeated key the last row counts. A missing row is created, also where admission would refuse
  // it; memory limits and eviction are those of PushRows(). The optimizer's state of a row stays;
  // that of a new row begins with its first gradient.
  // sync: a step may have any number of these, beside pushes. Of the contributions to a row in the
  // step, in the order of ranks and of the calls of each worker, the last assignment counts alone;
  // gradients of that row and step have no effect. Done, and errors, as PushRows().
  Ticket AssignRows(const Table& table, absl::Span<const uint64_t> keys, const Region& rows,
                    const RowOptions& options = {});
  // Looks up rows; done when all are written. The row of keys[i] is written as `table.dim()` f32 to
  // byte options.region_offset + i * dim * 4 of the region. Keys are copied; their order is free,
  // and they may repeat. A missing row is not created; its initial value is returned. With a
  // pull_codec rows are sent encoded. Errors as PushRows(), except those of gradients and memory
  // limits; after an error the contents of the region are unspecified.
  Ticket Lookup(const Table& table, absl::Span<const uint64_t> keys, const Region& rows,
                const LookupOptions& options = {});
  // Looks up rows and combines them by bag on the servers, so that one vector for each bag is sent
  // instead of all rows (like torch.nn.EmbeddingBag and TensorFlow's embedding_lookup_sparse). Bag
  // i has the keys from keys[offsets[i]] up to keys[offsets[i + 1]], the last bag up to the end;
  // offsets[0] is 0. Its vector is written as `table.dim()` f32 to byte
  // options.region_offset + i * dim * 4 of the region. A key that is twice in a bag counts twice. A
  // bag without keys, or with the divisor 0, is zero. Keys, offsets and weights are copied.
  //
  // The region is written when all bags have arrived, and not at all in case of an error. The order
  // of summation depends on the placement of partitions, so results are bit-identical as long as
  // the placement is the same. The client needs memory for the partial sums: at most one row for
  // each key. Gradients of bags are pushed by row, with PushRows().
  //
  // INVALID_ARGUMENT: more than 4194304 keys or bags; no bag; offsets that do not start at 0, that
  // decrease or exceed the number of keys; or the number of weights is not that of keys. Others as
  // Lookup().
  Ticket LookupBags(const Table& table, absl::Span<const uint64_t> keys,
                    absl::Span<const uint64_t> offsets, const Region& sums,
                    const BagOptions& options = {});
  // Prefetches rows of a table with a cold tier (TableSpec::cold_tier): announces that these keys
  // will be looked up or pushed soon, for example in the next batch, so that servers load their
  // rows from disk into memory. It changes no result. Rows for which there is no room beside those
  // of calls in flight are not loaded. Keys are copied; their order is free, and they may repeat.
  // Keys without a row are ignored. Done when the servers have the announcement; at once for a
  // table without a cold tier. Errors as Lookup().
  Ticket Prefetch(const Table& table, absl::Span<const uint64_t> keys,
                  const PrefetchOptions& options = {});
  // Starts an iteration over all rows of an embedding table, on all servers at once. It is not a
  // snapshot: concurrent pushes are visible in some rows and not in others. INVALID_ARGUMENT: the
  // handle is empty or belongs to another client, or the table is dense. NOT_FOUND: the table was
  // dropped. FAILED_PRECONDITION: the client is closed.
  absl::StatusOr<RowScan> Scan(const Table& table, const ScanOptions& options = {});

  // The job's current run and this client in it, at one moment; all 0 when closed.
  JobRun run() const;
  // This worker's place in the order of summation; -1 for an observer, or when closed.
  int rank() const;
  // The workers of the job's run, with their first steps of a sync table. INVALID_ARGUMENT: the
  // table's handle is empty or belongs to another client. FAILED_PRECONDITION: the client is
  // closed.
  absl::StatusOr<Membership> membership(const Table& table) const;
  // All 0 when closed.
  ClientStatistics statistics() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_H_
