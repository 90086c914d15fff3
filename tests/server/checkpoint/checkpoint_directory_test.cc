// Names, locks, leftovers, retention; reads of damaged files.
#include "server/checkpoint/files/checkpoint_directory.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/array_reader.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/safetensors.h"
#include "server/checkpoint/files/tensor_file.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

std::set<std::string> NamesOf(SimDisk* disk, const std::string& path) {
  std::set<std::string> names;
  const auto entries = disk->List(path);
  REQUIRE(entries.ok());
  for (const Disk::Entry& entry : *entries) names.insert(entry.name);
  return names;
}

TEST_CASE("only names in the exact format are names of checkpoints") {
  CHECK(CheckpointName(42) == "checkpoint-00000042");
  CHECK(CheckpointName(123'456'789) == "checkpoint-123456789");
  CHECK(CheckpointNumber("checkpoint-00000042") == 42);
  CHECK(CheckpointNumber("checkpoint-123456789") == 123'456'789);
  for (const char* name :
       {"checkpoint-42", "checkpoint-000000042", "checkpoint-00000042.tmp", "checkpoint-0000004x",
        "xcheckpoint-00000042", "checkpoint-", "checkpoint-99999999999999999999", ""}) {
    CHECK_FALSE(CheckpointNumber(name).has_value());
  }
}

TEST_CASE("regression: a checkpoint of more files than there are descriptors can be read") {
  SimDisk disk(1);
  Model model(1);
  const auto name = Save(&disk, "/c", model, {.writers = 4, .slices = true});
  REQUIRE(name.ok());
  const auto reader = CheckpointReader::Open(&disk, "/c/" + *name);
  REQUIRE(reader.ok());
  REQUIRE(reader->manifest().files_size() > 4);
  disk.SetMostOpen(1);
  for (int round = 0; round < 2; ++round) {
    for (const auto& [table, arrays] : model.dense) {
      for (const auto& [array, content] : arrays) {
        const absl::Status status = reader->ReadArray(
            table, array, [](uint64_t, absl::Span<const std::byte>) { return absl::OkStatus(); });
        INFO(table << "." << array << ": " << status.ToString());
        CHECK(status.ok());
      }
    }
  }
}

TEST_CASE("the next save removes leftovers of saves and prunes, and no other file") {
  SimDisk disk(1);
  Model model(1);
  REQUIRE(Save(&disk, "/c", model).ok());
  {
    const auto directory = CheckpointDirectory::Open(&disk, "/c");
    REQUIRE(directory.ok());
    const auto path = (*directory)->Begin();
    REQUIRE(path.ok());
    CHECK_THAT(*path, StartsWith("/c/checkpoint-00000002.") && EndsWith(".tmp"));
    REQUIRE(WriteWhole(&disk, Join(*path, "model.safetensors"), "half").ok());
  }
  // As older programs left them, whose attempts had no ids.
  for (const char* name : {"/c/checkpoint-00000003.tmp", "/c/checkpoint-00000003.trash"}) {
    REQUIRE(disk.MakeDirectory(name).ok());
    REQUIRE(WriteWhole(&disk, Join(name, "model.safetensors"), "half").ok());
  }
  REQUIRE(disk.MakeDirectory("/c/checkpoint-00000009.trash").ok());
  REQUIRE(disk.MakeDirectory("/c/mine").ok());
  disk.Put("/c/notes.txt", "mine");
  CHECK(ListCheckpoints(&disk, "/c")->size() == 1);
  // Numbers that are there are not used again.
  CHECK(*Save(&disk, "/c", model) == "checkpoint-00000010");
  CHECK(NamesOf(&disk, "/c") == std::set<std::string>{"LOCK", "checkpoint-00000001",
                                                      "checkpoint-00000010", "mine", "notes.txt"});
}

TEST_CASE("regression: a late writer of an abandoned attempt does not write into another one") {
  SimDisk disk(1);
  const Model model(1);
  std::string given_up;
  {
    const auto directory = CheckpointDirectory::Open(&disk, "/c", GENERATE(0u, 7u));
    given_up = *(*directory)->Begin();
    REQUIRE((*directory)->Abandon().ok());
  }
  CHECK(NamesOf(&disk, "/c") == std::set<std::string>{"LOCK"});
  const auto directory = CheckpointDirectory::Open(&disk, "/c", 8);
  const auto path = (*directory)->Begin();
  REQUIRE(path.ok());
  v1::CheckpointManifest manifest;
  manifest.set_partitions(8);
  // Whether it comes before the new attempt's file of that name or after it.
  for (const char* name : {"first", "second"}) {
    if (std::string_view(name) == "second") {
      CHECK(absl::IsNotFound(WriteWhole(&disk, Join(given_up, name), "late")));
    }
    const auto file = WritePlainFile(&disk, *path, name, "new");
    REQUIRE(file.ok());
    *manifest.add_files() = *file;
    CHECK(absl::IsNotFound(WriteWhole(&disk, Join(given_up, name), "late")));
  }
  CHECK(absl::IsNotFound(WriteWhole(&disk, Join(given_up, "third"), "late")));
  // The number is free again: it is the attempt that differs.
  CHECK(*(*directory)->Commit(manifest) == "checkpoint-00000001");
  CHECK(NamesOf(&disk, "/c/checkpoint-00000001") ==
        std::set<std::string>{"first", "second", "manifest.json"});
}

TEST_CASE("failpoint: an attempt has the directory of an abandoned one") {
  SimDisk disk(1);
  failpoints().reuse_attempts = true;
  const std::string given_up = *(*CheckpointDirectory::Open(&disk, "/c"))->Begin();
  REQUIRE((*CheckpointDirectory::Open(&disk, "/c"))->Abandon().ok());
  const auto directory = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE((*directory)->Begin().ok());
  failpoints().reuse_attempts = false;
  CHECK(WriteWhole(&disk, Join(given_up, "late"), "late").ok());
  v1::CheckpointManifest manifest;
  manifest.set_partitions(8);
  CHECK(*(*directory)->Commit(manifest) == "checkpoint-00000001");
  CHECK(NamesOf(&disk, "/c/checkpoint-00000001") == std::set<std::string>{"late", "manifest.json"});
}

TEST_CASE("two checkpoint_tasks at once: the second is refused and the first goes on") {
  SimDisk disk(1);
  const Model model(1);
  const auto first = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE(first.ok());
  CHECK(absl::IsFailedPrecondition(CheckpointDirectory::Open(&disk, "/c").status()));
  CHECK(Save(&disk, first->get(), model).ok());
}

TEST_CASE("a commit is refused if the files differ from the manifest") {
  SimDisk disk(1);
  const auto directory = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE(directory.ok());
  v1::CheckpointManifest manifest;
  manifest.set_partitions(8);
  CHECK(absl::IsFailedPrecondition((*directory)->Commit(manifest).status()));  // none was begun
  const auto path = (*directory)->Begin();
  REQUIRE(path.ok());
  auto* file = manifest.add_files();
  file->set_name("x");
  file->set_bytes(3);
  file->set_xxh3(std::string(16, '0'));
  CHECK_THAT(std::string((*directory)->Commit(manifest).status().message()),
             Contains(Join(*path, "x")));
  REQUIRE(WriteWhole(&disk, Join(*path, "x"), "four").ok());
  CHECK_THAT(std::string((*directory)->Commit(manifest).status().message()),
             Contains("has 4 bytes, and its writer reported 3"));
  file->set_bytes(4);
  manifest.mutable_base()->set_name("checkpoint-00000007");
  manifest.mutable_base()->set_checksum(std::string(16, '0'));
  CHECK_THAT(std::string((*directory)->Commit(manifest).status().message()),
             Contains("base checkpoint-00000007") && Contains("save a full one"));
  CHECK(ListCheckpoints(&disk, "/c")->empty());
  manifest.clear_base();
  CHECK(*(*directory)->Commit(manifest) == "checkpoint-00000001");
}

TEST_CASE("retention keeps the last ones, one of each interval, and all bases") {
  SimDisk disk(1);
  Model model(1);
  // Steps 1 to 10.
  for (int i = 0; i < 10; ++i) {
    if (i > 0) model.Train();
    REQUIRE(Save(&disk, "/c", model).ok());
  }
  // An incremental one of step 11, based on step 10, and one more on that.
  for (int i = 0; i < 2; ++i) {
    model.Train();
    const Listed base = ListCheckpoints(&disk, "/c")->back();
    REQUIRE(Save(&disk, "/c", model, {.base = &base}).ok());
  }
  const auto directory = CheckpointDirectory::Open(&disk, "/c");
  REQUIRE(directory.ok());
  CHECK_THAT(std::string((*directory)->Prune({.keep_last = 0}).status().message()),
             Contains("keep_last is 0; allowed: 1 or more"));
  const auto would = (*directory)->WouldPrune({.keep_last = 1, .keep_every = 4});
  const auto removed = (*directory)->Prune({.keep_last = 1, .keep_every = 4});
  REQUIRE(removed.ok());
  CHECK(*would == *removed);
  // 1, 4 and 8 begin an interval; 12 is the last, 11 and 10 its bases.
  CHECK(NamesOf(&disk, "/c") == std::set<std::string>{"LOCK", CheckpointName(1), CheckpointName(4),
                                                      CheckpointName(8), CheckpointName(10),
                                                      CheckpointName(11), CheckpointName(12)});
  CHECK(Differs(&disk, "/c/checkpoint-00000012", model) == "");
  // Prune removes neither an unreadable checkpoint, which only an operator may remove, nor an older
  // one, which may be its base; the unreadable one does not count as kept.
  disk.FlipBit("/c/checkpoint-00000012/manifest.json", 800);
  CHECK((*directory)->Prune({.keep_last = 1})->empty());
  disk.FlipBit("/c/checkpoint-00000012/manifest.json", 800);
  CHECK((*directory)->Prune({.keep_last = 1})->size() == 3);
  CHECK(NamesOf(&disk, "/c") ==
        std::set<std::string>{"LOCK", CheckpointName(10), CheckpointName(11), CheckpointName(12)});
}

TEST_CASE("regression: a run that starts over keeps the newest checkpoint of each earlier run") {
  SimDisk disk(1);
  const auto save = [&](const std::string& cluster, uint32_t id, uint64_t step) {
    const auto directory = CheckpointDirectory::Open(&disk, "/c");
    REQUIRE(directory.ok());
    REQUIRE((*directory)->Begin().ok());
    v1::CheckpointManifest manifest;
    manifest.set_partitions(8);
    manifest.set_job("demo");
    manifest.set_cluster_id(cluster);
    manifest.set_step(step);
    v1::TableSpec spec;
    spec.set_name("w");
    spec.set_job("demo");
    spec.set_dim(2);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(0.1);
    v1::CheckpointTable* table = manifest.add_tables();
    table->set_id(id);
    *table->mutable_spec() = *NormalizeTableSpec(spec);
    const auto name = (*directory)->Commit(manifest);
    REQUIRE(name.status().ToString() == "OK");
    REQUIRE((*directory)
                ->Prune({.keep_last = 2, .job = "demo", .keep_former_runs = true})
                .status()
                .ok());
  };
  const auto numbers = [&] {
    std::vector<uint64_t> found;
    const auto listed = ListCheckpoints(&disk, "/c");
    REQUIRE(listed.ok());
    for (const Listed& one : *listed) found.push_back(one.number);
    return found;
  };
  using Numbers = std::vector<uint64_t>;
  for (int i = 1; i <= 4; ++i) save("a", 1, 100 * i);
  CHECK(numbers() == Numbers{3, 4});
  // Another cluster, from step 0 on: step 400 stays until it is reached again.
  for (int i = 1; i <= 6; ++i) save("b", 1, i);
  CHECK(numbers() == Numbers{4, 9, 10});
  // The same cluster with a new table: the highest step, and the last one of the run before.
  for (int i = 1; i <= 3; ++i) save("b", 2, i);
  CHECK(numbers() == Numbers{4, 10, 12, 13});
  for (int i = 1; i <= 3; ++i) save("b", 2, 400 + i);
  CHECK(numbers() == Numbers{10, 15, 16});
  // Runs without steps: the last one of the run before.
  for (int i = 1; i <= 3; ++i) save("c", 1, 0);
  CHECK(numbers() == Numbers{16, 18, 19});
  // An operator's prune keeps only the given number, of any run.
  CHECK((*CheckpointDirectory::Open(&disk, "/c"))->Prune({.keep_last = 2}).ok());
  CHECK(numbers() == Numbers{18, 19});
  // The fault that this is about.
  failpoints().forget_former_runs = true;
  for (int i = 1; i <= 2; ++i) save("d", 1, 0);
  failpoints().forget_former_runs = false;
  CHECK(numbers() == Numbers{20, 21});
}

TEST_CASE("any bit that flips in any file is found, with the file and the tensor it is in") {
  SimDisk disk(1);
  const Model model(1);
  const std::string path = "/c/" + *Save(&disk, "/c", model, {.writers = 2});
  const v1::CheckpointManifest manifest = *ReadListed(&disk, path).manifest;
  std::mt19937_64 random(1);
  for (const v1::CheckpointFile& file : manifest.files()) {
    const std::string name = Join(path, file.name());
    uint64_t data = file.bytes();
    std::vector<TensorInfo> tensors;
    if (!file.tensors().empty()) {
      const auto reader = SafetensorsReader::Open(&disk, name);
      REQUIRE(reader.ok());
      data = reader->head().size();
      tensors = reader->header().tensors;
    }
    for (int i = 0; i < 200; ++i) {
      // Bytes of the header's length, then of the header, then of the whole file.
      const uint64_t byte = i < 8 ? i : random() % (i < 80 ? data : file.bytes());
      const uint64_t bit = byte * 8 + random() % 8;
      disk.FlipBit(name, bit);
      const std::string differs = Differs(&disk, path, model);
      INFO(name << " bit " << bit << ": " << differs);
      CHECK_THAT(differs, Contains(name));
      if (byte >= data) {
        std::string in;
        for (const TensorInfo& tensor : tensors) {
          if (byte - data >= tensor.begin && byte - data < tensor.end) in = tensor.name;
        }
        CHECK_THAT(differs, Contains("tensor \"" + in + "\": its checksum is"));
      }
      disk.FlipBit(name, bit);
    }
    const std::string whole = disk.Content(name);
    disk.Truncate(name, whole.size() - 1);
    CHECK_THAT(Differs(&disk, path, model), Contains(name));
    REQUIRE(disk.Remove(name).ok());
    CHECK_THAT(Differs(&disk, path, model), Contains(name + " is missing"));
    disk.Put(name, whole);
  }
  CHECK(Differs(&disk, path, model) == "");
}

TEST_CASE("any part of an array can be read, across its pieces") {
  SimDisk disk(1);
  const Model model(1);
  for (const bool slices : {false, true}) {
    const std::string path = "/c/" + *Save(&disk, "/c", model, {.writers = 3, .slices = slices});
    const auto checkpoint = CheckpointReader::Open(&disk, path);
    REQUIRE(checkpoint.ok());
    for (const auto& [array, content] : model.dense.at("tower/w")) {
      auto reader = ArrayReader::Open(*checkpoint, "tower/w", array);
      INFO(array << reader.status());
      REQUIRE(reader.ok());
      const size_t element = BytesOf(reader->type());
      REQUIRE(reader->elements() * element == content.size());
      for (uint64_t first = 0; first <= reader->elements(); first += 7) {
        for (const uint64_t count : {uint64_t{0}, uint64_t{1}, reader->elements() - first}) {
          if (count > reader->elements() - first) continue;
          Bytes found(count * element);
          REQUIRE(reader->Read(first, absl::MakeSpan(found)).ok());
          const auto want = content.begin() + static_cast<ptrdiff_t>(first * element);
          CHECK(std::equal(found.begin(), found.end(), want));
        }
      }
      Bytes more(element);
      CHECK(absl::IsOutOfRange(reader->Read(reader->elements(), absl::MakeSpan(more))));
    }
    CHECK(absl::IsNotFound(ArrayReader::Open(*checkpoint, "tower/w", "sum").status()));
    CHECK(absl::IsNotFound(ArrayReader::Open(*checkpoint, "items", "values").status()));
  }
}

TEST_CASE("a file of another model is detected by its header, even with the same size") {
  SimDisk disk(1);
  const Model model(1);
  const std::string one = "/c/" + *Save(&disk, "/c", model);
  Model other(2);
  const std::string two = "/c/" + *Save(&disk, "/c", other);
  const std::string name = "/model-00001-of-00001.safetensors";
  REQUIRE(disk.Content(one + name).size() == disk.Content(two + name).size());
  disk.Put(one + name, disk.Content(two + name));
  CHECK_THAT(Differs(&disk, one, model), Contains(one + name) && Contains("\"tower/w\""));
}

TEST_CASE("the newest complete checkpoint is found past damaged ones, which are named") {
  SimDisk disk(1);
  Model model(1);
  const std::string one = "/c/" + *Save(&disk, "/c", model);
  const Model first = model;
  model.Train();
  const Listed base = ListCheckpoints(&disk, "/c")->back();
  const std::string two = "/c/" + *Save(&disk, "/c", model);
  const Listed second = ListCheckpoints(&disk, "/c")->back();
  model.Train();
  REQUIRE(Save(&disk, "/c", model, {.base = &second}).ok());
  model.Train();
  REQUIRE(Save(&disk, "/c", model, {.base = &base}).ok());
  // The fourth is based on the first, the third on the second.
  disk.FlipBit("/c/checkpoint-00000004/manifest.json", 900);
  REQUIRE(disk.Remove(two + "/model-00001-of-00001.safetensors").ok());
  std::vector<std::string> passed;
  CHECK(*NewestComplete(&disk, "/c", &passed) == one);
  REQUIRE(passed.size() == 3);
  CHECK_THAT(passed[0], Contains("checkpoint-00000004/manifest.json"));
  CHECK_THAT(passed[1], Contains(two + "/model-00001-of-00001.safetensors is missing"));
  CHECK(Differs(&disk, one, first) == "");
  CHECK(absl::IsNotFound(NewestComplete(&disk, "/nowhere", nullptr).status()));
}

TEST_CASE("a table that was dropped and made again does not get its old rows back") {
  SimDisk disk(1);
  Model model(1);
  REQUIRE(Save(&disk, "/c", model).ok());
  const Listed base = ListCheckpoints(&disk, "/c")->back();
  model.ids["users"] = 77;
  model.Train();
  const auto refused = Save(&disk, "/c", model, {.base = &base});
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK_THAT(std::string(refused.status().message()),
             Contains("table \"users\" is another one in the base"));
  CHECK(Save(&disk, "/c", model).ok());
}

TEST_CASE("an incremental checkpoint takes no other base than its own") {
  SimDisk disk(1);
  Model model(1);
  const std::string one = "/c/" + *Save(&disk, "/c", model);
  const Listed base = ListCheckpoints(&disk, "/c")->back();
  model.Train();
  const std::string two = "/c/" + *Save(&disk, "/c", model, {.base = &base});
  CHECK(Differs(&disk, two, model) == "");
  CHECK(CheckpointReader::Open(&disk, two)->links() == 2);
  // Another checkpoint of the same name.
  Model other(2);
  const std::string path = "/d/" + *Save(&disk, "/d", other);
  const std::string theirs = disk.Content(path + "/manifest.json");
  disk.Put(one + "/manifest.json", theirs);
  CHECK_THAT(std::string(CheckpointReader::Open(&disk, two).status().message()),
             Contains(two + " is based on checkpoint-00000001") && Contains("it is another"));
  REQUIRE(disk.Remove(one + "/manifest.json").ok());
  CHECK_THAT(std::string(CheckpointReader::Open(&disk, two).status().message()),
             Contains("which is missing"));
}

}  // namespace
}  // namespace verbena::checkpoint::test
