// Scans of the rows of a partition.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_SCAN_H_
#define VERBENA_CLIENT_OPERATIONS_SCAN_H_

#include <cstdint>

#include "client/operations/row_requests.h"

namespace verbena::client {

class ScanRequests final : public RowRequests {
 public:
  using RowRequests::RowRequests;

  // Adds one record, with the result in operation->scan.
  void Add(Operation* operation, uint32_t part, uint64_t cursor);

  bool Post(Stream* stream, PendingRequest* entry) override;
  void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) override;
  uint64_t BytesOf(const PendingRequest& entry) const override;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_SCAN_H_
