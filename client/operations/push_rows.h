// Pushes of rows of embedding tables: gradients, or parameters that replace those of the table.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_PUSH_ROWS_H_
#define VERBENA_CLIENT_OPERATIONS_PUSH_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/operations/row_requests.h"

namespace verbena::client {

class PushRowsRequests final : public RowRequests {
 public:
  using RowRequests::RowRequests;

  // The keys in operation->plan, with rows from `offset` of its block.
  void Add(Operation* operation, size_t offset);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;
  uint64_t BytesOf(const PendingRequest& entry) const override;

 private:
  void Number(PendingRequest* entry) const;
  void OnSettled(PendingRequest* entry, size_t group, const Reply& reply);
  void KeepGroup(const PendingRequest& entry, size_t group);
  void SettleRefused(const PendingRequest& entry, size_t group);
  void EndRefused(PendingRequest* entry, size_t groups, bool late);

  // The statuses of the groups in the reply that is being handled.
  std::vector<ReplyStatus> statuses_ = std::vector<ReplyStatus>(kMaxGroups);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_PUSH_ROWS_H_
