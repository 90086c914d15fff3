// Implementation of ClientCore; private to client_core.cc and the files with its calls.
//
// **Thread safety**: that of ClientCore.
#ifndef VERBENA_CLIENT_CORE_CLIENT_CORE_IMPL_H_
#define VERBENA_CLIENT_CORE_CLIENT_CORE_IMPL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/client_core.h"
#include "client/core/lane_set.h"
#include "client/core/operations.h"
#include "client/core/request_tracker.h"
#include "client/core/session.h"
#include "client/registrar.h"
#include "client/staging/push_buffers.h"
#include "client/staging/staging.h"

namespace verbena::client {

struct ClientCore::Impl {
  explicit Impl(CoreOptions o);

  void OnView(const ViewDifference& what) {
    // Lanes depend on servers alone.
    if (what.all || what.placement) lanes.OnView();
    tracker.tables.OnView(what);
    tracker.admissions.OnView();
  }
  void Close(const absl::Status& status) {
    tracker.settlement.EndAll(status);
    lanes.CloseAll(status);
  }

  // The checked arguments of a call on a dense table.
  struct Target {
    TableState* table = nullptr;
    uint32_t first = 0, chunks = 0;
  };
  // The numbers that are in its memory, or come there.
  enum class Data : uint8_t { kGradients, kParameters, kPulled, kState, kPulledState };
  absl::StatusOr<Target> Check(std::string_view what, uint32_t table, const Slice& slice,
                               Data data);
  // The corresponding checks for an embedding table.
  absl::StatusOr<TableState*> CheckKeys(std::string_view what, uint32_t table,
                                        absl::Span<const uint64_t> keys, bool push);
  absl::StatusOr<TableState*> CheckRows(std::string_view what, uint32_t table,
                                        absl::Span<const uint64_t> keys, const Rows& rows,
                                        bool push);
  absl::StatusOr<TableState*> CheckBags(uint32_t table, const BagKeys& bags, const Rows& sums);
  // Sorts the keys unless `sorted` has them.
  std::unique_ptr<KeyPlan> PlanOf(absl::Span<const uint64_t> keys, const TableState& table,
                                  KeySort* sorted);
  absl::StatusOr<TableState*> CheckTable(std::string_view what, uint32_t table, bool push);
  // Remembers the name of a table that was created or opened, and passes it on.
  std::function<void(absl::StatusOr<v1::Table>)> Remembering(
      std::function<void(absl::StatusOr<v1::Table>)> done);
  // NOT_FOUND with the name and id.
  absl::Status NoSuchTable(std::string_view what, uint32_t table) const;
  absl::Status CheckRange(const TableState& table, const Slice& slice) const;
  absl::Status CheckMemory(const TableState& table, const Slice& slice, Data data) const;
  // For a table with a codec: checks that memory in the slice can be encoded (gradients) or decoded
  // to.
  static absl::Status CheckCodec(const TableState& table, const Slice& slice, Data data);
  // For such a table: the encoding that runs before the call.
  absl::StatusOr<std::unique_ptr<PushEncoding>> NewEncoding(const Target& target,
                                                            const Slice& slice);
  // The gradient that `operation` pushes. For such a table it is the slice encoded chunk by chunk,
  // including the residual of earlier pushes, and *offset is its start. For other tables it is the
  // slice. `encoded` was run; null: this call encodes.
  absl::Status Encoded(const Target& target, const Slice& slice,
                       std::unique_ptr<PushEncoding> encoded, Operation* operation, size_t* offset);
  absl::StatusOr<Operation*> Start(std::string_view name, TableState* table, int64_t deadline_ns,
                                   Done done);
  OperationId Started(Operation* operation) {
    tracker.Started(operation);
    tracker.poster.Pump();
    return operations.IdOf(*operation);
  }

  // Ends an operation that has no work.
  OperationId EndedAtOnce(Operation* operation) {
    tracker.settlement.End(operation, absl::OkStatus());
    return operations.IdOf(*operation);
  }

  // Call before an operation is started, ended or closed. The sleeping thread's promise to wait for
  // the last reply covers only the one operation that was live when it armed the endpoints.
  void WithdrawPatience();

  const CoreOptions options;
  bool patient = false;  // armed with SleepUntil::kLastAnswer
  bool missed = false;   // something arrived without a wake-up: RunOnce() is due at once
  Random random;
  Operations operations;
  Staging staging, packing;
  PushBuffers push_buffers;
  LeaseKeeper keeper;
  Registrar registrar;
  Session session;
  RequestTracker tracker;
  LaneSet lanes;
  // By id, of tables that this client created or opened: the newest ones.
  static constexpr size_t kMostTableNames = 4096;
  std::map<uint32_t, std::string> table_names;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_CLIENT_CORE_IMPL_H_
