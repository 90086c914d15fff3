// Requests for partial norms: the first phase of a step with a norm.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_NORMS_H_
#define VERBENA_CLIENT_OPERATIONS_NORMS_H_

#include "client/operations/norm_requests.h"

namespace verbena::client {

class NormsRequests final : public NormRequests {
 public:
  using NormRequests::NormRequests;

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_NORMS_H_
