#include "server/checkpoint/files/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>

namespace verbena::checkpoint {

uint64_t Hash(absl::Span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string HashText(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string HashText(std::string_view bytes) {
  return HashText(uint64_t{XXH3_64bits(bytes.data(), bytes.size())});
}

bool IsHashText(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

BlockHashes::BlockHashes(uint64_t bytes, uint64_t block_bytes)
    : bytes_(bytes), block_bytes_(block_bytes), missing_((bytes + block_bytes - 1) / block_bytes) {
  hashes_.resize(missing_);
  has_.resize(missing_);
}

uint64_t BlockHashes::BytesOf(uint64_t block) const {
  return std::min(block_bytes_, bytes_ - block * block_bytes_);
}

void BlockHashes::Set(uint64_t block, uint64_t hash) {
  if (!has_[block]) --missing_;
  has_[block] = true;
  hashes_[block] = hash;
}

std::string BlockHashes::ToString() const {
  return HashText(uint64_t{XXH3_64bits(hashes_.data(), hashes_.size() * sizeof(uint64_t))});
}

std::string BlockHashes::Bytes() const {
  return {reinterpret_cast<const char*>(hashes_.data()), hashes_.size() * sizeof(uint64_t)};
}

}  // namespace verbena::checkpoint
