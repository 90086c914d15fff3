// XXH3-64, as checkpoints have it.
//
// **Thread safety**: pure functions; one thread an object.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_CHECKSUM_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace verbena::checkpoint {

inline constexpr uint64_t kDefaultBlockBytes = uint64_t{1} << 20;
// A reader has one in memory.
inline constexpr uint64_t kMostBlockBytes = uint64_t{1} << 28;

uint64_t Hash(absl::Span<const std::byte> bytes);
std::string HashText(uint64_t hash);  // 16 hexadecimal digits
std::string HashText(std::string_view bytes);
bool IsHashText(std::string_view text);

// Computes the checksum of a tensor from those of its blocks, which may come in any order.
class BlockHashes {
 public:
  BlockHashes(uint64_t bytes, uint64_t block_bytes);
  uint64_t blocks() const { return hashes_.size(); }
  uint64_t BytesOf(uint64_t block) const;
  bool has(uint64_t block) const { return has_[block]; }
  void Set(uint64_t block, uint64_t hash);
  uint64_t missing() const { return missing_; }
  std::string ToString() const;
  // The blocks' hashes, 8 bytes each, little-endian.
  std::string Bytes() const;

 private:
  uint64_t bytes_, block_bytes_, missing_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> has_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_CHECKSUM_H_
