// Tables with a pull codec. Pulls are compared with the encoded parameters of a table without one
// that gets the same pushes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "shard/codec/codec.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace pull_codec_test {

using Bytes = std::vector<std::byte>;
using Kind = PullOutcome::Kind;

constexpr v1::Codec kPullCodecs[] = {v1::CODEC_BF16, v1::CODEC_F16, v1::CODEC_INT8,
                                     v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2};
constexpr v1::Consistency kConsistencies[] = {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC,
                                              v1::CONSISTENCY_SSP};

FixtureOptions PullOptions(v1::Codec codec, v1::Consistency consistency) {
  FixtureOptions o;
  o.workers = 2;
  o.chunk_elements = 2048 + 256;
  o.last_elements = 333;
  o.optimizer = "adam";
  o.rate = 0.05;
  o.initial = 0.7;
  o.consistency = consistency;
  o.pull_codec = codec;
  return o;
}

Bytes Encoded(ElementType type, const std::vector<float>& values) {
  Bytes bytes(PayloadBytes(type, values.size()));
  codec::Encode(shard::Isa::kBaseline, type, values.data(), nullptr, bytes.data(), values.size());
  return bytes;
}

Bytes BytesOf(const ChunkView& view) { return {view.buffer.data, view.buffer.data + view.bytes}; }

std::vector<float> RandomGradient(std::mt19937& random, uint32_t n) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// Step `step` of one chunk, by both workers.
void Step(Fixture* f, uint32_t chunk, uint64_t step, uint32_t seed) {
  std::mt19937 random(seed * 1000 + static_cast<uint32_t>(step));
  const bool sync = f->options.consistency == v1::CONSISTENCY_SYNC;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    f->Push(rank, chunk, sync ? step : step + 1, RandomGradient(random, f->elements(chunk)));
  }
}

// Chunks of four partitions: each has sequences of its own.
TEST_CASE("a pull with a codec returns the encoded parameters, and training is not affected") {
  for (const v1::Codec codec : kPullCodecs) {
    for (const v1::Consistency consistency : kConsistencies) {
      Fixture coded(PullOptions(codec, consistency));
      Fixture plain(PullOptions(v1::CODEC_NONE, consistency));
      REQUIRE(coded.applied.ok());
      const uint32_t chunks[] = {0, coded.options.chunks - 1};
      for (uint64_t step = 0; step < 4; ++step) {
        for (const uint32_t chunk : chunks) {
          CAPTURE(static_cast<int>(codec), static_cast<int>(consistency), step, chunk);
          const Bytes expected = Encoded(coded.pull_type(), plain.Read(chunk));
          for (int again = 0; again < 2; ++again) {
            const PullOutcome pull = coded.Pull(kFirstWorker, chunk, 0);
            REQUIRE(pull.kind == Kind::kReady);
            CHECK(pull.view.version == plain.Version(chunk));
            REQUIRE(BytesOf(pull.view) == expected);
            coded.engine->Unpin(pull.view.pin);
          }
          Step(&coded, chunk, step, 3);
          Step(&plain, chunk, step, 3);
        }
      }
    }
  }
}

TEST_CASE(
    "all pulls of one version with a codec share one buffer, which later steps do not change") {
  Fixture f(PullOptions(v1::CODEC_INT8, v1::CONSISTENCY_SYNC));
  const PullOutcome one = f.Pull(kFirstWorker, 0, 0);
  const Bytes before = BytesOf(one.view);
  const PullOutcome two = f.Pull(kFirstWorker + 1, 0, 0, 1);
  CHECK(two.view.buffer.data == one.view.buffer.data);
  f.engine->Unpin(one.view.pin);
  // Pulls of the next version.
  CHECK(f.Pull(kFirstWorker, 0, 1, 0, 1).kind == Kind::kDeferred);
  CHECK(f.Pull(kFirstWorker + 1, 0, 1, 1, 2).kind == Kind::kDeferred);
  Step(&f, 0, 0, 5);
  CHECK(BytesOf(two.view) == before);
  std::vector<Event> events = f.Events();
  std::set<const std::byte*> buffers;
  uint32_t ready = 0;
  for (const Event& e : events) {
    if (e.kind != Event::Kind::kPullReady) continue;
    ++ready;
    CHECK(e.view.version == 1);
    CHECK(e.view.bytes == PayloadBytes(ElementType::kInt8, f.elements(0)));
    buffers.insert(e.view.buffer.data);
    CHECK(BytesOf(e.view) != before);
  }
  CHECK(ready == 2);
  CHECK(buffers.size() == 1);
  CHECK(buffers.count(two.view.buffer.data) == 0);
  // The buffer is not being written out now, and a late worker still gets it.
  const Bytes after = BytesOf(events.back().view);
  for (const Event& e : events) f.engine->Unpin(e.view.pin);
  f.engine->Unpin(two.view.pin);
  const PullOutcome late = f.Pull(kFirstWorker, 0, 1);
  CHECK(buffers.count(late.view.buffer.data) == 1);
  CHECK(BytesOf(late.view) == after);
  CHECK(f.engine->counters().pulls == 5);
  CHECK(f.engine->counters().pull_bytes == 5 * before.size());
}

TEST_CASE("while encoded parameters are written out an apply needs no shadow buffer") {
  FixtureOptions o = PullOptions(v1::CODEC_BF16, v1::CONSISTENCY_SYNC);
  o.spares = 0;
  Fixture f(o);
  const PullOutcome pull = f.Pull(kFirstWorker, 0, 0);
  const Bytes before = BytesOf(pull.view);
  for (uint64_t step = 0; step < 3; ++step) Step(&f, 0, step, 6);
  const PullOutcome now = f.Pull(kFirstWorker, 0, 3);
  REQUIRE(now.kind == Kind::kReady);
  CHECK(BytesOf(pull.view) == before);
  CHECK(BytesOf(now.view) != before);
  CHECK(f.engine->counters().spare_exhausted == 0);
}

TEST_CASE("ssp: a deferred pull with a codec returns the parameters at the time of its answer") {
  FixtureOptions o = PullOptions(v1::CODEC_FP8_E4M3, v1::CONSISTENCY_SSP);
  o.staleness = 1;
  Fixture f(o);
  o.pull_codec = v1::CODEC_NONE;
  Fixture plain(o);
  for (Fixture* each : {&f, &plain}) {
    each->EndStep(0, 0, 1, 0, 1);
    each->EndStep(0, 0, 2, 0, 2);
    REQUIRE(each->Pull(kFirstWorker, 0, 2).kind == Kind::kDeferred);
    CHECK(each->Push(1, 0, 1, 0.25f).answer.status == ReplyStatus::kOk);
    each->EndStep(1, 0, 2, 1, 1);
  }
  const std::vector<Event> coded = f.Events(), expected = plain.Events();
  REQUIRE(coded.size() == 1);
  REQUIRE(expected.size() == 1);
  REQUIRE(coded[0].kind == Event::Kind::kPullReady);
  CHECK(coded[0].answer.version == expected[0].answer.version);
  CHECK(BytesOf(coded[0].view) == Encoded(f.pull_type(), Fixture::Values(expected[0].view)));
}

TEST_CASE("a pull of another type than the table's codec has is malformed") {
  for (const v1::Codec codec : {v1::CODEC_NONE, v1::CODEC_BF16, v1::CODEC_INT8}) {
    Fixture f(PullOptions(codec, v1::CONSISTENCY_ASYNC));
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = kTable;
    r.group = f.GroupOf(0, 0);
    for (uint8_t type = 0; type <= static_cast<uint8_t>(ElementType::kTopK); ++type) {
      r.dtype = static_cast<ElementType>(type);
      CAPTURE(static_cast<int>(codec), static_cast<int>(type));
      const PullOutcome pull = f.engine->Pull(r);
      if (r.dtype == f.pull_type()) {
        CHECK(pull.kind == Kind::kReady);
      } else {
        CHECK(pull.kind == Kind::kAnswer);
        CHECK(pull.answer.status == ReplyStatus::kMalformed);
      }
    }
  }
}

TEST_CASE("without memory to encode to a pull is refused, and answered when there is some") {
  Fixture f(PullOptions(v1::CODEC_INT8, v1::CONSISTENCY_SYNC));
  CHECK(f.Pull(kFirstWorker, 1, 1, 0, 9).kind == Kind::kDeferred);
  f.Push(0, 1, 0, 1);
  f.Push(1, 1, 0, 1);
  REQUIRE(f.Events().size() == 1);  // the sum of the step has its memory from now on
  CHECK(f.Pull(kFirstWorker, 1, 2, 0, 9).kind == Kind::kDeferred);
  f.Push(0, 1, 1, 1);
  f.allocator.limit = 0;  // idle buffers give way, and that is not enough
  const PullOutcome refused = f.Pull(kFirstWorker, 0, 0);
  CHECK(refused.kind == Kind::kAnswer);
  CHECK(refused.answer.status == ReplyStatus::kResourceExhausted);
  f.Push(1, 1, 1, 1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullFailed);
  CHECK(events[0].answer.status == ReplyStatus::kResourceExhausted);
  CHECK(f.engine->counters().deferred == 0);
  f.allocator.limit = SIZE_MAX;
  CHECK(f.Pull(kFirstWorker, 0, 0).kind == Kind::kReady);
  CHECK(f.Pull(kFirstWorker, 1, 2).kind == Kind::kReady);
}

TEST_CASE("a table dropped while its encoded chunks are written out leaks nothing") {
  Fixture f(PullOptions(v1::CODEC_F16, v1::CONSISTENCY_SYNC));
  const PullOutcome out = f.Pull(kFirstWorker, 0, 0);
  const Bytes before = BytesOf(out.view);
  f.engine->Unpin(f.Pull(kFirstWorker, 1, 0).view.pin);  // kept
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(BytesOf(out.view) == before);
  f.engine->Unpin(out.view.pin);
  f.engine->Unpin(out.view.pin);  // is none any more
  f.engine.reset();
  CHECK(f.allocator.used == 0);
}

}  // namespace pull_codec_test
}  // namespace verbena::shard
