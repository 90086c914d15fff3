// Announcements of rows that will be looked up soon.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_PREFETCH_H_
#define VERBENA_CLIENT_OPERATIONS_PREFETCH_H_

#include "client/operations/row_requests.h"

namespace verbena::client {

class PrefetchRequests final : public RowRequests {
 public:
  using RowRequests::RowRequests;

  // The keys in operation->plan.
  void Add(Operation* operation);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_PREFETCH_H_
