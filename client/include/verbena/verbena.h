// The Verbena client library for C (C99) and C++: the interface of client.h with opaque handles and
// status codes.
//
//     verbena_connect_options options;
//     verbena_connect_options_init(&options, sizeof options);
//     options.cluster = "127.0.0.1:7000";
//     verbena_client* client;
//     if (verbena_connect(&options, &client) != VERBENA_OK) puts(verbena_last_error());
//
// **Thread safety**: every function may be called from any thread, and several threads may use one
// handle at once. Freeing a handle needs exclusive access. Concurrent pushes to one table must not
// overlap. The caller orders the calls of a step before its verbena_end_step().
//
// **Handles**: each is freed once with its verbena_*_free(), which accepts NULL, in any order, also
// after the client. A function that fails sets the handle that it would have made to NULL.
//
// **Errors**: functions throw no exceptions. Each returns a verbena_status. If it is not
// VERBENA_OK, verbena_last_error() returns a text with the argument, its value and the allowed
// values. A NULL for a required argument, and a struct without struct_size, are
// VERBENA_INVALID_ARGUMENT and have no effect; the comments below list other errors only. Every
// function may return VERBENA_RESOURCE_EXHAUSTED if there is no memory.
//
// **fork()**: gRPC does not work in a forked child of a process that has used it. In such a child
// every call, verbena_connect() included, ends at once with VERBENA_FAILED_PRECONDITION. Handles
// may be freed there; the parent is not affected. Fork before the first verbena_connect(), or call
// exec in the child.
//
// **Versions**: later releases add fields at the end of structs with a struct_size. A program works
// with older and newer libraries as long as it uses only fields that the library knows.
//
// Text is UTF-8 and ends with a NUL. Functions copy the text that they are given.
#ifndef VERBENA_VERBENA_H_
#define VERBENA_VERBENA_H_

#include <stddef.h>
#include <stdint.h>

#include "verbena/export.h"
#include "verbena/half_numbers.h"
#include "verbena/status.h"
#include "verbena/table_spec.h"
#include "verbena/version.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- client -------------------------------------------------------------------------------------

// A timeout_ms that stands for verbena_connect_options.timeout_ms; in verbena_ticket_wait(), for
// the operation's own deadline.
#define VERBENA_TIMEOUT_DEFAULT ((int64_t)-1)

// A worker or observer of a job.
typedef struct verbena_client verbena_client;

// The threads that process completions.
typedef enum verbena_progress {
  VERBENA_PROGRESS_BACKGROUND = 0,  // waiting threads, and a background thread while none waits
  VERBENA_PROGRESS_CALLER = 1       // threads in verbena_ticket_wait() only
} verbena_progress;

// Whether RDMA devices access GPU memory directly (GPUDirect RDMA).
typedef enum verbena_gpu_direct {
  VERBENA_GPU_DIRECT_AUTO = 0,     // if it works and the device is on the GPU's NUMA node (default)
  VERBENA_GPU_DIRECT_OFF = 1,      // never
  VERBENA_GPU_DIRECT_REQUIRED = 2  // always; calls on GPU memory fail where it does not work
} verbena_gpu_direct;

// Options of verbena_connect(), initialized by verbena_connect_options_init(). Only `cluster` is
// required.
typedef struct verbena_connect_options {
  size_t struct_size;     // sizeof(verbena_connect_options)
  const char* cluster;    // host:port of the coordinator, or of several: host:port,host:port
  const char* job;        // workers of one job share its tables and step clock; default "default"
  const char* name;       // shown to operators; default host-pid
  const char* transport;  // "auto" (default); or "shm", "verbs" or "ofi", without a fallback
  // Number of workers of the job, the same for all of them; default 1. Step 0 of sync tables and
  // the clock of ssp tables wait until so many workers have joined.
  uint32_t expected_workers;
  int32_t rank;                   // default -1: any free rank. Gradients are summed in rank order
  int32_t observer;               // not 0: may pull from any job's tables, takes part in no step
  int32_t progress;               // a verbena_progress; default VERBENA_PROGRESS_BACKGROUND
  int64_t timeout_ms;             // default deadline of every call, in milliseconds; default 30000
  uint64_t staging_bytes;         // staging memory for rows and pulls without shm; default 16 MiB
  const char* rdma_device;        // "mlx5_0" or "mlx5_0:1" (device:port); default: the nearest.
                                  // "mlx5_0,mlx5_1": two rails, used in parallel
  const char* rdma_address;       // local IP address, or a list for rails; default: the first of
                                  // the device
  int32_t rdma_gid_index;         // default -1: the index of the address
  int32_t rdma_traffic_class;     // 0 to 255; default -1: the system's
  int32_t rdma_service_level;     // 0 to 15; default -1: the path's
  int32_t rdma_path_mtu;          // 256, 512, 1024, 2048 or 4096 bytes; default 0: the path's
  int32_t rdma_timeout;           // 1 to 31: the ACK timeout is 4.096 us x 2^N
  int32_t rdma_retries;           // 0 to 7: the retry count
  int32_t rdma_memory_windows;    // not 0 (default): memory windows where the device has them
  int32_t rdma_relaxed_ordering;  // not 0 (default): PCIe relaxed ordering where that is safe
  const char* ofi_provider;       // libfabric provider; default "tcp;ofi_rxm"
  const char* ofi_address;        // local IP address, or a list for rails; default: the source
                                  // address of connections to the coordinator
  const char* tls_ca;             // CA bundle (PEM) that verifies servers; turns TLS on
  const char* tls_cert;           // this worker's certificate (PEM), for mutual TLS
  const char* tls_key;            // its private key (PEM), without a pass phrase
  const char* token_file;         // file with this job's token; default: none
  int32_t rdma_gpu_direct;        // a verbena_gpu_direct
  // Default 0. Not 0: the job is elastic, with up to so many workers; the same for all of them.
  // Beyond expected_workers, workers join a run, also in place of those that have left:
  // verbena_connect() waits until a worker of the run has answered, and each sync table has a first
  // step that counts the new worker (verbena_first_step()).
  uint32_t max_workers;
} verbena_connect_options;

// Sets every field to its default; texts to NULL, which stands for their default. `struct_size` is
// sizeof(verbena_connect_options). No effect if `options` is NULL.
VERBENA_EXPORT void verbena_connect_options_init(verbena_connect_options* options,
                                                 size_t struct_size);

// Joins the job; ends by options->timeout_ms. INVALID_ARGUMENT: an option is wrong. UNAVAILABLE:
// the coordinator does not respond at `cluster`, or the named transport is not available.
// ALREADY_EXISTS: for all of the timeout the rank was taken, or the job had all its workers; the
// place of one that was killed is free after its lease. FAILED_PRECONDITION: that rank
// has left the current run, or a TLS or token file is not usable. UNAUTHENTICATED: TLS verification
// failed, or the token is not valid. PERMISSION_DENIED: the token is not for this job.
VERBENA_EXPORT verbena_status verbena_connect(const verbena_connect_options* options,
                                              verbena_client** client);
// Leaves the job, which takes at most 1 s. Operations in flight end with CANCELLED. Calls in other
// threads return; later calls end with FAILED_PRECONDITION. A second call has no effect. Must not
// be called from a verbena_done_function.
VERBENA_EXPORT verbena_status verbena_close(verbena_client* client);
// Closes the client if it is open, and frees it. Its tables, regions and tickets stay valid
// handles.
VERBENA_EXPORT void verbena_client_free(verbena_client* client);

// The identity of a client in its job.
typedef struct verbena_client_info {
  size_t struct_size;     // sizeof(verbena_client_info), set by the caller
  uint64_t incarnation;   // this worker's id, unique and never reused; 0 when closed
  int32_t rank;           // place in the order of summation; -1: an observer, or closed
  uint32_t live_workers;  // of the job, without observers; 0 when closed
} verbena_client_info;

// Sets the fields of `info` that its struct_size includes.
VERBENA_EXPORT verbena_status verbena_client_get_info(const verbena_client* client,
                                                      verbena_client_info* info);

// Counters of a client since it connected. A request has one chunk of a push or pull, or as many
// rows of one shard as a slot has room for.
typedef struct verbena_statistics {
  size_t struct_size;       // sizeof(verbena_statistics), set by the caller
  uint64_t bytes_pushed;    // of gradients, and of keys of rows; resent ones are not counted
  uint64_t bytes_pulled;    // of received parameters and rows
  uint64_t pushes;          // push requests
  uint64_t pulls;           // pull requests
  uint64_t records_resent;  // requests that were sent again after a lost lane or a refusal
  uint64_t lanes_opened;    // connections to shards
  uint64_t lanes_lost;      // lanes that ended before the client was closed
  uint64_t credit_stalls;   // times a request waited for a slot or an operation
  uint64_t staged_bytes;    // copied through staging: GPU memory, rows, memory without shm
  uint64_t rail_moves;      // times a partition of a table moved from one rail to another
  // Part of bytes_pushed that servers read in place (shm, allocated regions).
  uint64_t referenced_bytes;
  uint64_t direct_bytes;  // of GPU memory that the RDMA device accessed itself (GPUDirect)
  // Pull requests to ssp tables by staleness: the steps by which the slowest worker was behind this
  // one at the reply. Entries: 0, 1, ... 31, and 32 or more.
  uint64_t staleness[33];
  uint64_t follower_pulls;      // part of `pulls` that followers answered (verbena_pull_any())
  uint64_t follower_redirects;  // requests that a follower did not answer, so the primary did
} verbena_statistics;

// Sets the fields of `statistics` that its struct_size includes; all 0 when closed.
VERBENA_EXPORT verbena_status verbena_client_get_statistics(const verbena_client* client,
                                                            verbena_statistics* statistics);

// A connection to a shard. Texts are valid during the callback.
typedef struct verbena_lane {
  size_t struct_size;     // as the library knows it
  uint64_t server;        // incarnation of the server
  uint32_t shard;         // number of the shard in that server
  const char* transport;  // "shm", "verbs", "ofi"
  const char* reason;     // why a better transport is not used; "": there is none
  const char* state;      // "open", "opening", ...
  const char* device;     // this host's device, "mlx5_0:1"; "": the transport has none
  uint32_t rail;          // index of the device or address in verbena_connect_options
} verbena_lane;

// Called for each lane, with the `user` of the call.
typedef void (*verbena_lane_function)(const verbena_lane* lane, void* user);
// Calls `show` for each current lane, on this thread, before it returns.
VERBENA_EXPORT verbena_status verbena_client_list_lanes(const verbena_client* client,
                                                        verbena_lane_function show, void* user);

// The path between a transport and the memory of a GPU. Texts are valid during the callback.
typedef struct verbena_gpu_path {
  size_t struct_size;     // as the library knows it
  const char* gpu;        // "cuda:0 (NVIDIA H100 80GB HBM3)"
  const char* transport;  // "verbs"
  const char* device;     // "mlx5_0:1"; "": the transport has none
  const char* path;       // "dma-buf", "peer memory" (both GPUDirect) or "staging"
  const char* reason;     // why a better path is not used; "": there is none
  const char* refusal;    // why some memory goes through staging in spite of `path`; else ""
} verbena_gpu_path;

// Called for each path, with the `user` of the call.
typedef void (*verbena_gpu_path_function)(const verbena_gpu_path* path, void* user);
// Calls `show` for each pair of GPU and transport in use, on this thread, before it returns.
VERBENA_EXPORT verbena_status verbena_client_list_gpu_paths(const verbena_client* client,
                                                            verbena_gpu_path_function show,
                                                            void* user);

// Called for each unavailable transport, with its reason ("verbs: no RDMA device ...") and `user`.
typedef void (*verbena_text_function)(const char* text, void* user);
// Calls `show` for each transport that is not available in this process, on this thread, before it
// returns.
VERBENA_EXPORT verbena_status verbena_client_list_missing_transports(const verbena_client* client,
                                                                     verbena_text_function show,
                                                                     void* user);

// ---- tables -------------------------------------------------------------------------------------

// A table of the cluster.
typedef struct verbena_table verbena_table;

// Description of a table. Texts and the shape are valid as long as the table's handle, or during
// the callback.
typedef struct verbena_table_info {
  size_t struct_size;       // sizeof(verbena_table_info), set by the caller
  const char* name;         // as created
  const char* job;          // the job whose workers push to it
  const char* optimizer;    // as created
  const uint64_t* shape;    // `dimensions` of them
  size_t dimensions;        // 1 to 8; 0 of an embedding table
  uint64_t elements;        // the product of the shape; 0 of an embedding table
  uint64_t bytes;           // of all parameters as pulled
  double rate;              // learning rate
  uint32_t id;              // unique in the cluster and never reused
  uint32_t chunk_elements;  // of a chunk: ranges start at a multiple of it; 0 of an embedding table
  int32_t dtype;            // a verbena_dtype: of parameters as pulled
  int32_t consistency;      // a verbena_consistency
  int32_t reduction;        // a verbena_reduction
  int32_t non_finite;       // a verbena_non_finite
  uint32_t staleness;       // ssp: steps a worker may read ahead of the slowest
  uint32_t dim;             // numbers in a row of an embedding table; 0 of a dense one
  uint64_t gradient_bytes;  // of a gradient of the whole table as pushed
  int32_t gradient_dtype;   // a verbena_dtype: of gradients as pushed
  int32_t push_codec;       // a verbena_codec
  int32_t pull_codec;       // a verbena_codec
  const char* description;  // as created; "" if there is none
} verbena_table_info;

// Creates the table, or opens the existing table if its specification is the same.
// INVALID_ARGUMENT: a field is wrong. ALREADY_EXISTS: the existing table differs; the text names
// the first field. FAILED_PRECONDITION: the client is closed or its lease has ended. UNAVAILABLE:
// the coordinator does not respond by the deadline, or waits for servers.
VERBENA_EXPORT verbena_status verbena_table_create(verbena_client* client,
                                                   const verbena_table_spec* spec,
                                                   int64_t timeout_ms, verbena_table** table);
// Calls `show` for each option of a new table, on this thread, before it returns. Needs no client.
VERBENA_EXPORT verbena_status verbena_table_list_options(verbena_table_option_function show,
                                                         void* user);
// As verbena_table_create(), with options as texts, for bindings to other languages. `count`
// options; others have their defaults. Also INVALID_ARGUMENT: there is no such option, or its value
// has another type.
VERBENA_EXPORT verbena_status verbena_table_create_with(verbena_client* client,
                                                        const verbena_setting* settings,
                                                        size_t count, int64_t timeout_ms,
                                                        verbena_table** table);
// Opens an existing table. NOT_FOUND: there is none. FAILED_PRECONDITION and UNAVAILABLE as in
// verbena_table_create().
VERBENA_EXPORT verbena_status verbena_table_open(verbena_client* client, const char* name,
                                                 int64_t timeout_ms, verbena_table** table);
// Drops the table and its parameters. Operations of all workers on it end with NOT_FOUND; handles
// stay valid. NOT_FOUND: there is none. FAILED_PRECONDITION and UNAVAILABLE as in
// verbena_table_create().
VERBENA_EXPORT verbena_status verbena_table_drop(verbena_client* client, const char* name,
                                                 int64_t timeout_ms);
// Called for each table, with the `user` of the call; struct_size is as the library knows it.
typedef void (*verbena_table_function)(const verbena_table_info* info, void* user);
// Calls `show` for each table of the cluster, on this thread, before it returns.
// FAILED_PRECONDITION and UNAVAILABLE as in verbena_table_create().
VERBENA_EXPORT verbena_status verbena_table_list(verbena_client* client, int64_t timeout_ms,
                                                 verbena_table_function show, void* user);
// Sets the fields of `info` that its struct_size includes.
VERBENA_EXPORT verbena_status verbena_table_get_info(const verbena_table* table,
                                                     verbena_table_info* info);
// Name of an array of the optimizer's state of a dense table, for verbena_pull_state() and
// verbena_assign_state(): that of checkpoints, such as "exp_avg"; the last one of a 16-bit table is
// "master", its f32 parameters. Valid as long as the handle. NULL: there are `index` arrays, or
// `table` is NULL; an embedding table has none.
VERBENA_EXPORT const char* verbena_table_state_array(const verbena_table* table, size_t index);
// Frees the handle; the table stays.
VERBENA_EXPORT void verbena_table_free(verbena_table* table);

// A worker of a job's run. A step of a sync table waits for the workers whose first step is not
// later, and that have neither left nor lost their lease. Texts are valid during the callback.
typedef struct verbena_member {
  size_t struct_size;    // as the library knows it
  uint64_t incarnation;  // of the worker
  const char* name;      // of the worker
  int32_t rank;          // place in the order of summation
  uint64_t first_step;   // of the table; 0 as well when it is over
} verbena_member;

// Called for each member, with the `user` of the call.
typedef void (*verbena_member_function)(const verbena_member* member, void* user);
// Calls `show` for each live worker of the job's run by rank, as this client last heard, with its
// first step of a sync table, on this thread, before it returns. FAILED_PRECONDITION: closed.
VERBENA_EXPORT verbena_status verbena_client_list_members(const verbena_client* client,
                                                          const verbena_table* table,
                                                          verbena_member_function show, void* user);
// Sets *step to the step of a sync table with which this worker begins: its first push is a part of
// it, and a pull waits for the steps before. 0 unless it has joined a run of an elastic job.
// FAILED_PRECONDITION: closed.
VERBENA_EXPORT verbena_status verbena_first_step(const verbena_client* client,
                                                 const verbena_table* table, uint64_t* step);

// ---- regions ------------------------------------------------------------------------------------

// Memory that the data plane can read and write.
typedef struct verbena_region verbena_region;

// Kinds of memory.
typedef enum verbena_memory_kind {
  VERBENA_MEMORY_HOST = 0,    // host memory
  VERBENA_MEMORY_PINNED = 1,  // page-locked host memory, for a GPU
  VERBENA_MEMORY_CUDA = 2     // memory of a CUDA device
} verbena_memory_kind;

// Allocates memory for gradients or parameters. `kind` is a verbena_memory_kind. Host and pinned
// memory is zeroed, page-aligned, and shared with servers on this host. Pinned and CUDA memory need
// the CUDA driver; `device` is the driver's number of the GPU. CUDA memory is not zeroed. Rows of
// embedding tables need host or pinned memory. INVALID_ARGUMENT: 0 bytes, or there is no such kind
// or GPU. RESOURCE_EXHAUSTED: out of memory, or the limit of locked memory is too low. UNAVAILABLE:
// there is no driver, or the GPU failed.
VERBENA_EXPORT verbena_status verbena_region_allocate(verbena_client* client, size_t bytes,
                                                      int32_t kind, int32_t device,
                                                      verbena_region** region);
// Registers `bytes` bytes of the caller's memory, which must stay valid until the region is freed.
// Pinned memory is treated as host memory. Errors as verbena_region_allocate(); also
// INVALID_ARGUMENT: the memory does not belong to that GPU.
VERBENA_EXPORT verbena_status verbena_region_register(verbena_client* client, void* data,
                                                      size_t bytes, int32_t kind, int32_t device,
                                                      verbena_region** region);
// Sets the stream (cudaStream_t, CUstream; initially the GPU's default stream) of a region on a
// GPU. Pushes and pulls access the region after all work that was enqueued in the stream before the
// call; the stream does not wait. In a push-pull the stream of the gradient's region applies to
// both regions. Needs exclusive access to the region.
VERBENA_EXPORT void verbena_region_set_stream(verbena_region* region, void* stream);
// The first byte; a device address for CUDA memory; NULL if `region` is NULL.
VERBENA_EXPORT void* verbena_region_data(const verbena_region* region);
// In bytes; 0 if `region` is NULL.
VERBENA_EXPORT size_t verbena_region_size(const verbena_region* region);
// Frees the handle. If operations use the region, their lanes are closed, so that nothing accesses
// the memory afterwards; their requests are resent without data.
VERBENA_EXPORT void verbena_region_free(verbena_region* region);

// ---- data ---------------------------------------------------------------------------------------
//
// These functions start an operation and return at once. If they return VERBENA_OK, `*ticket` is
// the operation's handle (`ticket` may be NULL). Otherwise the operation was not started.
//
// INVALID_ARGUMENT: a handle belongs to another client; the table is of the other kind (dense,
// embedding); the range does not consist of whole chunks; the region is too small; the chunk was
// already pushed in this step; or (status of the ticket) the gradient has a NaN or infinity and the
// table rejects these. NOT_FOUND: the table was dropped. FAILED_PRECONDITION: the client is closed,
// its lease has ended, or an observer pushes. RESOURCE_EXHAUSTED: too many operations are in
// flight. DATA_LOSS: a partition is lost. A ticket can also end with DEADLINE_EXCEEDED,
// UNAVAILABLE, ABORTED and CANCELLED.

// One asynchronous operation.
typedef struct verbena_ticket verbena_ticket;

// A range of a dense table, and its place in the region.
typedef struct verbena_range {
  uint64_t first;          // element of the table, a multiple of its chunk_elements
  uint64_t count;          // elements, up to the end of a chunk or table; UINT64_MAX: to the end
  uint64_t region_offset;  // bytes to the first element; a multiple of the element's size
} verbena_range;

// A min_version that stands for the number of steps that this worker has ended (sync), or 0
// (async).
#define VERBENA_MIN_VERSION_DEFAULT UINT64_MAX

// Pushes a gradient (numbers of gradient_dtype) for this worker's open step. `range` NULL: the
// whole table. sync: done when the step is committed, so call verbena_end_step() before waiting.
// async: done when the gradient is applied. The region is read until
// verbena_ticket_buffer_released().
VERBENA_EXPORT verbena_status verbena_push(verbena_client* client, const verbena_table* table,
                                           const verbena_region* gradient,
                                           const verbena_range* range, int64_t timeout_ms,
                                           verbena_ticket** ticket);
// Writes parameters (numbers of dtype) as they are in place of those of the range, in the order of
// this worker's pushes. The optimizer's state stays (ftrl, whose parameters follow from its state:
// the state becomes that of the new ones). sync: a contribution to this worker's open step, in
// place of a gradient; when the step is committed, the chunks have these parameters, and gradients
// of other workers for them in that step have no effect. Of several workers that assign a chunk in
// a step the one with the highest rank counts. Done as verbena_push(). A NaN or infinity is treated
// as in a gradient: if the table rejects or skips it, its chunk stays as it is.
VERBENA_EXPORT verbena_status verbena_assign(verbena_client* client, const verbena_table* table,
                                             const verbena_region* parameters,
                                             const verbena_range* range, int64_t timeout_ms,
                                             verbena_ticket** ticket);
// Pulls parameters (numbers of dtype) of `min_version` or a later version into the region; done
// when they are written. A parameter beyond the range of f16 is pulled as an infinity.
VERBENA_EXPORT verbena_status verbena_pull(verbena_client* client, const verbena_table* table,
                                           const verbena_region* destination,
                                           const verbena_range* range, uint64_t min_version,
                                           int64_t timeout_ms, verbena_ticket** ticket);
// verbena_pull() for observers: followers share the reads of dense sync and async tables. Their
// values are at most `max_staleness_ms` old: the primary had them, or newer ones, at that time
// before the call. They are never older than the last values that this client has read in this
// run of the job, and are never lost in a failover. If no follower can answer, and in other clients
// and tables, the primary answers. The primary updates its followers every eighth of the cluster's
// lease: with less than 0.4 of the lease, the primary answers most pulls. 2000 is a good value.
// Errors: those of verbena_pull(); INVALID_ARGUMENT also for a staleness of 0.
VERBENA_EXPORT verbena_status verbena_pull_any(verbena_client* client, const verbena_table* table,
                                               const verbena_region* destination,
                                               const verbena_range* range, uint64_t min_version,
                                               uint32_t max_staleness_ms, int64_t timeout_ms,
                                               verbena_ticket** ticket);
// Pulls an array of the optimizer's state of a dense table, as f32; otherwise as verbena_pull(). A
// worker that pulls parameters and state of a sync table before it ends its next step has those of
// one step. INVALID_ARGUMENT: also a name that the table does not have
// (verbena_table_state_array()), or an embedding table.
VERBENA_EXPORT verbena_status verbena_pull_state(verbena_client* client, const verbena_table* table,
                                                 const char* array,
                                                 const verbena_region* destination,
                                                 const verbena_range* range, uint64_t min_version,
                                                 int64_t timeout_ms, verbena_ticket** ticket);
// Writes an array of the optimizer's state (f32) as it is in place of that of the range, and the
// chunks' count of applies, by which schedules and bias corrections go. Otherwise as
// verbena_assign(), and with its place in a step of a sync table: each array takes a step. The
// parameters and other arrays stay, but "master" gives the parameters, too. Assign parameters
// before state: that counts as an apply, and changes the state of ftrl. Errors as
// verbena_pull_state().
VERBENA_EXPORT verbena_status verbena_assign_state(verbena_client* client,
                                                   const verbena_table* table, const char* array,
                                                   uint64_t applies, const verbena_region* state,
                                                   const verbena_range* range, int64_t timeout_ms,
                                                   verbena_ticket** ticket);
// Pushes, then pulls parameters that include the push. region_offset applies to both regions. The
// destination may be the gradient itself if both element sizes are equal; any other overlap is
// INVALID_ARGUMENT. sync: if the range is the whole table, it also ends the step.
VERBENA_EXPORT verbena_status verbena_push_pull(verbena_client* client, const verbena_table* table,
                                                const verbena_region* gradient,
                                                const verbena_region* destination,
                                                const verbena_range* range, int64_t timeout_ms,
                                                verbena_ticket** ticket);
// As verbena_push_pull(), with a place of its own for the parameters: `destination_offset` bytes
// from the start of `destination`. region_offset applies to the gradient alone. For a gradient and
// parameters in one region.
VERBENA_EXPORT verbena_status verbena_push_pull_to(
    verbena_client* client, const verbena_table* table, const verbena_region* gradient,
    const verbena_region* destination, const verbena_range* range, uint64_t destination_offset,
    int64_t timeout_ms, verbena_ticket** ticket);
// Ends this worker's open step of the table; elements without a push count as zero. The next step
// is open at once. sync: done when the step is committed on every partition. With clip_global_norm
// a step is committed when all workers have ended it on all tables of the job that have this
// option. Also FAILED_PRECONDITION: one of these tables is at another step. Also
// RESOURCE_EXHAUSTED: 64 ended steps are not committed yet.
VERBENA_EXPORT verbena_status verbena_end_step(verbena_client* client, const verbena_table* table,
                                               int64_t timeout_ms, verbena_ticket** ticket);

// Changes values of the table's optimizer while the table lives; done when all partitions, with
// their replicas, have the change. `rate`: the new rate; NULL: it stays. `parameters`:
// `parameter_count` named values; others stay. sync: the values are in force from a step on: the
// open step, or the next one if this worker has pushed to the table in the open step; of several
// workers the greatest rank counts. async, ssp: at once, in the order of this worker's pushes.
// Meant for learning-rate schedulers: call it each step, and do not wait. INVALID_ARGUMENT: no
// value is given, or the optimizer has no such value, or it is outside its range (the message has
// the allowed ones). PERMISSION_DENIED: an observer whose token may not write. DATA_LOSS: a
// partition is lost.
VERBENA_EXPORT verbena_status verbena_set_optimizer(verbena_client* client,
                                                    const verbena_table* table, const double* rate,
                                                    const verbena_parameter* parameters,
                                                    size_t parameter_count, int64_t timeout_ms,
                                                    verbena_ticket** ticket);

// Sets the priority of this client's requests for a table; any number, initially 0. Where requests
// wait for a connection, those of tables with greater numbers are sent first, and those of one
// table in the order of the calls. It lets the parameters that are needed next arrive before others
// that were requested earlier. It applies to queued pushes and to pulls from now on, and changes no
// result. NOT_FOUND: the table was dropped.
VERBENA_EXPORT verbena_status verbena_table_set_priority(verbena_client* client,
                                                         const verbena_table* table,
                                                         int32_t priority);

// Pushes gradients of rows of an embedding table. The gradient of keys[i] is `dim` f32 at byte
// region_offset + i * dim * 4 of the region; region_offset is a multiple of 4. The `count` keys (0
// to 4194304; `keys` may be NULL for 0) are copied. Gradients of a repeated key are summed in f32,
// in the order of `keys`. A missing row is created. sync: done when the step is committed on the
// partitions of these keys, so call verbena_end_step() before waiting. async, ssp: done when the
// gradients are applied. The region is read until verbena_ticket_buffer_released(). Also
// RESOURCE_EXHAUSTED: a server or the job is at its memory limit and has no room for new rows; rows
// in other requests and partitions are applied.
VERBENA_EXPORT verbena_status verbena_push_rows(verbena_client* client, const verbena_table* table,
                                                const uint64_t* keys, size_t count,
                                                const verbena_region* gradients,
                                                uint64_t region_offset, int64_t timeout_ms,
                                                verbena_ticket** ticket);
// Writes rows as they are in place of those of the keys, as verbena_assign() does for chunks;
// arguments as verbena_push_rows(). Of a repeated key the last row counts. A missing row is
// created, also where admission would refuse it. sync: of the contributions to a row in a step, in
// the order of ranks and calls, the last assignment counts alone.
VERBENA_EXPORT verbena_status verbena_assign_rows(verbena_client* client,
                                                  const verbena_table* table, const uint64_t* keys,
                                                  size_t count, const verbena_region* rows,
                                                  uint64_t region_offset, int64_t timeout_ms,
                                                  verbena_ticket** ticket);
// Looks up rows of an embedding table, of `min_version` or a later version; done when all are
// written. The row of keys[i] is written as `dim` f32 to byte region_offset + i * dim * 4 of the
// region. The `count` keys (0 to 4194304; `keys` may be NULL for 0) are copied, and may repeat. A
// missing row is not created; its initial value is returned.
VERBENA_EXPORT verbena_status verbena_lookup(verbena_client* client, const verbena_table* table,
                                             const uint64_t* keys, size_t count,
                                             const verbena_region* rows, uint64_t region_offset,
                                             uint64_t min_version, int64_t timeout_ms,
                                             verbena_ticket** ticket);
// How verbena_lookup_bags() combines the rows of a bag.
typedef enum verbena_bag_mode {
  VERBENA_BAG_SUM = 0,   // the sum
  VERBENA_BAG_MEAN = 1,  // the sum divided by the number of keys, or by the sum of the weights
  VERBENA_BAG_SQRTN = 2  // the sum divided by the square root of the number of keys, or of the sum
                         // of the squares of the weights
} verbena_bag_mode;
// Looks up rows of an embedding table and combines them by bag on the servers. Bag i has the keys
// from keys[offsets[i]] up to keys[offsets[i + 1]], the last of the `bags` bags up to the end;
// offsets[0] is 0. Its vector is written as `dim` f32 to byte region_offset + i * dim * 4 of the
// region, of `min_version` or a later version. There may be 0 to 4194304 keys (`keys` may be NULL
// for 0) and as many bags, at least 1 if there are keys. `weights` has a factor for the row of each
// key, or is NULL (all are 1). `mode` is a verbena_bag_mode. A key that is twice in a bag counts
// twice. A bag without keys, or with the divisor 0, is zero. Arguments are copied. The region is
// written when all bags have arrived, and not at all in case of an error.
VERBENA_EXPORT verbena_status verbena_lookup_bags(verbena_client* client,
                                                  const verbena_table* table, const uint64_t* keys,
                                                  size_t count, const uint64_t* offsets,
                                                  size_t bags, const float* weights, int32_t mode,
                                                  const verbena_region* sums,
                                                  uint64_t region_offset, uint64_t min_version,
                                                  int64_t timeout_ms, verbena_ticket** ticket);
// Prefetches rows of a table with a cold tier (verbena_table_spec.hot_bytes): announces that these
// keys (0 to 4194304, copied) will be looked up or pushed soon, so that servers load their rows
// from disk as far as there is room. Changes no result. Done when the servers have the
// announcement.
VERBENA_EXPORT verbena_status verbena_prefetch(verbena_client* client, const verbena_table* table,
                                               const uint64_t* keys, size_t count,
                                               int64_t timeout_ms, verbena_ticket** ticket);
// Called with `count` >= 1 keys, their rows of `dim` f32 each, one after the other, and the `user`
// of the call. The arrays are valid during the callback. Returning a number other than 0 ends the
// scan.
typedef int (*verbena_rows_function)(const uint64_t* keys, const float* rows, size_t count,
                                     void* user);
// Calls `show` with all rows of an embedding table, in no particular order, on this thread, before
// it returns. It is not a snapshot: concurrent pushes are visible in some rows and not in others.
// `timeout_ms` limits each wait for more rows. INVALID_ARGUMENT: the table is dense or belongs to
// another client. CANCELLED: `show` ended the scan. NOT_FOUND, FAILED_PRECONDITION, DATA_LOSS,
// DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED and RESOURCE_EXHAUSTED as at the top of this section.
VERBENA_EXPORT verbena_status verbena_scan(verbena_client* client, const verbena_table* table,
                                           int64_t timeout_ms, verbena_rows_function show,
                                           void* user);

// Waits until the operation has ended, processes completions meanwhile, and returns the operation's
// status. A timeout_ms of 0 or more limits the wait, not the operation: after it the function
// returns DEADLINE_EXCEEDED ("still running"), and verbena_ticket_done() is 0.
VERBENA_EXPORT verbena_status verbena_ticket_wait(verbena_ticket* ticket, int64_t timeout_ms);
// 1 if the operation has ended or `ticket` is NULL, else 0. Does not process completions.
VERBENA_EXPORT int verbena_ticket_done(const verbena_ticket* ticket);
// The status of the ended operation. FAILED_PRECONDITION: it has not ended.
VERBENA_EXPORT verbena_status verbena_ticket_status(const verbena_ticket* ticket);
// The chunks that an ended verbena_pull_state() has read: their versions, and their counts of
// applies since initialisation, which is the `step` of torch.optim.
typedef struct verbena_state_versions {
  size_t struct_size;                        // set by the caller: sizeof(verbena_state_versions)
  uint64_t least_version, greatest_version;  // of parameters and state
  // Of gradients, and of assignments after the first. UINT64_MAX and 0: a server of protocol
  // version 10 has answered, which does not report them.
  uint64_t least_applies, greatest_applies;
} verbena_state_versions;
// Sets *versions. INVALID_ARGUMENT: the ticket is of another call. FAILED_PRECONDITION: the pull
// has not ended. Others: its error.
VERBENA_EXPORT verbena_status verbena_ticket_state_versions(const verbena_ticket* ticket,
                                                            verbena_state_versions* versions);
// Nanoseconds from the call to the operation's end, or until now if it has not ended; 0 if `ticket`
// is NULL.
VERBENA_EXPORT int64_t verbena_ticket_elapsed_ns(const verbena_ticket* ticket);
// Ends the operation with CANCELLED unless it has ended. A transfer may still be in flight: see
// verbena_ticket_buffer_released().
VERBENA_EXPORT verbena_status verbena_ticket_cancel(verbena_ticket* ticket);
// 1 if the library no longer reads or writes the region for this operation, or `ticket` is NULL. It
// may be 0 for a while after a deadline or cancel; verbena_region_free() ends the access. A push to
// a sync table with replicas releases its region when its step is committed.
VERBENA_EXPORT int verbena_ticket_buffer_released(const verbena_ticket* ticket);
// Called with an operation's status, the error text ("" if VERBENA_OK), and the `user` of the call.
typedef void (*verbena_done_function)(verbena_status status, const char* text, void* user);
// Calls `done` once, from a thread that processes completions, or at once from this thread if the
// operation has ended. `done` must not block; it may start operations. The handle may be freed
// before.
VERBENA_EXPORT verbena_status verbena_ticket_on_done(verbena_ticket* ticket,
                                                     verbena_done_function done, void* user);
// Frees the handle; the operation continues.
VERBENA_EXPORT void verbena_ticket_free(verbena_ticket* ticket);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_VERBENA_H_
