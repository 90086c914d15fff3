// Calls on embedding tables: checks them and passes them to the tracker.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core_impl.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {
namespace {

absl::Status NotEmbedding(absl::string_view call, const TableState& table) {
  return absl::InvalidArgumentError(absl::StrCat(
      call, ": table '", table.name(), "' is a dense table (dim is 0): use Push() and Pull()"));
}

// Checks memory for `count` rows of `dim` numbers each; `what` is their name in errors.
absl::Status CheckRowMemory(const TableState& table, size_t count, absl::string_view what,
                            const ClientCore::Rows& rows) {
  if (rows.block == nullptr) {
    return absl::InvalidArgumentError("the region is empty, or was destroyed");
  }
  if (rows.block->device() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the region is memory of ", rows.block->device()->name(),
                     "; rows are packed by the host: use a region of the kind host or pinned"));
  }
  if (rows.offset % sizeof(float) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region_offset is ", rows.offset, "; allowed: multiples of ", sizeof(float)));
  }
  const size_t size = rows.block->size();
  const size_t left = rows.offset > size ? 0 : size - rows.offset;
  const size_t needed = count * table.row_bytes();
  if (needed <= left) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the region is too small: ", count, " ", what,
                                                 " of table '", table.name(), "' (dim ", table.dim,
                                                 ") need ", needed, " bytes; the region has ", size,
                                                 " bytes, ", left, " from offset ", rows.offset));
}

// Checks that keys, offsets and weights of a lookup of bags are consistent.
absl::Status CheckBagKeys(const BagKeys& bags) {
  const size_t keys = bags.keys.size();
  if (bags.mode > BagMode::kSqrtN) {
    return absl::InvalidArgumentError(absl::StrCat("the mode is ", static_cast<int>(bags.mode),
                                                   "; allowed: 0 (sum), 1 (mean), 2 (sqrt-n)"));
  }
  if (keys > kMaxKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", keys, " keys; allowed: 0..", kMaxKeys, " in one call"));
  }
  const size_t least_bags = keys == 0 ? 0 : 1;
  if (bags.offsets.size() < least_bags || bags.offsets.size() > kMaxKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", bags.offsets.size(), " offsets, one for each bag, and ", keys,
                     " keys; allowed: ", least_bags, "..", kMaxKeys, " in one call"));
  }
  if (!bags.weights.empty() && bags.weights.size() != keys) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", bags.weights.size(),
                                                   " weights; allowed: none, or one for each of ",
                                                   keys, " keys"));
  }
  for (size_t i = 0; i < bags.offsets.size(); ++i) {
    const uint64_t least = i == 0 ? 0 : bags.offsets[i - 1];
    const uint64_t most = i == 0 ? 0 : keys;
    if (bags.offsets[i] >= least && bags.offsets[i] <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("offsets[", i, "] is ", bags.offsets[i], "; allowed: ", least, "..", most));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TableState*> ClientCore::Impl::CheckKeys(std::string_view what, uint32_t id,
                                                        absl::Span<const uint64_t> keys,
                                                        bool push) {
  const absl::string_view call(what.data(), what.size());
  auto table = CheckTable(what, id, push);
  if (!table.ok()) return table;
  if (!(*table)->embedding()) return NotEmbedding(call, **table);
  if (keys.size() > kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat(
        call, ": there are ", keys.size(), " keys; allowed: 0..", kMaxKeys, " in one call"));
  }
  return table;
}

absl::StatusOr<TableState*> ClientCore::Impl::CheckRows(std::string_view what, uint32_t id,
                                                        absl::Span<const uint64_t> keys,
                                                        const Rows& rows, bool push) {
  auto table = CheckKeys(what, id, keys, push);
  if (!table.ok()) return table;
  if (absl::Status s = CheckRowMemory(**table, keys.size(), "rows", rows); !s.ok()) {
    const absl::string_view call(what.data(), what.size());
    return absl::Status(s.code(), absl::StrCat(call, ": ", s.message()));
  }
  return table;
}

absl::StatusOr<TableState*> ClientCore::Impl::CheckBags(uint32_t id, const BagKeys& bags,
                                                        const Rows& sums) {
  constexpr char kCall[] = "lookup of bags";
  auto table = CheckTable(kCall, id, false);
  if (!table.ok()) return table;
  if (!(*table)->embedding()) return NotEmbedding(kCall, **table);
  absl::Status s = CheckBagKeys(bags);
  if (s.ok()) s = CheckRowMemory(**table, bags.offsets.size(), "bags", sums);
  if (s.ok()) return table;
  return absl::Status(s.code(), absl::StrCat(kCall, ": ", s.message()));
}

std::unique_ptr<KeyPlan> ClientCore::Impl::PlanOf(absl::Span<const uint64_t> keys,
                                                  const TableState& table, KeySort* sorted) {
  std::unique_ptr<KeyPlan> plan = operations.NewPlan();
  // Each plan becomes a spare one when its call ends, so that each takes the place of a spare one.
  if (sorted != nullptr) return sorted->TakePlan();
  plan->Build(keys, table.id(), table.partitions, &tracker.key_scratch);
  return plan;
}

std::unique_ptr<KeySort> ClientCore::StartKeys(uint32_t table, absl::Span<const uint64_t> keys) {
  if (keys.size() < KeySort::kManyKeys) return nullptr;
  auto state = impl_->CheckKeys("rows", table, keys, false);
  if (!state.ok()) return nullptr;  // the call returns the error
  return std::make_unique<KeySort>(keys, KeySort::Of{table, (*state)->partitions});
}

std::unique_ptr<KeySort> ClientCore::StartBags(uint32_t table, const BagKeys& bags,
                                               const Rows& sums) {
  if (bags.keys.size() < KeySort::kManyKeys) return nullptr;
  auto state = impl_->CheckBags(table, bags, sums);
  if (!state.ok()) return nullptr;  // the call returns the error
  return std::make_unique<KeySort>(bags, impl_->tracker.requests.lookup_bags.BagLimits(**state),
                                   KeySort::Of{table, (*state)->partitions});
}

absl::StatusOr<OperationId> ClientCore::PushRows(uint32_t table, absl::Span<const uint64_t> keys,
                                                 const Rows& rows, int64_t deadline_ns, Done done,
                                                 std::unique_ptr<KeySort> sorted, Write write) {
  Impl& c = *impl_;
  PushRowsRequests& requests = c.tracker.requests.rows_of(write);
  auto state = c.CheckRows(requests.name(), table, keys, rows, true);
  if (!state.ok()) return state.status();
  auto started = c.Start(requests.name(), *state, deadline_ns, std::move(done));
  if (!started.ok()) return started.status();
  Operation* operation = *started;
  if (keys.empty()) return c.EndedAtOnce(operation);
  operation->plan = c.PlanOf(keys, **state, sorted.get());
  if (absl::Status lost = c.tracker.tables.CheckRowsLost(**state, operation->plan->ranges());
      !lost.ok()) {
    c.tracker.settlement.End(operation, lost);
    return c.operations.IdOf(*operation);
  }
  operation->blocks[0] = rows.block;
  requests.Add(operation, rows.offset);
  if ((*state)->sync) c.tracker.commits.WaitForRows(operation, (*state)->step + 1);
  return c.Started(operation);
}

absl::StatusOr<OperationId> ClientCore::Lookup(uint32_t table, absl::Span<const uint64_t> keys,
                                               const Rows& rows,
                                               std::optional<uint64_t> min_version,
                                               int64_t deadline_ns, Done done,
                                               std::unique_ptr<KeySort> sorted) {
  Impl& c = *impl_;
  auto state = c.CheckRows("lookup", table, keys, rows, false);
  if (!state.ok()) return state.status();
  auto started = c.Start(c.tracker.requests.lookup.name(), *state, deadline_ns, std::move(done));
  if (!started.ok()) return started.status();
  Operation* operation = *started;
  if (keys.empty()) return c.EndedAtOnce(operation);
  operation->plan = c.PlanOf(keys, **state, sorted.get());
  if (absl::Status lost = c.tracker.tables.CheckRowsLost(**state, operation->plan->ranges());
      !lost.ok()) {
    c.tracker.settlement.End(operation, lost);
    return c.operations.IdOf(*operation);
  }
  operation->version = min_version.value_or((*state)->VersionToPull());
  operation->blocks[1] = rows.block;
  c.tracker.requests.lookup.Add(operation, rows.offset, operation->version);
  return c.Started(operation);
}

absl::StatusOr<OperationId> ClientCore::LookupBags(uint32_t table, const BagKeys& bags,
                                                   const Rows& sums,
                                                   std::optional<uint64_t> min_version,
                                                   int64_t deadline_ns, Done done,
                                                   std::unique_ptr<KeySort> sorted) {
  Impl& c = *impl_;
  auto state = c.CheckBags(table, bags, sums);
  if (!state.ok()) return state.status();
  auto started =
      c.Start(c.tracker.requests.lookup_bags.name(), *state, deadline_ns, std::move(done));
  if (!started.ok()) return started.status();
  Operation* operation = *started;
  if (bags.offsets.empty()) return c.EndedAtOnce(operation);
  operation->blocks[1] = sums.block;
  operation->sums = reinterpret_cast<float*>(sums.block->data() + sums.offset);
  operation->bags = c.operations.NewBags();  // as PlanOf() does
  if (sorted != nullptr) {
    operation->bags = sorted->TakeBags();
  } else {
    operation->bags->Build(bags, table, (*state)->partitions,
                           c.tracker.requests.lookup_bags.BagLimits(**state),
                           &c.tracker.key_scratch);
  }
  if (absl::Status lost = c.tracker.tables.CheckRowsLost(**state, operation->bags->ranges());
      !lost.ok()) {
    c.tracker.settlement.End(operation, lost);
    return c.operations.IdOf(*operation);
  }
  operation->version = min_version.value_or((*state)->VersionToPull());
  c.tracker.requests.lookup_bags.AddBags(operation, operation->version);
  return c.Started(operation);
}

absl::StatusOr<OperationId> ClientCore::Prefetch(uint32_t table, absl::Span<const uint64_t> keys,
                                                 int64_t deadline_ns, Done done,
                                                 std::unique_ptr<KeySort> sorted) {
  Impl& c = *impl_;
  auto state = c.CheckKeys("prefetch", table, keys, false);
  if (!state.ok()) return state.status();
  auto started = c.Start(c.tracker.requests.prefetch.name(), *state, deadline_ns, std::move(done));
  if (!started.ok()) return started.status();
  Operation* operation = *started;
  // Without a cold tier all rows are in memory. Without keys there is no work either.
  if (HotBytes((*state)->info.spec()) == 0 || keys.empty()) return c.EndedAtOnce(operation);
  operation->plan = c.PlanOf(keys, **state, sorted.get());
  if (absl::Status lost = c.tracker.tables.CheckRowsLost(**state, operation->plan->ranges());
      !lost.ok()) {
    c.tracker.settlement.End(operation, lost);
    return c.operations.IdOf(*operation);
  }
  c.tracker.requests.prefetch.Add(operation);
  return c.Started(operation);
}

absl::StatusOr<OperationId> ClientCore::Scan(uint32_t table, uint32_t partition, uint64_t cursor,
                                             std::shared_ptr<ScanResult> result,
                                             int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  auto state = c.CheckTable("scan", table, false);
  if (!state.ok()) return state.status();
  if (!(*state)->embedding()) return NotEmbedding("scan", **state);
  if (partition >= (*state)->partitions) {
    return absl::InvalidArgumentError(absl::StrCat("scan: partition is ", partition,
                                                   "; allowed: less than ", (*state)->partitions));
  }
  auto started = c.Start(c.tracker.requests.scan.name(), *state, deadline_ns, std::move(done));
  if (!started.ok()) return started.status();
  Operation* operation = *started;
  if (absl::Status lost = c.tracker.tables.CheckLost(**state, partition, 1); !lost.ok()) {
    c.tracker.settlement.End(operation, lost);
    return c.operations.IdOf(*operation);
  }
  operation->scan = std::move(result);
  c.tracker.requests.scan.Add(operation, partition, cursor);
  return c.Started(operation);
}

}  // namespace verbena::client
