// Location of a piece of a table: chunk or key -> partition. Every process computes the same.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_ROUTING_H_
#define VERBENA_PROTO_WIRE_ROUTING_H_

#include <algorithm>
#include <cstdint>

namespace verbena {

inline constexpr uint32_t kDefaultPartitions = 256;
inline constexpr uint32_t kDefaultChunkBytes = 256 * 1024;

// Division of a dense table into chunks of chunk_elements; the last one may be shorter.
struct DenseLayout {
  uint64_t elements;  // 0: an embedding table
  uint32_t chunk_elements;
  uint32_t parameter_bytes;  // of a pulled element
  uint32_t gradient_bytes;   // of a pushed element

  uint32_t chunks() const {
    return static_cast<uint32_t>((elements + chunk_elements - 1) / chunk_elements);
  }
  uint64_t first_element(uint32_t chunk) const { return uint64_t{chunk} * chunk_elements; }
  uint32_t elements_of(uint32_t chunk) const {
    return static_cast<uint32_t>(
        std::min<uint64_t>(chunk_elements, elements - first_element(chunk)));
  }
};

// The partition of a chunk. Neighboring chunks are in neighboring partitions, so a large tensor
// spreads evenly. The table's id determines the start, so small tables do not all start in
// partition 0.
constexpr uint32_t PartitionOfChunk(uint32_t table, uint32_t chunk, uint32_t partitions) {
  // Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4) of the table id.
  const uint32_t start = static_cast<uint32_t>((uint64_t{table} * 0x9e3779b97f4a7c15u) >> 32);
  return static_cast<uint32_t>((uint64_t{start} + chunk) % partitions);
}

// The number of a table's chunks (numbered from 0) in a partition.
constexpr uint32_t ChunksInPartition(uint32_t table, uint32_t chunks, uint32_t partition,
                                     uint32_t partitions) {
  // The chunks go round robin from the first one's partition.
  const uint32_t first = PartitionOfChunk(table, 0, partitions);
  const uint32_t after = (partition + partitions - first) % partitions;
  return chunks / partitions + (after < chunks % partitions ? 1 : 0);
}

// The partition of a key of an embedding table. The finalizer of SplitMix64 (Steele, Lea, Flood
// 2014) spreads consecutive keys as well as random ones.
constexpr uint32_t PartitionOfKey(uint32_t table, uint64_t key, uint32_t partitions) {
  uint64_t x = key + table * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  // Multiplies the high bits by the range, without a division (Lemire 2019).
  return static_cast<uint32_t>(((x >> 32) * partitions) >> 32);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_ROUTING_H_
