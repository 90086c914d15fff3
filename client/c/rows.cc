// Embedding tables in C.
#include <algorithm>
#include <vector>

#include "client/c/handles.h"

using verbena::c_api::Begin;
using verbena::c_api::Guarded;
using verbena::c_api::NullArgument;
using verbena::c_api::ReadTimeout;
using Timeout = std::optional<absl::Duration>;

static_assert(VERBENA_BAG_MEAN == static_cast<int>(verbena::BagMode::kMean) &&
              VERBENA_BAG_SQRTN == static_cast<int>(verbena::BagMode::kSqrtN));

namespace {

// An array without elements may be NULL.
const void* Elements(const void* data, size_t count) {
  static constexpr char kNone = 0;
  return count == 0 ? &kNone : data;
}

}  // namespace

extern "C" {

verbena_status verbena_push_rows(verbena_client* client, const verbena_table* table,
                                 const uint64_t* keys, size_t count,
                                 const verbena_region* gradients, uint64_t region_offset,
                                 int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin("verbena_push_rows", timeout_ms, ticket,
               {{"client", client},
                {"table", table},
                {"keys", Elements(keys, count)},
                {"gradients", gradients}},
               [&](Timeout timeout) {
                 return client->client->PushRows(
                     table->table, {keys, count}, gradients->region,
                     {.region_offset = region_offset, .timeout = timeout});
               });
}

verbena_status verbena_lookup(verbena_client* client, const verbena_table* table,
                              const uint64_t* keys, size_t count, const verbena_region* rows,
                              uint64_t region_offset, uint64_t min_version, int64_t timeout_ms,
                              verbena_ticket** ticket) {
  return Begin(
      "verbena_lookup", timeout_ms, ticket,
      {{"client", client}, {"table", table}, {"keys", Elements(keys, count)}, {"rows", rows}},
      [&](Timeout timeout) {
        verbena::LookupOptions options = {
            .region_offset = region_offset, .timeout = timeout, .min_version = {}};
        if (min_version != VERBENA_MIN_VERSION_DEFAULT) options.min_version = min_version;
        return client->client->Lookup(table->table, {keys, count}, rows->region, options);
      });
}

verbena_status verbena_lookup_bags(verbena_client* client, const verbena_table* table,
                                   const uint64_t* keys, size_t count, const uint64_t* offsets,
                                   size_t bags, const float* weights, int32_t mode,
                                   const verbena_region* sums, uint64_t region_offset,
                                   uint64_t min_version, int64_t timeout_ms,
                                   verbena_ticket** ticket) {
  constexpr char kCall[] = "verbena_lookup_bags";
  if (mode < VERBENA_BAG_SUM || mode > VERBENA_BAG_SQRTN) {
    if (ticket != nullptr) *ticket = nullptr;
    return Guarded([&] {
      return absl::InvalidArgumentError(absl::StrCat(
          kCall, ": mode is ", mode, "; allowed: ", VERBENA_BAG_SUM, "..", VERBENA_BAG_SQRTN));
    });
  }
  return Begin(kCall, timeout_ms, ticket,
               {{"client", client},
                {"table", table},
                {"keys", Elements(keys, count)},
                {"offsets", Elements(offsets, std::max(bags, count))},
                {"sums", sums}},
               [&](Timeout timeout) {
                 verbena::BagOptions options = {
                     .mode = static_cast<verbena::BagMode>(mode),
                     .weights = {weights, weights == nullptr ? 0 : count},
                     .region_offset = region_offset,
                     .timeout = timeout,
                     .min_version = {}};
                 if (min_version != VERBENA_MIN_VERSION_DEFAULT) options.min_version = min_version;
                 return client->client->LookupBags(table->table, {keys, count}, {offsets, bags},
                                                   sums->region, options);
               });
}

verbena_status verbena_prefetch(verbena_client* client, const verbena_table* table,
                                const uint64_t* keys, size_t count, int64_t timeout_ms,
                                verbena_ticket** ticket) {
  return Begin("verbena_prefetch", timeout_ms, ticket,
               {{"client", client}, {"table", table}, {"keys", Elements(keys, count)}},
               [&](Timeout timeout) {
                 return client->client->Prefetch(table->table, {keys, count}, {.timeout = timeout});
               });
}

verbena_status verbena_scan(verbena_client* client, const verbena_table* table, int64_t timeout_ms,
                            verbena_rows_function show, void* user) {
  constexpr char kCall[] = "verbena_scan";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (table == nullptr) return NullArgument(kCall, "table");
    if (show == nullptr) return NullArgument(kCall, "show");
    verbena::ScanOptions options;
    if (absl::Status s = ReadTimeout(kCall, timeout_ms, &options.timeout); !s.ok()) return s;
    auto scan = client->client->Scan(table->table, options);
    if (!scan.ok()) return scan.status();
    std::vector<uint64_t> keys;
    std::vector<float> rows;
    while (true) {
      auto more = scan->Next(&keys, &rows);
      if (!more.ok()) return more.status();
      if (!*more) return absl::OkStatus();
      if (show(keys.data(), rows.data(), keys.size(), user) != 0) {
        return absl::CancelledError("verbena_scan: `show` ended it");
      }
    }
  });
}

}  // extern "C"
