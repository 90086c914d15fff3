// The records of a client, from their creation until they are settled.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_REQUEST_POOL_H_
#define VERBENA_CLIENT_CORE_REQUEST_POOL_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "client/core/list.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"

namespace verbena::client {

class RequestTracker;

class RequestPool {
 public:
  explicit RequestPool(RequestTracker* tracker) : tracker_(*tracker) {}

  // In no queue (PendingRequest::State::kHeld).
  PendingRequest* NewRequest(RequestHandler* handler, TableState* table, Operation* operation);
  PendingRequest* NewRest(const PendingRequest& entry);  // of the same record, without groups
  PendingRequest* NewGroup(const PendingRequest& entry,
                           size_t group);  // of the same record, with this group alone
  // Splits off the groups for whose part `same` is false, if any.
  PendingRequest* SplitOff(PendingRequest* entry, absl::FunctionRef<bool(const PartState&)> same);
  // The entry is in no queue.
  void Free(PendingRequest* entry);
  void Detach(PendingRequest* entry);         // from its operation
  void ReleaseBuffer(PendingRequest* entry);  // the caller's memory

  // By its cookie; null: none.
  PendingRequest* At(uint64_t cookie) { return pool_.At(cookie); }
  size_t in_use() const { return pool_.in_use(); }

 private:
  RequestTracker& tracker_;
  Pool<PendingRequest> pool_;
  uint64_t order_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_REQUEST_POOL_H_
