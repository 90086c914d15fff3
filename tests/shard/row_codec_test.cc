// Codecs of rows: the size of a row, its bytes compared with those of a dense payload, and an
// engine with codecs compared with one that gets the decoded numbers.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "shard/codec/codec.h"
#include "tests/shard/isas.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

constexpr ElementType kRowTypes[] = {ElementType::kF32,  ElementType::kBf16, ElementType::kF16,
                                     ElementType::kInt8, ElementType::kE4m3, ElementType::kE5m2};
constexpr v1::Codec kRowCodecs[] = {v1::CODEC_BF16, v1::CODEC_F16, v1::CODEC_INT8,
                                    v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2};

Row RowOfNumbers(std::mt19937* random, uint32_t dim, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  Row row(dim);
  for (float& x : row) x = normal(*random);
  return row;
}

// A row after encoding and decoding.
Row Travelled(ElementType type, const Row& row) {
  std::vector<std::byte> bytes(RowBytes(type, row.size()));
  Row back(row.size());
  codec::EncodeRow(Isa::kBaseline, type, row.data(), bytes.data(), row.size());
  codec::DecodeRow(Isa::kBaseline, type, bytes.data(), back.data(), row.size());
  return back;
}

TEST_CASE("a row takes only its numbers and the scales of its blocks") {
  CHECK(RowBytes(ElementType::kF32, 5) == 20);
  CHECK(RowBytes(ElementType::kBf16, 4) == 8);
  CHECK(RowBytes(ElementType::kF16, 5) == 12);
  CHECK(RowBytes(ElementType::kInt8, 1) == 8);
  CHECK(RowBytes(ElementType::kInt8, 16) == 20);
  CHECK(RowBytes(ElementType::kE4m3, 64) == 68);
  CHECK(RowBytes(ElementType::kE5m2, 128) == 132);
  CHECK(RowBytes(ElementType::kInt8, 130) == 132 + 8);
  CHECK(RowBytes(ElementType::kInt8, 1024) == PayloadBytes(ElementType::kInt8, 1024));
}

TEST_CASE("a row is encoded as if it were alone, on every instruction set") {
  std::mt19937 random(5);
  for (const ElementType type : kRowTypes) {
    for (uint32_t dim : {1, 2, 3, 4, 15, 16, 17, 31, 32, 64, 100, 127, 128, 129, 200, 256, 1024}) {
      CAPTURE(static_cast<int>(type), dim);
      Row row = RowOfNumbers(&random, dim);
      if (dim % 3 == 0) row[dim / 2] = std::nanf("");
      // The exact size, so that a sanitizer finds reads and writes beyond it.
      const size_t bytes = RowBytes(type, dim);
      std::vector<std::byte> dense(PayloadBytes(type, dim)), first;
      codec::Encode(Isa::kBaseline, type, row.data(), nullptr, dense.data(), dim);
      Row expected(dim);
      codec::Decode(Isa::kBaseline, type, dense.data(), 0, expected.data(), dim);
      for (const Isa isa : SupportedIsas()) {
        std::vector<std::byte> encoded(bytes, std::byte{0xee});
        codec::EncodeRow(isa, type, row.data(), encoded.data(), dim);
        const size_t same = std::min(encoded.size(), dense.size());
        CHECK(std::memcmp(encoded.data(), dense.data(), same) == 0);
        if (first.empty()) first = encoded;
        CHECK(encoded == first);
        Row back(dim, -7);
        codec::DecodeRow(isa, type, encoded.data(), back.data(), dim);
        CHECK(SameBits(back, expected));
      }
    }
  }
}

struct Twins {
  Twins(RowOptions options, v1::Codec push, v1::Codec pull) : plain(options) {
    options.push_codec = push;
    options.pull_codec = pull;
    coded = std::make_unique<RowFixture>(options);
  }
  // The same push to both; the plain one gets the decoded rows.
  void Push(uint32_t rank, uint32_t partition, uint64_t sequence, const Rows& rows) {
    Rows left;
    for (const auto& [key, row] : rows) left[key] = Travelled(coded->push_type, row);
    const ReplyStatus status = coded->PushStatus(rank, partition, sequence, rows);
    CHECK(status == plain.PushStatus(rank, partition, sequence, left));
    REQUIRE(status == ReplyStatus::kOk);
  }
  void End(uint32_t rank, uint32_t partition, uint64_t step, uint32_t pushes) {
    REQUIRE(coded->EndStatus(rank, partition, step, pushes) == ReplyStatus::kOk);
    REQUIRE(plain.EndStatus(rank, partition, step, pushes) == ReplyStatus::kOk);
  }
  void CheckRows(const std::vector<uint64_t>& keys) {
    Rows expected = plain.Read(keys);
    for (auto& [key, row] : expected) row = Travelled(coded->pull_type, row);
    CHECK(SameRows(coded->Read(keys), expected));
  }

  RowFixture plain;
  std::unique_ptr<RowFixture> coded;
};

TEST_CASE("encoded rows count as their decoded values, in pushes and lookups") {
  for (const v1::Codec codec : kRowCodecs) {
    for (const v1::Consistency consistency : {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC}) {
      for (const v1::DType stored : {v1::DTYPE_F32, v1::DTYPE_BF16}) {
        RowOptions options;
        options.dim = 21;
        options.consistency = consistency;
        options.row_dtype = stored;
        options.optimizer.set_name("adagrad");
        options.optimizer.set_rate(0.1);
        // The other one for the other way.
        Twins twins(options, codec, codec == v1::CODEC_BF16 ? v1::CODEC_INT8 : v1::CODEC_BF16);
        std::mt19937 random(codec);
        for (uint32_t partition = 0; partition < 2; ++partition) {
          const std::vector<uint64_t> keys = twins.plain.KeysIn(partition, 12);
          for (uint64_t step = 0; step < 4; ++step) {
            for (uint32_t rank = 0; rank < 2; ++rank) {
              Rows rows;
              for (const uint64_t key : keys) {
                if (random() % 3 != 0) rows[key] = RowOfNumbers(&random, options.dim, 0.01f);
              }
              const bool sync = consistency == v1::CONSISTENCY_SYNC;
              twins.Push(rank, partition, sync ? step : step + 1, rows);
              if (sync) twins.End(rank, partition, step, 1);
            }
          }
          twins.CheckRows(keys);
        }
        twins.CheckRows({999, 1000, 1001});  // without rows: the initial ones
        CHECK(SameRows(twins.coded->Scan(0, 5), twins.plain.Scan(0, 5)));
      }
    }
  }
}

TEST_CASE("a NaN in an encoded row is found, and affects only its group") {
  RowOptions options;
  options.dim = 16;
  options.push_codec = v1::CODEC_INT8;
  RowFixture f(options);
  Rows bad, good;
  const uint64_t key = f.KeysIn(1, 1)[0], other = f.KeysIn(2, 1)[0];
  bad[key] = f.Filled(1);
  bad[key][3] = std::nanf("");
  good[other] = f.Filled(2);
  CHECK(f.PushStatus(0, 1, 1, bad) == ReplyStatus::kNonFinite);
  CHECK(f.PushStatus(0, 2, 1, good) == ReplyStatus::kOk);
  CHECK(f.ReadRow(other)[0] != f.ReadRow(key)[0]);
}

TEST_CASE("rows of another type than the table's are refused, and change nothing") {
  RowOptions options;
  options.push_codec = options.pull_codec = v1::CODEC_F16;
  RowFixture f(options);
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  const Rows before = f.Read(keys);
  const ElementType types[] = {ElementType::kF32, ElementType::kBf16, ElementType::kInt8};
  for (const ElementType wrong : types) {
    f.push_type = wrong;
    CHECK(f.PushValue(0, 0, 1, keys, 1) == ReplyStatus::kMalformed);
    f.pull_type = wrong;
    const PullOutcome out = f.Lookup(kFirstWorker, keys, 0);
    CHECK(out.kind == PullOutcome::Kind::kAnswer);
    CHECK(out.answer.status == ReplyStatus::kMalformed);
  }
  f.push_type = f.pull_type = ElementType::kF16;
  CHECK(SameRows(f.Read(keys), before));
  // One that was given up has no rows, and settles its sequence whatever it is of.
  f.push_type = ElementType::kF32;
  CHECK(f.PushStatus(0, 0, 1, {}) == ReplyStatus::kOk);
  f.push_type = ElementType::kF16;
  CHECK(f.PushValue(0, 0, 2, keys, 1) == ReplyStatus::kOk);
}

TEST_CASE("without memory to decode rows a push must be sent again") {
  RowOptions options;
  options.dim = 64;
  options.push_codec = v1::CODEC_BF16;
  RowFixture f(options);
  const std::vector<uint64_t> keys = f.KeysIn(0, 64);
  REQUIRE(f.PushValue(0, 0, 1, {keys[0]}, 1) == ReplyStatus::kOk);
  f.allocator.limit = f.allocator.scratch_limit = f.allocator.used;
  CHECK(f.PushValue(0, 0, 2, keys, 1) == ReplyStatus::kResourceExhausted);
  f.allocator.limit = f.allocator.scratch_limit = SIZE_MAX;
  CHECK(f.PushValue(0, 0, 2, keys, 1) == ReplyStatus::kOk);
}

}  // namespace
}  // namespace verbena::shard
