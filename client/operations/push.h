// Pushes of chunks of dense tables: gradients, or parameters or state that replace those of the
// table.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_PUSH_H_
#define VERBENA_CLIENT_OPERATIONS_PUSH_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/operations/request_handler.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::client {

struct AssignedState;

class PushRequests final : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // Chunks [first, +count), contiguous from `offset` of operation->blocks[0].
  void Add(Operation* operation, uint32_t first, uint32_t count, size_t offset,
           const AssignedState& state);
  // The same, and each chunk's pull into operation->blocks[1] follows its push.
  void AddWithPulls(Operation* operation, uint32_t first, uint32_t count, size_t push_offset,
                    size_t pull_offset, uint64_t min_version);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;
  uint64_t BytesOf(const PendingRequest& entry) const override;

 private:
  ElementType TypeIn(const TableState& table) const;
  // Bytes from one chunk's data to the next in the caller's memory.
  size_t Stride(const TableState& table, uint32_t elements) const;
  PendingRequest* New(Operation* operation, uint32_t chunk, std::byte* data);
  std::optional<rdma::RemoteMemory> Refer(Stream* stream, const PendingRequest& entry,
                                          const rdma::Segment& payload);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_PUSH_H_
