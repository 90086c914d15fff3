// Models in several files, and the index by which a directory is imported.
#include "server/checkpoint/files/model_source.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/checkpoint/files/export.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/import_fixture.h"

namespace verbena::checkpoint::test {
namespace {

TEST_CASE("a model in several files is imported by its index, and all of it has to be there") {
  const std::string eight(8, '\1');
  const auto index = [](const std::string& map) {
    return "{\"metadata\": {\"total_size\": 16}, \"weight_map\": {" + map + "}}";
  };
  const std::string both = R"("a": "m-1.safetensors", "b": "m-2.safetensors")";
  const auto make = [&](Source* source, const std::string& map) {
    (void)source->disk.MakeDirectory("/m");
    source->disk.Put("/m/m-1.safetensors", File({{"a", "F32", "2", eight}}));
    source->disk.Put("/m/m-2.safetensors", File({{"b", "F32", "2", eight}}));
    source->disk.Put("/m/model.safetensors.index.json", index(map));
  };
  ImportOptions options;
  options.from = "/m";
  SECTION("of a directory, or by its name") {
    Source source;
    make(&source, both);
    CHECK(source.Run(options)->manifest().tables_size() == 2);
    options.from = "/m/model.safetensors.index.json";
    options.to = "/c2";
    CHECK(source.Run(options)->manifest().tables_size() == 2);
    // The target directory may not have a checkpoint.
    source.Fails({.from = "/m/m-1.safetensors", .to = "/c2"}, absl::StatusCode::kAlreadyExists,
                 {"/c2 has checkpoints already, the newest is checkpoint-00000001"});
  }
  const auto fails = [&](const std::string& map, absl::StatusCode code,
                         const std::vector<std::string>& words) {
    Source source;
    make(&source, map);
    source.Fails(options, code, words);
  };
  SECTION("a file is missing") {
    fails(both + R"(, "c": "m-3.safetensors")", absl::StatusCode::kNotFound,
          {"index.json names \"m-3.safetensors\": ", "/m/m-3.safetensors"});
  }
  SECTION("a tensor is missing, or is elsewhere") {
    fails(both + R"(, "c": "m-1.safetensors")", absl::StatusCode::kDataLoss,
          {"index.json lists tensor \"c\" in \"m-1.safetensors\", but it is not there"});
    fails(R"("a": "m-2.safetensors", "b": "m-1.safetensors")", absl::StatusCode::kDataLoss,
          {"/m/m-1.safetensors: tensor \"a\" is in \"m-2.safetensors\" by the index"});
  }
  SECTION("a tensor that no index names") {
    Source source;
    make(&source, R"("a": "m-1.safetensors")");  // nor the file that it is in
    CHECK(source.Run({.from = "/m", .to = "/c1"})->manifest().tables_size() == 1);
    source.disk.Put("/m/m-3.safetensors",
                    File({{"c", "F32", "2", eight}, {"d", "F32", "2", eight}}));
    source.disk.Put("/m/model.safetensors.index.json", index(both + R"(, "c": "m-3.safetensors")"));
    source.Fails(options, absl::StatusCode::kDataLoss,
                 {"/m/m-3.safetensors: tensor \"d\" is not in the index; --skip"});
    options.skipped = {"d"};
    CHECK(source.Run(options)->manifest().tables_size() == 3);
  }
  SECTION("a file that was cut off") {
    Source source;
    make(&source, both);
    source.disk.Truncate("/m/m-2.safetensors", File({{"b", "F32", "2", eight}}).size() - 1);
    source.Fails(options, absl::StatusCode::kDataLoss, {"/m/m-2.safetensors", "cut off"});
  }
  SECTION("indices that are none") {
    fails(R"("a": "../m.safetensors")", absl::StatusCode::kDataLoss,
          {"has \"../m.safetensors\" as the file of tensor \"a\"; allowed: the name of a file"});
    fails(R"("a": 5)", absl::StatusCode::kDataLoss, {"has a number as the file of tensor \"a\""});
    fails(R"("a": {})", absl::StatusCode::kDataLoss, {"has an object as the file"});
    fails(both + ", " + both, absl::StatusCode::kDataLoss, {"has tensor \"a\" twice"});
    fails(both + "}, \"weight_map\": {", absl::StatusCode::kDataLoss, {"has weight_map twice"});
    fails("}, \"x\": [{\"weight_map\": {\"c\": 1}}], \"y\": {", absl::StatusCode::kInvalidArgument,
          {"/m has no tensors"});
    fails("\"", absl::StatusCode::kDataLoss, {"index.json is not JSON: wrong at byte "});
    Source source;
    make(&source, both);
    for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
             {"{}", "has no weight_map"},
             {"[]", "has no object"},
             {"5", "has no weight_map"},
             {"", "is not JSON"},
             {"{\"weight_map\": []}", "has an array as weight_map; allowed: an object"}}) {
      source.disk.Put("/m/model.safetensors.index.json", text);
      source.Fails(options, absl::StatusCode::kDataLoss, {why});
    }
  }
}

TEST_CASE("a directory is imported by its only index, or its only file") {
  Source source;
  ImportOptions options;
  options.from = "/m";
  (void)source.disk.MakeDirectory("/m");
  source.Fails(options, absl::StatusCode::kNotFound, {"/m has neither *.safetensors.index.json"});
  source.disk.Put("/m/config.json", "{}");
  source.disk.Put("/m/one.safetensors", File({{"a", "F32", "1", "xxxx"}}));
  CHECK(source.Run(options)->manifest().tables_size() == 1);
  source.disk.Put("/m/two.safetensors", File({{"b", "F32", "1", "xxxx"}}));
  options.to = "/c2";
  source.Fails(options, absl::StatusCode::kInvalidArgument,
               {"/m has 2 safetensors files and no index", "one.safetensors, two.safetensors"});
  options.from = "/c/checkpoint-00000001";
  source.Fails(options, absl::StatusCode::kInvalidArgument,
               {"is a checkpoint already; 'verbena checkpoint restore' loads it"});
  options.from = "/nowhere";
  source.Fails(options, absl::StatusCode::kNotFound, {"/nowhere"});
}

TEST_CASE("a sharded export comes back, with its embedding tables") {
  Source source;
  const Model model(5);
  const std::string path = "/saved/" + *Save(&source.disk, "/saved", model);
  const auto saved = CheckpointReader::Open(&source.disk, path);
  REQUIRE(saved.ok());
  const ExportOptions exported{.format = ExportFormat::kSharded, .to = "/set", .file_bytes = 400};
  const auto plan = PlanExport(*saved, exported);
  REQUIRE(plan.ok());
  const auto none = [](uint64_t) { return absl::OkStatus(); };
  const auto report = Export(&source.disk, *saved, exported, *plan, none);
  REQUIRE(report.ok());
  ImportOptions options;
  options.from = "/set";
  const auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->manifest().tables_size() == 5);
  for (const char* table : {"tower/w", "tower/bias", "head"}) {
    const Bytes& bytes = model.dense.at(table).at(kParameters);
    CHECK(Array(*reader, table, kParameters) ==
          std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  const auto rows = Rows(*reader, "users");
  CHECK(rows.size() == model.rows.at("users").size());
  for (const auto& [key, content] : model.rows.at("users")) {
    CHECK(rows.at(key).substr(0, 12) ==
          std::string(reinterpret_cast<const char*>(content.data()), 12));
  }
  // One of the files that no index names.
  std::string last;
  for (const std::string& file : report->files) {
    if (file.starts_with("other-")) last = file;
  }
  REQUIRE(last.find("-of-") != std::string::npos);
  REQUIRE_FALSE(last.starts_with("other-00001-"));
  const std::string content = source.disk.Content("/set/" + last);
  REQUIRE(source.disk.Remove("/set/" + last).ok());
  options.to = "/c2";
  source.Fails(options, absl::StatusCode::kNotFound, {"is one of ", last + " is not there"});
}

}  // namespace
}  // namespace verbena::checkpoint::test
