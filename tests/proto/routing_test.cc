// Chunks and partitions: every process computes the same, and evenly.
#include "proto/wire/routing.h"

#include <catch2/catch.hpp>
#include <vector>

namespace verbena {
namespace {

TEST_CASE("a layout covers every element once") {
  for (uint64_t elements : {1ull, 63ull, 64ull, 65ull, 1000ull, 1ull << 33}) {
    const DenseLayout layout = {elements, 64, 4, 4};
    CAPTURE(elements);
    const uint32_t last = layout.chunks() - 1;
    CHECK(layout.first_element(0) == 0);
    CHECK(layout.first_element(last) + layout.elements_of(last) == elements);
    CHECK(layout.elements_of(last) >= 1);
    if (last > 0) CHECK(layout.elements_of(0) == 64);
  }
  CHECK(DenseLayout{65, 64, 4, 4}.chunks() == 2);
  CHECK(DenseLayout{65, 64, 4, 4}.elements_of(1) == 1);
}

TEST_CASE("the partition of a chunk never changes") {
  // A stored checkpoint and a running peer rely on these numbers.
  CHECK(PartitionOfChunk(0, 0, 256) == 0);
  CHECK(PartitionOfChunk(1, 0, 256) == 0xb9);
  CHECK(PartitionOfChunk(1, 1, 256) == 0xba);
  CHECK(PartitionOfChunk(1, 256, 256) == 0xb9);
}

TEST_CASE("the partition of a key never changes, and keys are spread evenly") {
  CHECK(PartitionOfKey(1, 0, 256) == PartitionOfKey(1, 0, 256));
  CHECK(PartitionOfKey(0, 0, 256) == 0);
  CHECK(PartitionOfKey(1, 0, 256) == 226);
  CHECK(PartitionOfKey(1, 1, 256) == 145);
  CHECK(PartitionOfKey(2, 1, 256) == 190);
  CHECK(PartitionOfKey(7, UINT64_MAX, 1) == 0);
  for (const uint64_t stride : {uint64_t{1}, uint64_t{4096}, uint64_t{1} << 40}) {
    std::vector<int> keys(256);
    for (uint64_t i = 0; i < 25600; ++i) ++keys[PartitionOfKey(3, i * stride, 256)];
    for (int count : keys) {
      CHECK(count > 50);
      CHECK(count < 150);
    }
  }
}

TEST_CASE("a large table fills all partitions evenly, small tables start in different ones") {
  std::vector<int> chunks(256);
  for (uint32_t chunk = 0; chunk < 2560; ++chunk) ++chunks[PartitionOfChunk(3, chunk, 256)];
  for (int count : chunks) CHECK(count == 10);

  std::vector<int> starts(16);
  for (uint32_t table = 1; table <= 64; ++table) ++starts[PartitionOfChunk(table, 0, 16)];
  for (int count : starts) CHECK(count <= 8);
  for (uint32_t table = 1; table <= 64; ++table) CHECK(PartitionOfChunk(table, 7, 1) == 0);
}

TEST_CASE("the largest chunk index does not wrap before the modulus") {
  for (uint32_t table : {1u, 77u, 4000000000u}) {
    const uint32_t before = PartitionOfChunk(table, 0xfffffffe, 256);
    CHECK(PartitionOfChunk(table, 0xffffffff, 256) == (before + 1) % 256);
  }
}

}  // namespace
}  // namespace verbena
