// Verbena's client in C (C99, and C++): what client.h has, as opaque handles and status codes.
//
//     verbena_connect_options options;
//     verbena_connect_options_init(&options, sizeof options);
//     options.cluster = "127.0.0.1:7000";
//     verbena_client* client;
//     if (verbena_connect(&options, &client) != VERBENA_OK) puts(verbena_last_error());
//
// **Thread safety**: every function may be called from any thread, also for one handle from several
// at once; but a handle is freed by one thread, when no other uses it. Concurrent pushes to one
// table must not overlap; calls of one step and its verbena_end_step() are ordered by the caller.
//
// Handles: each is freed once by its verbena_*_free(), which takes NULL; in any order, and after
// the client too. A function that makes a handle sets it to NULL when it fails.
//
// Errors: no exception leaves a function. Each returns a verbena_status; when that is not
// VERBENA_OK, verbena_last_error() is the text, which names the argument, its value and what is
// allowed. NULL where an argument is needed, or a struct whose struct_size is not set, is always
// VERBENA_INVALID_ARGUMENT and has no effect; below only other errors are named. Any may be
// VERBENA_RESOURCE_EXHAUSTED for want of memory.
//
// fork(): in a child every call ends at once with VERBENA_FAILED_PRECONDITION, also
// verbena_connect(), because gRPC works in no fork of a process that has used it. Handles may be
// freed there; the parent does not notice. Start processes that need a client with exec, or before
// the first verbena_connect().
//
// Structs with a struct_size grow at their end in later releases; a program works with a library
// that is older or newer, as long as it uses no field that the library does not know.
//
// Text is UTF-8 and ends with a NUL; what a function is given it copies.
#ifndef VERBENA_CLIENT_C_VERBENA_H_
#define VERBENA_CLIENT_C_VERBENA_H_

#include <stddef.h>
#include <stdint.h>

#include "client/c/half_numbers.h"
#include "client/c/status.h"
#include "client/c/table_enums.h"
#include "proto/export.h"
#include "proto/version.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- client -------------------------------------------------------------------------------------

// A timeout_ms that means: the client's own (verbena_connect_options.timeout_ms); in
// verbena_ticket_wait(): until the operation has ended, which it does by its deadline.
#define VERBENA_TIMEOUT_DEFAULT ((int64_t)-1)

// A worker's place in a job of a cluster.
typedef struct verbena_client verbena_client;

// Who makes progress.
typedef enum verbena_progress {
  VERBENA_PROGRESS_BACKGROUND = 0,  // a thread, whenever something is unanswered and nobody waits
  VERBENA_PROGRESS_CALLER = 1       // only threads inside verbena_ticket_wait()
} verbena_progress;

// Whether RDMA devices read and write memory of GPUs themselves (GPUDirect RDMA).
typedef enum verbena_gpu_direct {
  VERBENA_GPU_DIRECT_AUTO = 0,     // where they can, and are on the GPU's NUMA node (default)
  VERBENA_GPU_DIRECT_OFF = 1,      // never
  VERBENA_GPU_DIRECT_REQUIRED = 2  // always: where it cannot be, calls on memory of GPUs fail
} verbena_gpu_direct;

// How to join a cluster. Set by verbena_connect_options_init(); only `cluster` has no default.
typedef struct verbena_connect_options {
  size_t struct_size;     // sizeof(verbena_connect_options)
  const char* cluster;    // host:port of the coordinator
  const char* job;        // whose tables and clock are shared; default "default"
  const char* name;       // shown to operators; default host-pid
  const char* transport;  // "auto" (default), or "shm", "verbs" or "ofi": no fall back
  // Of the job, default 1: step 0 of a sync table waits for so many, and so does the step clock of
  // ssp tables.
  uint32_t expected_workers;
  int32_t rank;                   // default -1: any free one. Sums are in rank order
  int32_t observer;               // not 0: only pulls, of any job; counts in no step; default 0
  int32_t progress;               // a verbena_progress; default VERBENA_PROGRESS_BACKGROUND
  int64_t timeout_ms;             // default deadline of every call, in milliseconds; default 30000
  uint64_t staging_bytes;         // for pulls that shm cannot write, for rows; default 16 MiB
  const char* rdma_device;        // "mlx5_0" or "mlx5_0:1" (device:port); default: the nearest.
                                  // "mlx5_0,mlx5_1": a rail each, which carry data side by side
  const char* rdma_address;       // local IP address (or, of rails, a list); default: the first of
                                  // the device
  int32_t rdma_gid_index;         // default -1: the one that belongs to the address
  int32_t rdma_traffic_class;     // 0 to 255; default -1: the system's
  int32_t rdma_service_level;     // 0 to 15; default -1: the path's
  int32_t rdma_path_mtu;          // 256, 512, 1024, 2048 or 4096 bytes; default 0: the path's
  int32_t rdma_timeout;           // 1 to 31: an acknowledgement is waited for 4.096 us x 2^N
  int32_t rdma_retries;           // 0 to 7 times a packet is sent again
  int32_t rdma_memory_windows;    // not 0 (default): guard lanes by windows where there are any
  int32_t rdma_relaxed_ordering;  // not 0 (default): PCIe relaxed ordering where that is safe
  const char* ofi_provider;       // of libfabric; default "tcp;ofi_rxm"
  const char* ofi_address;        // local IP address (of rails, a list); default: that leads to the
                                  // coordinator
  const char* tls_ca;             // PEM file: authorities servers are believed by; turns TLS on
  const char* tls_cert;           // PEM file: this worker's certificate, for mutual TLS
  const char* tls_key;            // PEM file: its private key, without a pass phrase
  const char* token_file;         // file with this job's token; default: none
  int32_t rdma_gpu_direct;        // a verbena_gpu_direct
} verbena_connect_options;

// Sets every field to its default (a text to NULL, which means its default). `struct_size` is
// sizeof(verbena_connect_options). Does nothing when `options` is NULL.
VERBENA_EXPORT void verbena_connect_options_init(verbena_connect_options* options,
                                                 size_t struct_size);

// Joins the job; ends by options->timeout_ms. INVALID_ARGUMENT: an option; UNAVAILABLE: nothing
// answers at `cluster`, or a named transport cannot be had; ALREADY_EXISTS: the rank is taken;
// FAILED_PRECONDITION: the job has all its workers, its run goes on without that rank, or a file
// for TLS or the token file cannot be used; UNAUTHENTICATED: TLS, one side does not believe the
// other, or the token is not good; PERMISSION_DENIED: it is not for this job.
VERBENA_EXPORT verbena_status verbena_connect(const verbena_connect_options* options,
                                              verbena_client** client);
// Leaves the job (at most one second), ends every ticket with CANCELLED. Calls under way in other
// threads return; later ones end with FAILED_PRECONDITION. A second call does nothing. Not from a
// verbena_done_function.
VERBENA_EXPORT verbena_status verbena_close(verbena_client* client);
// Closes the client if it is open, and frees it. Its tables, regions and tickets stay valid
// handles.
VERBENA_EXPORT void verbena_client_free(verbena_client* client);

// What a client is.
typedef struct verbena_client_info {
  size_t struct_size;     // sizeof(verbena_client_info), set by the caller
  uint64_t incarnation;   // of this worker, never used again by another; 0 when closed
  int32_t rank;           // its place in sums; -1: an observer, or closed
  uint32_t live_workers;  // of the job, alive now, observers not counted; 0 when closed
} verbena_client_info;

// Fills `info` as far as its struct_size goes.
VERBENA_EXPORT verbena_status verbena_client_get_info(const verbena_client* client,
                                                      verbena_client_info* info);

// What a client has done since it connected. A record is one chunk of a push or pull, or as many
// rows for one server's shard as a slot has room for.
typedef struct verbena_statistics {
  size_t struct_size;       // sizeof(verbena_statistics), set by the caller
  uint64_t bytes_pushed;    // of gradients (of rows: with their keys), sent for the first time
  uint64_t bytes_pulled;    // of parameters that arrived, those of rows too
  uint64_t pushes;          // records
  uint64_t pulls;           // records
  uint64_t records_resent;  // after a lane was lost, or refused for the time being
  uint64_t lanes_opened;    // connections to shards of servers
  uint64_t lanes_lost;      // that ended before the client did
  uint64_t credit_stalls;   // times a record waited for a slot or an operation
  uint64_t staged_bytes;    // by way of staging: chunks that shm cannot reach, of GPUs; rows
  uint64_t rail_moves;      // times a table's partition went from one rail to another
  // Of bytes_pushed: read by servers where they lie (shm, allocated regions), not copied there.
  uint64_t referenced_bytes;
  uint64_t direct_bytes;  // of memory of GPUs: read and written by the RDMA device itself
} verbena_statistics;

// Fills `statistics` as far as its struct_size goes; all 0 when closed.
VERBENA_EXPORT verbena_status verbena_client_get_statistics(const verbena_client* client,
                                                            verbena_statistics* statistics);

// A connection to a server's shard. Texts are valid during the call that shows it.
typedef struct verbena_lane {
  size_t struct_size;     // as the library knows it
  uint64_t server;        // incarnation of the server
  uint32_t shard;         // of that server
  const char* transport;  // "shm", "verbs", "ofi"
  const char* reason;     // why not a better one; "": there is none
  const char* state;      // "open", "opening", ...
  const char* device;     // this side's, "mlx5_0:1"; "": the transport has none
  uint32_t rail;          // which of the devices or addresses of verbena_connect_options
} verbena_lane;

// Called for each lane, with the `user` of the call.
typedef void (*verbena_lane_function)(const verbena_lane* lane, void* user);
// Shows every lane there is now, on this thread, before it returns.
VERBENA_EXPORT verbena_status verbena_client_list_lanes(const verbena_client* client,
                                                        verbena_lane_function show, void* user);

// How a transport reaches memory of a GPU that was pushed or pulled to. Texts are valid during the
// call that shows it.
typedef struct verbena_gpu_path {
  size_t struct_size;     // as the library knows it
  const char* gpu;        // "cuda:0 (NVIDIA H100 80GB HBM3)"
  const char* transport;  // "verbs"
  const char* device;     // "mlx5_0:1"; "": the transport has none
  const char* path;       // "dma-buf", "peer memory" (both GPUDirect) or "staging"
  const char* reason;     // why this one and no better one; "": there is none
  const char* refusal;    // why some memory goes through staging all the same; "": none does
} verbena_gpu_path;

// Called for each path, with the `user` of the call.
typedef void (*verbena_gpu_path_function)(const verbena_gpu_path* path, void* user);
// Shows every path there was reason to look for, on this thread, before it returns.
VERBENA_EXPORT verbena_status verbena_client_list_gpu_paths(const verbena_client* client,
                                                            verbena_gpu_path_function show,
                                                            void* user);

// Called with each transport that is missing and why ("verbs: no RDMA device ..."), and `user`.
typedef void (*verbena_text_function)(const char* text, void* user);
// Shows every transport that this process does not have, on this thread, before it returns.
VERBENA_EXPORT verbena_status verbena_client_list_missing_transports(const verbena_client* client,
                                                                     verbena_text_function show,
                                                                     void* user);

// ---- tables -------------------------------------------------------------------------------------

// Named parameters of the cluster.
typedef struct verbena_table verbena_table;

// A parameter of an optimizer.
typedef struct verbena_parameter {
  const char* name;  // "momentum", "beta1"
  double value;      // finite
} verbena_parameter;

// What a table is to be. Set by verbena_table_spec_init(); `name` has no default. A dense table has
// a shape, an embedding table `dim`: one of the two.
typedef struct verbena_table_spec {
  size_t struct_size;         // sizeof(verbena_table_spec)
  const char* name;           // 1 to 128 characters of [A-Za-z0-9_./-]
  const char* job;            // that writes it; default: the client's
  const uint64_t* shape;      // `dimensions` of them, each 1 or more; NULL with `dim`
  size_t dimensions;          // 1 to 8, at most 2^40 elements in all; 0 with `dim`
  int32_t dtype;              // a verbena_dtype: of parameters as pulled; with `dim` f32
  int32_t consistency;        // a verbena_consistency
  int32_t reduction;          // a verbena_reduction
  int32_t non_finite;         // a verbena_non_finite
  int32_t initializer;        // a verbena_initializer
  uint32_t chunk_bytes;       // a multiple of 64 in 256 to 8 MiB, a row at least; 0: 256 KiB
  double initializer_a;       // see verbena_initializer
  double initializer_b;       // see verbena_initializer
  uint64_t initializer_seed;  // of uniform and normal
  const char* optimizer;      // "sgd" (default), "momentum", "adam", ...
  double rate;                // learning rate, 0 or more; default 0
  const verbena_parameter* parameters;  // of the optimizer; what is not named has its default
  size_t parameter_count;               // of `parameters`; default 0
  uint32_t staleness;                   // ssp: steps a worker may read ahead of the slowest
  uint32_t dim;                         // numbers in a row, 1 to 1024; 0 (default): a dense table
  int32_t gradient_dtype;               // as pushed: f32 (default) or bf16; with `dim` f32
  int32_t push_codec;                   // a verbena_codec; 0 is none; with `dim` not sign, top_k
  int32_t admission;                    // a verbena_admission; always without `dim`
  uint32_t admission_min_count;         // 2 to 255; 0 (default) with another admission
  double admission_probability;         // between 0 and 1; 0 (default) with another admission
  uint64_t admission_sketch_bytes;      // of min_count: 4 KiB to 64 GiB; 0: 16 MiB
  uint64_t admission_seed;              // of probability
  int32_t eviction;                     // a verbena_eviction; never without `dim`
  uint64_t eviction_ttl;                // 1 to 2^30; 0 (default) with another eviction
  uint64_t eviction_max_rows;           // of lru and lfu; 0 (default): eviction_max_bytes
  uint64_t eviction_max_bytes;          // of parameters and optimizer state
  int32_t row_dtype;                    // how rows lie in the servers' memory: f32 (default), bf16
                                        // or f16; 0 without `dim`
  int32_t stochastic_rounding;          // not 0: rows of 16 bits are rounded up or down by chance
  int32_t pull_codec;                   // a verbena_codec to fp8_e5m2; 0 is none
  uint64_t hot_bytes;                   // memory for rows over all servers, the others are on their
                                        // disks: 64 KiB and more; 0 (default): all in memory
} verbena_table_spec;

// Sets every field to its default. `struct_size` is sizeof(verbena_table_spec). Does nothing when
// `spec` is NULL.
VERBENA_EXPORT void verbena_table_spec_init(verbena_table_spec* spec, size_t struct_size);

// What a table is. Texts and the shape are valid as long as the table's handle, or during the call
// that shows it.
typedef struct verbena_table_info {
  size_t struct_size;       // sizeof(verbena_table_info), set by the caller
  const char* name;         // as created
  const char* job;          // that writes it
  const char* optimizer;    // as created
  const uint64_t* shape;    // `dimensions` of them
  size_t dimensions;        // 1 to 8; 0 of an embedding table
  uint64_t elements;        // the product of the shape; 0 of an embedding table
  uint64_t bytes;           // of all parameters as pulled
  double rate;              // learning rate
  uint32_t id;              // the cluster's number for it, never used again
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
} verbena_table_info;

// Creates the table, or opens it when it exists with the same specification. INVALID_ARGUMENT: a
// field; ALREADY_EXISTS: the first field that differs from the existing table's;
// FAILED_PRECONDITION: the client is closed or its lease has ended; UNAVAILABLE: the coordinator
// does not answer by the deadline, or waits for servers.
VERBENA_EXPORT verbena_status verbena_table_create(verbena_client* client,
                                                   const verbena_table_spec* spec,
                                                   int64_t timeout_ms, verbena_table** table);
// Opens an existing table. NOT_FOUND; FAILED_PRECONDITION and UNAVAILABLE as above.
VERBENA_EXPORT verbena_status verbena_table_open(verbena_client* client, const char* name,
                                                 int64_t timeout_ms, verbena_table** table);
// Drops the table and its parameters for everybody; operations on it end with NOT_FOUND, handles
// stay valid. NOT_FOUND; FAILED_PRECONDITION and UNAVAILABLE as above.
VERBENA_EXPORT verbena_status verbena_table_drop(verbena_client* client, const char* name,
                                                 int64_t timeout_ms);
// Called for each table, with the `user` of the call; struct_size is as the library knows it.
typedef void (*verbena_table_function)(const verbena_table_info* info, void* user);
// Shows every table of the cluster, on this thread, before it returns. FAILED_PRECONDITION and
// UNAVAILABLE as above.
VERBENA_EXPORT verbena_status verbena_table_list(verbena_client* client, int64_t timeout_ms,
                                                 verbena_table_function show, void* user);
// Fills `info` as far as its struct_size goes.
VERBENA_EXPORT verbena_status verbena_table_get_info(const verbena_table* table,
                                                     verbena_table_info* info);
// Frees the handle; the table stays.
VERBENA_EXPORT void verbena_table_free(verbena_table* table);

// ---- regions ------------------------------------------------------------------------------------

// Memory that the data plane knows.
typedef struct verbena_region verbena_region;

// Where memory lies.
typedef enum verbena_memory_kind {
  VERBENA_MEMORY_HOST = 0,    // ordinary memory of this machine
  VERBENA_MEMORY_PINNED = 1,  // page-locked for a GPU
  VERBENA_MEMORY_CUDA = 2     // of a CUDA device
} verbena_memory_kind;

// Memory for gradients or parameters. `kind` is a verbena_memory_kind. Host, pinned: zeroed and
// page-aligned, shared with servers on this machine. Pinned and CUDA want CUDA's driver on this
// machine and `device`, its number of the GPU; what lies on a GPU is not zeroed. Rows of embedding
// tables travel from and to memory of the host only. INVALID_ARGUMENT: 0 bytes, no such kind or
// GPU, or (register) memory that is not of that GPU; RESOURCE_EXHAUSTED: there is no such memory,
// or too little may be locked; UNAVAILABLE: there is no driver, or the GPU is lost.
VERBENA_EXPORT verbena_status verbena_region_allocate(verbena_client* client, size_t bytes,
                                                      int32_t kind, int32_t device,
                                                      verbena_region** region);
// Makes known `bytes` of the caller's memory, who keeps it alive until the region is freed;
// pinned is as host. Errors as above.
VERBENA_EXPORT verbena_status verbena_region_register(verbena_client* client, void* data,
                                                      size_t bytes, int32_t kind, int32_t device,
                                                      verbena_region** region);
// Of regions on a GPU: the stream (cudaStream_t, CUstream; at first the GPU's default stream) of
// the work that comes before a push or pull with it. What was enqueued in it before such a call is
// done before the region is touched; the stream itself waits for nothing. Of a push-pull, the
// gradient's holds for both. Not while another thread uses the region.
VERBENA_EXPORT void verbena_region_set_stream(verbena_region* region, void* stream);
// The first byte, of CUDA memory an address on the GPU; NULL when `region` is.
VERBENA_EXPORT void* verbena_region_data(const verbena_region* region);
// In bytes; 0 when `region` is NULL.
VERBENA_EXPORT size_t verbena_region_size(const verbena_region* region);
// Lets go of the memory. While tickets use it this closes the lanes they are on, so that nothing
// touches it afterwards; their records are resent as empty ones.
VERBENA_EXPORT void verbena_region_free(verbena_region* region);

// ---- data ---------------------------------------------------------------------------------------
//
// These start an operation and return at once. OK: it is under way, and `ticket` (unless NULL:
// nobody waits for it) tells how it ends. Otherwise it was not started.
//
// INVALID_ARGUMENT: a handle is of another client, the table is of the other kind (dense,
// embedding), the range is not of whole chunks or the region too small for it, the chunk was pushed
// in this step already, or (of the ticket) the gradient has a NaN or infinity and the table rejects
// these; NOT_FOUND: the table was dropped; FAILED_PRECONDITION: the client is closed, its lease has
// ended, or an observer pushes; RESOURCE_EXHAUSTED: too many operations are outstanding; DATA_LOSS.
// What a ticket ends with can be these, and DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED and CANCELLED.

// One asynchronous operation.
typedef struct verbena_ticket verbena_ticket;

// Which part of a table, and where it lies in the region.
typedef struct verbena_range {
  uint64_t first;          // element of the table, a multiple of its chunk_elements
  uint64_t count;          // elements, up to the end of a chunk or table; UINT64_MAX: to the end
  uint64_t region_offset;  // bytes to the first element; a multiple of what an element has there
} verbena_range;

// A min_version that means: sync, the steps this worker has ended; async, 0.
#define VERBENA_MIN_VERSION_DEFAULT UINT64_MAX

// Pushes a gradient (numbers of gradient_dtype, `range` of them; NULL: the whole table) of the step
// that is open for this worker. sync: ends when the step is committed, so call verbena_end_step()
// before waiting. async: ends when applied. The region is read until
// verbena_ticket_buffer_released().
VERBENA_EXPORT verbena_status verbena_push(verbena_client* client, const verbena_table* table,
                                           const verbena_region* gradient,
                                           const verbena_range* range, int64_t timeout_ms,
                                           verbena_ticket** ticket);
// Pulls parameters (numbers of dtype) into the region; ends when they are there, of `min_version`
// or later. One that is too large for f16 comes as an infinity, while the servers keep it.
VERBENA_EXPORT verbena_status verbena_pull(verbena_client* client, const verbena_table* table,
                                           const verbena_region* destination,
                                           const verbena_range* range, uint64_t min_version,
                                           int64_t timeout_ms, verbena_ticket** ticket);
// Pushes, then pulls what includes it; region_offset is of both regions. The destination may be the
// gradient's region where both have as many bytes an element. sync: when the range is the whole
// table, also ends the step.
VERBENA_EXPORT verbena_status verbena_push_pull(verbena_client* client, const verbena_table* table,
                                                const verbena_region* gradient,
                                                const verbena_region* destination,
                                                const verbena_range* range, int64_t timeout_ms,
                                                verbena_ticket** ticket);
// This worker has pushed all of its open step of this table; what it did not push counts as zero.
// sync: ends when the step is committed on every partition. The next step is open at once.
// With clip_global_norm a step is committed once it is ended on all tables of the job that set it.
// FAILED_PRECONDITION also: one of those is at another step; RESOURCE_EXHAUSTED also: 64 steps are
// ended and not committed.
VERBENA_EXPORT verbena_status verbena_end_step(verbena_client* client, const verbena_table* table,
                                               int64_t timeout_ms, verbena_ticket** ticket);

// Pushes gradients of rows of an embedding table: that of keys[i] is `dim` f32 at
// region_offset + i * dim * 4 bytes (region_offset: a multiple of 4). The `count` keys (0 to
// 4194304; `keys` may be NULL for 0) are copied; those that repeat are summed in f32, in this
// order. A row that does not exist is made. sync: ends when the step is committed on the partitions
// of these keys, so call verbena_end_step() before waiting. async, ssp: ends when applied. The
// region is read until verbena_ticket_buffer_released(). RESOURCE_EXHAUSTED also: a server at its
// memory limit, or the job at its own, has no room for rows that are new; what was in other records
// and partitions counts.
VERBENA_EXPORT verbena_status verbena_push_rows(verbena_client* client, const verbena_table* table,
                                                const uint64_t* keys, size_t count,
                                                const verbena_region* gradients,
                                                uint64_t region_offset, int64_t timeout_ms,
                                                verbena_ticket** ticket);
// Looks up rows of an embedding table: that of keys[i] comes as `dim` f32 to
// region_offset + i * dim * 4 bytes, of `min_version` or later. The `count` keys (0 to 4194304;
// `keys` may be NULL for 0) are copied, and may repeat. A row that does not exist comes as it would
// be made, and is not made. Ends when all are there.
VERBENA_EXPORT verbena_status verbena_lookup(verbena_client* client, const verbena_table* table,
                                             const uint64_t* keys, size_t count,
                                             const verbena_region* rows, uint64_t region_offset,
                                             uint64_t min_version, int64_t timeout_ms,
                                             verbena_ticket** ticket);
// What verbena_lookup_bags() makes of the rows of a bag.
typedef enum verbena_bag_mode {
  VERBENA_BAG_SUM = 0,   // their sum
  VERBENA_BAG_MEAN = 1,  // the sum divided by their number, or by the sum of the weights
  VERBENA_BAG_SQRTN = 2  // divided by the square root of their number, or of the weights' squares
} verbena_bag_mode;
// Looks up rows of an embedding table and sums them by bag, on the servers. Bag i has the keys from
// keys[offsets[i]] up to keys[offsets[i + 1]], the last one of `bags` up to the end; offsets[0] is
// 0. It comes as `dim` f32 to region_offset + i * dim * 4 bytes, of `min_version` or later. There
// are 0 to 4194304 keys (`keys` may be NULL for 0) and as many bags
// (1 at least where there are keys); `weights` has a number
// for each key by which its row is multiplied, or is NULL: all 1. `mode` is a verbena_bag_mode. A
// key that is in a bag twice counts twice; a bag without keys is zero, and so is one whose divisor
// is zero. What is given is copied. Ends when all bags are there; nothing is written before, and
// nothing after an error.
VERBENA_EXPORT verbena_status verbena_lookup_bags(verbena_client* client,
                                                  const verbena_table* table, const uint64_t* keys,
                                                  size_t count, const uint64_t* offsets,
                                                  size_t bags, const float* weights, int32_t mode,
                                                  const verbena_region* sums,
                                                  uint64_t region_offset, uint64_t min_version,
                                                  int64_t timeout_ms, verbena_ticket** ticket);
// Tells the servers that rows of these keys (0 to 4194304, copied) will be looked up or pushed
// soon: those that are on disk (verbena_table_spec.hot_bytes) come to memory, as far as there is
// room. Changes no result. Ends when the servers have been told.
VERBENA_EXPORT verbena_status verbena_intend(verbena_client* client, const verbena_table* table,
                                             const uint64_t* keys, size_t count, int64_t timeout_ms,
                                             verbena_ticket** ticket);
// Called with `count` keys (1 or more) and their rows of `dim` f32 each, one after the other, and
// the `user` of the call. They are valid during the call. 0: go on; another number ends the scan.
typedef int (*verbena_rows_function)(const uint64_t* keys, const float* rows, size_t count,
                                     void* user);
// Shows every row of an embedding table that was pushed, in no particular order, on this thread,
// before it returns. Not a snapshot: of what is pushed meanwhile it shows some or none, row by row.
// timeout_ms: of each wait for more rows. INVALID_ARGUMENT: the table is dense or of another
// client; CANCELLED: `show` ended it; NOT_FOUND, FAILED_PRECONDITION, DATA_LOSS, DEADLINE_EXCEEDED,
// UNAVAILABLE, ABORTED and RESOURCE_EXHAUSTED as above.
VERBENA_EXPORT verbena_status verbena_scan(verbena_client* client, const verbena_table* table,
                                           int64_t timeout_ms, verbena_rows_function show,
                                           void* user);

// Waits until the operation has ended, making progress, and returns what it ended with. A
// timeout_ms of 0 or more limits the wait, not the operation: then DEADLINE_EXCEEDED ("still
// running"), and verbena_ticket_done() is 0.
VERBENA_EXPORT verbena_status verbena_ticket_wait(verbena_ticket* ticket, int64_t timeout_ms);
// 1 when the operation has ended, 0 when not; 1 when `ticket` is NULL. Makes no progress.
VERBENA_EXPORT int verbena_ticket_done(const verbena_ticket* ticket);
// What the operation ended with. FAILED_PRECONDITION: it has not.
VERBENA_EXPORT verbena_status verbena_ticket_status(const verbena_ticket* ticket);
// Ends the operation with CANCELLED, unless it has ended. The transfer may still be under way.
VERBENA_EXPORT verbena_status verbena_ticket_cancel(verbena_ticket* ticket);
// 1 when the library will neither read nor write the region for this operation any more, or
// `ticket` is NULL. May be 0 for a while after a deadline or cancel; verbena_region_free() ends it.
// A push to a sync table of a cluster that keeps copies: 0 until its step is committed.
VERBENA_EXPORT int verbena_ticket_buffer_released(const verbena_ticket* ticket);
// Told what an operation ended with, the text of an error ("" when OK), and the `user` of the call.
typedef void (*verbena_done_function)(verbena_status status, const char* text, void* user);
// Calls `done` once, from a thread that makes progress (at once, from this one, when it has ended).
// It must not block; it may start operations. The handle may be freed before.
VERBENA_EXPORT verbena_status verbena_ticket_on_done(verbena_ticket* ticket,
                                                     verbena_done_function done, void* user);
// Frees the handle; the operation goes on.
VERBENA_EXPORT void verbena_ticket_free(verbena_ticket* ticket);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_CLIENT_C_VERBENA_H_
