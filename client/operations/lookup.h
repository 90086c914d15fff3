// Lookups of rows of embedding tables, and of their sums by bag.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_LOOKUP_H_
#define VERBENA_CLIENT_OPERATIONS_LOOKUP_H_

#include <cstddef>
#include <cstdint>

#include "client/operations/row_requests.h"

namespace verbena::client {

class LookupRequests final : public RowRequests {
 public:
  using RowRequests::RowRequests;

  // The keys in operation->plan, with rows to `offset` of its block.
  void Add(Operation* operation, size_t offset, uint64_t min_version);
  // Sums of rows, to operation->sums: the bags in operation->bags, built within these limits.
  BagCall::Limits BagLimits(const TableState& table) const;
  void AddBags(Operation* operation, uint64_t min_version);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  uint64_t BytesOf(const PendingRequest& entry) const override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_LOOKUP_H_
