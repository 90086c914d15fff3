// A record for a copy as its slot would have it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_REPLICA_BYTES_H_
#define VERBENA_TESTS_SHARD_REPLICA_BYTES_H_

#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/engine.h"

namespace verbena::shard {

class ReplicaBytes {
 public:
  // `bytes` of its data from `offset` on.
  ReplicaBytes(const ReplicaRecord& from, uint64_t offset, uint64_t bytes)
      : size_(sizeof(from.header) + bytes), words_((size_ + 7) / 8) {
    ReplicaHeader header = from.header;
    header.part_offset = offset;
    std::memcpy(words_.data(), &header, sizeof(header));
    if (bytes > 0) {
      std::memcpy(words_.data() + sizeof(header) / 8, from.data.data + offset, bytes);
    }
    record_.header.table = from.table;
    record_.header.group_count = 1;
    record_.groups[0] = from.group;
  }
  // All of it.
  explicit ReplicaBytes(const ReplicaRecord& from)
      : ReplicaBytes(from, from.header.part_offset, from.header.total_bytes) {}

  const Record& record() const { return record_; }
  absl::Span<const std::byte> payload() const {
    return {reinterpret_cast<const std::byte*>(words_.data()), size_};
  }

 private:
  size_t size_;
  std::vector<uint64_t> words_;  // aligned as in a slot
  Record record_ = {};
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_REPLICA_BYTES_H_
