// Any bytes as a push that is encoded: decoded the same with every instruction set, a piece as part
// of the whole, and found to be no numbers exactly when one of them is none.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "shard/codec/codec.h"
#include "shard/kernel/reduce.h"
#include "tests/fuzz/fuzz.h"
#include "tests/shard/isas.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  std::vector<float> numbers(200);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) - 77;
  for (uint8_t t = 2; t <= static_cast<uint8_t>(ElementType::kSign); ++t) {
    const auto type = static_cast<ElementType>(t);
    std::vector<std::byte> bytes(PayloadBytes(type, numbers.size()));
    codec::Encode(shard::BestIsa(), type, numbers.data(), nullptr, bytes.data(), numbers.size());
    std::string seed = {static_cast<char>(t), 55};
    seed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  if (size < 2) return 0;
  const auto type = static_cast<ElementType>(2 + data[0] % 6);
  // As many numbers as the bytes are enough for; the last block is short.
  const size_t per = InBlocks(type) ? CodecBlockBytes(type) : 256;
  const size_t blocks = (size - 2) / per;
  if (blocks == 0) return 0;
  const size_t n = blocks * kCodecBlock - data[1] % kCodecBlock;
  // Of that length exactly, so that a sanitizer sees what is read beyond it.
  std::vector<std::byte> payload(PayloadBytes(type, n));
  std::memcpy(payload.data(), data + 2, payload.size());
  std::vector<float> expected(n), again(n);
  codec::Decode(shard::Isa::kBaseline, type, payload.data(), 0, expected.data(), n);
  for (const shard::Isa isa : shard::SupportedIsas()) {
    codec::Decode(isa, type, payload.data(), 0, again.data(), n);
    for (size_t i = 0; i < n; ++i) {
      FUZZ_CHECK(std::memcmp(&again[i], &expected[i], sizeof(float)) == 0 ||
                 (std::isnan(again[i]) && std::isnan(expected[i])));
    }
  }
  if (n > kCodecBlock) {
    codec::Decode(shard::BestIsa(), type, payload.data(), kCodecBlock, again.data(),
                  n - kCodecBlock);
    FUZZ_CHECK(std::isnan(again[0]) ? std::isnan(expected[kCodecBlock])
                                    : again[0] == expected[kCodecBlock]);
  }
  const bool finite =
      std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); });
  FUZZ_CHECK(shard::HasNonFinite(shard::BestIsa(), {payload.data(), type}, n) != finite);
  return 0;
}
