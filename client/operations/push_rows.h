// Pushes of rows of embedding tables.
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

  bool Post(Stream* stream, Entry* entry) override;
  void OnReply(Stream* stream, Entry* entry, const Reply& reply) override;
  void OnLaneLost(Entry* entry) override;
  void OnOperationEnd(Entry* entry) override;
  uint64_t BytesOf(const Entry& entry) const override;

 private:
  void Number(Entry* entry) const;
  void OnSettled(Entry* entry, size_t group, const Reply& reply);
  void KeepGroup(const Entry& entry, size_t group);
  void SettleRefused(const Entry& entry, size_t group);
  void EndRefused(Entry* entry, size_t groups, bool late);

  // The statuses of the groups in the reply that is being handled.
  std::vector<ReplyStatus> statuses_ = std::vector<ReplyStatus>(kMaxGroups);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_PUSH_ROWS_H_
