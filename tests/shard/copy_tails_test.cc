// Tails of records: their bound, and payloads that are no tail.
#include "shard/replica/copy_tails.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

namespace verbena::shard {
namespace {

constexpr uint64_t kRecordBytes = sizeof(TailRecord) + 64;

// Tails of two partitions. Each record has 40 bytes of data, which take 64.
class Tails {
 public:
  explicit Tails(uint64_t partition_records, uint64_t shard_records)
      : tails(&pool, Limits(partition_records, shard_records)) {
    tails.Resize(2);
  }
  ~Tails() {
    for (uint32_t p = 0; p < 2; ++p) tails.Forget(p);
  }
  void Add(uint32_t partition, uint64_t sequence, size_t bytes = 40) {
    const std::vector<std::byte> data(bytes, std::byte(sequence));
    ReplicaHeader header = {};
    header.kind = ReplicaKind::kRows;
    tails.Add(partition, 1, At(partition, sequence), header, data);
  }
  static Group At(uint32_t partition, uint64_t sequence) {
    Group group = {};
    group.partition = partition;
    group.sequence = sequence;
    group.epoch = 7;
    return group;
  }
  std::vector<std::byte> Payload(uint32_t partition) {
    uint32_t bytes = 0;
    const Buffer payload = tails.Encode(partition, &bytes);
    std::vector<std::byte> copy(payload.data, payload.data + bytes);
    pool.ReturnScratch(payload);
    return copy;
  }
  // The base and the records, or {} of what is no tail.
  static std::vector<uint64_t> Sequences(absl::Span<const std::byte> payload, uint32_t partition) {
    TailBase base;
    std::vector<uint64_t> found;
    const ReplyStatus status = CopyTails::Decode(
        payload, partition, &base, [&](const TailRecord& r, absl::Span<const std::byte> data) {
          for (const std::byte b : data) CHECK(b == std::byte(r.group.sequence));
          found.push_back(r.group.sequence);
          return ReplyStatus::kOk;
        });
    if (status != ReplyStatus::kOk) return {};
    found.insert(found.begin(), base.sequence);
    return found;
  }
  std::vector<uint64_t> Kept(uint32_t partition) {
    return Sequences(Payload(partition), partition);
  }

  uint64_t resident = 0;
  HeapAllocator heap;
  BufferPool pool{&heap, 0, &resident};
  CopyTails tails;

 private:
  static ReplicaLogLimits Limits(uint64_t partition_records, uint64_t shard_records) {
    ReplicaLogLimits limits;
    limits.partition_bytes = 4 * partition_records * kRecordBytes;
    limits.shard_bytes = 4 * shard_records * kRecordBytes;
    return limits;
  }
};

using Sequence = std::vector<uint64_t>;

TEST_CASE("tails: the bound of a partition is kept, and the oldest records go first") {
  Tails t(3, 100);
  t.tails.Begin(0, Tails::At(0, 10));
  for (uint64_t s = 11; s <= 13; ++s) t.Add(0, s);
  CHECK(t.Kept(0) == Sequence{10, 11, 12, 13});
  t.Add(0, 14);
  CHECK(t.Kept(0) == Sequence{11, 12, 13, 14});
  CHECK(t.Payload(0).size() == sizeof(TailBase) + 3 * kRecordBytes);
  // One that does not fit is the base of those after it.
  t.Add(0, 15, 10 * kRecordBytes);
  CHECK(t.Payload(0).empty());
  t.Add(0, 16);
  CHECK(t.Kept(0) == Sequence{15, 16});
}

TEST_CASE("tails: the bound of all partitions is kept") {
  Tails t(3, 4);
  t.tails.Begin(0, Tails::At(0, 10));
  t.tails.Begin(1, Tails::At(1, 20));
  for (uint64_t s = 11; s <= 13; ++s) t.Add(0, s);
  for (uint64_t s = 21; s <= 23; ++s) t.Add(1, s);
  CHECK(t.Kept(0) == Sequence{10, 11, 12, 13});
  CHECK(t.Kept(1) == Sequence{22, 23});
  t.tails.Trim();
  CHECK(t.Payload(0).empty());
  t.Add(0, 14);
  CHECK(t.Kept(0) == Sequence{13, 14});
}

TEST_CASE("tails: a payload that is cut, or of another partition, is refused") {
  Tails t(3, 100);
  t.tails.Begin(0, Tails::At(0, 10));
  for (uint64_t s = 11; s <= 13; ++s) t.Add(0, s);
  const std::vector<std::byte> payload = t.Payload(0);
  CHECK(Tails::Sequences(payload, 1).empty());
  for (size_t size = 0; size < payload.size(); ++size) {
    const bool whole = size >= sizeof(TailBase) && (size - sizeof(TailBase)) % kRecordBytes == 0;
    CHECK(Tails::Sequences({payload.data(), size}, 0).empty() != whole);
  }
  // Any byte may be wrong: nothing is read beyond the payload.
  for (size_t at = 0; at < payload.size(); ++at) {
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::vector<std::byte> wrong = payload;
      wrong[at] = std::byte(value);
      TailBase base;
      uint64_t bytes = sizeof(TailBase);
      const auto count = [&](const TailRecord&, absl::Span<const std::byte> data) {
        bytes += sizeof(TailRecord) + data.size();
        return ReplyStatus::kOk;
      };
      (void)CopyTails::Decode(wrong, 0, &base, count);
      CHECK(bytes <= wrong.size());
    }
  }
}

}  // namespace
}  // namespace verbena::shard
