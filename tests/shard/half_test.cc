// Tables whose parameters are pulled in 16 bits, and gradients that come in bf16. They are compared
// with the rounded parameters of a table of f32 that gets the same gradients.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace half_test {

constexpr auto kOk = ReplyStatus::kOk;

std::vector<uint16_t> Rounded(ElementType type, const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  Round(BestIsa(), type, values.data(), out.data(), values.size());
  return out;
}

// Numbers that bf16 has: both tables get the same, whatever they are pushed in.
std::vector<float> Gradient(std::mt19937& random, uint32_t n) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> narrow(n);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  Bf16FromFloats(BestIsa(), values.data(), narrow.data(), n);
  FloatsFromBf16(BestIsa(), narrow.data(), values.data(), n);
  return values;
}

struct Types {
  v1::DType dtype;
  v1::DType gradient;
};
constexpr Types kHalfTypes[] = {{v1::DTYPE_BF16, v1::DTYPE_F32},
                                {v1::DTYPE_BF16, v1::DTYPE_BF16},
                                {v1::DTYPE_F16, v1::DTYPE_F32},
                                {v1::DTYPE_F16, v1::DTYPE_BF16},
                                {v1::DTYPE_F32, v1::DTYPE_BF16}};

FixtureOptions Small(const std::string& optimizer, v1::Consistency consistency) {
  FixtureOptions o;
  o.workers = 3;
  o.chunk_elements = 32;
  o.last_elements = 5;
  o.optimizer = optimizer;
  o.rate = 0.05;
  o.initial = 0.7;
  o.consistency = consistency;
  return o;
}

std::vector<uint16_t> ReadHalves(Fixture* f, uint32_t chunk) {
  const PullOutcome out = f->Pull(kFirstWorker, chunk, 0);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(out.view.bytes == f->elements(chunk) * 2);
  std::vector<uint16_t> values = Fixture::Halves(out.view);
  f->engine->Unpin(out.view.pin);
  return values;
}

// Steps (async: pushes) of all ranks, the same to both, in an order of their own.
void TrainBoth(Fixture* narrow, Fixture* wide, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> order = {0, 1, 2};
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sequences;
  const bool sync = narrow->options.consistency == v1::CONSISTENCY_SYNC;
  for (uint64_t step = 0; step < 6; ++step) {
    for (uint32_t chunk = 0; chunk < narrow->options.chunks; ++chunk) {
      std::shuffle(order.begin(), order.end(), random);
      for (const uint32_t rank : order) {
        const std::vector<float> gradient = Gradient(random, narrow->elements(chunk));
        const uint64_t sequence = sync ? step : ++sequences[{rank, narrow->PartitionOf(chunk)}];
        for (Fixture* f : {narrow, wide}) {
          const PushOutcome out = f->Push(rank, chunk, sequence, gradient);
          REQUIRE((out.held || out.answer.status == kOk));
        }
      }
    }
  }
}

void Compare(Fixture* narrow, Fixture* wide) {
  const ElementType type = static_cast<ElementType>(narrow->options.dtype);
  for (uint32_t chunk = 0; chunk < narrow->options.chunks; ++chunk) {
    const std::vector<float> expected = wide->Read(chunk);
    REQUIRE(!expected.empty());
    if (type == ElementType::kF32) {
      CHECK(SameBits(narrow->Read(chunk), expected));
    } else {
      CHECK(ReadHalves(narrow, chunk) == Rounded(type, expected));
    }
  }
}

TEST_CASE("a 16-bit table holds the rounded parameters of a table of f32") {
  uint32_t seed = 0;
  for (const char* optimizer : {"sgd", "momentum", "adam", "adamw", "ftrl", "rmsprop"}) {
    for (const auto consistency :
         {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
      for (const Types& types : kHalfTypes) {
        INFO(optimizer << " consistency " << consistency << " dtype " << types.dtype
                       << " gradient_dtype " << types.gradient);
        FixtureOptions o = Small(optimizer, consistency);
        o.staleness = consistency == v1::CONSISTENCY_SSP ? 100 : 0;
        o.more.set_clip_chunk_norm(seed % 2 == 0 ? 0 : 1.5);
        Fixture wide(o);
        o.dtype = types.dtype;
        o.gradient_dtype = types.gradient;
        Fixture narrow(o);
        REQUIRE(narrow.applied.ok());
        Compare(&narrow, &wide);  // as initialised
        TrainBoth(&narrow, &wide, ++seed);
        Compare(&narrow, &wide);
      }
    }
  }
}

TEST_CASE("steps too small for 16 bits add up in the master copy") {
  for (const auto dtype : {v1::DTYPE_BF16, v1::DTYPE_F16}) {
    FixtureOptions o;
    o.workers = 1;
    o.initial = 1;
    o.dtype = dtype;
    Fixture f(o);
    const std::vector<uint16_t> before = ReadHalves(&f, 0);
    for (uint64_t step = 0; step < 64; ++step) {
      REQUIRE(f.Push(0, 0, step, -0x1p-12f).answer.status == kOk);
      if (step == 0) CHECK(ReadHalves(&f, 0) == before);
    }
    CHECK(ReadHalves(&f, 0) == Rounded(static_cast<ElementType>(dtype), Filled(16, 1 + 0x1p-6f)));
  }
}

TEST_CASE("f16: a parameter beyond its range is pulled as an infinity, and recovers") {
  FixtureOptions o;
  o.workers = 1;
  o.dtype = v1::DTYPE_F16;
  Fixture f(o);
  REQUIRE(f.Push(0, 0, 0, -1e5f).answer.status == kOk);
  CHECK(ReadHalves(&f, 0) == std::vector<uint16_t>(16, 0x7c00));
  REQUIRE(f.Push(0, 0, 1, 99999.0f).answer.status == kOk);
  CHECK(ReadHalves(&f, 0) == std::vector<uint16_t>(16, 0x3c00));
}

TEST_CASE("a pinned chunk of 16 bits does not change") {
  FixtureOptions o;
  o.workers = 1;
  o.dtype = v1::DTYPE_BF16;
  Fixture f(o);
  const PullOutcome first = f.Pull(kFirstWorker, 0, 0);
  REQUIRE(first.kind == PullOutcome::Kind::kReady);
  REQUIRE(f.Push(0, 0, 0, -2.0f).answer.status == kOk);
  const PullOutcome second = f.Pull(kFirstWorker, 0, 1);
  REQUIRE(second.kind == PullOutcome::Kind::kReady);
  REQUIRE(f.Push(0, 0, 1, -2.0f).answer.status == kOk);
  CHECK(Fixture::Halves(first.view) == std::vector<uint16_t>(16, 0));
  CHECK(Fixture::Halves(second.view) == Rounded(ElementType::kBf16, Filled(16, 2)));
  f.engine->Unpin(first.view.pin);
  f.engine->Unpin(second.view.pin);
  CHECK(ReadHalves(&f, 0) == Rounded(ElementType::kBf16, Filled(16, 4)));
}

TEST_CASE("a NaN or Inf in bf16 is refused and counted") {
  FixtureOptions o;
  o.workers = 2;
  o.gradient_dtype = v1::DTYPE_BF16;
  Fixture f(o);
  std::vector<float> bad = Filled(16, 1);
  bad[7] = kNan;
  CHECK(f.Push(0, 0, 0, bad).answer.status == ReplyStatus::kNonFinite);
  CHECK(f.Push(0, 0, 0, std::vector<float>{}).answer.status == kOk);
  CHECK(f.Push(1, 0, 0, 1.0f).answer.status == kOk);
  CHECK(SameBits(f.Read(0), Filled(16, -1)));
  CHECK(f.engine->tables()[0].counters.non_finite == 1);
}

TEST_CASE("records must be of the table's types") {
  FixtureOptions o;
  o.workers = 1;
  o.chunk_elements = 32;
  o.dtype = v1::DTYPE_BF16;
  o.gradient_dtype = v1::DTYPE_BF16;
  Fixture f(o);
  PushRequest push = f.PushOf(kFirstWorker, 0, 0, Filled(32, 1), 0);
  push.dtype = ElementType::kF32;
  CHECK(f.engine->Push(push).answer.status == ReplyStatus::kMalformed);
  push.dtype = ElementType::kBf16;
  push.payload = push.payload.first(62);
  CHECK(f.engine->Push(push).answer.status == ReplyStatus::kMalformed);
  PullRequest pull;
  pull.worker = kFirstWorker;
  pull.table = kTable;
  pull.group = f.GroupOf(0, 0);
  for (const auto type : {ElementType::kNone, ElementType::kF32, ElementType::kF16}) {
    pull.dtype = type;
    const PullOutcome out = f.engine->Pull(pull);
    CHECK(out.kind == PullOutcome::Kind::kAnswer);
    CHECK(out.answer.status == ReplyStatus::kMalformed);
  }
}

TEST_CASE("memory of 16-bit parameters is counted, and freed") {
  FixtureOptions o;
  o.chunk_elements = o.last_elements = 1024;
  o.dtype = v1::DTYPE_BF16;
  Fixture f(o);
  REQUIRE(f.applied.ok());
  const uint64_t elements = 4 * 1024;
  CHECK(f.engine->tables()[0].parameter_bytes == elements * (2 + 4));
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->counters().resident_bytes == 0);

  Fixture starved(o);
  starved.view.mutable_tables(0)->set_id(kTable + 1);
  starved.allocator.limit = 1024;
  const absl::Status status = starved.Apply();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::Contains("no memory for its 8192 bytes"));
}

}  // namespace half_test
}  // namespace verbena::shard
