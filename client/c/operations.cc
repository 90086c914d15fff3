// Pushes, pulls and tickets in C.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "client/c/handles.h"
#include "proto/wire/record.h"

namespace verbena::c_api {
namespace {

Range RangeOf(const verbena_range* range) {
  if (range == nullptr) return {};
  return {range->first, range->count, range->region_offset};
}

}  // namespace
}  // namespace verbena::c_api

using verbena::c_api::Begin;
using verbena::c_api::Guarded;
using verbena::c_api::NullArgument;
using verbena::c_api::RangeOf;
using Timeout = std::optional<absl::Duration>;

extern "C" {

verbena_status verbena_push(verbena_client* client, const verbena_table* table,
                            const verbena_region* gradient, const verbena_range* range,
                            int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin("verbena_push", timeout_ms, ticket,
               {{"client", client}, {"table", table}, {"gradient", gradient}},
               [&](Timeout timeout) {
                 return client->client->Push(table->table, gradient->region, RangeOf(range),
                                             {.timeout = timeout, .stream = gradient->stream});
               });
}

verbena_status verbena_assign(verbena_client* client, const verbena_table* table,
                              const verbena_region* parameters, const verbena_range* range,
                              int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin("verbena_assign", timeout_ms, ticket,
               {{"client", client}, {"table", table}, {"parameters", parameters}},
               [&](Timeout timeout) {
                 return client->client->Assign(table->table, parameters->region, RangeOf(range),
                                               {.timeout = timeout, .stream = parameters->stream});
               });
}

verbena_status verbena_assign_rows(verbena_client* client, const verbena_table* table,
                                   const uint64_t* keys, size_t count, const verbena_region* rows,
                                   uint64_t region_offset, int64_t timeout_ms,
                                   verbena_ticket** ticket) {
  const void* const first = count == 0 ? static_cast<const void*>("") : keys;  // NULL is allowed
  return Begin("verbena_assign_rows", timeout_ms, ticket,
               {{"client", client}, {"table", table}, {"keys", first}, {"rows", rows}},
               [&](Timeout timeout) {
                 return client->client->AssignRows(
                     table->table, {keys, count}, rows->region,
                     {.region_offset = region_offset, .timeout = timeout});
               });
}

verbena_status verbena_pull(verbena_client* client, const verbena_table* table,
                            const verbena_region* destination, const verbena_range* range,
                            uint64_t min_version, int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin(
      "verbena_pull", timeout_ms, ticket,
      {{"client", client}, {"table", table}, {"destination", destination}}, [&](Timeout timeout) {
        verbena::PullOptions options = {
            .timeout = timeout, .min_version = {}, .stream = destination->stream};
        if (min_version != VERBENA_MIN_VERSION_DEFAULT) options.min_version = min_version;
        return client->client->Pull(table->table, destination->region, RangeOf(range), options);
      });
}

verbena_status verbena_pull_any(verbena_client* client, const verbena_table* table,
                                const verbena_region* destination, const verbena_range* range,
                                uint64_t min_version, uint32_t max_staleness_ms, int64_t timeout_ms,
                                verbena_ticket** ticket) {
  return Begin(
      "verbena_pull_any", timeout_ms, ticket,
      {{"client", client}, {"table", table}, {"destination", destination}}, [&](Timeout timeout) {
        verbena::PullOptions options = {.timeout = timeout,
                                        .min_version = {},
                                        .stream = destination->stream,
                                        .read_from = verbena::ReadFrom::kAny,
                                        .max_staleness = absl::Milliseconds(max_staleness_ms)};
        if (min_version != VERBENA_MIN_VERSION_DEFAULT) options.min_version = min_version;
        return client->client->Pull(table->table, destination->region, RangeOf(range), options);
      });
}

verbena_status verbena_pull_state(verbena_client* client, const verbena_table* table,
                                  const char* array, const verbena_region* destination,
                                  const verbena_range* range, uint64_t min_version,
                                  int64_t timeout_ms, verbena_ticket** ticket) {
  std::shared_ptr<verbena::StateVersions> versions;
  const verbena_status status =
      Begin("verbena_pull_state", timeout_ms, ticket,
            {{"client", client}, {"table", table}, {"array", array}, {"destination", destination}},
            [&](Timeout timeout) {
              versions = std::make_shared<verbena::StateVersions>();
              verbena::StateOptions options = {.timeout = timeout,
                                               .min_version = {},
                                               .stream = destination->stream,
                                               .versions = versions};
              if (min_version != VERBENA_MIN_VERSION_DEFAULT) options.min_version = min_version;
              return client->client->PullState(table->table, array, destination->region,
                                               RangeOf(range), options);
            });
  if (status == VERBENA_OK && ticket != nullptr) (*ticket)->versions = std::move(versions);
  return status;
}

verbena_status verbena_assign_state(verbena_client* client, const verbena_table* table,
                                    const char* array, uint64_t applies,
                                    const verbena_region* state, const verbena_range* range,
                                    int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin("verbena_assign_state", timeout_ms, ticket,
               {{"client", client}, {"table", table}, {"array", array}, {"state", state}},
               [&](Timeout timeout) {
                 return client->client->AssignState(table->table, array, applies, state->region,
                                                    RangeOf(range),
                                                    {.timeout = timeout, .stream = state->stream});
               });
}

verbena_status verbena_push_pull(verbena_client* client, const verbena_table* table,
                                 const verbena_region* gradient, const verbena_region* destination,
                                 const verbena_range* range, int64_t timeout_ms,
                                 verbena_ticket** ticket) {
  return Begin(
      "verbena_push_pull", timeout_ms, ticket,
      {{"client", client}, {"table", table}, {"gradient", gradient}, {"destination", destination}},
      [&](Timeout timeout) {
        return client->client->PushPull(table->table, gradient->region, destination->region,
                                        RangeOf(range),
                                        {.timeout = timeout, .stream = gradient->stream});
      });
}

verbena_status verbena_push_pull_to(verbena_client* client, const verbena_table* table,
                                    const verbena_region* gradient,
                                    const verbena_region* destination, const verbena_range* range,
                                    uint64_t destination_offset, int64_t timeout_ms,
                                    verbena_ticket** ticket) {
  return Begin(
      "verbena_push_pull_to", timeout_ms, ticket,
      {{"client", client}, {"table", table}, {"gradient", gradient}, {"destination", destination}},
      [&](Timeout timeout) {
        return client->client->PushPull(table->table, gradient->region, destination->region,
                                        RangeOf(range),
                                        {.timeout = timeout,
                                         .stream = gradient->stream,
                                         .destination_offset = destination_offset});
      });
}

verbena_status verbena_end_step(verbena_client* client, const verbena_table* table,
                                int64_t timeout_ms, verbena_ticket** ticket) {
  return Begin(
      "verbena_end_step", timeout_ms, ticket, {{"client", client}, {"table", table}},
      [&](Timeout timeout) { return client->client->EndStep(table->table, {.timeout = timeout}); });
}

verbena_status verbena_set_optimizer(verbena_client* client, const verbena_table* table,
                                     const double* rate, const verbena_parameter* parameters,
                                     size_t parameter_count, int64_t timeout_ms,
                                     verbena_ticket** ticket) {
  constexpr char kCall[] = "verbena_set_optimizer";
  // More are refused by their number.
  const size_t named = std::min<size_t>(parameter_count, verbena::kMaxNamedValues);
  for (size_t i = 1; parameters != nullptr && i < named; ++i) {
    if (!verbena::c_api::NamedBefore(parameters, i)) continue;
    if (ticket != nullptr) *ticket = nullptr;
    return Guarded([&] { return verbena::c_api::NamedTwice(kCall, "parameters", parameters, i); });
  }
  return Begin(kCall, timeout_ms, ticket,
               {{"client", client},
                {"table", table},
                {"parameters", parameter_count > 0 ? static_cast<const void*>(parameters) : table}},
               [&](Timeout timeout) {
                 verbena::OptimizerChange change;
                 if (rate != nullptr) change.rate = *rate;
                 for (size_t i = 0; i < parameter_count; ++i) {
                   const char* name = parameters[i].name;
                   change.parameters[name == nullptr ? "" : name] = parameters[i].value;
                 }
                 return client->client->SetOptimizer(table->table, change, {.timeout = timeout});
               });
}

verbena_status verbena_ticket_wait(verbena_ticket* ticket, int64_t timeout_ms) {
  constexpr char kCall[] = "verbena_ticket_wait";
  return Guarded([&]() -> absl::Status {
    if (ticket == nullptr) return NullArgument(kCall, "ticket");
    Timeout timeout;
    if (absl::Status s = verbena::c_api::ReadTimeout(kCall, timeout_ms, &timeout); !s.ok()) {
      return s;
    }
    return timeout.has_value() ? ticket->ticket.Wait(*timeout) : ticket->ticket.Wait();
  });
}

int verbena_ticket_done(const verbena_ticket* ticket) {
  return ticket == nullptr || ticket->ticket.Done() ? 1 : 0;
}

verbena_status verbena_ticket_status(const verbena_ticket* ticket) {
  return Guarded([&]() -> absl::Status {
    if (ticket == nullptr) return NullArgument("verbena_ticket_status", "ticket");
    return ticket->ticket.status();
  });
}

verbena_status verbena_ticket_state_versions(const verbena_ticket* ticket,
                                             verbena_state_versions* versions) {
  constexpr char kCall[] = "verbena_ticket_state_versions";
  return Guarded([&]() -> absl::Status {
    if (ticket == nullptr) return NullArgument(kCall, "ticket");
    if (versions == nullptr) return NullArgument(kCall, "versions");
    if (absl::Status s = verbena::c_api::CheckSize(
            kCall, "verbena_state_versions", versions->struct_size, sizeof(verbena_state_versions));
        !s.ok()) {
      return s;
    }
    if (ticket->versions == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(kCall, ": the ticket is of another call; allowed: verbena_pull_state()"));
    }
    if (absl::Status s = ticket->ticket.status(); !s.ok()) return s;
    const verbena::StateVersions& v = *ticket->versions;
    verbena::c_api::WriteSized(
        verbena_state_versions{sizeof(verbena_state_versions), v.least_version, v.greatest_version,
                               v.least_applies, v.greatest_applies},
        versions);
    return absl::OkStatus();
  });
}

int64_t verbena_ticket_elapsed_ns(const verbena_ticket* ticket) {
  return ticket == nullptr ? 0 : absl::ToInt64Nanoseconds(ticket->ticket.Elapsed());
}

verbena_status verbena_ticket_cancel(verbena_ticket* ticket) {
  return Guarded([&]() -> absl::Status {
    if (ticket == nullptr) return NullArgument("verbena_ticket_cancel", "ticket");
    ticket->ticket.Cancel();
    return absl::OkStatus();
  });
}

int verbena_ticket_buffer_released(const verbena_ticket* ticket) {
  return ticket == nullptr || ticket->ticket.BufferReleased() ? 1 : 0;
}

verbena_status verbena_ticket_on_done(verbena_ticket* ticket, verbena_done_function done,
                                      void* user) {
  return Guarded([&]() -> absl::Status {
    if (ticket == nullptr) return NullArgument("verbena_ticket_on_done", "ticket");
    if (done == nullptr) return NullArgument("verbena_ticket_on_done", "done");
    ticket->ticket.OnDone([done, user](const absl::Status& status) {
      // The text must end with a NUL, which a string_view does not guarantee.
      const std::string text(status.message().data(), status.message().size());
      done(static_cast<verbena_status>(status.code()), text.c_str(), user);
    });
    return absl::OkStatus();
  });
}

void verbena_ticket_free(verbena_ticket* ticket) { delete ticket; }

}  // extern "C"
