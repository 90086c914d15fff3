// Rows with codecs: the encoded rows in both directions, and resends.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "shard/codec/codec.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace row_codec_test {

using Rows = client::ClientCore::Rows;

constexpr uint32_t kDim = 21;
constexpr size_t kKeys = 30;
constexpr v1::Codec kRowCodecs[] = {v1::CODEC_BF16, v1::CODEC_F16, v1::CODEC_INT8,
                                    v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2};

std::vector<float> Travelled(v1::Codec codec, const std::vector<float>& row) {
  const auto type = static_cast<ElementType>(codec);
  std::vector<std::byte> bytes(RowBytes(type, row.size()));
  std::vector<float> back(row.size());
  codec::EncodeRow(shard::Isa::kBaseline, type, row.data(), bytes.data(), row.size());
  codec::DecodeRow(shard::Isa::kBaseline, type, bytes.data(), back.data(), row.size());
  return back;
}

float* Row(const Rows& rows, size_t i) {
  return reinterpret_cast<float*>(rows.block->data() + rows.offset) + i * kDim;
}

std::vector<float> Numbers(size_t i) {
  std::vector<float> row(kDim);
  for (uint32_t d = 0; d < kDim; ++d) row[d] = 0.37f * float(i + 1) + 0.011f * float(d * d);
  return row;
}

uint32_t Add(FakeCluster* cluster, v1::Consistency consistency, v1::Codec push, v1::Codec pull) {
  v1::TableSpec spec;
  spec.set_dim(kDim);
  spec.set_consistency(consistency);
  spec.set_push_codec(push);
  spec.set_pull_codec(pull);
  return cluster->AddRows(spec);
}

std::vector<uint64_t> Keys() {
  std::vector<uint64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  return keys;
}

Rows Gradients() {
  const Rows rows = FakeCluster::RowMemory(kKeys, kDim, 0);
  for (size_t i = 0; i < kKeys; ++i) {
    const std::vector<float> row = Numbers(i);
    std::copy(row.begin(), row.end(), Row(rows, i));
  }
  return rows;
}

TEST_CASE("rows are encoded one by one when they are pushed, and decoded when they come") {
  for (const v1::Codec codec : kRowCodecs) {
    FakeCluster cluster(Servers(2));
    const v1::Codec other = codec == v1::CODEC_INT8 ? v1::CODEC_F16 : v1::CODEC_INT8;
    const uint32_t table = Add(&cluster, v1::CONSISTENCY_ASYNC, codec, other);
    cluster.Join();
    Good(&cluster, cluster.PushRows(table, Keys(), Gradients()));
    const auto& statistics = cluster.core->statistics();
    const size_t bytes = RowBytes(static_cast<ElementType>(codec), kDim);
    CHECK(statistics.bytes_pushed >= kKeys * (8 + bytes));
    CHECK(statistics.bytes_pushed <= kKeys * (8 + bytes) + 2 * 64);  // of two records
    for (size_t i = 0; i < kKeys; ++i) {
      const auto& server = cluster.servers[cluster.servers[0]->rows[table].count(i) == 1 ? 0 : 1];
      CHECK(server->rows[table].at(i) == Travelled(codec, Numbers(i)));
    }
    // Keys that come twice, and memory that is not at the beginning of a region.
    const std::vector<uint64_t> keys = {7, 3, 7, 7, 29};
    Rows to = FakeCluster::RowMemory(keys.size() + 1, kDim, -5);
    to.offset = kDim * sizeof(float);
    Good(&cluster, cluster.Lookup(table, keys, to));
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::vector<float> there = Travelled(other, Travelled(codec, Numbers(keys[i])));
      CHECK(std::equal(there.begin(), there.end(), Row(to, i)));
    }
    CHECK(*reinterpret_cast<float*>(to.block->data()) == -5);
    CHECK(cluster.core->statistics().bytes_pulled ==
          3 * RowBytes(static_cast<ElementType>(other), kDim));
  }
}

TEST_CASE("rows of one key are summed in f32 before they are encoded") {
  FakeCluster cluster;
  const uint32_t table = Add(&cluster, v1::CONSISTENCY_ASYNC, v1::CODEC_BF16, v1::CODEC_NONE);
  cluster.Join();
  const Rows gradients = FakeCluster::RowMemory(3, kDim, 0);
  // 256 + 1 has no place in bf16: 257 + 3 is 260 only where it is summed before.
  std::fill_n(Row(gradients, 0), kDim, 256.0f);
  std::fill_n(Row(gradients, 1), kDim, 1.0f);
  std::fill_n(Row(gradients, 2), kDim, 3.0f);
  Good(&cluster, cluster.PushRows(table, {5, 5, 5}, gradients));
  CHECK(cluster.servers[0]->rows[table].at(5) == std::vector<float>(kDim, 260.0f));
}

TEST_CASE("sums by bag and scans come as f32 whatever codec the rows have") {
  FakeCluster cluster;
  const uint32_t table = Add(&cluster, v1::CONSISTENCY_ASYNC, v1::CODEC_NONE, v1::CODEC_FP8_E5M2);
  cluster.Join();
  Good(&cluster, cluster.PushRows(table, Keys(), Gradients()));
  const std::vector<uint64_t> keys = {1, 2}, offsets = {0};
  const Rows sums = FakeCluster::RowMemory(1, kDim, 0);
  Good(&cluster, cluster.LookupBags(table, {keys, offsets, {}, client::BagMode::kSum}, sums));
  for (uint32_t d = 0; d < kDim; ++d) CHECK(Row(sums, 0)[d] == Numbers(1)[d] + Numbers(2)[d]);
  auto scanned = std::make_shared<client::ScanResult>();
  Good(&cluster, cluster.Scan(table, 0, 0, scanned));
  REQUIRE(!scanned->keys.empty());
  const std::vector<float> first(scanned->rows.begin(), scanned->rows.begin() + kDim);
  CHECK(first == Numbers(scanned->keys[0]));
}

TEST_CASE("a resend after a lane loss has the bits of the first transmission") {
  FakeCluster cluster;
  const uint32_t table = Add(&cluster, v1::CONSISTENCY_SYNC, v1::CODEC_INT8, v1::CODEC_NONE);
  cluster.Join();
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.PushRows(table, Keys(), Gradients());
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(push->done);
  cluster.servers[0]->CloseLanes("a test");
  cluster.servers[0]->hold_pushes = false;
  Good(&cluster, cluster.EndStep(table));
  Good(&cluster, push);
  for (size_t i = 0; i < kKeys; ++i) {
    CHECK(cluster.servers[0]->rows[table].at(i) == Travelled(v1::CODEC_INT8, Numbers(i)));
  }
}

}  // namespace row_codec_test
}  // namespace verbena::test
