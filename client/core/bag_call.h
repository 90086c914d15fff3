// A lookup of sums of rows by bag: prepares its keys for records and combines the returned sums.
//
// A record is limited to a number of sums, and the keys of a bag are in many partitions. So the
// bags are divided into blocks, in order, and the keys of a block are sorted by partition. Each
// lane gets one record or a few for a block, with sums of that block's bags only. Each record
// numbers its bags anew, so that its reply has only bags of which the record has keys.
//
// The reply to a record has partial sums of its bags. All parts are kept until the last one
// arrives. They are then added in the order of the records' keys, independent of the order of
// arrival, so the same records give the same bits.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Keys of a range do not descend; equal keys are in the order of the call.
//  2. The caller's memory is not written before Finish().
#ifndef VERBENA_CLIENT_CORE_BAG_CALL_H_
#define VERBENA_CLIENT_CORE_BAG_CALL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/core/key_plan.h"
#include "proto/wire/bags.h"

namespace verbena::client {

enum class BagMode : uint8_t { kSum, kMean, kSqrtN };

// Bag i has the keys from offsets[i] to offsets[i + 1] (exclusive); the last bag ends at the last
// key.
struct BagKeys {
  absl::Span<const uint64_t> keys;
  absl::Span<const uint64_t> offsets;
  absl::Span<const float> weights;  // of each key; empty: all 1
  BagMode mode = BagMode::kSum;
};

class BagCall {
 public:
  // Bounds of a block; a single larger bag is still a block.
  struct Limits {
    uint32_t bags;
    uint64_t keys;
  };

  // `bags` must be valid: core_rows.cc has checked it. Allocates only if the call is larger than
  // all earlier ones.
  void Build(const BagKeys& bags, uint32_t table, uint32_t partitions, const Limits& limits,
             KeyScratch* scratch);

  size_t blocks() const { return blocks_.size(); }
  // Ranges of the block's keys, numbered like the `first` of Pack().
  absl::Span<const KeyPlan::Range> block(size_t index) const;
  absl::Span<const KeyPlan::Range> ranges() const { return ranges_; }  // of all blocks
  // Offset of the sums in the memory of a record with this many keys: after its payload.
  static constexpr uint64_t SumsAt(uint64_t keys) {
    return (BagPayloadBytes(keys) + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
  // The maximum number of bags of a record with this many keys.
  uint32_t MostBags(uint32_t keys) const;
  // Writes the payload of a record for these keys (BagPayloadBytes() of them). Returns its number
  // of bags.
  uint32_t Pack(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts,
                std::byte* to);
  // Stores the sums of that record's reply; call once per record.
  void Add(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts, const float* sums,
           uint32_t dim);
  // Call after all parts were added: writes the result, `dim` numbers for each bag.
  void Finish(float* to, uint32_t dim);

 private:
  struct Use {
    uint64_t key;
    BagUse use;
  };
  struct Part {
    uint32_t first;  // of the record's keys
    uint32_t bags;
    size_t listed, sums;  // start indexes of these
  };

  void AddBlock(const BagKeys& bags, size_t first_bag, size_t end_bag, uint32_t table,
                uint32_t partitions, KeyScratch* scratch);
  void SetDivisors(const BagKeys& bags);
  // Numbers the bags of these keys within the record; calls each(use, number) for every key.
  template <typename Each>
  void Number(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts, Each each);

  uint32_t bags_ = 0;
  uint32_t most_bags_ = 0;  // maximum of a block
  std::vector<Use> uses_;   // by block, partition, key, position
  std::vector<KeyPlan::Range> ranges_;
  std::vector<size_t> blocks_;    // end of each block in ranges_
  std::vector<float> divisors_;   // by bag; empty: the result is the sums
  std::vector<uint32_t> bag_of_;  // by position, for the block that is being added
  std::vector<uint32_t> numbers_, listed_;
  std::vector<Part> parts_;
  std::vector<uint32_t> part_bags_;
  std::vector<float> part_sums_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_BAG_CALL_H_
