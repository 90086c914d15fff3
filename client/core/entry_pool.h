// The records of a client, from their creation until they are settled.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_ENTRY_POOL_H_
#define VERBENA_CLIENT_CORE_ENTRY_POOL_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "client/core/entry.h"
#include "client/core/list.h"
#include "client/core/table_state.h"

namespace verbena::client {

class Journal;

class EntryPool {
 public:
  explicit EntryPool(Journal* journal) : journal_(*journal) {}

  // In no queue (Entry::State::kHeld).
  Entry* NewEntry(RequestHandler* handler, TableState* table, Operation* operation);
  Entry* NewRest(const Entry& entry);                 // of the same record, without groups
  Entry* NewGroup(const Entry& entry, size_t group);  // of the same record, with this group alone
  // Splits off the groups for whose part `same` is false, if any.
  Entry* SplitOff(Entry* entry, absl::FunctionRef<bool(const PartState&)> same);
  // The entry is in no queue.
  void Free(Entry* entry);
  void Detach(Entry* entry);         // from its operation
  void ReleaseBuffer(Entry* entry);  // the caller's memory

  // By its cookie; null: none.
  Entry* At(uint64_t cookie) { return pool_.At(cookie); }
  size_t in_use() const { return pool_.in_use(); }

 private:
  Journal& journal_;
  Pool<Entry> pool_;
  uint64_t order_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_ENTRY_POOL_H_
