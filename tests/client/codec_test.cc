// Tables with a push codec: the encoded bytes, one encoding for all resends, the residual kept for
// the next push, and the regions that are refused.
#include "shard/codec/codec.h"

#include <malloc.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/staging/push_buffers.h"
#include "proto/spec/table_spec.h"
#include "rdma/memory/statistics.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace codec_test {

using Catch::Matchers::Contains;
using Slice = client::ClientCore::Slice;
using Bytes = std::vector<std::byte>;

// Chunks of 1024; the last one is odd in number.
constexpr uint64_t kElements = 2 * 1024 + 333;
constexpr uint32_t kChunks = 3;
constexpr v1::Codec kCodecs[] = {v1::CODEC_BF16,     v1::CODEC_F16,      v1::CODEC_INT8,
                                 v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2, v1::CODEC_SIGN,
                                 v1::CODEC_TOP_K};

v1::TableSpec Spec(v1::Codec codec, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_push_codec(codec);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(4096);
  return spec;
}

uint32_t ElementsOf(uint32_t chunk) { return chunk < 2 ? 1024 : 333; }

std::shared_ptr<rdma::MemoryBlock> Gradient(uint32_t seed) {
  auto block = *rdma::MemoryBlock::Allocate(kElements * sizeof(float), "test-region");
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto* to = reinterpret_cast<float*>(block->data());
  for (size_t i = 0; i < kElements; ++i) to[i] = normal(random);
  return block;
}

// The chunks that a client must send, each encoded with the residual of the pushes before.
class Model {
 public:
  explicit Model(ElementType type) : type_(type), residual_(kElements) {}
  std::vector<Bytes> Push(const rdma::MemoryBlock& gradient) {
    std::vector<Bytes> chunks;
    const auto* from = reinterpret_cast<const float*>(gradient.data());
    for (uint32_t c = 0, first = 0; c < kChunks; first += ElementsOf(c), ++c) {
      Bytes bytes(PayloadBytes(type_, ElementsOf(c)));
      codec::Encode(shard::Isa::kBaseline, type_, from + first, &residual_[first], bytes.data(),
                    ElementsOf(c));
      chunks.push_back(std::move(bytes));
    }
    return chunks;
  }

 private:
  ElementType type_;
  std::vector<float> residual_;
};

void CheckPushed(const FakeServer& server, uint32_t table, const std::vector<Bytes>& expected) {
  for (uint32_t c = 0; c < kChunks; ++c) {
    CAPTURE(c);
    REQUIRE(server.pushed.count({table, c}) == 1);
    CHECK(server.pushed.at({table, c}) == expected[c]);
  }
}

TEST_CASE("a push is encoded with the residual of earlier pushes, and counts its bytes") {
  for (const v1::Codec codec : kCodecs) {
    for (const bool shm : {false, true}) {
      FakeCluster::Options options;
      options.shm = shm;
      FakeCluster cluster(options);
      const uint32_t table = cluster.AddTyped(Spec(codec, v1::CONSISTENCY_ASYNC), kElements);
      cluster.Join();
      Model model(static_cast<ElementType>(codec));
      uint64_t bytes = 0;
      for (uint32_t push = 0; push < 4; ++push) {
        const auto gradient = Gradient(push);
        const std::vector<Bytes> expected = model.Push(*gradient);
        for (const Bytes& chunk : expected) bytes += chunk.size();
        auto call = cluster.Push(table, {gradient, 0, 0, kElements});
        REQUIRE(cluster.Wait(call));
        REQUIRE(call->status.ok());
        INFO(CodecName(codec) << (shm ? " shm " : " sim ") << push);
        CheckPushed(*cluster.servers[0], table, expected);
      }
      CHECK(cluster.core->statistics().bytes_pushed == bytes);
    }
  }
}

TEST_CASE("a resend after a lane loss has the same bits, and the residual changes once") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    for (const v1::Codec codec : kCodecs) {
      FakeCluster cluster;
      if (consistency == v1::CONSISTENCY_SYNC) {
        cluster.AddTyped(Spec(codec, v1::CONSISTENCY_ASYNC), kElements, "other");
      }
      const uint32_t table = cluster.AddTyped(Spec(codec, consistency), kElements);
      cluster.Join();
      FakeServer& server = *cluster.servers[0];
      Model model(static_cast<ElementType>(codec));
      for (uint32_t push = 0; push < 3; ++push) {
        auto gradient = Gradient(push);
        const std::vector<Bytes> expected = model.Push(*gradient);
        server.hold_pushes = true;
        auto call = cluster.Push(table, {gradient, 0, 0, kElements});
        // Neither the push nor its resend reads the region again.
        std::memset(gradient->data(), 0x41, gradient->size());
        auto end = cluster.EndStep(table);
        cluster.RunFor(50 * kMilli);
        server.pushed.clear();
        server.CloseLanes("a test");
        server.hold_pushes = false;
        REQUIRE(cluster.Wait(call));
        REQUIRE(cluster.Wait(end));
        INFO(CodecName(codec) << " " << push << " " << call->status);
        REQUIRE(call->status.ok());
        CheckPushed(server, table, expected);
      }
      CHECK(cluster.core->statistics().records_resent > 0);
    }
  }
}

TEST_CASE("the residual of a push travels with later ones until everything was pushed") {
  for (const v1::Codec codec : kCodecs) {
    if (codec == v1::CODEC_SIGN) continue;  // its residual never becomes zero
    const auto type = static_cast<ElementType>(codec);
    FakeCluster cluster;
    const uint32_t table = cluster.AddTyped(Spec(codec, v1::CONSISTENCY_ASYNC), kElements);
    cluster.Join();
    std::vector<double> given(kElements), pushed(kElements);
    // A push with top_k carries 20 of 1024 numbers.
    for (uint32_t push = 0; push < 3 + 1024 / 20 + 1; ++push) {
      const auto gradient = Gradient(push);
      auto* values = reinterpret_cast<float*>(gradient->data());
      if (push >= 3) std::fill_n(values, kElements, 0.0f);
      for (size_t i = 0; i < kElements; ++i) given[i] += values[i];
      auto call = cluster.Push(table, {gradient, 0, 0, kElements});
      REQUIRE(cluster.Wait(call));
      REQUIRE(call->status.ok());
      for (uint32_t c = 0, first = 0; c < kChunks; first += ElementsOf(c), ++c) {
        std::vector<float> out(ElementsOf(c));
        codec::Decode(shard::BestIsa(), type, cluster.servers[0]->pushed.at({table, c}).data(), 0,
                      out.data(), out.size());
        for (size_t i = 0; i < out.size(); ++i) pushed[first + i] += out[i];
      }
    }
    for (size_t i = 0; i < kElements; ++i) {
      INFO(CodecName(codec) << " " << i);
      REQUIRE(pushed[i] == Approx(given[i]).margin(1e-5));
    }
  }
}

TEST_CASE("push-pull encodes, too, also over its own gradient") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(Spec(v1::CODEC_INT8, v1::CONSISTENCY_ASYNC), kElements);
  cluster.Join();
  const auto block = Gradient(1);
  Model model(ElementType::kInt8);
  const std::vector<Bytes> expected = model.Push(*block);
  const Slice slice = {block, 0, 0, kElements};
  auto call = cluster.PushPull(table, slice, slice);
  REQUIRE(cluster.Wait(call));
  REQUIRE(call->status.ok());
  CheckPushed(*cluster.servers[0], table, expected);
}

TEST_CASE("a push that was encoded before its call, without the core, has the same bits") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(Spec(v1::CODEC_INT8, v1::CONSISTENCY_ASYNC), kElements);
  const uint32_t plain =
      cluster.AddTyped(Spec(v1::CODEC_NONE, v1::CONSISTENCY_ASYNC), kElements, "plain");
  cluster.Join();
  Model model(ElementType::kInt8);
  for (uint32_t push = 0; push < 4; ++push) {
    const auto gradient = Gradient(push);
    const Slice slice = {gradient, 0, 0, kElements};
    const std::vector<Bytes> expected = model.Push(*gradient);
    auto encoded = cluster.core->StartEncoding("push", table, slice);
    REQUIRE(encoded.ok());
    REQUIRE(*encoded != nullptr);
    std::thread([&] { (*encoded)->Run(); }).join();
    std::memset(gradient->data(), 0x41, gradient->size());  // it was read
    bool done = false;
    absl::Status status;
    const auto id = cluster.core->Push(
        table, slice, cluster.now() + 30 * kSecond,
        [&](absl::Status s) {
          status = std::move(s);
          done = true;
        },
        *std::move(encoded));
    REQUIRE(id.ok());
    REQUIRE(cluster.RunUntil([&] { return done; }));
    REQUIRE(status.ok());
    CheckPushed(*cluster.servers[0], table, expected);
  }
  const Slice slice = {Gradient(1), 0, 0, kElements};
  CHECK(*cluster.core->StartEncoding("push", plain, slice) == nullptr);
  const auto wrong =
      cluster.core->StartEncoding("push-pull", table, {slice.block, 0, 1, kElements});
  CHECK_THAT(std::string(wrong.status().message()), Contains("push-pull: the range"));
}

TEST_CASE("buffers of encoded pushes are used again") {
  client::PushBuffers buffers;
  const std::byte* first = (*buffers.Take(5000))->data();
  CHECK((*buffers.Take(4000))->data() == first);
  const auto held = *buffers.Take(5000);
  CHECK(held->data() == first);
  CHECK((*buffers.Take(5000))->data() != first);
  CHECK((*buffers.Take(100))->data() != first);
}

uint64_t BlockBytes() {
  uint64_t bytes = 0;
  for (const auto& entry : rdma::GetMemoryStatistics().entries) bytes += entry.bytes;
  return bytes;
}

TEST_CASE("regression: dropping tables frees their buffers for encoded pushes") {
  client::PushBuffers buffers;
  const auto before = BlockBytes();
  // Each table is a little larger than the one before, so that no buffer is used again.
  for (size_t i = 0; i < 50; ++i) REQUIRE(buffers.Take((1 + i) << 20).ok());
  for (uint64_t i = 0; i < 2 * client::PushBuffers::kMostIdle; ++i) {
    REQUIRE(buffers.Take(10'000).ok());
  }
  CHECK(BlockBytes() < before + (1 << 20));
}

// The sanitizers' allocators report nothing, so that these pass there.
size_t AllocatedBytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_CASE("regression: dropping a table frees its residuals") {
  constexpr uint64_t kMany = 4 << 20;
  FakeCluster cluster;
  cluster.AddTyped(Spec(v1::CODEC_NONE, v1::CONSISTENCY_ASYNC), kElements, "other");
  cluster.Join();
  const auto gradient = *rdma::MemoryBlock::Allocate(kMany * sizeof(float), "test-region");
  std::memset(gradient->data(), 0, gradient->size());
  size_t first = 0;
  for (int i = 0; i < 6; ++i) {
    v1::TableSpec spec = Spec(v1::CODEC_INT8, v1::CONSISTENCY_ASYNC);
    spec.set_chunk_bytes(256 << 10);
    cluster.AddTyped(spec, kMany, absl::StrCat("table", i));
    const uint32_t table = 101 + 2 * i;  // ids are not used again
    cluster.view.mutable_tables()->rbegin()->set_id(table);
    const auto encode = [&] {
      return cluster.core->StartEncoding("push", table, {gradient, 0, 0, kMany});
    };
    REQUIRE(cluster.RunUntil([&] { return encode().ok(); }));
    (*encode())->Run();
    cluster.view.mutable_tables()->RemoveLast();
    cluster.Publish();
    REQUIRE(cluster.RunUntil([&] { return !encode().ok(); }));
    if (i == 0) first = AllocatedBytes();
  }
  CHECK(AllocatedBytes() < first + kMany * sizeof(float));
}

}  // namespace codec_test
}  // namespace verbena::test
