// Incremental checkpoints with partitions saved whole, and bytes that change between two reads:
// the merged content, and that no unverified byte is copied.
#include <catch2/catch.hpp>
#include <string>

#include "server/checkpoint/files/compact.h"
#include "server/checkpoint/files/export.h"
#include "server/checkpoint/files/failpoints.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;

absl::Status Nothing(uint64_t) { return absl::OkStatus(); }

absl::StatusOr<std::string> CompactNewest(Disk* disk) {
  const auto reader = CheckpointReader::Open(disk, *NewestComplete(disk, "/c", nullptr));
  if (!reader.ok()) return reader.status();
  auto directory = CheckpointDirectory::Open(disk, "/c");
  if (!directory.ok()) return directory.status();
  return Compact(disk, *reader, directory->get(), 4096, Nothing);
}

absl::Status ExportNewest(Disk* disk, const std::string& to) {
  const auto reader = CheckpointReader::Open(disk, *NewestComplete(disk, "/c", nullptr));
  if (!reader.ok()) return reader.status();
  const ExportOptions options{.to = to, .optimizer = true};
  const auto plan = PlanExport(*reader, options);
  if (!plan.ok()) return plan.status();
  return Export(disk, *reader, options, *plan, Nothing).status();
}

// Training drops every second row of some partitions, of which an increment has the rest whole: a
// chain of three, whose partitions are whole at different links.
std::string CheckpointChain(Disk* disk, Model* model, uint64_t seed) {
  std::string name = *Save(disk, "/c", *model);
  for (uint32_t link = 1; link <= 2; ++link) {
    const Listed base = ReadListed(disk, "/c/" + name);
    model->Train();
    CheckpointStartOptions options{.writers = 2, .base = &base};
    for (uint32_t p = link; p < kModelPartitions; p += 2 + seed % 2) options.whole.insert(p);
    for (auto& [table, rows] : model->rows) {
      std::erase_if(rows, [&](const auto& row) {
        return row.first % 2 == 0 && options.whole.contains(PartitionOf(*model, table, row.first));
      });
      // Neither the rows nor the changes have a row that was changed and then dropped.
      std::erase_if(model->changed.at(table),
                    [&](const auto& row) { return !rows.contains(row.first); });
    }
    name = *Save(disk, "/c", *model, options);
  }
  return "/c/" + name;
}

TEST_CASE("regression: rows of a partition that is saved whole do not come back from its base") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    SimDisk disk(seed);
    Model model(seed);
    const std::string path = CheckpointChain(&disk, &model, seed);
    CHECK(Differs(&disk, path, model) == "");
    failpoints().merge_key_by_key = true;
    CHECK_THAT(Differs(&disk, path, model), Contains("has other rows"));
    failpoints().merge_key_by_key = false;
    // The compacted one is a full one, and its rows are counted right.
    const auto compacted = CompactNewest(&disk);
    INFO(compacted.status());
    REQUIRE(compacted.ok());
    CHECK(Differs(&disk, "/c/" + *compacted, model) == "");
    CHECK(ReadListed(&disk, "/c/" + *compacted).manifest->tables(1).whole_partitions().empty());
    CHECK(ExportNewest(&disk, "/out").ok());
  }
}

TEST_CASE("regression: compact and export copy no byte with a wrong checksum, and name the file") {
  const bool slices = GENERATE(false, true);
  const bool version1 = GENERATE(false, true);
  SimDisk disk(1);
  const Model model(3);
  const std::string path = "/c/" + *Save(&disk, "/c", model, {.writers = 2, .slices = slices});
  if (version1) MakeVersion1(&disk, path);
  REQUIRE(Differs(&disk, path, model) == "");
  const auto listed = ReadListed(&disk, path);
  REQUIRE(listed.manifest.ok());
  REQUIRE(listed.manifest->format_version() == (version1 ? 1 : 2));
  int exports = 0;
  for (const v1::CheckpointFile& file : listed.manifest->files()) {
    if (file.tensors().empty()) continue;
    const std::string name = Join(path, file.name());
    const uint64_t bits = disk.Content(name).size() * 8;
    for (uint64_t bit = 3; bit < bits; bit += bits / 7) {
      disk.FlipBit(name, bit);
      INFO(name << " at bit " << bit);
      const auto compacted = CompactNewest(&disk);
      CHECK(absl::IsDataLoss(compacted.status()));
      CHECK_THAT(std::string(compacted.status().message()), Contains(name));
      CHECK(ListCheckpoints(&disk, "/c")->size() == 1);
      const absl::Status exported = ExportNewest(&disk, absl::StrCat("/out", ++exports));
      CHECK(absl::IsDataLoss(exported));
      CHECK_FALSE(disk.Open(absl::StrCat("/out", exports)).ok());
      disk.FlipBit(name, bit);
    }
  }
  const auto compacted = CompactNewest(&disk);
  REQUIRE(compacted.ok());
  CHECK(Differs(&disk, "/c/" + *compacted, model) == "");
  CHECK(ReadListed(&disk, "/c/" + *compacted).manifest->format_version() == 2);
}

TEST_CASE("a checksum error names the block; the failpoint copies the block unverified") {
  SimDisk disk(1);
  const Model model(3);
  const std::string path = "/c/" + *Save(&disk, "/c", model, {.writers = 2, .slices = true});
  const Listed listed = ReadListed(&disk, path);
  const v1::CheckpointFile* rows = nullptr;
  for (const v1::CheckpointFile& file : listed.manifest->files()) {
    if (!file.tensors().empty() && file.tensors(0).array() == kKeys) rows = &file;
  }
  REQUIRE(rows != nullptr);
  const std::string name = Join(path, rows->name());
  disk.FlipBit(name, disk.Content(name).size() * 8 - 1);
  const std::string& last = rows->tensors(rows->tensors_size() - 1).name();
  CHECK_THAT(
      std::string(CompactNewest(&disk).status().message()),
      Contains(name + ": tensor \"" + last + "\"") && Contains("bytes from 0 on (of the file"));
  failpoints().read_unverified = true;
  const auto compacted = CompactNewest(&disk);
  failpoints().read_unverified = false;
  REQUIRE(compacted.ok());
  CHECK(Differs(&disk, "/c/" + *compacted, model) != "");
}

TEST_CASE("regression: while a manifest cannot be read, prune keeps each possible base") {
  SimDisk disk(1);
  Model model(1);
  CheckpointChain(&disk, &model, 1);
  const std::string middle = "/c/checkpoint-00000002/manifest.json";
  disk.FlipBit(middle, 100);
  const auto directory = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE(directory.ok());
  CHECK((*directory)->WouldPrune({.keep_last = 1})->empty());
  failpoints().prune_unread = true;
  CHECK((*directory)->WouldPrune({.keep_last = 1})->size() == 1);
  failpoints().prune_unread = false;
  CHECK((*directory)->Prune({.keep_last = 1})->empty());
  disk.FlipBit(middle, 100);
  const auto reader = CheckpointReader::Open(&disk, "/c/checkpoint-00000003");
  INFO(reader.status());
  CHECK(reader.ok());
}

TEST_CASE("regression: pruning one job's checkpoints removes none of another job's") {
  SimDisk disk(1);
  Model model(1);
  for (const char* job : {"a/b", "a_b", "a/b", "a_b"}) {
    REQUIRE(Save(&disk, "/c", model, {.job = job}).ok());
  }
  const auto directory = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE(directory.ok());
  const absl::Status any = (*directory)->Prune({.keep_last = 1}).status();
  CHECK(absl::IsFailedPrecondition(any));
  CHECK_THAT(std::string(any.message()), Contains("2 jobs (\"a/b\", \"a_b\")"));
  failpoints().share_directories = true;
  CHECK((*directory)->WouldPrune({.keep_last = 1, .job = "a_b"})->size() == 3);
  failpoints().share_directories = false;
  using Names = std::vector<std::string>;
  CHECK(*(*directory)->Prune({.keep_last = 1, .job = "a_b"}) == Names{"checkpoint-00000002"});
  CHECK(*(*directory)->Prune({.keep_last = 1, .job = "a/b"}) == Names{"checkpoint-00000001"});
  CHECK(JobsOf(*ListCheckpoints(&disk, "/c")) == Names{"a/b", "a_b"});
}

}  // namespace
}  // namespace verbena::checkpoint::test
