// Incremental checkpoints of a cluster of real processes: made, restored, and made whole again
// where servers do not remember.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace daemon_incremental_test {

constexpr uint64_t kRows = 4'000, kFew = 25;
constexpr uint32_t kDim = 8;
using Numbers = std::vector<float>;

class World {
 public:
  explicit World(const v1::Eviction& eviction = {}) : eviction_(eviction) {
    client_ = Connected(cluster);
    for (uint64_t i = 0; i < kRows; ++i) keys_.push_back(i * 6'000'011 + 7);
    region_ = Value(client_->AllocateRegion(kRows * kDim * 4));
    Open();
  }
  // Again after a restore: it is another table then.
  void Open() {
    v1::TableSpec spec;
    spec.set_name("items");
    spec.set_dim(kDim);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("adagrad");
    spec.mutable_optimizer()->set_rate(0.5);
    *spec.mutable_eviction() = eviction_;
    items_ = Value(client_->CreateTable(spec));
  }
  void Push(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count * kDim; ++i) {
      region_.floats()[i] = static_cast<float>((i * 7 + ++pushes_) % 19) - 9;
    }
    Good(client_->PushRows(items_, absl::MakeSpan(keys_).subspan(first, count), region_).Wait());
  }
  Numbers Served() {
    Good(client_->Lookup(items_, keys_, region_).Wait());
    return {region_.floats(), region_.floats() + kRows * kDim};
  }
  Finished Run(std::vector<std::string> words) const {
    words.insert(words.begin(), {CliPath(), "--cluster", cluster.address(), "checkpoint"});
    words.push_back("--json");
    Finished finished = RunProgram(words);
    INFO(finished.err);
    REQUIRE(finished.status == 0);
    return finished;
  }
  void Save() { Run({"save", root, "--full-every", "3"}); }
  // The number of rows in the newest checkpoint's own files, and its base (null: none).
  std::string Newest() const {
    const Finished list = Run({"list", root});
    return JsonFields(list.out, "rows").back() + " on " + JsonFields(list.out, "base").back();
  }

  TemporaryDirectory directory;
  const std::string root = directory.File("checkpoints");
  ProcessCluster cluster{{.servers = 2, .shards = 2}};

 private:
  const v1::Eviction eviction_;
  std::unique_ptr<Client> client_;
  std::vector<uint64_t> keys_;
  Region region_;
  Table items_;
  uint64_t pushes_ = 0;
};

TEST_CASE("incremental checkpoints have the changed rows, and restore with their bases") {
  World w;
  w.Push(0, kRows);
  w.Save();
  CHECK(w.Newest() == "4000 on null");
  w.Push(100, kFew);
  w.Save();
  CHECK(w.Newest() == "25 on checkpoint-00000001");
  w.Push(110, kFew);
  w.Save();
  CHECK(w.Newest() == "25 on checkpoint-00000002");
  const Numbers third = w.Served();
  w.Run({"verify", w.root, "--all"});
  w.Push(0, kRows);
  w.Run({"restore", w.root, "--replace", "--yes"});
  w.Open();
  CHECK(w.Served() == third);

  // The table is another now, though it has the same rows; then each third one is a full one.
  for (const char* newest :
       {"4000 on null", "25 on checkpoint-00000004", "25 on checkpoint-00000005", "4000 on null"}) {
    w.Push(300, kFew);
    w.Save();
    CHECK(w.Newest() == newest);
  }
  // A save without --full-every is no base, and the servers keep the changes since other saves.
  w.Run({"save", w.root});
  CHECK(w.Newest() == "4000 on null");
  w.Save();
  CHECK(w.Newest() == "4000 on null");
  w.Push(300, kFew);
  w.Save();
  CHECK(w.Newest() == "25 on checkpoint-00000009");
  // One of all of them is as good a base as they are.
  w.Run({"compact", w.root});
  CHECK(w.Newest() == "4000 on null");
  w.Push(200, kFew);
  w.Save();
  CHECK(w.Newest() == "25 on checkpoint-00000011");
  const Numbers last = w.Served();
  w.Run({"restore", w.root, "--replace", "--yes"});
  w.Open();
  CHECK(w.Served() == last);
}

// Rows that are not as they are made: zero.
size_t RowsIn(const Numbers& served) {
  size_t rows = 0;
  for (uint64_t i = 0; i < kRows; ++i) {
    rows += std::any_of(served.begin() + static_cast<ptrdiff_t>(i * kDim),
                        served.begin() + static_cast<ptrdiff_t>((i + 1) * kDim),
                        [](float x) { return x != 0; });
  }
  return rows;
}

TEST_CASE("a row that was dropped is in no checkpoint that is based on one with it") {
  v1::Eviction eviction;
  eviction.set_kind(v1::Eviction::LRU);
  eviction.set_max_rows(2'000);
  World w(eviction);
  w.Push(0, 1'500);
  w.Save();
  CHECK(w.Newest() == "1500 on null");
  for (uint64_t first = 1'500; first < 3'500; first += 50) w.Push(first, 50);
  const Numbers served = w.Served();
  const size_t rows = RowsIn(served);
  REQUIRE(rows < 2'200);
  REQUIRE(RowsIn({served.begin(), served.end()}) > 1'400);
  w.Save();
  CHECK_THAT(w.Newest(), Catch::EndsWith("on checkpoint-00000001"));
  w.Run({"verify", w.root, "--all"});
  SECTION("restored with state") { w.Run({"restore", w.root, "--replace", "--yes"}); }
  SECTION("restored without state") {
    w.Run({"restore", w.root, "--replace", "--parameters-only", "--yes"});
  }
  SECTION("made whole, and restored") {
    w.Run({"compact", w.root});
    CHECK(w.Newest() == std::to_string(rows) + " on null");
    w.Run({"restore", w.root, "--replace", "--yes"});
  }
  w.Open();
  CHECK(w.Served() == served);
}

}  // namespace daemon_incremental_test
}  // namespace verbena::test
