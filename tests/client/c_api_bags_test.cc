// Lookups of bags in C against a real daemon: results, and each error that verbena.h documents.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/client/c_api_support.h"

namespace verbena::test {
namespace {

struct BagFixture : Fixture {
  Handle<verbena_table> items = Create(client.get(), EmbeddingSpec("items"));
  Handle<verbena_region> rows = Allocate(client.get(), 1000 * kDim * 4);
  verbena_ticket* raw = nullptr;

  verbena_status Start(const std::vector<uint64_t>& keys, const std::vector<uint64_t>& offsets,
                       const float* weights, int32_t mode, uint64_t min_version = 0,
                       int64_t timeout_ms = kDefault) {
    return verbena_lookup_bags(client.get(), items.get(), keys.data(), keys.size(), offsets.data(),
                               offsets.size(), weights, mode, rows.get(), 0, min_version,
                               timeout_ms, &raw);
  }
  verbena_status Bags(const std::vector<uint64_t>& keys, const std::vector<uint64_t>& offsets,
                      const float* weights, int32_t mode, uint64_t min_version = 0,
                      int64_t timeout_ms = kDefault) {
    const verbena_status started = Start(keys, offsets, weights, mode, min_version, timeout_ms);
    const Handle<verbena_ticket> ticket(raw);
    return started == VERBENA_OK ? verbena_ticket_wait(raw, kDefault) : started;
  }
};

TEST_CASE("bags are summed, averaged and scaled on the server") {
  BagFixture f;
  // sgd of rate 1 from 2: row k becomes 2 - k.
  const uint64_t keys[] = {0, 1, 2, 3, 4};
  float* v = Floats(f.rows);
  for (int k = 0; k < 5; ++k) std::fill_n(v + k * kDim, kDim, float(k));
  Good(
      verbena_push_rows(f.client.get(), f.items.get(), keys, 5, f.rows.get(), 0, kDefault, &f.raw));
  const Handle<verbena_ticket> push(f.raw);
  Good(verbena_end_step(f.client.get(), f.items.get(), kDefault, nullptr));
  Good(verbena_ticket_wait(push.get(), kDefault));

  const std::vector<uint64_t> some = {0, 1, 1, 4, 99, 3}, offsets = {0, 3, 3, 5};
  const float weights[] = {1, 2, 1, -1, 0.5f, 3};
  const auto check = [&](const float* w, int32_t mode, const std::vector<float>& expected) {
    std::fill_n(v, 5 * kDim, -9.0f);
    Good(f.Bags(some, offsets, w, mode, VERBENA_MIN_VERSION_DEFAULT));
    for (size_t bag = 0; bag < 4; ++bag) {
      for (uint32_t d = 0; d < kDim; ++d) CHECK(v[bag * kDim + d] == expected[bag]);
    }
    CHECK(v[4 * kDim] == -9);
  };
  check(nullptr, VERBENA_BAG_SUM, {4, 0, 0, -1});
  check(nullptr, VERBENA_BAG_MEAN, {4 / 3.0f, 0, 0, -1});
  check(nullptr, VERBENA_BAG_SQRTN, {4 / std::sqrt(3.0f), 0, 0, -1});
  check(weights, VERBENA_BAG_SUM, {5, 0, 3, -3});
  check(weights, VERBENA_BAG_MEAN, {5 / 4.0f, 0, 3 / -0.5f, -1});
  check(weights, VERBENA_BAG_SQRTN, {5 / std::sqrt(6.0f), 0, 3 / std::sqrt(1.25f), -1});

  // No keys at all.
  const uint64_t zero = 0;
  Good(verbena_lookup_bags(f.client.get(), f.items.get(), nullptr, 0, &zero, 1, nullptr,
                           VERBENA_BAG_MEAN, f.rows.get(), 0, 0, kDefault, &f.raw));
  const Handle<verbena_ticket> none(f.raw);
  Good(verbena_ticket_wait(none.get(), kDefault));
  CHECK(v[0] == 0);
}

TEST_CASE("many bags of many keys equal the sums of their rows") {
  BagFixture f;
  std::vector<uint64_t> keys, offsets;
  for (uint64_t bag = 0; bag < 1000; ++bag) {
    offsets.push_back(keys.size());
    for (uint64_t i = 0; i < bag % 40; ++i) keys.push_back(bag * 7919 + i * 104729);
  }
  Good(f.Bags(keys, offsets, nullptr, VERBENA_BAG_SUM));
  const float* v = Floats(f.rows);
  for (size_t bag = 0; bag < 1000; ++bag) {
    CHECK(v[bag * kDim] == 2.0f * float(bag % 40));  // of initial rows
    CHECK(v[bag * kDim + kDim - 1] == v[bag * kDim]);
  }
  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(f.client.get(), &statistics));
  CHECK(statistics.bytes_pulled < keys.size() * kDim * 4 / 3);
}

TEST_CASE("invalid lookups of bags do not start") {
  BagFixture f;
  const auto refuse = [&](const verbena_status status, const std::vector<std::string>& words) {
    ExpectError(status, VERBENA_INVALID_ARGUMENT, words);
    CHECK(f.raw == nullptr);
  };
  refuse(f.Start({1}, {}, nullptr, 0), {"offsets", "NULL"});
  refuse(f.Start({1}, {1}, nullptr, 0), {"offsets[0] is 1", "0..0"});
  refuse(f.Start({1, 2}, {0, 3}, nullptr, 0), {"offsets[1] is 3", "0..2"});
  refuse(f.Start({1, 2}, {0, 2, 1}, nullptr, 0), {"offsets[2] is 1", "2..2"});
  refuse(f.Start({1}, {0}, nullptr, 3), {"verbena_lookup_bags", "mode is 3", "0..2"});
  refuse(f.Start({1}, {0}, nullptr, -1), {"mode is -1", "0..2"});
  refuse(f.Start({1}, {0}, nullptr, 0, 0, -2), {"timeout_ms is -2"});
  refuse(f.Start({1}, std::vector<uint64_t>(1001), nullptr, 0),
         {"1001 bags", "items", "32032", "32000"});
  const uint64_t key = 0;
  const auto call = [&](const verbena_table* table, size_t count, size_t bags, uint64_t offset,
                        const verbena_region* region) {
    return verbena_lookup_bags(f.client.get(), table, &key, count, &key, bags, nullptr, 0, region,
                               offset, 0, kDefault, &f.raw);
  };
  const verbena_table* items = f.items.get();
  // Looked at before the keys and the offsets are.
  refuse(call(items, SIZE_MAX, 1, 0, f.rows.get()), {"keys", "0..4194304"});
  refuse(call(items, 1, SIZE_MAX, 0, f.rows.get()), {"offsets", "1..4194304"});
  refuse(call(items, 1, 0, 0, f.rows.get()), {"0 offsets"});
  refuse(call(items, 1, 1, 2, f.rows.get()), {"region_offset is 2", "multiples of 4"});
  refuse(call(items, 1, 1, UINT64_MAX - 3, f.rows.get()), {"too small"});
  refuse(call(f.table.get(), 1, 1, 0, f.rows.get()), {"weights", "dense"});
  verbena_connect_options options = Options(f.cluster.address().c_str());
  options.job = "other";
  const Handle<verbena_client> other = Connect(options);
  const Handle<verbena_region> theirs = Allocate(other.get(), 64);
  refuse(call(items, 1, 1, 0, theirs.get()), {"another client"});
}

TEST_CASE("errors of lookups of bags that have started") {
  BagFixture f;
  ExpectError(f.Bags({1, 2}, {0}, nullptr, 0, 9, 300), VERBENA_DEADLINE_EXCEEDED,
              {"lookup of bags", "version 9", "items"});
  Good(verbena_table_drop(f.client.get(), "items", kDefault));
  // The servers hear of it a moment later.
  REQUIRE(Eventually([&] { return f.Bags({1}, {0}, nullptr, 0) == VERBENA_NOT_FOUND; }));
  ExpectError(f.Bags({1}, {0}, nullptr, 0), VERBENA_NOT_FOUND, {});
}

}  // namespace
}  // namespace verbena::test
