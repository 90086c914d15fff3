// Requests for the commit of a step.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_AWAIT_H_
#define VERBENA_CLIENT_OPERATIONS_AWAIT_H_

#include <cstdint>
#include <vector>

#include "client/operations/request_handler.h"

namespace verbena::client {

class AwaitRequests final : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // For these parts, which are on that stream.
  void Add(TableState* table, uint64_t version, Stream* stream, const std::vector<uint32_t>& parts);
  // For all parts whose commit is not known.
  void AddAll(TableState* table, uint64_t version);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_AWAIT_H_
