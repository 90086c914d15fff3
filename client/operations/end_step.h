// Ends of steps.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_END_STEP_H_
#define VERBENA_CLIENT_OPERATIONS_END_STEP_H_

#include "client/operations/request_handler.h"

namespace verbena::client {

class EndStepRequests final : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // Ends the open step of `table`. async: `operation` (if any) waits for its records. sync: `await`
  // is true if the commit is requested.
  void Add(TableState* table, Operation* operation, bool await);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_END_STEP_H_
