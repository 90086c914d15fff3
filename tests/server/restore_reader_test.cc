// Shards that restore read and verify their own part.
#include "server/checkpoint/restore_reader.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/failpoints.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::test {
namespace {

using checkpoint::test::Bytes;
using checkpoint::test::Model;
using checkpoint::test::SimDisk;
using server::RestoreRead;
using server::RestoreReader;
using server::RestoreWindow;

constexpr uint32_t kPartitions = 8;

// The data that one shard was given.
struct Got {
  absl::Status status;
  std::map<std::string, std::map<uint64_t, Bytes>> dense;  // table, element: its parameters
  std::map<std::string, std::map<uint64_t, Bytes>> rows;   // table, key: the values
  std::vector<uint32_t> checked;
  size_t groups = 0;
};

class Shards {
 public:
  Shards(SimDisk* disk, const Model& model, std::string path, uint32_t shards)
      : disk_(disk), model_(model), path_(std::move(path)), shards_(shards) {}

  uint32_t OwnerOf(uint32_t partition) const { return partition % shards_; }

  Got Read(uint32_t shard) const {
    RestoreRead wanted;
    wanted.path = path_;
    for (const v1::TableSpec& spec : model_.specs) {
      wanted.tables.push_back({spec.name(), static_cast<uint32_t>(wanted.tables.size() + 10)});
    }
    for (uint32_t p = 0; p < kPartitions; ++p) wanted.ours.push_back(OwnerOf(p) == shard);
    Got got;
    auto reader = RestoreReader::Open(disk_, wanted);
    got.status = reader.status();
    RestoreWindow window;  // one for all: its memory is used again
    while (got.status.ok()) {
      auto more = (*reader)->Next(&window);
      got.status = more.status();
      if (!more.ok()) break;
      if (!*more) {
        got.checked = (*reader)->checked();
        got.groups = (*reader)->groups();
        break;
      }
      Take(window, &got);
    }
    return got;
  }

  // The shard that is to have it.
  uint32_t OwnerOfElement(size_t table, uint64_t element) const {
    const uint64_t chunk = element / LayoutOf(model_.specs[table]).chunk_elements;
    return OwnerOf(PartitionOfChunk(static_cast<uint32_t>(table + 10), static_cast<uint32_t>(chunk),
                                    kPartitions));
  }
  uint32_t OwnerOfKey(size_t table, uint64_t key) const {
    return OwnerOf(PartitionOfKey(static_cast<uint32_t>(table + 10), key, kPartitions));
  }

 private:
  void Take(const RestoreWindow& window, Got* got) const {
    const std::string& name = model_.specs[window.table].name();
    const std::vector<std::byte>& values = window.columns[window.rows ? 1 : 0];
    const size_t bytes = values.size() / window.count;
    for (uint64_t i = 0; i < window.count; ++i) {
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(i * bytes);
      Bytes content(from, from + static_cast<std::ptrdiff_t>(bytes));
      if (!window.rows) {
        got->dense[name][window.first + i] = std::move(content);
        continue;
      }
      uint64_t key = 0;
      std::memcpy(&key, window.columns[0].data() + i * sizeof(key), sizeof(key));
      got->rows[name][key] = std::move(content);
    }
  }

  SimDisk* const disk_;
  const Model& model_;
  const std::string path_;
  const uint32_t shards_;
};

// Everything that is the shard's has the model's bits.
void CheckOurs(const Shards& shards, const Model& model, uint32_t shard, const Got& got) {
  bool same = true;
  for (size_t t = 0; t < model.specs.size(); ++t) {
    const v1::TableSpec& spec = model.specs[t];
    if (spec.dim() > 0) {
      for (const auto& [key, content] : model.rows.at(spec.name())) {
        if (shards.OwnerOfKey(t, key) != shard) continue;
        const Bytes& found = got.rows.at(spec.name()).at(key);
        same = same && found == Bytes(content.begin(), content.begin() + spec.dim() * 4);
      }
      continue;
    }
    const Bytes& all = model.dense.at(spec.name()).at(checkpoint::kParameters);
    const uint64_t elements = LayoutOf(spec).elements;
    const auto bytes = static_cast<std::ptrdiff_t>(all.size() / elements);
    for (uint64_t i = 0; i < elements; ++i) {
      if (shards.OwnerOfElement(t, i) != shard) continue;
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(i) * bytes;
      same = same && got.dense.at(spec.name()).at(i) == Bytes(from, from + bytes);
    }
  }
  CHECK(same);
}

TEST_CASE("each shard reads its own part, and one shard verifies each group") {
  for (const size_t writers : {1, 2, 3}) {
    for (const uint32_t count : {1u, 2u, 5u}) {
      INFO(writers << " writers, " << count << " shards");
      SimDisk disk(1);
      Model model(writers);
      const auto save = [&](const checkpoint::Listed* base) {
        return Save(&disk, "/c", model, {.writers = writers, .slices = writers > 1, .base = base});
      };
      std::string name = *save(nullptr);
      model.Train();
      const checkpoint::Listed base = checkpoint::ReadListed(&disk, "/c/" + name);
      name = *save(&base);
      const Shards shards(&disk, model, "/c/" + name, count);
      std::multiset<uint32_t> checked;
      size_t groups = 0;
      for (uint32_t shard = 0; shard < count; ++shard) {
        const Got got = shards.Read(shard);
        INFO(got.status.ToString());
        REQUIRE(got.status.ok());
        CheckOurs(shards, model, shard, got);
        checked.insert(got.checked.begin(), got.checked.end());
        groups = got.groups;
      }
      REQUIRE(groups > 0);
      CHECK(checked.size() == groups);
      CHECK(std::set<uint32_t>(checked.begin(), checked.end()).size() == groups);
    }
  }
}

TEST_CASE("regression: a restore reads no row that a whole partition of an increment replaces") {
  SimDisk disk(1);
  Model model(2);
  std::string name = *Save(&disk, "/c", model);
  const checkpoint::Listed base = checkpoint::ReadListed(&disk, "/c/" + name);
  model.Train();
  checkpoint::test::CheckpointStartOptions options{.writers = 2, .base = &base, .whole = {1, 4, 6}};
  for (auto& [table, rows] : model.rows) {
    std::erase_if(rows, [&](const auto& row) {
      return row.first % 2 == 0 &&
             options.whole.contains(checkpoint::test::PartitionOf(model, table, row.first));
    });
    std::erase_if(model.changed.at(table),
                  [&](const auto& row) { return !rows.contains(row.first); });
  }
  name = *Save(&disk, "/c", model, options);
  const auto extra = [&] {
    const Shards shards(&disk, model, "/c/" + name, 3);
    size_t more = 0;
    for (uint32_t shard = 0; shard < 3; ++shard) {
      const Got got = shards.Read(shard);
      REQUIRE(got.status.ok());
      CheckOurs(shards, model, shard, got);
      for (const auto& [table, rows] : got.rows) {
        for (const auto& [key, content] : rows) more += !model.rows.at(table).contains(key);
      }
    }
    return more;
  };
  CHECK(extra() == 0);
  checkpoint::failpoints().merge_key_by_key = true;
  CHECK(extra() > 0);
  checkpoint::failpoints().merge_key_by_key = false;
}

TEST_CASE("regression: a shard restores no byte that it has not verified, wherever it is") {
  SimDisk disk(1);
  const Model model(3);
  const std::string path = "/c/" + *Save(&disk, "/c", model, {.writers = 2, .slices = true});
  const bool version1 = GENERATE(false, true);
  if (version1) checkpoint::test::MakeVersion1(&disk, path);
  const auto listed = checkpoint::ReadListed(&disk, path);
  REQUIRE(listed.manifest.ok());
  for (const v1::CheckpointFile& file : listed.manifest->files()) {
    if (file.tensors().empty()) continue;
    const std::string name = checkpoint::Join(path, file.name());
    const std::string whole = *checkpoint::ReadWhole(&disk, name, 1 << 20);
    for (size_t at = 0; at < whole.size(); at += version1 ? 427 : 61) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      disk.Put(name, damaged);
      const Shards shards(&disk, model, path, 3);
      int found = 0;
      INFO(name << " at byte " << at);
      for (uint32_t shard = 0; shard < 3; ++shard) {
        const Got got = shards.Read(shard);
        // A shard that does not use the byte has all that is its own.
        if (got.status.ok()) CheckOurs(shards, model, shard, got);
        found += !got.status.ok();
      }
      CHECK(found > 0);
    }
    disk.Put(name, whole);
  }
}

TEST_CASE("regression: a shard opens each file of a checkpoint once, however many tables it has") {
  uint64_t fewer = 0;
  for (const size_t tables : {20, 200}) {
    SimDisk disk(1);
    const Model model = Model::OfManyTables(1, tables);
    const auto name = Save(&disk, "/c", model, {.writers = 2, .file_bytes = 1 << 20});
    REQUIRE(name.ok());
    const Shards shards(&disk, model, "/c/" + *name, 1);
    const uint64_t before = disk.opens();
    const Got got = shards.Read(0);
    REQUIRE(got.status.ok());
    CheckOurs(shards, model, 0, got);
    if (fewer == 0) fewer = disk.opens() - before;
    CHECK(disk.opens() - before == fewer);
    CHECK(fewer <= 8);
  }
}

}  // namespace
}  // namespace verbena::test
