// Tables with a push codec, compared with a table of f32 that gets the decoded gradients.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "shard/codec/codec.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace codec_engine_test {

constexpr v1::Codec kCodecs[] = {v1::CODEC_BF16,     v1::CODEC_F16,      v1::CODEC_INT8,
                                 v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2, v1::CODEC_SIGN,
                                 v1::CODEC_TOP_K};

FixtureOptions Small(v1::Codec codec, v1::Consistency consistency) {
  FixtureOptions o;
  o.workers = 3;
  // More than a block of a pass has, and odd in number.
  o.chunk_elements = 2048 + 256;
  o.last_elements = 333;
  o.optimizer = "adam";
  o.rate = 0.05;
  o.initial = 0.7;
  o.consistency = consistency;
  o.push_codec = codec;
  return o;
}

std::vector<float> Gradient(std::mt19937& random, uint32_t n) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

std::vector<float> Decoded(v1::Codec codec, const std::vector<float>& values) {
  const auto type = static_cast<ElementType>(codec);
  std::vector<std::byte> bytes(PayloadBytes(type, values.size()));
  codec::Encode(shard::BestIsa(), type, values.data(), nullptr, bytes.data(), values.size());
  std::vector<float> out(values.size());
  codec::Decode(shard::BestIsa(), type, bytes.data(), 0, out.data(), out.size());
  return out;
}

// Steps (async: pushes) of all ranks in an order of their own, encoded to one and decoded to the
// other.
void TrainBoth(Fixture* coded, Fixture* plain, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> order = {0, 1, 2};
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sequences;
  const bool sync = coded->options.consistency == v1::CONSISTENCY_SYNC;
  for (uint64_t step = 0; step < 5; ++step) {
    for (uint32_t chunk = 0; chunk < coded->options.chunks; ++chunk) {
      std::shuffle(order.begin(), order.end(), random);
      for (const uint32_t rank : order) {
        const std::vector<float> gradient = Gradient(random, coded->elements(chunk));
        const uint64_t sequence = sync ? step : ++sequences[{rank, coded->PartitionOf(chunk)}];
        const PushOutcome a = coded->Push(rank, chunk, sequence, gradient);
        REQUIRE((a.held || a.answer.status == ReplyStatus::kOk));
        const PushOutcome b =
            plain->Push(rank, chunk, sequence, Decoded(coded->options.push_codec, gradient));
        REQUIRE((b.held || b.answer.status == ReplyStatus::kOk));
      }
    }
  }
}

TEST_CASE("a table with a push codec trains bit for bit as one that gets the decoded gradients") {
  for (const v1::Codec codec : kCodecs) {
    for (const auto consistency :
         {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
      Fixture coded(Small(codec, consistency));
      Fixture plain(Small(v1::CODEC_NONE, consistency));
      TrainBoth(&coded, &plain, 7);
      for (uint32_t chunk = 0; chunk < coded.options.chunks; ++chunk) {
        CAPTURE(static_cast<int>(codec), static_cast<int>(consistency), chunk);
        const std::vector<float> expected = plain.Read(chunk);
        REQUIRE(!expected.empty());
        REQUIRE(coded.Read(chunk) == expected);
      }
    }
  }
}

TEST_CASE("an encoded push with a NaN, or with an invalid scale, is refused and changes nothing") {
  for (const v1::Codec codec : kCodecs) {
    Fixture f(Small(codec, v1::CONSISTENCY_ASYNC));
    std::vector<float> gradient(f.elements(0), 1.0f);
    gradient[300] = NAN;
    CAPTURE(static_cast<int>(codec));
    CHECK(f.Push(0, 0, 1, gradient).answer.status == ReplyStatus::kNonFinite);
    gradient[300] = 1;
    if (InBlocks(static_cast<ElementType>(codec))) {
      PushRequest push = f.PushOf(kFirstWorker, 0, 1, gradient, 0);
      const float scale = INFINITY;  // of top_k the first number
      std::memcpy(f.payloads.back().data(), &scale, sizeof(scale));
      CHECK(f.engine->Push(push).answer.status == ReplyStatus::kNonFinite);
    }
    CHECK(f.Read(0) == std::vector<float>(f.elements(0), 0.7f));
  }
}

TEST_CASE("a push with another type, length or offset than the table's codec is malformed") {
  Fixture f(Small(v1::CODEC_INT8, v1::CONSISTENCY_ASYNC));
  const std::vector<float> gradient(f.elements(0), 1.0f);
  PushRequest push = f.PushOf(kFirstWorker, 0, 1, gradient, 0);
  PushRequest bad = push;
  bad.dtype = ElementType::kE4m3;
  CHECK(f.engine->Push(bad).answer.status == ReplyStatus::kMalformed);
  bad = push;
  bad.dtype = ElementType::kF32;
  CHECK(f.engine->Push(bad).answer.status == ReplyStatus::kMalformed);
  bad = push;
  bad.payload = push.payload.subspan(0, push.payload.size() - 4);
  CHECK(f.engine->Push(bad).answer.status == ReplyStatus::kMalformed);
  CHECK(f.engine->Push(push).answer.status == ReplyStatus::kOk);
}

TEST_CASE("a push of top_k whose places do not ascend is malformed, and no part of it is applied") {
  for (const auto consistency : {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC}) {
    const bool sync = consistency == v1::CONSISTENCY_SYNC;
    Fixture f(Small(v1::CODEC_TOP_K, consistency));
    std::mt19937 random(3);
    const std::vector<float> gradient = Gradient(random, f.elements(0));
    PushRequest push = f.PushOf(kFirstWorker, 0, sync ? 0 : 1, gradient, 0);
    std::vector<std::byte>& payload = f.payloads.back();
    const std::vector<std::byte> good = payload;
    // Places in the first block, and in the last one, which has 256.
    for (const size_t block : {size_t{0}, size_t{1}}) {
      for (const uint16_t place : {uint16_t{0}, uint16_t{256}, uint16_t{2048}, uint16_t{65535}}) {
        if (block == 0 && place == 256) continue;
        std::byte* last = payload.data() + block * 120 + 80 + 19 * sizeof(place);
        std::memcpy(last, &place, sizeof(place));
        CAPTURE(sync, block, place);
        CHECK(f.engine->Push(push).answer.status == ReplyStatus::kMalformed);
        payload = good;
      }
    }
    CHECK(f.Read(0) == std::vector<float>(f.elements(0), 0.7f));
    const PushOutcome outcome = f.engine->Push(push);
    CHECK(outcome.answer.status == ReplyStatus::kOk);
    CHECK((sync || f.Read(0) != std::vector<float>(f.elements(0), 0.7f)));
  }
}

}  // namespace codec_engine_test
}  // namespace verbena::shard
