// Any bytes as a push that is encoded: decoded the same with every instruction set, a piece as part
// of the whole, and found to be no numbers exactly when one of them is none. Places of top_k are
// well formed exactly when they name different numbers of the block in order, whatever numbers are
// encoded.
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
  for (uint8_t t = 2; t <= static_cast<uint8_t>(ElementType::kTopK); ++t) {
    const auto type = static_cast<ElementType>(t);
    std::vector<std::byte> bytes(PayloadBytes(type, numbers.size()));
    codec::Encode(shard::BestIsa(), type, numbers.data(), nullptr, bytes.data(), numbers.size());
    std::string seed = {static_cast<char>(t), 55};
    seed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    seeds.push_back(seed);
  }
  return seeds;
}

namespace {

// The expected result of WellFormed() for top_k.
bool PlacesAreGood(const std::vector<std::byte>& payload, size_t n) {
  for (size_t b = 0; b * 2048 < n; ++b) {
    const size_t left = std::min<size_t>(2048, n - b * 2048);
    int32_t before = -1;
    for (size_t k = 0; k < 20; ++k) {
      uint16_t place;
      std::memcpy(&place, payload.data() + b * 120 + 80 + 2 * k, sizeof(place));
      if (k >= left ? place != 65535 : place <= before || place >= left) return false;
      before = place;
    }
  }
  return true;
}

// Any bytes as numbers that are encoded.
void EncodeTopK(const uint8_t* data, size_t size) {
  const size_t n = std::min<size_t>(size / sizeof(float), 5000);
  if (n == 0) return;
  std::vector<float> in(n), residual(n), expected_residual(n);
  std::memcpy(in.data(), data, n * sizeof(float));
  std::vector<std::byte> expected(PayloadBytes(ElementType::kTopK, n)), again = expected;
  codec::Encode(shard::Isa::kBaseline, ElementType::kTopK, in.data(), expected_residual.data(),
                expected.data(), n);
  FUZZ_CHECK(PlacesAreGood(expected, n));
  for (const shard::Isa isa : shard::SupportedIsas()) {
    std::fill(residual.begin(), residual.end(), 0.0f);
    codec::Encode(isa, ElementType::kTopK, in.data(), residual.data(), again.data(), n);
    FUZZ_CHECK(again == expected);
    FUZZ_CHECK(std::memcmp(residual.data(), expected_residual.data(), n * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  if (size < 2) return 0;
  const auto type = static_cast<ElementType>(2 + data[0] % 7);
  // As many numbers as the bytes are enough for; the last block is short.
  const size_t per = InBlocks(type) ? CodecBlockBytes(type) : 256;
  const size_t blocks = (size - 2) / per;
  if (blocks == 0) return 0;
  const size_t block = InBlocks(type) ? CodecBlock(type) : kCodecBlock;
  const size_t n = blocks * block - data[1] * 9 % block;
  // Exactly as long as the payload, so that a sanitizer sees reads beyond it.
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
    for (size_t i = kCodecBlock; i < n; ++i) {
      const float piece = again[i - kCodecBlock];
      FUZZ_CHECK(std::isnan(piece) ? std::isnan(expected[i]) : piece == expected[i]);
    }
  }
  const bool formed = codec::WellFormed(type, payload.data(), n);
  FUZZ_CHECK(formed == (type != ElementType::kTopK || fuzz::PlacesAreGood(payload, n)));
  if (type == ElementType::kTopK) fuzz::EncodeTopK(data + 2, size - 2);
  const bool finite =
      std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); });
  FUZZ_CHECK(shard::HasNonFinite(shard::BestIsa(), {payload.data(), type}, n) != finite);
  return 0;
}
