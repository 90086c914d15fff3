// Tables with a pull codec: a reply is decoded into the call's destination once its data is
// complete, and nowhere else.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "proto/spec/table_spec.h"
#include "shard/codec/codec.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace pull_codec_test {

using Catch::Matchers::Contains;
using Slice = client::ClientCore::Slice;

// Chunks of 1024; the last one is odd in number.
constexpr uint64_t kPulled = 2 * 1024 + 333;
constexpr float kUntouched = -77;
constexpr v1::Codec kPullCodecs[] = {v1::CODEC_BF16, v1::CODEC_F16, v1::CODEC_INT8,
                                     v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2};

v1::TableSpec PullSpec(v1::Codec codec, v1::Consistency consistency = v1::CONSISTENCY_ASYNC) {
  v1::TableSpec spec;
  spec.set_pull_codec(codec);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(4096);
  return spec;
}

std::vector<float> Untouched() { return std::vector<float>(kPulled, kUntouched); }

// Sets the encoded replies of pulls; returns the numbers that they decode to.
std::vector<float> StoreEncoded(FakeCluster* cluster, uint32_t table, ElementType type,
                                uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> expected;
  for (uint32_t chunk = 0; chunk * 1024 < kPulled; ++chunk) {
    std::vector<float> values(std::min<uint64_t>(1024, kPulled - chunk * 1024));
    for (float& x : values) x = normal(random);
    std::vector<std::byte> bytes(PayloadBytes(type, values.size()));
    codec::Encode(shard::Isa::kBaseline, type, values.data(), nullptr, bytes.data(), values.size());
    codec::Decode(shard::Isa::kBaseline, type, bytes.data(), 0, values.data(), values.size());
    expected.insert(expected.end(), values.begin(), values.end());
    for (const auto& server : cluster->servers) server->stored[{table, chunk}] = bytes;
  }
  return expected;
}

Slice Of(std::vector<float>* memory) {
  return {*rdma::MemoryBlock::Register(memory->data(), memory->size() * sizeof(float)), 0, 0,
          memory->size()};
}

TEST_CASE("a pull with a codec is decoded into memory of either kind, and counts its bytes") {
  for (const v1::Codec codec : kPullCodecs) {
    for (const bool shm : {false, true}) {
      const auto type = static_cast<ElementType>(codec);
      FakeCluster::Options options;
      options.shm = shm;
      options.staging_bytes = 4096;  // one chunk at a time
      FakeCluster cluster(options);
      const uint32_t table = cluster.AddTyped(PullSpec(codec), kPulled);
      cluster.Join();
      uint64_t bytes = 0;
      for (uint32_t seed = 0; seed < 2; ++seed) {
        const std::vector<float> expected = StoreEncoded(&cluster, table, type, seed);
        std::vector<float> memory = Untouched();
        const Slice allocated = cluster.Memory(table, kUntouched);
        for (const Slice& to : {Of(&memory), allocated}) {
          auto pull = cluster.Pull(table, to);
          REQUIRE(cluster.Wait(pull));
          INFO(CodecName(codec) << (shm ? " shm " : " sim ") << pull->status);
          REQUIRE(pull->status.ok());
          REQUIRE(std::memcmp(to.block->data(), expected.data(), kPulled * sizeof(float)) == 0);
          bytes += 2 * PayloadBytes(type, 1024) + PayloadBytes(type, 333);
        }
      }
      CHECK(cluster.core->statistics().bytes_pulled == bytes);
      // It is not that the transport could not reach that memory.
      CHECK(cluster.core->statistics().staged_bytes == 0);
    }
  }
}

TEST_CASE("a pull with a codec continues on a new lane and at a partition's new server") {
  for (const v1::Codec codec : {v1::CODEC_BF16, v1::CODEC_INT8}) {
    FakeCluster::Options options;
    options.servers = 2;
    FakeCluster cluster(options);
    const uint32_t table = cluster.AddTyped(PullSpec(codec), kPulled);
    cluster.Join();
    const std::vector<float> expected =
        StoreEncoded(&cluster, table, static_cast<ElementType>(codec), 3);
    std::vector<float> memory = Untouched();
    for (auto& server : cluster.servers) server->silent = true;
    auto pull = cluster.Pull(table, Of(&memory));
    cluster.RunFor(50 * kMilli);
    for (auto& server : cluster.servers) server->CloseLanes("a test");
    for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 1);
    cluster.Publish();
    cluster.RunFor(50 * kMilli);
    CHECK(memory == Untouched());
    cluster.servers[1]->silent = false;
    REQUIRE(cluster.Wait(pull));
    REQUIRE(pull->status.ok());
    CHECK(memory == expected);
  }
}

TEST_CASE("a reply that comes after its call has ended is decoded nowhere") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(PullSpec(v1::CODEC_INT8), kPulled);
  cluster.Join();
  const std::vector<float> expected = StoreEncoded(&cluster, table, ElementType::kInt8, 4);
  std::vector<float> memory = Untouched(), again = Untouched();
  REQUIRE(cluster.Wait(cluster.Pull(table, Of(&again))));  // the lane is open
  cluster.servers[0]->silent = true;
  auto late = cluster.Pull(table, Of(&memory));
  cluster.RunFor(10 * kMilli);
  cluster.core->Cancel(late->id);
  REQUIRE(cluster.Wait(late));
  CHECK(cluster.core->BufferReleased(late->id));
  // Nor is a lane closed because a region goes that no server knows.
  Slice gone = cluster.Memory(table, 0.0f);
  auto other = cluster.Pull(table, gone);
  cluster.RunFor(10 * kMilli);
  cluster.core->ReleaseBlock(gone.block->id());
  REQUIRE(cluster.Wait(other));
  CHECK_FALSE(cluster.core->InUse(gone.block->id()));
  cluster.servers[0]->silent = false;
  again = Untouched();
  REQUIRE(cluster.Wait(cluster.Pull(table, Of(&again))));
  CHECK(again == expected);
  // All three were answered.
  CHECK(cluster.core->statistics().pulls == 4 * 3);
  CHECK(memory == Untouched());
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

TEST_CASE("push-pull with codecs of both directions works in place") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    v1::TableSpec spec = PullSpec(v1::CODEC_FP8_E4M3, consistency);
    spec.set_push_codec(v1::CODEC_BF16);
    const uint32_t table = cluster.AddTyped(spec, kPulled);
    cluster.Join();
    const Slice slice = cluster.Memory(table, 5.0f);
    auto call = cluster.PushPull(table, slice, slice);
    REQUIRE(cluster.Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
    // All are the greatest of their block, so nothing is lost of them.
    const auto* got = reinterpret_cast<const float*>(slice.block->data());
    CHECK(std::all_of(got, got + kPulled, [](float x) { return x == Approx(5).epsilon(1e-6); }));
    CHECK(cluster.servers[0]->pushed.at({table, 0}).size() == 2048);
  }
}

TEST_CASE(
    "a pull with a codec into device memory is refused, and the error names the allowed memory") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(PullSpec(v1::CODEC_F16), kPulled);
  cluster.Join();
  const Slice there = cluster.DeviceMemory(table, 0.0f), here = cluster.Memory(table, 1.0f);
  for (const auto& call : {cluster.Pull(table, there), cluster.PushPull(table, here, there)}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(call->status.message()),
               Contains("the destination lies in memory of a device") &&
                   Contains("has pull_codec f16") && Contains("allowed: regions of the host"));
  }
  // Gradients may lie there.
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
}

TEST_CASE("parameters are decoded in bounded turns, between which other calls may start") {
  FakeCluster::Options options;
  options.staging_bytes = 64 << 20;
  FakeCluster cluster(options);
  v1::TableSpec spec;
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_pull_codec(v1::CODEC_BF16);
  spec.set_chunk_bytes(1 << 20);
  const uint32_t table = cluster.AddTyped(spec, 32 * (1 << 18));
  cluster.Join();
  const auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, FakeCluster::Chunk(to, 0, 1 << 18))));
  const auto pull = cluster.Pull(table, to);
  uint64_t most = 0;
  while (!pull->done) {
    // All that can be answered is there before the client looks.
    for (int i = 0; i < 100; ++i) {
      cluster.servers[0]->RunOnce();
      cluster.network.Advance(cluster.now() + kMilli);
    }
    for (bool worked = true; worked;) {
      const uint64_t before = cluster.core->statistics().pulls;
      worked = cluster.core->RunOnce();
      most = std::max(most, cluster.core->statistics().pulls - before);
    }
  }
  CHECK(pull->status.ok());
  CHECK(most == 4);  // of 1 MiB; more were there at a time
}

}  // namespace pull_codec_test
}  // namespace verbena::test
