// A call that looks up sums of rows by bag: its keys made ready for records, and the sums that have
// come back.
//
// A record can have only so many sums, and the keys of a bag lie in many partitions. So the bags
// are cut into blocks, in order, and the keys of a block are sorted by partition: each lane gets
// one record for a block, or few, whose sums are of that block's bags. In a record bags are
// numbered anew, so that it is answered with those that it has keys of, and no others.
//
// What a record is answered with is part of the sums of its bags. All parts are kept until the last
// one is there, then added up in the order of the records' keys, not that in which they came: the
// same records give the same bits.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Keys of a range do not descend; equal ones are in the order of the call.
//  2. Nothing is written to the caller's memory before Finish().
#ifndef VERBENA_CLIENT_CORE_BAG_CALL_H_
#define VERBENA_CLIENT_CORE_BAG_CALL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/core/key_plan.h"
#include "proto/bags.h"

namespace verbena::client {

enum class BagMode : uint8_t { kSum, kMean, kSqrtN };

// Bag i has the keys from offsets[i] up to offsets[i + 1], the last one up to the end.
struct BagKeys {
  absl::Span<const uint64_t> keys;
  absl::Span<const uint64_t> offsets;
  absl::Span<const float> weights;  // of each key; empty: 1
  BagMode mode = BagMode::kSum;
};

class BagCall {
 public:
  // Bounds of a block; one bag is a block whatever it has.
  struct Limits {
    uint32_t bags;
    uint64_t keys;
  };

  // `bags` is right: core_rows.cc has checked it. Allocates only when a call is larger than those
  // before it.
  void Build(const BagKeys& bags, uint32_t table, uint32_t partitions, const Limits& limits,
             KeyScratch* scratch);

  size_t blocks() const { return blocks_.size(); }
  // Where the block's keys are, as the `first` of Pack() counts them.
  absl::Span<const KeyPlan::Range> block(size_t index) const;
  absl::Span<const KeyPlan::Range> ranges() const { return ranges_; }  // of all blocks
  // Where sums come in the memory of a record with so many keys: behind its payload.
  static constexpr uint64_t SumsAt(uint64_t keys) {
    return (BagPayloadBytes(keys) + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
  // A record with so many keys has no more bags than this.
  uint32_t MostBags(uint32_t keys) const;
  // Writes the payload of a record about these keys (BagPayloadBytes() of them); how many bags it
  // has.
  uint32_t Pack(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts,
                std::byte* to);
  // Keeps what that record was answered with: once for each.
  void Add(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts, const float* sums,
           uint32_t dim);
  // All were added: what was asked for, `dim` numbers for each bag.
  void Finish(float* to, uint32_t dim);

 private:
  struct Use {
    uint64_t key;
    BagUse use;
  };
  struct Part {
    uint32_t first;  // of its record's keys
    uint32_t bags;
    size_t listed, sums;  // where these begin
  };

  void AddBlock(const BagKeys& bags, size_t first_bag, size_t end_bag, uint32_t table,
                uint32_t partitions, KeyScratch* scratch);
  void SetDivisors(const BagKeys& bags);
  // Lists the bags of these keys by their number in the record; each(use, number) for every key.
  template <typename Each>
  void Number(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts, Each each);

  uint32_t bags_ = 0;
  uint32_t most_bags_ = 0;  // of a block
  std::vector<Use> uses_;   // by block, partition, key, position
  std::vector<KeyPlan::Range> ranges_;
  std::vector<size_t> blocks_;    // the end of each in ranges_
  std::vector<float> divisors_;   // by bag; empty: sums are what is asked for
  std::vector<uint32_t> bag_of_;  // by position, of the block that is being added
  std::vector<uint32_t> numbers_, listed_;
  std::vector<Part> parts_;
  std::vector<uint32_t> part_bags_;
  std::vector<float> part_sums_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_BAG_CALL_H_
