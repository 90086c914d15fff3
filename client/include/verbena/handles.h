// Handles to what a client uses: regions of memory, tables, operations and scans. client.h, which
// includes this file, has the calls that return and take them.
//
// **Thread safety**: any thread, also several at once; assigning and destroying need exclusive
// access. A RowScan is used by one thread at a time.
#ifndef VERBENA_HANDLES_H_
#define VERBENA_HANDLES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "verbena/export.h"
#include "verbena/memory_kind.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// Kinds of memory: kHost, kPinned, kCuda.
using rdma::MemoryKind;

// Memory that the data plane can read and write. Destroying the last handle while operations use
// the region closes their lanes, so that nothing accesses the memory afterwards; their requests are
// resent without data. A default-constructed region is empty: it has no memory, and calls with it
// end with INVALID_ARGUMENT.
class VERBENA_EXPORT Region {
 public:
  // The first byte; a device address for kCuda; null when empty.
  std::byte* data() const;
  // data() as f32: size() / 4 numbers.
  float* floats() const { return reinterpret_cast<float*>(data()); }
  // data() as bf16 or f16: size() / 2 numbers. half.h converts them.
  uint16_t* half_data() const { return reinterpret_cast<uint16_t*>(data()); }
  // In bytes; 0 when empty.
  size_t size() const;
  // kHost when empty.
  MemoryKind kind() const;
  // Whether AllocateRegion() made it. Servers on this host share such memory over shm, so its data
  // is not copied through staging.
  bool allocated() const;

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// A handle to a table of the cluster; copies refer to the same table. Destroying a handle does not
// drop the table: see Client::DropTable(). A default-constructed handle is empty: it has no name
// and 0 elements, and calls with it end with INVALID_ARGUMENT.
class VERBENA_EXPORT Table {
 public:
  // The name in the specification. The reference is valid as long as this handle.
  const std::string& name() const;
  // Unique in the cluster and never reused; 0 when empty.
  uint32_t id() const;
  // The specification at creation, with defaults filled in.
  const v1::TableSpec& spec() const;
  // Whether this is an embedding table: it has rows by key instead of a shape.
  bool embedding() const;
  // Numbers in a row of an embedding table; 0 for a dense table.
  uint32_t dim() const;
  // The product of a dense table's shape; 0 for an embedding table.
  uint64_t elements() const;
  // Type of pulled parameters; DTYPE_UNSPECIFIED when empty. Servers keep and train all parameters
  // in f32, and round them to the nearest value of this type.
  v1::DType dtype() const;
  // Type of pushed gradients; DTYPE_UNSPECIFIED when empty.
  v1::DType gradient_dtype() const;
  // Bytes of a pulled parameter: 4 for f32, 2 for bf16 and f16; 0 when empty.
  size_t element_bytes() const;
  // Bytes of a pushed gradient number: 4 for f32, 2 for bf16; 0 when empty.
  size_t gradient_element_bytes() const;
  // Bytes of all parameters as pulled: elements() * element_bytes().
  size_t bytes() const;
  // Bytes of a gradient of the whole table: elements() * gradient_element_bytes().
  size_t gradient_bytes() const;
  // Elements of a chunk; ranges start at a multiple of it. 0 for an embedding table.
  uint32_t chunk_elements() const;
  // Names of the arrays of the optimizer's state of a dense table, which Client::PullState() and
  // AssignState() take: those of checkpoints (docs/checkpoint-format.md), such as "exp_avg" and
  // "exp_avg_sq" of adam; then "master", the f32 parameters of a 16-bit table. Empty: there is
  // none, or it is an embedding table.
  std::vector<std::string> state_arrays() const;

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// A handle to an asynchronous operation. It is cheap to copy; copies refer to the same operation. A
// default-constructed ticket is done, with FAILED_PRECONDITION.
class VERBENA_EXPORT Ticket {
 public:
  // Waits until the operation has ended, at the latest at its deadline, and processes completions
  // meanwhile. Returns the operation's status.
  absl::Status Wait();
  // The same, but waits for at most `at_most`. Then it returns DEADLINE_EXCEEDED ("still running"),
  // and the operation continues.
  absl::Status Wait(absl::Duration at_most);
  // Whether the operation has ended. Does not process completions.
  bool Done() const;
  // The status of the ended operation; FAILED_PRECONDITION before.
  absl::Status status() const;
  // Time from the call to the operation's end, or until now if it has not ended.
  absl::Duration Elapsed() const;
  // Ends the operation with CANCELLED unless it has ended. A transfer may still be in flight: see
  // BufferReleased().
  void Cancel();
  // Whether the operation was started. False: the call was refused, for the reason in status(), and
  // has no effect. True with an error in status(): servers may have got requests of it.
  bool Started() const;
  // Whether the library no longer reads or writes the region for this operation. This may be false
  // for a while after a deadline or Cancel(); destroying the region ends the access at once. A push
  // to a sync table with replicas releases its region when its step is committed, because after a
  // failover it may be sent again.
  bool BufferReleased() const;
  // Calls `done` once with the operation's status, from a thread that processes completions, or at
  // once from this thread if the operation has ended. `done` must not block. It may start
  // operations; it must not close or destroy the client. Several callbacks may be added.
  void OnDone(std::function<void(absl::Status)> done);

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// An iteration over the rows of an embedding table, made by Client::Scan(). Copies share one
// position. A default-constructed scan is empty.
//
// **Thread safety**: one thread at a time.
class VERBENA_EXPORT RowScan {
 public:
  // Reads the next n >= 1 rows, in no particular order. Sets *keys to n keys and *rows to
  // n x Table::dim() f32, row after row, and returns true. At the end it returns false, and both
  // are empty. After an error every call returns that error.
  // INVALID_ARGUMENT: an argument is null. FAILED_PRECONDITION: the scan is empty, or the client is
  // closed. NOT_FOUND: the table was dropped. Others as at the top of client.h.
  absl::StatusOr<bool> Next(std::vector<uint64_t>* keys, std::vector<float>* rows);

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace verbena

#endif  // VERBENA_HANDLES_H_
