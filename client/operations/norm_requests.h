// The common part of requests for norms and totals.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_NORM_REQUESTS_H_
#define VERBENA_CLIENT_OPERATIONS_NORM_REQUESTS_H_

#include "client/operations/request_handler.h"

namespace verbena::client {

class NormRequests : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  void OnLaneLost(PendingRequest* entry) override;

 protected:
  ~NormRequests() = default;

  // Writes the groups of the request to the poster's memory.
  void FillGroups(const PendingRequest& entry);
  // Handles final refusals of parts. True: one ended more than this record.
  bool OnFatal(PendingRequest* entry, const Reply& reply);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_NORM_REQUESTS_H_
