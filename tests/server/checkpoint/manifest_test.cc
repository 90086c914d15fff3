// The manifest as text, and the reasons to refuse one.
#include "server/checkpoint/files/manifest.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "absl/strings/str_replace.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/layout.h"
#include "shard/optimizer/optimizer.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;

v1::CheckpointManifest SavedManifest(bool slices = false) {
  SimDisk disk(1);
  const auto name = Save(&disk, "/c", Model(1), {.writers = 2, .slices = slices});
  REQUIRE(name.ok());
  return *ReadListed(&disk, Join("/c", *name)).manifest;
}

// The text with the checksum of its present content.
std::string Signed(const std::string& text) {
  const size_t line = text.rfind(" \"checksum\"");
  return text.substr(0, line) + " \"checksum\": \"" + HashText(text.substr(0, line)) + "\"\n}\n";
}

TEST_CASE("a manifest is readable JSON, and reads back as it was") {
  const v1::CheckpointManifest manifest = SavedManifest();
  const auto text = ManifestText(manifest);
  REQUIRE(text.ok());
  CHECK_THAT(*text, Contains("\"format_version\": 2,\n") && Contains("\"name\": \"tower/w\"") &&
                        Contains("\"seed\": \"9223372036854775809\""));
  const auto again = ParseManifest("m", *text);
  INFO(again.status());
  REQUIRE(again.ok());
  CHECK(again->SerializeAsString() == manifest.SerializeAsString());
  CHECK(Signed(*text) == *text);
  CHECK(ManifestChecksum(*text).size() == 16);
}

TEST_CASE("any bit that flips in a manifest is found") {
  const std::string text = *ManifestText(SavedManifest());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string other = text;
    other[at] = static_cast<char>(other[at] ^ (1 << at % 8));
    const auto parsed = ParseManifest("/c/manifest.json", other);
    INFO("byte " << at);
    REQUIRE(absl::IsDataLoss(parsed.status()));
    CHECK_THAT(std::string(parsed.status().message()), Contains("/c/manifest.json"));
  }
  CHECK(absl::IsDataLoss(ParseManifest("m", text.substr(0, text.size() / 2)).status()));
  CHECK(absl::IsDataLoss(ParseManifest("m", "").status()));
}

TEST_CASE("a manifest from the future names both versions, whatever else is in it") {
  const std::string text = *ManifestText(SavedManifest());
  const std::string later = Signed(absl::StrReplaceAll(
      text, {{"\"format_version\": 2", "\"format_version\": 3, \"tables\": {\"not\": \"a list\"}"},
             {"\"tables\": [", "\"other\": ["}}));
  const auto parsed = ParseManifest("/c/manifest.json", later);
  CHECK(absl::IsFailedPrecondition(parsed.status()));
  CHECK_THAT(std::string(parsed.status().message()),
             Contains("/c/manifest.json has format_version 3, written by \"test\"") &&
                 Contains("versions up to 2"));
  const auto none =
      ParseManifest("m", Signed(absl::StrReplaceAll(text, {{"\"format_version\": 2,", ""}})));
  CHECK_THAT(std::string(none.status().message()), Contains("no format_version"));
  // A manifest of this version may not have a member that this program does not know.
  const auto unknown =
      ParseManifest("m", Signed(absl::StrReplaceAll(text, {{"\"partitions\"", "\"partitionz\""}})));
  CHECK(absl::IsDataLoss(unknown.status()));
  CHECK_THAT(std::string(unknown.status().message()), Contains("partitionz"));
}

TEST_CASE("a manifest that makes no sense is refused, naming the field") {
  using Change = std::function<void(v1::CheckpointManifest*)>;
  const auto refused = [](bool slices, const std::string& what, const Change& change) {
    v1::CheckpointManifest manifest = SavedManifest(slices);
    change(&manifest);
    const auto text = ManifestText(manifest);
    INFO(what << ": " << text.status());
    CHECK(absl::IsInvalidArgument(text.status()));
    CHECK_THAT(std::string(text.status().message()), Contains(what));
  };
  const auto file_of = [](v1::CheckpointManifest* m, const std::string& array) {
    for (auto& file : *m->mutable_files()) {
      for (auto& tensor : *file.mutable_tensors()) {
        if (tensor.array() == array) return &tensor;
      }
    }
    return static_cast<v1::CheckpointTensor*>(nullptr);
  };
  refused(false, "partitions is 0", [](auto* m) { m->set_partitions(0); });
  refused(false, "../evil", [](auto* m) { m->mutable_files(0)->set_name("../evil"); });
  refused(false, "manifest.json", [](auto* m) { m->mutable_files(0)->set_name("manifest.json"); });
  refused(false, "with two named",
          [](auto* m) { m->mutable_files(1)->set_name(m->files(0).name()); });
  refused(false, "xxh3 is \"12\"", [](auto* m) { m->mutable_files(0)->set_xxh3("12"); });
  refused(false, "bytes is 3", [](auto* m) { m->mutable_files(0)->set_bytes(3); });
  refused(false, "dtype is \"F33\"",
          [](auto* m) { m->mutable_files(0)->mutable_tensors(0)->set_dtype("F33"); });
  refused(false, "shape is [37, 21]", [&](auto* m) { file_of(m, kParameters)->set_shape(1, 21); });
  refused(false, "less than 2^63",
          [&](auto* m) { file_of(m, kParameters)->set_shape(0, 1ull << 62); });
  refused(false, "block_bytes is 3", [&](auto* m) { file_of(m, kParameters)->set_block_bytes(3); });
  refused(false, "\"nobody\"", [&](auto* m) { file_of(m, kParameters)->set_table("nobody"); });
  refused(false, "array exp_avg", [&](auto* m) { file_of(m, "exp_avg")->set_array("exp_avg_sq"); });
  refused(false, "array ", [](auto* m) { m->mutable_files()->DeleteSubrange(0, 1); });
  refused(false, "one of the arrays of", [&](auto* m) { file_of(m, kValues)->set_shape(1, 3); });
  refused(false, "rows is 7", [](auto* m) {
    for (auto& table : *m->mutable_tables()) {
      if (table.spec().dim() > 0) table.set_rows(7);
    }
  });
  refused(false, "with two named \"tower/w\"", [](auto* m) { *m->add_tables() = m->tables(0); });
  refused(false, "optimizer.name is \"magic\"", [](auto* m) {
    m->mutable_tables(0)->mutable_spec()->mutable_optimizer()->set_name("magic");
  });
  refused(false, "chunk_bytes",
          [](auto* m) { m->mutable_tables(0)->mutable_spec()->set_chunk_bytes(7); });
  refused(false, "0 or 8", [](auto* m) { m->mutable_tables(0)->add_partition_versions(1); });
  refused(false, "base.name is \"a/b\"", [](auto* m) { m->mutable_base()->set_name("a/b"); });
  refused(true, "all of its 740 elements, each once", [&](auto* m) {
    auto* range = file_of(m, kParameters)->mutable_ranges(1);
    range->set_first(range->first() - 64);
  });
  refused(true, "end by 740", [&](auto* m) {
    file_of(m, kParameters)->mutable_ranges()->rbegin()->set_count(UINT64_MAX);
  });
  refused(true, "the sum of its ranges",
          [&](auto* m) { file_of(m, kParameters)->set_shape(0, 1); });
}

TEST_CASE("every optimizer's state has names, as many as it keeps arrays") {
  v1::Optimizer spec;
  spec.set_rate(0.1);
  for (const char* name : {"adagrad", "adam", "adamw", "ftrl", "lamb", "momentum", "nesterov",
                           "rmsprop", "rowwise_adagrad", "sgd"}) {
    spec.set_name(name);
    const auto optimizer = shard::MakeOptimizer(spec);
    REQUIRE(optimizer.ok());
    INFO(name);
    CHECK(IsKnownOptimizer(name));
    CHECK(StateNames(spec).size() == (*optimizer)->state_arrays());
    CHECK(StateIsRowWise(spec) == (*optimizer)->row_wise());
  }
  spec.set_name("no such");
  const std::string known(shard::MakeOptimizer(spec).status().message());
  // One that is added there has to be named here.
  CHECK(std::count(known.begin(), known.end(), '"') == 2 + 2 * 10);
}

TEST_CASE("planned files are bounded, and every writer has its part") {
  std::vector<v1::TableSpec> specs;
  for (int i = 0; i < 40; ++i) {
    v1::TableSpec spec = Model(1).specs[0];
    spec.set_name("t" + std::to_string(i));
    spec.set_shape(0, 1 << 20);
    specs.push_back(spec);
  }
  const uint64_t one = (uint64_t{20} << 20) * 4;
  std::map<size_t, uint64_t> load;
  std::set<std::string> names;
  for (const PlannedFile& file : PlanDense(specs, 3 * one, 3)) {
    CHECK(names.insert(file.name).second);
    CHECK(file.bytes <= 3 * one);
    load[file.writer] += file.bytes;
  }
  REQUIRE(load.size() == 3);
  for (const auto& [writer, bytes] : load) CHECK(bytes >= 36 * one);
  // One that is larger has a file of its own.
  CHECK(PlanDense({specs[0]}, one / 2, 1).size() == 4);
}

}  // namespace
}  // namespace verbena::checkpoint::test
