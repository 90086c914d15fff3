// Changes of the values of a table's optimizer.
//
// Without sequences among those of pushes (sync tables; observers) nothing else of the table is
// posted to a shard before it has answered the change. So no push can commit the step for which a
// change is, before the change and its replicas are there; and the numbers of a client's changes
// arrive in order, which is how a shard knows one that is sent again.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_SET_OPTIMIZER_H_
#define VERBENA_CLIENT_OPERATIONS_SET_OPTIMIZER_H_

#include "client/operations/request_handler.h"

namespace verbena::client {

class SetOptimizerRequests final : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // The values in operation->change, for all partitions of its table.
  void Add(Operation* operation);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;

 private:
  // Whether its sequences are in those of the worker's pushes.
  bool Numbers(const TableState& table) const;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_SET_OPTIMIZER_H_
