// Sorts the keys of a call on an embedding table before the call enters the core.
//
// A call with many keys sorts them on its own thread, so that millions of keys do not delay other
// calls: ClientCore::StartKeys() or StartBags(), KeySort::Run(), then the call. With few keys the
// call sorts them itself, which is cheaper than entering the core twice.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_CLIENT_CORE_KEY_SORT_H_
#define VERBENA_CLIENT_CORE_KEY_SORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "client/core/bag_call.h"
#include "client/core/key_plan.h"

namespace verbena::client {

class KeySort {
 public:
  // Sorting this many keys takes more than 1 ms.
  static constexpr size_t kManyKeys = 16 * 1024;

  // The table that the keys belong to.
  struct Of {
    uint32_t table = 0;
    uint32_t partitions = 0;
  };
  // At most kMaxKeys. `keys` and the memory that `bags` refers to must be valid until Run()
  // has returned.
  KeySort(absl::Span<const uint64_t> keys, Of of) : keys_(keys), of_(of) {}
  KeySort(const BagKeys& bags, const BagCall::Limits& limits, Of of)
      : bags_(bags), limits_(limits), of_(of) {}

  // Call once.
  void Run();
  // The result of Run(), once; null: Run() made none of that kind.
  std::unique_ptr<KeyPlan> TakePlan() { return std::move(plan_); }
  std::unique_ptr<BagCall> TakeBags() { return std::move(bag_call_); }

 private:
  const absl::Span<const uint64_t> keys_;
  const std::optional<BagKeys> bags_;
  const BagCall::Limits limits_ = {};
  const Of of_;
  std::unique_ptr<KeyPlan> plan_;
  std::unique_ptr<BagCall> bag_call_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_KEY_SORT_H_
