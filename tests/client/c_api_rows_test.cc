// Embedding tables in C against real daemons: results, and each error that verbena.h documents.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/client/c_api_support.h"

namespace verbena::test {
namespace {

constexpr size_t kRows = 3000;

struct RowFixture : Fixture {
  Handle<verbena_table> items = Create(client.get(), EmbeddingSpec("items"));
  Handle<verbena_region> rows = Allocate(client.get(), kRows* kDim * 4);
  std::vector<uint64_t> keys = [] {
    std::vector<uint64_t> all(kRows);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();

  // Looks up `count` keys, to `offset` of `rows`, and waits.
  void Lookup(const uint64_t* some, size_t count, uint64_t offset) {
    verbena_ticket* raw = nullptr;
    Good(verbena_lookup(client.get(), items.get(), some, count, rows.get(), offset,
                        VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw));
    const Handle<verbena_ticket> ticket(raw);
    Good(verbena_ticket_wait(raw, kDefault));
  }
};

TEST_CASE("with an admission count of 2 a key gets its row with the second push") {
  Fixture f;
  verbena_table_spec spec = EmbeddingSpec("counted");
  spec.admission = VERBENA_ADMISSION_MIN_COUNT;
  spec.admission_min_count = 2;
  spec.admission_sketch_bytes = 65536;
  const Handle<verbena_table> items = Create(f.client.get(), spec);
  const Handle<verbena_region> rows = Allocate(f.client.get(), kDim * 4);
  float* v = Floats(rows);
  const uint64_t key = 77;
  for (const float expected : {2.0f, 1.5f, 1.0f}) {
    std::fill_n(v, kDim, 0.5f);
    verbena_ticket* raw = nullptr;
    Good(verbena_push_rows(f.client.get(), items.get(), &key, 1, rows.get(), 0, kDefault, &raw));
    const Handle<verbena_ticket> push(raw);
    Good(verbena_end_step(f.client.get(), items.get(), kDefault, &raw));
    const Handle<verbena_ticket> end(raw);
    Good(verbena_ticket_wait(push.get(), kDefault));
    Good(verbena_ticket_wait(end.get(), kDefault));
    Good(verbena_lookup(f.client.get(), items.get(), &key, 1, rows.get(), 0,
                        VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw));
    const Handle<verbena_ticket> lookup(raw);
    Good(verbena_ticket_wait(lookup.get(), kDefault));
    CHECK(std::all_of(v, v + kDim, [expected](float x) { return x == expected; }));
  }
}

TEST_CASE("rows are looked up, pushed and shown") {
  RowFixture f;
  verbena_table_info info = {};
  info.struct_size = sizeof(info);
  Good(verbena_table_get_info(f.items.get(), &info));
  CHECK(info.dim == kDim);
  CHECK(info.dimensions == 0);
  CHECK(info.elements == 0);
  CHECK(info.bytes == 0);
  CHECK(info.chunk_elements == 0);

  f.Lookup(f.keys.data(), kRows, 0);
  float* v = Floats(f.rows);
  CHECK(std::all_of(v, v + kRows * kDim, [](float x) { return x == 2; }));

  // sgd of rate 1: the parameters less the gradient. Key 7 twice.
  std::fill_n(v, kRows * kDim, 0.5f);
  std::vector<uint64_t> keys(f.keys.begin(), f.keys.begin() + 100);
  keys.push_back(7);
  verbena_ticket* raw = nullptr;
  Good(verbena_push_rows(f.client.get(), f.items.get(), keys.data(), keys.size(), f.rows.get(), 0,
                         kDefault, &raw));
  const Handle<verbena_ticket> push(raw);
  Good(verbena_end_step(f.client.get(), f.items.get(), kDefault, &raw));
  const Handle<verbena_ticket> end(raw);
  Good(verbena_ticket_wait(push.get(), kDefault));
  Good(verbena_ticket_wait(end.get(), kDefault));
  CHECK(verbena_ticket_buffer_released(push.get()) == 1);
  const uint64_t some[] = {100, 7, 99, 7};
  f.Lookup(some, 4, 64);
  CHECK(v[16] == 2.0f);
  CHECK(v[16 + kDim] == 1.0f);
  CHECK(v[16 + 2 * kDim] == 1.5f);
  CHECK(v[16 + 4 * kDim - 1] == 1.0f);

  // Nothing to do of a table whose rows are in memory.
  Good(verbena_prefetch(f.client.get(), f.items.get(), some, 4, kDefault, &raw));
  const Handle<verbena_ticket> prefetch(raw);
  Good(verbena_ticket_wait(prefetch.get(), kDefault));

  std::map<uint64_t, float> shown;
  Good(verbena_scan(
      f.client.get(), f.items.get(), kDefault,
      [](const uint64_t* found, const float* rows, size_t count, void* user) {
        for (size_t i = 0; i < count; ++i) {
          const bool first = static_cast<std::map<uint64_t, float>*>(user)
                                 ->emplace(found[i], rows[i * kDim + kDim - 1])
                                 .second;
          CHECK(first);
        }
        return 0;
      },
      &shown));
  REQUIRE(shown.size() == 100);
  for (const auto& [key, value] : shown) CHECK(value == (key == 7 ? 1.0f : 1.5f));
  ExpectError(verbena_scan(
                  f.client.get(), f.items.get(), kDefault,
                  [](const uint64_t*, const float*, size_t, void*) { return 1; }, nullptr),
              VERBENA_CANCELLED, {"show"});

  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(f.client.get(), &statistics));
  CHECK(statistics.bytes_pushed >= 100 * (8 + kDim * 4));
  CHECK(statistics.bytes_pulled >= (kRows + 3) * kDim * 4);
  CHECK(statistics.pushes > 0);
  CHECK(statistics.pulls > 0);
}

TEST_CASE("calls without keys succeed, also with NULL for the keys") {
  RowFixture f;
  verbena_client* client = f.client.get();
  constexpr const uint64_t* none = nullptr;
  verbena_ticket* raw = nullptr;
  const auto done = [&](verbena_status started) {
    Good(started);
    const Handle<verbena_ticket> ticket(raw);
    Good(verbena_ticket_wait(raw, kDefault));
  };
  for (const uint64_t* keys : {static_cast<const uint64_t*>(f.keys.data()), none}) {
    const verbena_region* rows = f.rows.get();
    done(verbena_push_rows(client, f.items.get(), keys, 0, rows, 0, kDefault, &raw));
    done(verbena_lookup(client, f.items.get(), keys, 0, rows, 0, 0, kDefault, &raw));
    done(verbena_lookup_bags(client, f.items.get(), keys, 0, nullptr, 0, nullptr, VERBENA_BAG_SUM,
                             rows, 0, 0, kDefault, &raw));
    done(verbena_prefetch(client, f.items.get(), keys, 0, kDefault, &raw));
  }
  ExpectError(verbena_push_rows(client, f.items.get(), nullptr, 1, f.rows.get(), 0, kDefault, &raw),
              VERBENA_INVALID_ARGUMENT, {"keys is NULL"});
}

TEST_CASE("invalid calls on rows do not start") {
  RowFixture f;
  verbena_ticket* ticket = nullptr;
  const auto refuse = [&](const verbena_table* table, size_t count, const verbena_region* region,
                          uint64_t offset, const std::vector<std::string>& words) {
    ExpectError(verbena_push_rows(f.client.get(), table, f.keys.data(), count, region, offset,
                                  kDefault, &ticket),
                VERBENA_INVALID_ARGUMENT, words);
    CHECK(ticket == nullptr);
    ExpectError(verbena_lookup(f.client.get(), table, f.keys.data(), count, region, offset, 0,
                               kDefault, &ticket),
                VERBENA_INVALID_ARGUMENT, words);
    CHECK(ticket == nullptr);
  };
  const verbena_table* items = f.items.get();
  // Looked at before the keys are.
  refuse(items, SIZE_MAX, f.rows.get(), 0, {"keys", "0..4194304"});
  refuse(items, kRows, f.gradient.get(), 0, {"3000 rows", "items", "96000", "12000"});
  refuse(items, kRows, f.rows.get(), 4, {"96000", "95996 from offset 4"});
  refuse(items, 1, f.rows.get(), 2, {"region_offset is 2", "multiples of 4"});
  refuse(items, 1, f.rows.get(), UINT64_MAX - 3, {"too small"});
  refuse(f.table.get(), 1, f.rows.get(), 0, {"weights", "dense"});
  ExpectError(
      verbena_lookup(f.client.get(), items, f.keys.data(), 1, f.rows.get(), 0, 0, -2, &ticket),
      VERBENA_INVALID_ARGUMENT, {"timeout_ms is -2"});
  const auto show = [](const uint64_t*, const float*, size_t, void*) { return 0; };
  ExpectError(verbena_scan(f.client.get(), f.table.get(), kDefault, show, nullptr),
              VERBENA_INVALID_ARGUMENT, {"weights", "dense"});
  ExpectError(verbena_scan(f.client.get(), items, -2, show, nullptr), VERBENA_INVALID_ARGUMENT,
              {"timeout_ms is -2"});
  // The other way round.
  ExpectError(verbena_push(f.client.get(), items, f.rows.get(), nullptr, kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"items", "embedding table of dim 8"});
  ExpectError(verbena_pull(f.client.get(), items, f.rows.get(), nullptr, 0, kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"items", "embedding table"});
  ExpectError(verbena_push_pull(f.client.get(), items, f.rows.get(), f.rows.get(), nullptr,
                                kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"items", "embedding table"});

  // Handles of another client.
  verbena_connect_options options = Options(f.cluster.address().c_str());
  options.job = "other";
  const Handle<verbena_client> other = Connect(options);
  ExpectError(
      verbena_lookup(other.get(), items, f.keys.data(), 1, f.rows.get(), 0, 0, kDefault, &ticket),
      VERBENA_INVALID_ARGUMENT, {"another client"});
  ExpectError(verbena_scan(other.get(), items, kDefault, show, nullptr), VERBENA_INVALID_ARGUMENT,
              {"another client"});
  const Handle<verbena_region> theirs = Allocate(other.get(), 64);
  refuse(items, 1, theirs.get(), 0, {"another client"});

  // An observer.
  options = Options(f.cluster.address().c_str());
  options.observer = 1;
  const Handle<verbena_client> observer = Connect(options);
  verbena_table* raw = nullptr;
  Good(verbena_table_open(observer.get(), "items", kDefault, &raw));
  const Handle<verbena_table> seen(raw);
  const Handle<verbena_region> memory = Allocate(observer.get(), 64);
  ExpectError(verbena_push_rows(observer.get(), seen.get(), f.keys.data(), 1, memory.get(), 0,
                                kDefault, &ticket),
              VERBENA_FAILED_PRECONDITION, {"observer"});
}

TEST_CASE("errors of calls on rows that have started") {
  RowFixture f;
  verbena_ticket* raw = nullptr;
  const auto ends = [&](verbena_status started, verbena_status status,
                        const std::vector<std::string>& words) {
    if (started != VERBENA_OK) return ExpectError(started, status, words);
    const Handle<verbena_ticket> ticket(raw);
    ExpectError(verbena_ticket_wait(raw, kDefault), status, words);
  };
  // A version that nobody makes.
  ends(verbena_lookup(f.client.get(), f.items.get(), f.keys.data(), 1, f.rows.get(), 0, 9, 300,
                      &raw),
       VERBENA_DEADLINE_EXCEEDED, {"version 9", "items"});
  Floats(f.rows)[0] = std::nanf("");
  Good(verbena_push_rows(f.client.get(), f.items.get(), f.keys.data(), 1, f.rows.get(), 0, kDefault,
                         &raw));
  const Handle<verbena_ticket> push(raw);
  Good(verbena_end_step(f.client.get(), f.items.get(), kDefault, nullptr));
  ExpectError(verbena_ticket_wait(push.get(), kDefault), VERBENA_INVALID_ARGUMENT,
              {"items", "NaN"});
  Good(verbena_table_drop(f.client.get(), "items", kDefault));
  // The servers hear of it a moment later.
  REQUIRE(Eventually([&] {
    const verbena_status started = verbena_lookup(f.client.get(), f.items.get(), f.keys.data(), 1,
                                                  f.rows.get(), 0, 0, kDefault, &raw);
    const Handle<verbena_ticket> ticket(raw);
    return (started == VERBENA_OK ? verbena_ticket_wait(raw, kDefault) : started) ==
           VERBENA_NOT_FOUND;
  }));
  ends(verbena_lookup(f.client.get(), f.items.get(), f.keys.data(), 1, f.rows.get(), 0, 0, kDefault,
                      &raw),
       VERBENA_NOT_FOUND, {});
  ends(verbena_push_rows(f.client.get(), f.items.get(), f.keys.data(), 1, f.rows.get(), 0, kDefault,
                         &raw),
       VERBENA_NOT_FOUND, {});
  ExpectError(verbena_scan(
                  f.client.get(), f.items.get(), kDefault,
                  [](const uint64_t*, const float*, size_t, void*) { return 0; }, nullptr),
              VERBENA_NOT_FOUND, {});
}

TEST_CASE("lookups at a killed server end UNAVAILABLE, and DATA_LOSS after its restart") {
  RowFixture f;
  verbena_ticket* raw = nullptr;
  const auto lookup = [&](int64_t timeout_ms) {
    raw = nullptr;
    const verbena_status started = verbena_lookup(f.client.get(), f.items.get(), f.keys.data(),
                                                  kRows, f.rows.get(), 0, 0, timeout_ms, &raw);
    const Handle<verbena_ticket> ticket(raw);
    return started == VERBENA_OK ? verbena_ticket_wait(raw, kDefault) : started;
  };
  Good(lookup(kDefault));
  f.cluster.server(0).Signal(9);
  f.cluster.server(0).Wait();
  ExpectError(lookup(4000), VERBENA_UNAVAILABLE, {"server-0"});  // longer than the lease
  f.cluster.RestartServer(0);
  CHECK(Eventually([&] { return lookup(2000) == VERBENA_DATA_LOSS; }));
  CHECK_THAT(verbena_last_error(), Contains("items"));
  ExpectError(verbena_scan(
                  f.client.get(), f.items.get(), kDefault,
                  [](const uint64_t*, const float*, size_t, void*) { return 0; }, nullptr),
              VERBENA_DATA_LOSS, {"items"});
}

}  // namespace
}  // namespace verbena::test
