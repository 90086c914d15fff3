// How a lookup of bags is split into records, and how their replies are combined, compared with the
// simplest implementation.
#include "client/core/bag_call.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "proto/wire/routing.h"

namespace verbena::client {
namespace bag_call_test {

constexpr uint32_t kTable = 5;
constexpr uint32_t kDim = 3;

// Small numbers: their sums are exact, whatever the order.
float RowOf(uint64_t key, uint32_t d) { return float(int(key % 17) - 8) + float(d); }

struct Asked {
  std::vector<uint64_t> keys, offsets;
  std::vector<float> weights;
  BagKeys bags(BagMode mode) const { return {keys, offsets, weights, mode}; }
};

Asked Draw(std::mt19937_64* random, bool weighted) {
  Asked asked;
  const size_t bags = 1 + (*random)() % 60;
  for (size_t bag = 0; bag < bags; ++bag) {
    asked.offsets.push_back(asked.keys.size());
    const size_t count = (*random)() % 3 == 0 ? 0 : (*random)() % 30;
    for (size_t i = 0; i < count; ++i) asked.keys.push_back((*random)() % 50);
  }
  for (size_t i = 0; weighted && i < asked.keys.size(); ++i) {
    asked.weights.push_back(float(int((*random)() % 9) - 4));
  }
  return asked;
}

std::vector<float> Model(const Asked& asked, BagMode mode) {
  std::vector<float> sums;
  for (size_t bag = 0; bag < asked.offsets.size(); ++bag) {
    const size_t end = bag + 1 < asked.offsets.size() ? asked.offsets[bag + 1] : asked.keys.size();
    std::vector<float> sum(kDim, 0.0f);
    double weights = 0, squares = 0;
    for (size_t i = asked.offsets[bag]; i < end; ++i) {
      const float weight = asked.weights.empty() ? 1.0f : asked.weights[i];
      weights += double{weight};
      squares += double{weight} * double{weight};
      for (uint32_t d = 0; d < kDim; ++d) sum[d] += weight * RowOf(asked.keys[i], d);
    }
    const auto divisor = static_cast<float>(mode == BagMode::kSum    ? 1
                                            : mode == BagMode::kMean ? weights
                                                                     : std::sqrt(squares));
    for (const float s : sum) sums.push_back(divisor == 0 ? 0 : s / divisor);
  }
  return sums;
}

struct Record {
  std::vector<uint32_t> firsts, counts;
};

// As the tracker does it, with two lanes: by partition's parity.
std::vector<Record> Cut(const BagCall& call, uint32_t most) {
  std::vector<Record> records;
  for (size_t b = 0; b < call.blocks(); ++b) {
    for (const uint32_t lane : {0u, 1u}) {
      uint32_t room = 0;
      for (const KeyPlan::Range& range : call.block(b)) {
        if (range.partition % 2 != lane) continue;
        for (uint32_t done = 0; done < range.count;) {
          if (room == 0) {
            records.emplace_back();
            room = most;
          }
          const uint32_t count = std::min(room, range.count - done);
          records.back().firsts.push_back(range.first + done);
          records.back().counts.push_back(count);
          done += count;
          room -= count;
        }
      }
    }
  }
  return records;
}

// The server's side: checks the request and computes the reply.
std::vector<float> Serve(BagCall* call, const Record& record, std::vector<uint64_t>* all) {
  uint32_t keys = 0;
  for (const uint32_t count : record.counts) keys += count;
  std::vector<std::byte> payload(BagPayloadBytes(keys), std::byte{0xee});
  const uint32_t bags = call->Pack(record.firsts, record.counts, payload.data());
  REQUIRE(bags >= 1);
  REQUIRE(bags <= call->MostBags(keys));
  std::vector<float> sums(size_t{bags} * kDim);
  uint32_t k = 0;
  for (const uint32_t count : record.counts) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < count; ++i, ++k) {
      uint64_t key = 0;
      BagUse use = {};
      std::memcpy(&key, &payload[k * sizeof(key)], sizeof(key));
      std::memcpy(&use, &payload[KeyBytes(keys) + k * sizeof(use)], sizeof(use));
      REQUIRE(key >= before);
      REQUIRE(use.bag < bags);
      before = key;
      all->push_back(key);
      for (uint32_t d = 0; d < kDim; ++d) {
        sums[use.bag * kDim + d] += use.weight * RowOf(key, d);
      }
    }
  }
  for (size_t at = size_t{keys} * 8; at < KeyBytes(keys); ++at)
    REQUIRE(payload[at] == std::byte{0});
  return sums;
}

TEST_CASE("partial sums add up to each bag's result in every mode") {
  std::mt19937_64 random(7);
  KeyScratch scratch;
  BagCall call;  // one for all, as calls reuse it
  for (int round = 0; round < 600; ++round) {
    const Asked asked = Draw(&random, round % 2 == 0);
    const auto mode = static_cast<BagMode>(round % 3);
    const uint32_t partitions = 1 + static_cast<uint32_t>(random() % 9);
    const BagCall::Limits limits = {1 + uint32_t(random() % 20), 1 + random() % 100};
    call.Build(asked.bags(mode), kTable, partitions, limits, &scratch);
    for (const KeyPlan::Range& range : call.ranges()) REQUIRE(range.partition < partitions);
    std::vector<Record> records = Cut(call, 1 + uint32_t(random() % 40));
    std::shuffle(records.begin(), records.end(), random);
    std::vector<uint64_t> all;
    for (const Record& record : records) {
      const std::vector<float> sums = Serve(&call, record, &all);
      call.Add(record.firsts, record.counts, sums.data(), kDim);
    }
    std::vector<uint64_t> keys = asked.keys;
    std::sort(keys.begin(), keys.end());
    std::sort(all.begin(), all.end());
    REQUIRE(all == keys);
    std::vector<float> got(asked.offsets.size() * kDim, -7.0f);
    call.Finish(got.data(), kDim);
    REQUIRE(got == Model(asked, mode));
  }
}

TEST_CASE("a block has at most the allowed bags and keys, and at least one bag") {
  Asked asked;
  for (uint64_t bag = 0; bag < 10; ++bag) {
    asked.offsets.push_back(asked.keys.size());
    asked.keys.insert(asked.keys.end(), bag == 4 ? 100 : 3, bag);
  }
  KeyScratch scratch;
  BagCall call;
  const auto sizes = [&](const BagCall::Limits& limits) {
    call.Build(asked.bags(BagMode::kSum), kTable, 1, limits, &scratch);
    std::vector<uint32_t> keys;
    for (size_t b = 0; b < call.blocks(); ++b) keys.push_back(call.block(b)[0].count);
    return keys;
  };
  CHECK(sizes({100, 1000}) == std::vector<uint32_t>{127});
  CHECK(sizes({4, 1000}) == std::vector<uint32_t>{12, 109, 6});
  CHECK(sizes({100, 9}) == std::vector<uint32_t>{9, 3, 100, 9, 6});
  CHECK(sizes({1, 1}).size() == 10);
  CHECK(call.MostBags(5) == 1);
}

TEST_CASE("partial sums are added in the order of the records, not in that of their replies") {
  // In f32 the order shows: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
  const std::vector<uint64_t> keys = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<uint64_t> offsets = {0};
  KeyScratch scratch;
  std::vector<uint32_t> bits;
  std::vector<Record> records;
  for (int order = 0; order < 20; ++order) {
    BagCall call;
    call.Build({keys, offsets, {}, BagMode::kSum}, kTable, 2, {1, 100}, &scratch);
    records = Cut(call, 1);
    REQUIRE(records.size() == 8);
    std::mt19937_64 random(order);
    std::shuffle(records.begin(), records.end(), random);
    for (const Record& record : records) {
      const float values[] = {1e8f, 1, -1e8f, 3e7f, 0.1f, -5e6f, 77, 1e-3f};
      call.Add(record.firsts, record.counts, &values[record.firsts[0]], 1);
    }
    float sum = 0;
    call.Finish(&sum, 1);
    bits.push_back(std::bit_cast<uint32_t>(sum));
  }
  CHECK(std::count(bits.begin(), bits.end(), bits[0]) == 20);
}

TEST_CASE("bags without keys, and those whose weights cancel out, are zero") {
  const std::vector<uint64_t> keys = {1, 2}, offsets = {0, 0, 2};
  const std::vector<float> weights = {1, -1};
  KeyScratch scratch;
  for (const BagMode mode : {BagMode::kSum, BagMode::kMean, BagMode::kSqrtN}) {
    BagCall call;
    call.Build({keys, offsets, weights, mode}, kTable, 1, {10, 10}, &scratch);
    REQUIRE(call.blocks() == 1);
    const float sums[] = {4};
    call.Add(std::vector<uint32_t>{0}, std::vector<uint32_t>{2}, sums, 1);
    float got[3] = {9, 9, 9};
    call.Finish(got, 1);
    CHECK(got[0] == 0);
    CHECK(got[2] == 0);
    CHECK(got[1] == (mode == BagMode::kSum ? 4 : mode == BagMode::kMean ? 0 : 4 / std::sqrt(2.0f)));
  }
  BagCall none;
  none.Build({{}, std::vector<uint64_t>{0, 0}, {}, BagMode::kMean}, kTable, 4, {10, 10}, &scratch);
  CHECK(none.blocks() == 0);
  CHECK(none.ranges().empty());
  float got[2] = {9, 9};
  none.Finish(got, 1);
  CHECK(got[0] == 0);
  CHECK(got[1] == 0);
}

}  // namespace bag_call_test
}  // namespace verbena::client
