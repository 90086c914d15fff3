// Pulls of chunks of dense tables: of parameters, or of an array of the optimizer's state.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_PULL_H_
#define VERBENA_CLIENT_OPERATIONS_PULL_H_

#include <cstddef>
#include <cstdint>

#include "client/operations/request_handler.h"

namespace verbena::client {

class PullRequests final : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // Chunks [first, +count), contiguous to `offset` of operation->blocks[1].
  void Add(Operation* operation, uint32_t first, uint32_t count, size_t offset,
           uint64_t min_version, uint8_t array);
  // A record for one chunk, in no queue.
  PendingRequest* New(Operation* operation, uint32_t chunk, std::byte* data, uint64_t min_version);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;
  uint64_t BytesOf(const PendingRequest& entry) const override;

 private:
  ElementType TypeIn(const TableState& table) const;
  bool Decodes(const TableState& table) const;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_PULL_H_
