// Lookups of embedding tables that are answered with sums by bag.
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace bags_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

struct Use {
  uint64_t key;
  uint32_t bag;
  float weight;
};

struct Pooling : RowFixture {
  explicit Pooling(const RowOptions& o) : RowFixture(o) {}
  // Sets groups, keys and uses: sorted by partition and key, and otherwise in the given order.
  LookupRequest Ask(std::vector<Use> wanted, uint32_t bags, uint64_t min_version = 0) {
    const auto place = [this](const Use& use) { return std::pair(PartitionOf(use.key), use.key); };
    std::stable_sort(wanted.begin(), wanted.end(),
                     [&](const Use& a, const Use& b) { return place(a) < place(b); });
    keys.clear();
    groups.clear();
    uses.clear();
    for (const Use& use : wanted) {
      const uint32_t p = PartitionOf(use.key);
      if (groups.empty() || groups.back().partition != p) groups.push_back(GroupOf(p, 0, 0));
      ++groups.back().count;
      keys.push_back(use.key);
      uses.push_back({use.bag, use.weight});
    }
    LookupRequest request;
    request.token = {5, 77, 0};
    request.worker = job()->members(0).incarnation();
    request.table = kTable;
    request.groups = groups;
    request.keys = keys;
    request.min_version = min_version;
    request.bags = {bags, uses};
    return request;
  }
  std::vector<float> Vectors(const ChunkView& of) {
    const auto* at = reinterpret_cast<const float*>(of.buffer.data);
    std::vector<float> vectors(at, at + of.bytes / sizeof(float));
    engine->Unpin(of.pin);
    return vectors;
  }
  // The sums for the keys and uses, computed from the rows of a plain lookup.
  std::vector<float> Model(uint32_t bags) {
    const std::vector<uint64_t> of = keys;
    Rows rows = Read(of);
    std::vector<float> sums(size_t{bags} * options.dim);
    for (size_t i = 0; i < of.size(); ++i) {
      for (uint32_t d = 0; d < options.dim; ++d) {
        sums[uses[i].bag * options.dim + d] += uses[i].weight * rows.at(of[i])[d];
      }
    }
    return sums;
  }
  Status Refused(const LookupRequest& request) {
    const PullOutcome out = engine->Lookup(request);
    CHECK(out.kind == Kind::kAnswer);
    return out.answer.status;
  }
  std::vector<BagUse> uses;
};

TEST_CASE("bags are the sums of the rows that a plain lookup gives") {
  std::mt19937_64 random(3);
  for (const uint32_t dim : {1u, 4u, 19u, 64u}) {
    RowOptions o;
    o.dim = dim;
    Pooling f(o);
    REQUIRE(f.applied.ok());
    // Every second key has a row; the others count as the initial one.
    for (uint32_t p = 0; p < o.partitions; ++p) {
      std::vector<uint64_t> some;
      for (uint64_t key = 0; key < 200; key += 2) {
        if (f.PartitionOf(key) == p) some.push_back(key);
      }
      CHECK(f.PushValue(0, p, 1, some, 0.25f * static_cast<float>(p + 1)) == Status::kOk);
    }
    for (int round = 0; round < 20; ++round) {
      const auto bags = static_cast<uint32_t>(1 + random() % 40);
      std::vector<Use> wanted(1 + random() % 400);
      for (Use& use : wanted) {  // duplicates, and bags that no key is in
        const float weight = round % 2 == 0 ? 1 : static_cast<float>(random() % 64) / 7 - 4;
        use = {random() % 200, static_cast<uint32_t>(random() % bags), weight};
      }
      const PullOutcome out = f.engine->Lookup(f.Ask(wanted, bags));
      REQUIRE(out.kind == Kind::kReady);
      CHECK(out.view.bytes == bags * dim * sizeof(float));
      const std::vector<float> vectors = f.Vectors(out.view);
      CHECK(SameBits(vectors, f.Model(bags)));
    }
    CHECK(f.engine->tables()[0].rows == 100);  // a lookup makes none
  }
}

TEST_CASE("a key that is in a bag twice counts twice, and a bag without keys is zero") {
  RowOptions o;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  Pooling f(o);
  const uint64_t key = f.KeysIn(2, 1)[0];
  CHECK(f.PushValue(0, 2, 1, {key}, -3) == Status::kOk);
  const PullOutcome out = f.engine->Lookup(f.Ask({{key, 1, 1}, {key, 1, 1}, {key, 2, 0.5f}}, 4));
  REQUIRE(out.kind == Kind::kReady);
  CHECK(f.Vectors(out.view) ==
        std::vector<float>{0, 0, 0, 0, 6, 6, 6, 6, 1.5f, 1.5f, 1.5f, 1.5f, 0, 0, 0, 0});
}

TEST_CASE("a lookup of bags waits like one of rows, and keeps a copy of its request") {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.workers = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  Pooling f(o);
  const uint64_t a = f.KeysIn(0, 1)[0], b = f.KeysIn(3, 1)[0];
  CHECK(f.engine->Lookup(f.Ask({{a, 1, 2}, {b, 1, 3}, {b, 0, 1}}, 2, 1)).kind == Kind::kDeferred);
  f.uses.assign(3, {77, 0});  // the caller's memory is the caller's again
  for (const uint32_t p : {3u, 0u}) {
    CHECK(f.Events().empty());
    CHECK(f.PushValue(0, p, 0, f.KeysIn(p, 1), -1) == Status::kOk);
    CHECK(f.EndStatus(0, p, 0, 1) == Status::kOk);
  }
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  CHECK(events[0].answer.version == 1);
  CHECK(f.Vectors(events[0].view) == std::vector<float>{1, 1, 1, 1, 5, 5, 5, 5});
}

TEST_CASE("bags that do not match their keys, or exceed their limits, are refused") {
  Pooling f({});
  const std::vector<Use> wanted = {{1, 0, 1}, {2, 1, 1}};
  LookupRequest request = f.Ask(wanted, 2);
  request.bags.uses = request.bags.uses.first(1);
  CHECK(f.Refused(request) == Status::kMalformed);
  request = f.Ask(wanted, 2);
  request.bags.count = 0;  // rows, and yet there are uses
  CHECK(f.Refused(request) == Status::kMalformed);
  CHECK(f.Refused(f.Ask(wanted, 1)) == Status::kOutOfRange);
  const auto most = static_cast<uint32_t>(kMaxRowsBytes / (f.options.dim * sizeof(float)));
  CHECK(f.Refused(f.Ask(wanted, most + 1)) == Status::kOutOfRange);
  CHECK(f.Refused(f.Ask(std::vector<Use>(kMaxBagUses + 1, {1, 0, 1}), 2)) == Status::kOutOfRange);
  f.allocator.scratch_limit = 0;
  CHECK(f.Refused(f.Ask(wanted, most)) == Status::kResourceExhausted);
  f.allocator.scratch_limit = SIZE_MAX;
  const PullOutcome out = f.engine->Lookup(f.Ask(wanted, most));
  CHECK(out.kind == Kind::kReady);
  CHECK(f.Vectors(out.view).size() == size_t{most} * f.options.dim);
}

}  // namespace bags_test
}  // namespace verbena::shard
