// Any bytes as the tail of a partition: refused, or exactly the encoding of the records in it.
#include <cstring>
#include <string>
#include <vector>

#include "shard/replica/copy_tails.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {
namespace {

constexpr uint32_t kPartition = 3;

}  // namespace

std::vector<std::string> Seeds() {
  uint64_t resident = 0;
  shard::HeapAllocator heap;
  shard::BufferPool pool(&heap, 0, &resident);
  shard::CopyTails tails(&pool, {});
  tails.Resize(kPartition + 1);
  Group group = {};
  group.partition = kPartition;
  group.epoch = 7;
  group.sequence = 10;
  tails.Begin(kPartition, group);
  std::vector<std::string> seeds;
  for (const size_t bytes : {40, 0, 64, 200}) {
    ReplicaHeader header = {};
    header.kind = bytes == 0 ? ReplicaKind::kNothing : ReplicaKind::kRows;
    ++group.sequence;
    tails.Add(kPartition, 1, group, header,
              std::vector<std::byte>(bytes, std::byte(group.sequence)));
    uint32_t encoded = 0;
    const shard::Buffer payload = tails.Encode(kPartition, &encoded);
    seeds.emplace_back(reinterpret_cast<const char*>(payload.data), encoded);
    pool.ReturnScratch(payload);
  }
  tails.Forget(kPartition);
  return seeds;
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  // Exactly as long as the payload, so that a sanitizer sees reads beyond it.
  std::vector<std::byte> payload(size);
  if (size > 0) std::memcpy(payload.data(), data, size);
  shard::TailBase base;
  std::string again;
  const ReplyStatus status = shard::CopyTails::Decode(
      payload, fuzz::kPartition, &base,
      [&](const shard::TailRecord& record, absl::Span<const std::byte> content) {
        FUZZ_CHECK(record.group.partition == fuzz::kPartition);
        FUZZ_CHECK(record.group.sequence != 0);
        again += fuzz::BytesOf(record);
        again.append(reinterpret_cast<const char*>(content.data()), content.size());
        again.resize((again.size() + shard::kTailAlignment - 1) / shard::kTailAlignment *
                     shard::kTailAlignment);
        return ReplyStatus::kOk;
      });
  if (status != ReplyStatus::kOk) return 0;
  again = fuzz::BytesOf(base) + again;
  FUZZ_CHECK(again.size() == size);
  FUZZ_CHECK(std::memcmp(again.data(), data, size) == 0);
  for (const uint8_t byte : base.reserved0) FUZZ_CHECK(byte == 0);
  return 0;
}
