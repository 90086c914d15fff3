// A table's optimizer: the one of its specification, and the values that were changed since
// (SetOptimizer), by slice.
//
// A change is in force from a step on. Changes of several workers for the same step are merged in
// the order of their ranks, and those of clients that are no workers come before them. Changes of
// steps that all chunks of the slice have committed are merged into one.
//
// **Thread safety**: one owner thread. The optimizers are immutable.
//
// A client sends a change again whose answer it has not got, with its number, and sends the next
// one after that. So the last number of each client tells whether a change is new.
//
// Invariants:
//  1. A slice's changes are a function of the calls of Add() and Restart(), so a replica that makes
//     the same calls has equal changes.
//  2. A slice has at most three changes of a rank, since Add() is called for the open step and the
//     next two only, and four of clients that are no workers (AfterWorkers()).
#ifndef VERBENA_SHARD_TABLE_TABLE_OPTIMIZER_H_
#define VERBENA_SHARD_TABLE_TABLE_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/optimizer/optimizer.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

using OptimizerPointer = std::shared_ptr<const Optimizer>;

struct OptimizerChange {
  uint64_t from = 0;    // step from which it is in force; 0: at once
  uint64_t client = 0;  // incarnation; 0: known by its sequence among the worker's pushes
  uint64_t number = 0;  // of the client's changes, growing
  int32_t rank = -1;    // of the worker; less than 0: not a worker's
  std::vector<NamedValue> values;
};

class TableOptimizer {
 public:
  TableOptimizer(const v1::Optimizer& spec, std::unique_ptr<Optimizer> initial);

  // By the specification. State arrays and the like never change.
  const Optimizer& initial() const { return *initial_; }
  // For the apply to the slice that makes version step + 1.
  const OptimizerPointer& At(uint32_t slice, uint64_t step);
  // The specification with the values of that apply, and the number of changes; 0: none.
  v1::Optimizer SpecAt(uint32_t slice, uint64_t step, uint64_t* changes) const;
  // The step from which the last change is in force.
  uint64_t LastFrom(uint32_t slice) const;

  absl::Status Check(absl::Span<const NamedValue> values) const;
  // The first step, `step` at the least, for which and after which no worker has changed one of
  // these values: there a change by another client is in force.
  uint64_t AfterWorkers(uint32_t slice, absl::Span<const NamedValue> values, uint64_t step) const;
  // Adds a change whose values Check() allows. `least`: the least version in the slice; changes of
  // steps before it are merged. Returns the step from which the change is in force; *added is false
  // if the client has made it before.
  uint64_t Add(uint32_t slice, const OptimizerChange& change, uint64_t least, bool* added);
  // A new generation of the job: all changes are in force from its first step on.
  void Restart(uint32_t slice);
  // The slice is gone: a later one has the values of the specification.
  void Forget(uint32_t slice);
  // Clients for which `gone` is true send nothing any more.
  void ForgetClients(absl::FunctionRef<bool(uint64_t client)> gone);

  // ---- replicas ----
  // All changes of the slice, and the last number of each client, as the data of a kOptimizer;
  // empty: there is none.
  uint32_t Count(uint32_t slice) const;
  std::vector<std::byte> Encode(uint32_t slice) const;
  static std::vector<std::byte> Encode(const OptimizerChange& change);
  static size_t EncodedBytes(size_t values) {
    return sizeof(OptimizerChangeHeader) + values * sizeof(NamedValue);
  }
  // Adds `count` changes. False: the data does not have that shape, and nothing has changed.
  bool AddEncoded(uint32_t slice, uint32_t count, absl::Span<const std::byte> data, uint64_t least);
  uint64_t Digest(uint32_t slice) const;

 private:
  struct Entry {
    uint64_t from = 0;
    int32_t rank = -1;
    std::vector<NamedValue> values;
    uint64_t changes = 1;   // that are merged in it
    OptimizerPointer made;  // by all values up to this entry; null: not made yet
  };
  // In the order in which they are merged.
  using Entries = std::vector<Entry>;
  struct Last {
    uint64_t number = 0;
    uint64_t from = 0;
  };
  struct Slice {
    Entries entries;
    std::map<uint64_t, Last> last;  // change of each client
  };

  Slice* Of(uint32_t slice);
  const Entries* Find(uint32_t slice) const;
  static void Append(const Entry& entry, const OptimizerChange& of, std::vector<std::byte>* out);
  // Index behind the last entry that is in force at `step`.
  static size_t EndOf(const Entries& entries, uint64_t step);
  static std::vector<NamedValue> ValuesOf(const Entries& entries, size_t end);
  OptimizerPointer Make(const std::vector<NamedValue>& values);
  static void MergeBefore(uint64_t step, Entries* entries);
  void Insert(uint32_t slice, Entry entry, uint64_t least);

  const v1::Optimizer spec_;
  const OptimizerPointer initial_;
  std::vector<v1::OptimizerValue> changeable_;
  std::vector<Slice> slices_;
  // The last optimizer that was made: most slices have the same changes.
  std::vector<NamedValue> made_of_;
  OptimizerPointer made_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_TABLE_OPTIMIZER_H_
