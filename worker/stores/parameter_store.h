// Storage of a training loop's parameters: a cluster, or (for reference) this process.
//
// Push, EndStep and Pull start operations on buffers the store owns; Wait() ends them all.
//
//     store->Pull(i) ...; store->Wait();                       parameters() are the initial ones
//     fill gradient(); store->Push(i) ...; store->EndStep(); store->Pull(i) ...; store->Wait();
//
// Embedding tables have operations of their own on rows() (row_store.h); EndStep() ends their step
// too, and Wait() waits for their pushes too, but not for lookups.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. Between a Push or Pull and the Wait() that ends it, the caller leaves the buffer alone.
#ifndef VERBENA_WORKER_STORES_PARAMETER_STORE_H_
#define VERBENA_WORKER_STORES_PARAMETER_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/models/layout.h"
#include "worker/stores/row_store.h"

namespace verbena::worker {

enum class Consistency { kSync, kSsp, kAsync };

// How the tables of a model are trained.
struct TrainingSpec {
  Consistency consistency = Consistency::kSync;
  uint32_t staleness = 0;          // ssp
  std::string optimizer = "adam";  // one that the servers know
  double rate = 0.01;
  std::optional<double> weight_decay = std::nullopt;  // none: the optimizer's default
  double clip_global_norm = 0;                        // of a step, over all tables; 0: none
  uint64_t warmup_applies = 0;  // to a chunk, over which the rate rises; 0: none
  uint64_t cosine_applies = 0;  // over which it falls to 0; 0: it is constant
  uint64_t seed = 1;            // of the initial parameters
  bool sum = false;             // workers' gradients are summed, not averaged
  // Options of the tables, names and values as on a command line (proto/spec/table_options.h). One
  // is set in the tables that may have this value: {"push_codec", "sign"} in dense ones.
  std::vector<std::pair<std::string, std::string>> table_options = {};
};

struct StoreStatistics {
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pulled = 0;
  uint64_t ssp_pulls = 0;     // pull requests to ssp tables
  uint64_t steps_behind = 0;  // of the slowest worker, summed over these requests
  std::string transport;      // the transport in use
};

// Steps that a tensor's parts have taken since it was initialised.
struct AppliedSteps {
  uint64_t least = 0, greatest = 0;
};

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  virtual const Layout& layout() const = 0;
  // Identifies this run of the job: the same for all of its workers, different for every other run.
  // 0: the workers begin together, and no worker joins later.
  virtual uint64_t run() const { return 0; }
  // Arenas laid out by layout().
  virtual float* gradient() = 0;
  virtual float* parameters() = 0;
  // Buffers on each of the model's GPUs, if there are any. A push sends the sum of the GPUs'
  // gradients, and a pull writes to each GPU, for all tensors but counters. parameters() are then a
  // copy made by Wait().
  virtual absl::Span<float* const> device_gradients() const { return {}; }
  virtual absl::Span<float* const> device_parameters() const { return {}; }

  virtual void Push(size_t tensor) = 0;
  virtual void EndStep() = 0;  // of every tensor and embedding table
  virtual void Pull(size_t tensor) = 0;
  // Pulls every tensor and waits. Returns the steps that each has taken; none: they are not kept,
  // or not all servers report them.
  virtual absl::StatusOr<std::vector<AppliedSteps>> PullApplied();
  // The first error of the operations started since the last Wait().
  virtual absl::Status Wait() = 0;

  // Never null; a model without embedding tables has none here.
  virtual RowStore* rows() = 0;

  virtual StoreStatistics statistics() const = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_PARAMETER_STORE_H_
