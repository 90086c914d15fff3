// Tables of bf16 and f16: the bytes sent for odd numbers of elements, where they land, and the
// regions that are refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/client/fake_calls.h"
#include "verbena/half.h"

namespace verbena::test {
namespace dtype_test {

using Catch::Matchers::Contains;
using Slice = client::ClientCore::Slice;

// Chunks of 4096 bytes: of 1024 elements with f32 in either direction, else of 2048. The last one
// is odd in number.
constexpr uint64_t kElements = 2 * 2048 + 777;
constexpr uint16_t kUntouched = 0xabcd;

struct Case {
  v1::DType parameters, gradients;
  size_t parameter_bytes, gradient_bytes;
  uint32_t chunk_elements() const { return parameter_bytes + gradient_bytes == 4 ? 2048 : 1024; }
};
constexpr Case kCases[] = {
    {v1::DTYPE_BF16, v1::DTYPE_BF16, 2, 2},
    {v1::DTYPE_F16, v1::DTYPE_BF16, 2, 2},
    {v1::DTYPE_BF16, v1::DTYPE_F32, 2, 4},
    {v1::DTYPE_F32, v1::DTYPE_BF16, 4, 2},
};

v1::TableSpec Spec(const Case& types, v1::Consistency consistency = v1::CONSISTENCY_ASYNC) {
  v1::TableSpec spec;
  spec.set_dtype(types.parameters);
  spec.set_gradient_dtype(types.gradients);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(4096);
  return spec;
}

std::shared_ptr<rdma::MemoryBlock> Allocate(size_t bytes) {
  auto block = *rdma::MemoryBlock::Allocate(bytes, "test-region");
  const auto* untouched = reinterpret_cast<const std::byte*>(&kUntouched);
  for (size_t i = 0; i < bytes; ++i) block->data()[i] = untouched[i % sizeof(kUntouched)];
  return block;
}

// Bytes that differ from place to place; `seed` moves them.
std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>((i * 7 + seed) % 251);
  return result;
}

// All chunks of a table that the servers hold, in order.
using Chunks = std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> FakeServer::*;
std::vector<std::byte> Joined(const FakeCluster& cluster, uint32_t table, uint32_t chunks,
                              Chunks what) {
  std::vector<std::byte> all;
  for (uint32_t c = 0; c < chunks; ++c) {
    for (const auto& server : cluster.servers) {
      const auto it = ((*server).*what).find({table, c});
      if (it != ((*server).*what).end())
        all.insert(all.end(), it->second.begin(), it->second.end());
    }
  }
  return all;
}

// Sets the parameters that pulls return.
void Store(FakeCluster* cluster, uint32_t table, const std::vector<std::byte>& all,
           size_t chunk_bytes) {
  for (size_t first = 0, chunk = 0; first < all.size(); first += chunk_bytes, ++chunk) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(first);
    const auto to =
        all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), first + chunk_bytes));
    for (const auto& server : cluster->servers) {
      server->stored[{table, static_cast<uint32_t>(chunk)}].assign(from, to);
    }
  }
}

// Whether `slice` holds `bytes`, and the memory around it was left alone.
bool Holds(const Slice& slice, const std::vector<std::byte>& bytes) {
  const std::byte* data = slice.block->data();
  const auto* untouched = reinterpret_cast<const std::byte*>(&kUntouched);
  for (size_t i = 0; i < slice.block->size(); ++i) {
    const bool inside = i >= slice.offset && i < slice.offset + bytes.size();
    if (data[i] != (inside ? bytes[i - slice.offset] : untouched[i % 2])) return false;
  }
  return true;
}

TEST_CASE("regression: parameters are assigned from a device with all bytes of their type") {
  for (const Case& types : kCases) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTyped(Spec(types), kElements);
    cluster.Join();
    INFO(types.parameters << " " << types.gradients);
    const std::vector<std::byte> parameters = Pattern(kElements * types.parameter_bytes, 3);
    Slice from = cluster.DeviceMemory(table, 0);
    std::copy(parameters.begin(), parameters.end(), cluster.device->Bytes(from.block->data()));
    Good(&cluster, cluster.Assign(table, from));
    const uint32_t chunks = (kElements + types.chunk_elements() - 1) / types.chunk_elements();
    CHECK(Joined(cluster, table, chunks, &FakeServer::pushed) == parameters);
  }
}

TEST_CASE("a push and a pull of an odd number of elements move exactly those elements") {
  for (const bool shm : {false, true}) {
    for (const Case& types : kCases) {
      FakeCluster::Options options;
      options.servers = 2;
      options.shm = shm;
      FakeCluster cluster(options);
      const uint32_t table = cluster.AddTyped(Spec(types), kElements);
      cluster.Join();
      INFO(types.parameters << " " << types.gradients << (shm ? " shm" : " sim"));
      const size_t pushed = kElements * types.gradient_bytes;
      const size_t pulled = kElements * types.parameter_bytes;
      // At an offset that is no multiple of more than an element.
      const size_t push_at = 3 * types.gradient_bytes, pull_at = 5 * types.parameter_bytes;
      const std::vector<std::byte> gradient = Pattern(pushed, 1);
      const auto from = Allocate(push_at + pushed);
      std::copy(gradient.begin(), gradient.end(), from->data() + push_at);
      Good(&cluster, cluster.Push(table, {from, push_at, 0, kElements}));
      const uint32_t chunks = (kElements + types.chunk_elements() - 1) / types.chunk_elements();
      CHECK(Joined(cluster, table, chunks, &FakeServer::pushed) == gradient);

      const std::vector<std::byte> parameters = Pattern(pulled, 2);
      Store(&cluster, table, parameters, types.chunk_elements() * types.parameter_bytes);
      const Slice to = {Allocate(pull_at + pulled + 32), pull_at, 0, kElements};
      Good(&cluster, cluster.Pull(table, to));
      CHECK(Holds(to, parameters));

      const auto statistics = cluster.core->statistics();
      CHECK(statistics.bytes_pushed == pushed);
      CHECK(statistics.bytes_pulled == pulled);
    }
  }
}

TEST_CASE("a pull into memory that shm cannot share is staged, to the last odd element") {
  for (const Case& types : kCases) {
    FakeCluster::Options options;
    options.shm = true;
    options.staging_bytes = 4096;  // one chunk at a time
    FakeCluster cluster(options);
    const uint32_t table = cluster.AddTyped(Spec(types), kElements);
    cluster.Join();
    const size_t bytes = kElements * types.parameter_bytes;
    const std::vector<std::byte> parameters = Pattern(bytes, 3);
    Store(&cluster, table, parameters, types.chunk_elements() * types.parameter_bytes);
    std::vector<std::byte> memory(bytes + 2 * types.parameter_bytes, std::byte{0x5a});
    const auto block = *rdma::MemoryBlock::Register(memory.data(), memory.size());
    Good(&cluster, cluster.Pull(table, {block, types.parameter_bytes, 0, kElements}));
    INFO(types.parameters << " " << types.gradients);
    const auto first = memory.begin() + static_cast<std::ptrdiff_t>(types.parameter_bytes);
    CHECK(std::equal(parameters.begin(), parameters.end(), first));
    CHECK(std::count(memory.begin(), first, std::byte{0x5a}) == first - memory.begin());
    CHECK(memory.back() == std::byte{0x5a});
    CHECK(cluster.core->statistics().staged_bytes == bytes);
  }
}

TEST_CASE("push-pull counts its two regions each in its own elements") {
  for (const Case& types : kCases) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTyped(Spec(types, v1::CONSISTENCY_SYNC), kElements);
    cluster.Join();
    const std::vector<std::byte> gradient = Pattern(kElements * types.gradient_bytes, 4);
    const std::vector<std::byte> parameters = Pattern(kElements * types.parameter_bytes, 5);
    Store(&cluster, table, parameters, types.chunk_elements() * types.parameter_bytes);
    const auto from = Allocate(gradient.size());
    std::copy(gradient.begin(), gradient.end(), from->data());
    const Slice to = {Allocate(parameters.size()), 0, 0, kElements};
    Good(&cluster, cluster.PushPull(table, {from, 0, 0, kElements}, to));
    INFO(types.parameters << " " << types.gradients);
    CHECK(Holds(to, parameters));
    const uint32_t chunks = (kElements + types.chunk_elements() - 1) / types.chunk_elements();
    CHECK(Joined(cluster, table, chunks, &FakeServer::pushed) == gradient);
  }
}

TEST_CASE("push-pull in place needs as many bytes in both directions") {
  for (const Case& types : kCases) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTyped(Spec(types), kElements);
    cluster.Join();
    const auto block = Allocate(kElements * 8);
    auto in_place = cluster.PushPull(table, {block, 0, 0, kElements}, {block, 0, 0, kElements});
    INFO(types.parameters << " " << types.gradients);
    if (types.parameter_bytes == types.gradient_bytes) {
      Good(&cluster, in_place);
      const size_t step = types.gradient_bytes;
      auto shifted = cluster.PushPull(table, {block, 0, 0, kElements}, {block, step, 0, kElements});
      REQUIRE(shifted->done);
      CHECK(absl::IsInvalidArgument(shifted->status));
      CHECK_THAT(std::string(shifted->status.message()),
                 Contains(absl::StrCat("the destination is ", step, " bytes behind the gradient")));
      continue;
    }
    REQUIRE(in_place->done);
    CHECK(absl::IsInvalidArgument(in_place->status));
    CHECK_THAT(
        std::string(in_place->status.message()),
        Contains("the destination overlaps the gradient") &&
            Contains(types.gradient_bytes == 4 ? "one f32 gradient has 4, one bf16 parameter 2"
                                               : "one bf16 gradient has 2, one f32 parameter 4"));
    // Side by side in one region is fine.
    const size_t behind = kElements * types.gradient_bytes + types.gradient_bytes;
    Good(&cluster,
         cluster.PushPull(table, {block, 0, 0, kElements}, {block, behind / 4 * 4, 0, kElements}));
  }
}

TEST_CASE("a range of chunks lies at the offset of its own elements") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(Spec(kCases[0]), kElements);
  cluster.Join();
  const std::vector<std::byte> parameters = Pattern(kElements * 2, 6);
  Store(&cluster, table, parameters, 4096);
  const Slice last = {Allocate(777 * 2 + 6), 2, 4096, 777};
  Good(&cluster, cluster.Pull(table, last));
  CHECK(Holds(last, {parameters.end() - 777 * 2, parameters.end()}));
}

TEST_CASE("a server sums 16-bit numbers by value") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(Spec(kCases[0]), 5);
  cluster.Join();
  const auto block = Allocate(5 * 2);
  const std::vector<float> ones(5, 1.5f);
  BFloat16sFromFloats(ones.data(), reinterpret_cast<uint16_t*>(block->data()), 5);
  for (int i = 0; i < 2; ++i) Good(&cluster, cluster.Push(table, {block, 0, 0, 5}));
  Good(&cluster, cluster.Pull(table, {block, 0, 0, 5}));
  std::vector<float> sum(5);
  FloatsFromBFloat16s(reinterpret_cast<const uint16_t*>(block->data()), sum.data(), 5);
  CHECK(sum == std::vector<float>(5, 3.0f));
}

TEST_CASE("regions are checked against the element type of the call's direction") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTyped(Spec(kCases[2]), kElements);  // f32 there, bf16 back
  cluster.Join();
  const auto refused = [](const FakeCluster::CallPtr& call, const std::string& message) {
    REQUIRE(call->done);
    INFO(call->status);
    CHECK(absl::IsInvalidArgument(call->status));
    CHECK_THAT(std::string(call->status.message()), Contains(message));
  };
  const auto block = Allocate(kElements * 4);
  refused(cluster.Push(table, {block, 2, 0, kElements}),
          "push: region_offset is 2; allowed: multiples of 4, the bytes of one f32 gradient");
  refused(cluster.Pull(table, {block, 3, 0, kElements}),
          "pull: region_offset is 3; allowed: multiples of 2, the bytes of one bf16 parameter");
  const auto half = Allocate(kElements * 2);
  refused(cluster.Push(table, {half, 0, 0, kElements}),
          "the region is too small: 4873 elements of table 'weights' need 19492 bytes (4 for each "
          "f32 gradient); the region has 9746 bytes, 9746 from offset 0");
  refused(cluster.Pull(table, {half, 2, 0, kElements}),
          "need 9746 bytes (2 for each bf16 parameter); the region has 9746 bytes, 9744 from "
          "offset 2");
  refused(cluster.PushPull(table, {block, 0, 0, kElements}, {half, 2, 0, kElements}),
          "push-pull destination: the region is too small");
  CHECK(cluster.servers[0]->seen.empty());
  Good(&cluster, cluster.Pull(table, {half, 0, 0, kElements}));
}

}  // namespace dtype_test
}  // namespace verbena::test
