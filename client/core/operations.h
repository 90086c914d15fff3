// Operations by id, their deadlines, and the callbacks of those that have ended.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. `done` runs once, in Deliver(), never where the operation is started or ended. So a callback
//     may call any function.
//  2. An operation's slot is reused only when `done` has run and no entry holds its memory.
#ifndef VERBENA_CLIENT_CORE_OPERATIONS_H_
#define VERBENA_CLIENT_CORE_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/core/list.h"
#include "client/core/pending_request.h"

namespace verbena::client {

// Maximum number of outstanding operations.
inline constexpr size_t kMaxOperations = 65536;

class Operations {
 public:
  // Null: kMaxOperations exist.
  Operation* Start(std::string_view name, TableState* table, int64_t now, int64_t deadline_ns,
                   std::function<void(absl::Status)> done);
  // Removes an operation that has no entries and was not returned to the caller.
  void Abandon(Operation* operation);
  // Marks the operation as ended; `done` runs later in Deliver().
  void End(Operation* operation, absl::Status status);
  // Call after the last entry has released the operation's memory.
  void MaybeFree(Operation* operation);
  // For an operation on rows; returned to the pool when the operation is freed.
  std::unique_ptr<KeyPlan> NewPlan();
  std::unique_ptr<BagCall> NewBags();

  uint64_t IdOf(const Operation& operation) const {
    return uint64_t{operation.generation} << 32 | operation.index;
  }
  Operation* Find(uint64_t id);
  const Operation* Find(uint64_t id) const;

  // The live operation with the earliest deadline; null: none.
  Operation* first_deadline() const { return timers_.front(); }
  Operation* first_live() const { return timers_.front(); }
  static Operation* next_live(const Operation* operation) { return operation->timer_links.next; }
  bool has_finished() const { return !finished_.empty(); }
  bool Deliver();
  // Number of operations that are live, or ended and still holding memory.
  size_t in_use() const { return pool_.in_use(); }
  template <typename F>
  void ForEach(F f) const {
    for (size_t i = 0; const Operation* operation = pool_.At(i); ++i) f(*operation);
  }

 private:
  Pool<Operation> pool_;
  std::vector<std::unique_ptr<KeyPlan>> plans_;  // unused
  std::vector<std::unique_ptr<BagCall>> bags_;   // unused
  // By deadline. Callers mostly use one timeout, so a new operation goes (nearly) to the end.
  List<Operation, &Operation::timer_links> timers_;
  List<Operation, &Operation::finished_links> finished_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_OPERATIONS_H_
