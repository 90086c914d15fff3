// Requests about rows of embedding tables: the division of calls into records.
//
// A call is divided into records of groups. There is one group per partition (key_plan.h has its
// keys), and one record per lane, or more if groups or bytes do not fit.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_ROW_REQUESTS_H_
#define VERBENA_CLIENT_OPERATIONS_ROW_REQUESTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "client/core/key_plan.h"
#include "client/core/table_state.h"
#include "client/operations/request_handler.h"
#include "client/staging/staging.h"

namespace verbena::client {

class RowRequests : public RequestHandler {
 public:
  using RequestHandler::RequestHandler;

  // The server uses staging, not the caller's memory.
  void OnLaneLost(PendingRequest* entry) override;
  void OnOperationEnd(PendingRequest* entry) override;

 protected:
  ~RowRequests() = default;

  // A call on rows, and the maximum number of keys of each record.
  struct Cutting {
    Operation* operation;
    size_t offset;
    uint64_t min_version;
    uint32_t most;
  };
  void Cut(const Cutting& call, absl::Span<const KeyPlan::Range> ranges);

  // The most that one record may have.
  static uint64_t BytesInRecord(const TableState& table, const Staging& staging);
  static uint32_t RowsInRecord(const TableState& table, const Staging& staging);
  static uint32_t BagKeysInRecord(const TableState& table, const Staging& staging);

  static uint32_t CountKeys(const PendingRequest& entry);
  // Writes the keys of the record's groups and the zeros after them.
  static void FillKeys(const PendingRequest& entry, std::byte* to);
  // Writes the groups of a request for rows to the poster's memory.
  void FillGroups(const PendingRequest& entry);

 private:
  PendingRequest* New(const Cutting& call);
  void EnqueueFilled(TableLane* lane);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_ROW_REQUESTS_H_
