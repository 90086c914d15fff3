// Shared by tests of device memory (fake_device.h): pushes and pulls of tables of f32 chunks.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_DEVICE_CALLS_H_
#define VERBENA_TESTS_CLIENT_DEVICE_CALLS_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "tests/client/fake_cluster.h"

namespace verbena::test {

inline constexpr uint32_t kChunkElements = 1024;  // of a chunk of 4096 bytes

inline bool All(const float* numbers, size_t count, float value) {
  return std::all_of(numbers, numbers + count, [value](float n) { return n == value; });
}

// Sets the values that pulls of the table's chunks return from now on.
inline void Store(FakeCluster* cluster, uint32_t table, uint32_t chunks, float value) {
  for (const auto& server : cluster->servers) {
    for (uint32_t c = 0; c < chunks; ++c) {
      std::vector<std::byte>& stored = server->stored[{table, c}];
      stored.resize(kChunkElements * sizeof(float));
      std::fill_n(reinterpret_cast<float*>(stored.data()), kChunkElements, value);
    }
  }
}

inline void OpenLane(FakeCluster* cluster, uint32_t table) {
  REQUIRE(cluster->Wait(cluster->Pull(table, cluster->Memory(table, 0.0f))));
}

// Pushes other numbers for each element from the device, and ends the step. The numbers have
// arrived, and pulls return them.
inline client::ClientCore::Slice PushCounting(FakeCluster* cluster, uint32_t table,
                                              uint32_t chunks) {
  auto gradient = cluster->DeviceMemory(table, 1.0f);
  float* const numbers = cluster->Numbers(gradient);
  for (uint32_t i = 0; i < chunks * kChunkElements; ++i) numbers[i] = float(i);
  auto push = cluster->Push(table, gradient);
  auto end = cluster->EndStep(table);
  REQUIRE(cluster->Wait(push));
  INFO(push->status);
  REQUIRE(push->status.ok());
  REQUIRE(cluster->Wait(end));
  for (uint32_t c = 0; c < chunks; ++c) {
    const std::vector<std::byte>& came = cluster->servers[0]->pushed[{table, c}];
    REQUIRE(came.size() == kChunkElements * sizeof(float));
    CHECK(std::memcmp(came.data(), numbers + c * kChunkElements, came.size()) == 0);
    cluster->servers[0]->stored[{table, c}] = came;
  }
  return gradient;
}

// Pulls to the device the numbers that PushCounting() has pushed.
inline void PullCounting(FakeCluster* cluster, uint32_t table, uint32_t chunks) {
  auto parameters = cluster->DeviceMemory(table, -1.0f);
  auto pull = cluster->Pull(table, parameters);
  REQUIRE(cluster->Wait(pull));
  INFO(pull->status);
  REQUIRE(pull->status.ok());
  for (uint32_t i = 0; i < chunks * kChunkElements; ++i) {
    if (cluster->Numbers(parameters)[i] != float(i)) FAIL("element " << i << " is another one");
  }
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_DEVICE_CALLS_H_
