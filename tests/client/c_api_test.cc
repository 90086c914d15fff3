// The C API against real daemons: tables, regions, tickets, structs of other releases.
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/c_api_support.h"

namespace verbena::test {
namespace {

TEST_CASE("a program in C trains, step by step and in ranges") {
  Fixture f;
  std::fill_n(Floats(f.gradient), kElements, 0.5f);
  verbena_ticket* raw = nullptr;
  const verbena_range halves[] = {{0, 2048, 0}, {2048, UINT64_MAX, 2048 * 4}};
  std::vector<Handle<verbena_ticket>> pushes;
  for (const verbena_range& half : halves) {
    Good(verbena_push(f.client.get(), f.table.get(), f.gradient.get(), &half, kDefault, &raw));
    pushes.emplace_back(raw);
  }
  Good(verbena_end_step(f.client.get(), f.table.get(), kDefault, &raw));
  const Handle<verbena_ticket> end(raw);
  Handle<verbena_ticket> pull;
  Good(f.PullOf(VERBENA_MIN_VERSION_DEFAULT, kDefault, &pull));
  Good(verbena_ticket_wait(pull.get(), kDefault));
  for (const auto& push : pushes) Good(verbena_ticket_wait(push.get(), kDefault));
  Good(verbena_ticket_wait(end.get(), 10'000));
  CHECK(verbena_ticket_done(end.get()) == 1);
  CHECK(verbena_ticket_status(end.get()) == VERBENA_OK);
  CHECK(verbena_ticket_buffer_released(pull.get()) == 1);
  CHECK(Floats(f.parameters)[0] == 1.5f);
  CHECK(Floats(f.parameters)[kElements - 1] == 1.5f);

  // The whole table at once, in place.
  Good(verbena_push_pull(f.client.get(), f.table.get(), f.gradient.get(), f.gradient.get(), nullptr,
                         kDefault, &raw));
  const Handle<verbena_ticket> both(raw);
  Good(verbena_ticket_wait(both.get(), kDefault));
  CHECK(Floats(f.gradient)[kElements - 1] == 1.0f);

  CHECK(verbena_ticket_elapsed_ns(both.get()) > 0);
  CHECK(verbena_ticket_elapsed_ns(both.get()) == verbena_ticket_elapsed_ns(both.get()));
  CHECK(verbena_ticket_elapsed_ns(nullptr) == 0);

  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(f.client.get(), &statistics));
  CHECK(statistics.bytes_pushed == 2 * kElements * 4);
  CHECK(statistics.bytes_pulled == 2 * kElements * 4);
  CHECK(statistics.lanes_opened == 2);
  std::vector<std::string> transports;
  Good(verbena_client_list_lanes(
      f.client.get(),
      [](const verbena_lane* lane, void* user) {
        CHECK(lane->struct_size == sizeof(verbena_lane));
        CHECK(std::string(lane->state) == "open");
        static_cast<std::vector<std::string>*>(user)->push_back(lane->transport);
      },
      &transports));
  CHECK(transports.size() == 2);
  int missing = 0;
  Good(verbena_client_list_missing_transports(
      f.client.get(),
      [](const char* text, void* user) {
        CHECK(std::strlen(text) > 0);
        ++*static_cast<int*>(user);
      },
      &missing));
}

TEST_CASE("gradient and parameters lie at different offsets of one region") {
  Fixture f;
  const Handle<verbena_region> both = Allocate(f.client.get(), 3 * kElements * 4);
  std::fill_n(Floats(both), 3 * kElements, 0.5f);
  const verbena_range range = {0, UINT64_MAX, kElements * 4};
  verbena_ticket* raw = nullptr;
  Good(verbena_push_pull_to(f.client.get(), f.table.get(), both.get(), both.get(), &range,
                            2 * kElements * 4, kDefault, &raw));
  const Handle<verbena_ticket> ticket(raw);
  Good(verbena_ticket_wait(ticket.get(), kDefault));
  CHECK(Floats(both)[kElements - 1] == 0.5f);
  CHECK(Floats(both)[2 * kElements - 1] == 0.5f);
  CHECK(Floats(both)[2 * kElements] == 1.5f);
  CHECK(Floats(both)[3 * kElements - 1] == 1.5f);
  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(f.client.get(), &statistics));
  CHECK(statistics.staged_bytes == 0);
  ExpectError(verbena_push_pull_to(f.client.get(), f.table.get(), both.get(), both.get(), &range,
                                   2 * kElements * 4 - 4, kDefault, &raw),
              VERBENA_INVALID_ARGUMENT, {"overlaps"});
  ExpectError(verbena_push_pull_to(f.client.get(), f.table.get(), both.get(), both.get(), &range,
                                   2 * kElements * 4 + 4, kDefault, &raw),
              VERBENA_INVALID_ARGUMENT, {"too small"});
}

TEST_CASE("a table's priority changes no result") {
  Fixture f;
  Good(verbena_table_set_priority(f.client.get(), f.table.get(), INT32_MIN));
  std::fill_n(Floats(f.gradient), kElements, 0.5f);
  verbena_ticket* raw = nullptr;
  Good(verbena_push_pull(f.client.get(), f.table.get(), f.gradient.get(), f.parameters.get(),
                         nullptr, kDefault, &raw));
  const Handle<verbena_ticket> ticket(raw);
  Good(verbena_table_set_priority(f.client.get(), f.table.get(), INT32_MAX));
  Good(verbena_ticket_wait(ticket.get(), kDefault));
  CHECK(Floats(f.parameters)[0] == 1.5f);
  Good(verbena_table_drop(f.client.get(), "weights", kDefault));
  ExpectError(verbena_table_set_priority(f.client.get(), f.table.get(), 1), VERBENA_NOT_FOUND);
}

TEST_CASE("tables report their properties, are listed, opened again and dropped") {
  Fixture f;
  verbena_table_info info = {};
  info.struct_size = sizeof(info);
  Good(verbena_table_get_info(f.table.get(), &info));
  CHECK(std::string(info.name) == "weights");
  CHECK(std::string(info.job) == "default");
  CHECK(std::string(info.optimizer) == "sgd");
  REQUIRE(info.dimensions == 2);
  CHECK(info.shape[0] == 60);
  CHECK(info.shape[1] == 50);
  CHECK(info.elements == kElements);
  CHECK(info.bytes == kElements * 4);
  CHECK(info.chunk_elements == 1024);
  CHECK(info.rate == 1);
  CHECK(info.dtype == VERBENA_DTYPE_F32);
  CHECK(info.consistency == VERBENA_CONSISTENCY_SYNC);
  CHECK(info.reduction == VERBENA_REDUCTION_MEAN);
  CHECK(info.non_finite == VERBENA_NON_FINITE_REJECT);

  verbena_table_spec other = Spec("other");
  other.consistency = VERBENA_CONSISTENCY_ASYNC;
  const verbena_parameter momentum[] = {{"momentum", 0.5}};
  other.optimizer = "momentum";
  other.parameters = momentum;
  other.parameter_count = 1;
  const uint64_t boundaries[] = {10, 20};
  const double rates[] = {0.5, 0.25};
  other.schedule = VERBENA_SCHEDULE_PIECEWISE;
  other.schedule_boundaries = boundaries;
  other.schedule_boundary_count = 2;
  other.schedule_rates = rates;
  other.schedule_rate_count = 2;
  other.clip_value = 3;
  other.description = "A second table";
  const Handle<verbena_table> second = Create(f.client.get(), other);
  Good(verbena_table_get_info(second.get(), &info));
  CHECK(std::string(info.description) == "A second table");
  verbena_table* raw = nullptr;
  verbena_table_spec changed = other;
  changed.description = "A third table";
  ExpectError(verbena_table_create(f.client.get(), &changed, kDefault, &raw),
              VERBENA_ALREADY_EXISTS,
              {"description is \"A second table\" in the existing table and \"A third table\""});
  changed = other;
  changed.schedule_rate_count = 1;
  ExpectError(
      verbena_table_create(f.client.get(), &changed, kDefault, &raw), VERBENA_INVALID_ARGUMENT,
      {"optimizer.schedule.rates is a list of 1; allowed: as many as boundaries, which are 2"});
  changed = other;
  changed.clip_value = 4;
  ExpectError(verbena_table_create(f.client.get(), &changed, kDefault, &raw),
              VERBENA_ALREADY_EXISTS, {"optimizer.clip_value is 3 in the existing table and 4"});
  std::vector<std::string> names;
  Good(verbena_table_list(
      f.client.get(), kDefault,
      [](const verbena_table_info* shown, void* user) {
        CHECK(shown->elements == kElements);
        static_cast<std::vector<std::string>*>(user)->push_back(shown->name);
      },
      &names));
  CHECK(names == std::vector<std::string>{"weights", "other"});

  Good(verbena_table_open(f.client.get(), "other", kDefault, &raw));
  const Handle<verbena_table> again(raw);
  Good(verbena_table_drop(f.client.get(), "other", kDefault));
  ExpectError(verbena_table_open(f.client.get(), "other", kDefault, &raw), VERBENA_NOT_FOUND,
              {"other"});
  CHECK(raw == nullptr);
  ExpectError(verbena_table_drop(f.client.get(), "other", kDefault), VERBENA_NOT_FOUND, {"other"});
  // The handle lives on, the table does not.
  Good(verbena_table_get_info(again.get(), &info));
  CHECK(std::string(info.name) == "other");
  verbena_ticket* ticket = nullptr;
  ExpectError(
      verbena_push(f.client.get(), again.get(), f.gradient.get(), nullptr, kDefault, &ticket),
      VERBENA_NOT_FOUND, {"push"});
  CHECK(ticket == nullptr);
}

// A struct as a later release may have it.
template <typename T>
struct Later {
  T known;
  uint64_t added;
};

TEST_CASE("structs with another size than the library's") {
  const ProcessCluster cluster({.servers = 1, .shards = 1});
  verbena_connect_options options = Options(cluster.address().c_str());
  verbena_client* client = nullptr;
  options.struct_size = 0;
  ExpectError(verbena_connect(&options, &client), VERBENA_INVALID_ARGUMENT,
              {"struct_size of verbena_connect_options is 0", "Was it set?"});
  options.struct_size = 16;
  ExpectError(verbena_connect(&options, &client), VERBENA_INVALID_ARGUMENT, {"is 16"});

  // Newer programs may have fields that this library does not know, while they do not use them.
  Later<verbena_connect_options> later;
  std::memset(&later, 0xee, sizeof(later));
  verbena_connect_options_init(&later.known, sizeof(later));
  CHECK(later.added == 0);
  CHECK(later.known.struct_size == sizeof(later));
  later.known.cluster = cluster.address().c_str();
  later.added = 7;
  ExpectError(verbena_connect(&later.known, &client), VERBENA_INVALID_ARGUMENT, {"does not know"});
  CHECK(client == nullptr);
  later.added = 0;
  Good(verbena_connect(&later.known, &client));
  const Handle<verbena_client> handle(client);

  Later<verbena_table_spec> spec;
  verbena_table_spec_init(&spec.known, sizeof(spec));
  const size_t size = spec.known.struct_size;
  spec.known = Spec("t");
  spec.known.struct_size = size;
  spec.added = 1;
  verbena_table* table = nullptr;
  ExpectError(verbena_table_create(client, &spec.known, kDefault, &table), VERBENA_INVALID_ARGUMENT,
              {"verbena_table_spec", "does not know"});

  Later<verbena_client_info> info;
  std::memset(&info, 0xee, sizeof(info));
  info.known.struct_size = sizeof(info);
  Good(verbena_client_get_info(client, &info.known));
  CHECK(info.known.rank == 0);
  CHECK(info.known.live_workers == 1);
  CHECK(info.known.incarnation != 0);
  CHECK(info.known.struct_size == sizeof(info));
  CHECK(info.added == 0);
  info.known.struct_size = 8;
  ExpectError(verbena_client_get_info(client, &info.known), VERBENA_INVALID_ARGUMENT, {"is 8"});
  verbena_statistics statistics = {};
  ExpectError(verbena_client_get_statistics(client, &statistics), VERBENA_INVALID_ARGUMENT,
              {"is 0"});
  const Handle<verbena_table> made = Create(client, Spec("t"));
  verbena_table_info table_info = {};
  ExpectError(verbena_table_get_info(made.get(), &table_info), VERBENA_INVALID_ARGUMENT, {"is 0"});
}

TEST_CASE("regions: allocation, registration and invalid arguments") {
  Fixture f;
  CHECK(verbena_region_size(f.parameters.get()) == kElements * 4);
  CHECK(Floats(f.parameters)[kElements - 1] == 0);
  verbena_region* raw = nullptr;
  ExpectError(verbena_region_allocate(f.client.get(), 0, VERBENA_MEMORY_HOST, 0, &raw),
              VERBENA_INVALID_ARGUMENT, {"0 bytes"});
  ExpectError(verbena_region_allocate(f.client.get(), 4096, 7, 0, &raw), VERBENA_INVALID_ARGUMENT,
              {"kind is 7"});
  ExpectError(verbena_region_allocate(f.client.get(), 4096, VERBENA_MEMORY_CUDA, 0, &raw),
              VERBENA_UNAVAILABLE, {"no CUDA driver"});
  ExpectError(
      verbena_region_allocate(f.client.get(), size_t{1} << 62, VERBENA_MEMORY_HOST, 0, &raw),
      VERBENA_RESOURCE_EXHAUSTED, {std::to_string(size_t{1} << 62)});
  std::vector<float> mine(kElements, -1);
  ExpectError(verbena_region_register(f.client.get(), mine.data(), 0, VERBENA_MEMORY_HOST, 0, &raw),
              VERBENA_INVALID_ARGUMENT, {"0 bytes"});
  ExpectError(verbena_region_register(f.client.get(), mine.data(), 64, -1, 0, &raw),
              VERBENA_INVALID_ARGUMENT, {"kind is -1"});
  ExpectError(
      verbena_region_register(f.client.get(), mine.data(), 64, VERBENA_MEMORY_CUDA, 0, &raw),
      VERBENA_UNAVAILABLE, {"no CUDA driver"});
  CHECK(raw == nullptr);
  Good(verbena_region_register(f.client.get(), mine.data(), mine.size() * 4, VERBENA_MEMORY_HOST, 0,
                               &raw));
  const Handle<verbena_region> region(raw);
  CHECK(verbena_region_data(raw) == mine.data());
  verbena_ticket* ticket = nullptr;
  Good(verbena_pull(f.client.get(), f.table.get(), raw, nullptr, VERBENA_MIN_VERSION_DEFAULT,
                    kDefault, &ticket));
  Good(verbena_ticket_wait(ticket, kDefault));
  verbena_ticket_free(ticket);
  CHECK(mine[kElements - 1] == 2);
}

TEST_CASE("an observer pulls, and does not push") {
  Fixture f;
  verbena_connect_options options = Options(f.cluster.address().c_str());
  options.observer = 1;
  const Handle<verbena_client> observer = Connect(options);
  verbena_client_info info = {sizeof(info), 0, 0, 0};
  Good(verbena_client_get_info(observer.get(), &info));
  CHECK(info.rank == -1);
  CHECK(info.live_workers == 1);
  verbena_table* raw = nullptr;
  Good(verbena_table_open(observer.get(), "weights", kDefault, &raw));
  const Handle<verbena_table> table(raw);
  const Handle<verbena_region> region = Allocate(observer.get(), kElements * 4);
  verbena_ticket* ticket = nullptr;
  ExpectError(verbena_push(observer.get(), raw, region.get(), nullptr, kDefault, &ticket),
              VERBENA_FAILED_PRECONDITION, {"observer"});
  ExpectError(verbena_end_step(observer.get(), raw, kDefault, &ticket), VERBENA_FAILED_PRECONDITION,
              {"observer"});
  Good(verbena_pull(observer.get(), raw, region.get(), nullptr, VERBENA_MIN_VERSION_DEFAULT,
                    kDefault, &ticket));
  Good(verbena_ticket_wait(ticket, kDefault));
  verbena_ticket_free(ticket);
  CHECK(Floats(region)[0] == 2);
  // Without followers the primary answers.
  Floats(region)[0] = 0;
  Good(verbena_pull_any(observer.get(), raw, region.get(), nullptr, VERBENA_MIN_VERSION_DEFAULT,
                        2000, kDefault, &ticket));
  Good(verbena_ticket_wait(ticket, kDefault));
  verbena_ticket_free(ticket);
  CHECK(Floats(region)[0] == 2);
  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(observer.get(), &statistics));
  CHECK(statistics.follower_pulls + statistics.follower_redirects == 0);
  ExpectError(verbena_pull_any(observer.get(), raw, region.get(), nullptr,
                               VERBENA_MIN_VERSION_DEFAULT, 0, kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"max_staleness is 0", "1 ms to"});
}

struct Completion {
  int times = 0;
  verbena_status status = VERBENA_OK;
  std::string text;
};

void OnDone(verbena_status status, const char* text, void* user) {
  auto* completion = static_cast<Completion*>(user);
  ++completion->times;
  completion->status = status;
  completion->text = text;
}

TEST_CASE("a ticket ends by its deadline, by cancel, or is waited for a while") {
  Fixture f;
  Handle<verbena_ticket> ready;
  Good(f.PullOf(VERBENA_MIN_VERSION_DEFAULT, kDefault, &ready));
  Good(verbena_ticket_wait(ready.get(), kDefault));
  Completion completion;
  Good(verbena_ticket_on_done(ready.get(), OnDone, &completion));  // at once
  CHECK(completion.times == 1);
  CHECK(completion.status == VERBENA_OK);
  CHECK(completion.text.empty());

  // Version 5: nobody will commit it.
  Handle<verbena_ticket> late;
  Good(f.PullOf(5, 200, &late));
  ExpectError(verbena_ticket_wait(late.get(), kDefault), VERBENA_DEADLINE_EXCEEDED, {"version 5"});
  CHECK(verbena_ticket_status(late.get()) == VERBENA_DEADLINE_EXCEEDED);

  // Also if that passes within the call: it may have sent requests.
  Handle<verbena_ticket> at_once;
  Good(f.PullOf(5, 0, &at_once));
  ExpectError(verbena_ticket_wait(at_once.get(), kDefault), VERBENA_DEADLINE_EXCEEDED);

  Handle<verbena_ticket> running;
  Good(f.PullOf(5, 60'000, &running));
  Completion cancelled;
  Good(verbena_ticket_on_done(running.get(), OnDone, &cancelled));
  ExpectError(verbena_ticket_wait(running.get(), 20), VERBENA_DEADLINE_EXCEEDED, {"still running"});
  CHECK(verbena_ticket_done(running.get()) == 0);
  ExpectError(verbena_ticket_status(running.get()), VERBENA_FAILED_PRECONDITION, {"not done"});
  ExpectError(verbena_ticket_wait(running.get(), -7), VERBENA_INVALID_ARGUMENT,
              {"timeout_ms is -7"});
  Good(verbena_ticket_cancel(running.get()));
  ExpectError(verbena_ticket_wait(running.get(), kDefault), VERBENA_CANCELLED, {"cancelled"});
  CHECK(cancelled.times == 1);
  CHECK(cancelled.status == VERBENA_CANCELLED);
  CHECK_THAT(cancelled.text, Contains("cancelled"));
  Good(verbena_ticket_cancel(running.get()));  // has ended: nothing to do
  // Its memory given back, whatever is still deferred for it.
  f.parameters.reset();
  CHECK(Eventually([&] { return verbena_ticket_buffer_released(running.get()) == 1; }));
}

TEST_CASE("errors are each thread's own; statuses and versions have names") {
  verbena_client* client = nullptr;
  ExpectError(verbena_connect(nullptr, &client), VERBENA_INVALID_ARGUMENT, {"options is NULL"});
  std::string other = "?";
  std::thread([&] { other = verbena_last_error(); }).join();
  CHECK(other.empty());
  CHECK_THAT(verbena_last_error(), Contains("options is NULL"));
  CHECK(std::string(verbena_version()) == VERBENA_VERSION_STRING);
  CHECK(std::string(verbena_status_name(VERBENA_OK)) == "OK");
  CHECK(std::string(verbena_status_name(VERBENA_DATA_LOSS)) == "DATA_LOSS");
  CHECK(std::string(verbena_status_name(VERBENA_UNAUTHENTICATED)) == "UNAUTHENTICATED");
  CHECK(std::string(verbena_status_name(17)) == "?");
  CHECK(std::string(verbena_status_name(-1)) == "?");
}

}  // namespace
}  // namespace verbena::test
