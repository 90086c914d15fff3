// Files for other programs, bit for bit.
#include "server/checkpoint/files/export.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "server/checkpoint/files/npy.h"
#include "server/checkpoint/files/safetensors.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;

struct Saved {
  Saved() {
    REQUIRE(Save(&disk, "/c", model, {.writers = 3, .slices = true}).ok());
    model.Train();
    const Listed base = ListCheckpoints(&disk, "/c")->back();
    path = "/c/" + *Save(&disk, "/c", model, {.writers = 2, .slices = true, .base = &base});
  }
  absl::StatusOr<ExportReport> Run(const ExportOptions& options) {
    const auto reader = CheckpointReader::Open(&disk, path);
    if (!reader.ok()) return reader.status();
    const auto plan = PlanExport(*reader, options);
    if (!plan.ok()) return plan.status();
    uint64_t bytes = 0, said = 0;
    for (const ExportedTensor& tensor : *plan) bytes += tensor.bytes();
    const auto report = Export(&disk, *reader, options, *plan, [&](uint64_t more) {
      said += more;
      return absl::OkStatus();
    });
    if (report.ok()) CHECK((said == bytes && report->bytes == bytes));
    return report;
  }
  SimDisk disk{1};
  Model model{1};
  std::string path;
};

std::string BytesOfTensor(SimDisk* disk, const std::string& path, const std::string& name) {
  const auto reader = SafetensorsReader::Open(disk, path);
  INFO(reader.status());
  REQUIRE(reader.ok());
  const TensorInfo* tensor = reader->Find(name);
  INFO(name);
  REQUIRE(tensor != nullptr);
  std::string bytes(tensor->bytes(), '\0');
  REQUIRE(
      reader->Read(*tensor, 0, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}).ok());
  return bytes;
}

std::string Text(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Rows by key, of exported keys and values.
std::map<uint64_t, std::string> RowsOf(const std::string& keys, const std::string& values) {
  std::map<uint64_t, std::string> rows;
  const size_t count = keys.size() / 8;
  for (size_t i = 0; i < count; ++i) {
    uint64_t key = 0;
    std::memcpy(&key, keys.data() + i * 8, 8);
    rows[key] = values.substr(i * (values.size() / count), values.size() / count);
  }
  CHECK(rows.size() == count);
  return rows;
}

TEST_CASE("an incremental checkpoint in slices exports the served values to one safetensors file") {
  Saved saved;
  const auto report = saved.Run({.to = "/out.safetensors"});
  INFO(report.status());
  REQUIRE(report.ok());
  CHECK(report->files == std::vector<std::string>{"out.safetensors"});
  CHECK(report->tensors == 7);
  for (const char* table : {"tower/w", "tower/bias", "head"}) {
    CHECK(BytesOfTensor(&saved.disk, "/out.safetensors", table) ==
          Text(saved.model.dense[table][kParameters]));
  }
  const auto rows = RowsOf(BytesOfTensor(&saved.disk, "/out.safetensors", "items.keys"),
                           BytesOfTensor(&saved.disk, "/out.safetensors", "items.values"));
  REQUIRE(rows.size() == saved.model.rows["items"].size());
  for (const auto& [key, content] : saved.model.rows["items"]) {
    CHECK(rows.at(key) == Text(content).substr(0, 16));
  }
  // Nothing is overwritten, and nothing is left.
  CHECK(absl::IsAlreadyExists(saved.Run({.to = "/out.safetensors"}).status()));
  CHECK(saved.disk.List("/")->size() == 2);
}

TEST_CASE(
    "an export takes some tables, renames, converts, and has the optimizer's state if asked") {
  Saved saved;
  ExportOptions options;
  options.to = "/out";
  options.tables = {"tower/bias", "users"};
  options.renamed = {{"tower/bias", "b"}};
  options.dtype = TensorType::kF32;
  options.optimizer = true;
  REQUIRE(saved.Run(options).ok());
  const Bytes& halves = saved.model.dense["tower/bias"][kParameters];
  Bytes floats(halves.size() * 2);
  ConvertNumbers(TensorType::kBF16, halves, TensorType::kF32, absl::MakeSpan(floats));
  CHECK(BytesOfTensor(&saved.disk, "/out", "b") == Text(floats));
  CHECK(BytesOfTensor(&saved.disk, "/out", "b.master") ==
        Text(saved.model.dense["tower/bias"][kMaster]));
  CHECK(BytesOfTensor(&saved.disk, "/out", "b.applies") ==
        Text(saved.model.dense["tower/bias"][kApplies]));
  CHECK(BytesOfTensor(&saved.disk, "/out", "users.sum").size() ==
        4 * saved.model.rows["users"].size());
  CHECK(SafetensorsReader::Open(&saved.disk, "/out")->Find("tower/w") == nullptr);

  options.to = "/other";
  options.tables = {"nobody"};
  CHECK_THAT(std::string(saved.Run(options).status().message()),
             Contains("no table \"nobody\"; it has: tower/w, items"));
  options.tables.clear();
  options.renamed = {{"tower/w", "head"}};
  CHECK_THAT(std::string(saved.Run(options).status().message()),
             Contains("two arrays would be called \"head\""));
  options.renamed.clear();
  options.dtype = TensorType::kI32;
  CHECK_THAT(std::string(saved.Run(options).status().message()),
             Contains("F32 cannot become I32; allowed: F64, F32, F16, BF16"));
}

TEST_CASE("a sharded export has an index that names the file of every parameter") {
  Saved saved;
  const auto report =
      saved.Run({.format = ExportFormat::kSharded, .to = "/set", .file_bytes = 1000});
  INFO(report.status());
  REQUIRE(report.ok());
  CHECK(report->files.back() == kIndexName);
  // tower/w has 2960 bytes, the others fit together.
  CHECK(saved.disk.Content("/set/model.safetensors.index.json") ==
        "{\"metadata\": {\"total_size\": 3230}, \"weight_map\": {"
        "\"tower/w\": \"model-00001-of-00002.safetensors\", "
        "\"tower/bias\": \"model-00002-of-00002.safetensors\", "
        "\"head\": \"model-00002-of-00002.safetensors\"}}\n");
  CHECK(BytesOfTensor(&saved.disk, "/set/model-00002-of-00002.safetensors", "head") ==
        Text(saved.model.dense["head"][kParameters]));
}

TEST_CASE("NumPy files have the arrays, bf16 as f32") {
  Saved saved;
  const auto report = saved.Run({.format = ExportFormat::kNpy, .to = "/npy"});
  INFO(report.status());
  REQUIRE(report.ok());
  const std::string file = saved.disk.Content("/npy/tower%2Fw.npy");
  const std::string header = NpyHeader(TensorType::kF32, {37, 20});
  CHECK(header.size() % 64 == 0);
  CHECK(header.back() == '\n');
  CHECK(file == header + Text(saved.model.dense["tower/w"][kParameters]));
  CHECK_THAT(header, Contains("{'descr': '<f4', 'fortran_order': False, 'shape': (37, 20), }"));
  CHECK_THAT(saved.disk.Content("/npy/tower%2Fbias.npy"), Contains("'<f4'") && Contains("(5,)"));
  CHECK_THAT(saved.disk.Content("/npy/items.keys.npy"), Contains("'<u8'"));
  CHECK_THAT(
      std::string(
          saved.Run({.format = ExportFormat::kNpy, .to = "/bf16", .dtype = TensorType::kBF16})
              .status()
              .message()),
      Contains("NumPy has no BF16"));
}

TEST_CASE("an export that fails leaves nothing behind") {
  Saved saved;
  const uint64_t used = UINT64_MAX - *saved.disk.FreeBytes("/");
  for (const ExportFormat format :
       {ExportFormat::kSafetensors, ExportFormat::kSharded, ExportFormat::kNpy}) {
    saved.disk.SetCapacity(used + 3000);
    CHECK(saved.Run({.format = format, .to = "/out"}).status().code() ==
          absl::StatusCode::kResourceExhausted);
    CHECK(saved.disk.List("/")->size() == 1);
    saved.disk.SetCapacity(UINT64_MAX);
    // Damaged data are not exported with a valid checksum.
    const std::string name = saved.path + "/slices-0-00001.safetensors";
    const auto slices = SafetensorsReader::Open(&saved.disk, name);
    REQUIRE(slices.ok());
    const uint64_t bit = 8 * (slices->head().size() + slices->Find("tower/w.slice.0")->begin) + 3;
    saved.disk.FlipBit(name, bit);
    const auto damaged = saved.Run({.format = format, .to = "/out"});
    CHECK(absl::IsDataLoss(damaged.status()));
    CHECK_THAT(std::string(damaged.status().message()),
               Contains(name) && Contains("\"tower/w.slice.0\": its checksum is"));
    CHECK(saved.disk.List("/")->size() == 1);
    saved.disk.FlipBit(name, bit);
  }
}

TEST_CASE("regression: exporting a checkpoint opens each of its files once, however many tables") {
  uint64_t fewer = 0;
  for (const size_t tables : {20, 200}) {
    SimDisk disk(1);
    const Model model = Model::OfManyTables(1, tables);
    const auto name = Save(&disk, "/c", model, {.writers = 2, .file_bytes = 1 << 20});
    REQUIRE(name.ok());
    const auto reader = CheckpointReader::Open(&disk, "/c/" + *name);
    REQUIRE(reader.ok());
    const ExportOptions options{.to = "/out", .optimizer = true};
    const auto plan = PlanExport(*reader, options);
    REQUIRE(plan.ok());
    const uint64_t before = disk.opens();
    REQUIRE(Export(&disk, *reader, options, *plan, [](uint64_t) { return absl::OkStatus(); }).ok());
    if (fewer == 0) fewer = disk.opens() - before;
    CHECK(disk.opens() - before == fewer);
    CHECK(fewer <= 8);
  }
}

}  // namespace
}  // namespace verbena::checkpoint::test
