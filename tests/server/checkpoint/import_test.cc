// Tensors that others made become tables, bit for bit, or are refused in words.
#include "server/checkpoint/files/import.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "proto/wire/row_applies.h"
#include "server/checkpoint/files/export.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/server/checkpoint/import_fixture.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("dense tensors and rows become tables as if made anew, with their bits") {
  Source source;
  ImportOptions options;
  options.job = "demo";
  options.defaults.set_consistency(v1::CONSISTENCY_ASYNC);
  options.defaults.mutable_optimizer()->set_name("adam");
  options.defaults.mutable_optimizer()->set_rate(0.01);
  options.renamed = {{"tower.weight", "tower/w"}};
  const auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->manifest().tables_size() == 5);
  CHECK(reader->manifest().job() == "demo");
  CHECK(reader->manifest().step() == 0);
  const v1::TableSpec& w = SpecOf(*reader, "tower/w");
  CHECK((w.shape_size() == 2 && w.shape(0) == 2 && w.shape(1) == 3));
  CHECK(w.consistency() == v1::CONSISTENCY_ASYNC);
  CHECK(w.optimizer().name() == "adam");
  CHECK(w.job() == "demo");
  CHECK(Array(*reader, "tower/w", kParameters) == Raw(kFloats));
  CHECK(Array(*reader, "tower/w", "exp_avg_sq") == std::string(24, '\0'));
  CHECK(Array(*reader, "tower/w", kApplies) == std::string(8, '\0'));
  CHECK(SpecOf(*reader, "b16").dtype() == v1::DTYPE_BF16);
  CHECK(Array(*reader, "b16", kParameters) == Raw(kHalves));
  // bf16 is the upper half of f32.
  std::vector<uint32_t> masters;
  for (const uint16_t half : kHalves) masters.push_back(uint32_t{half} << 16);
  CHECK(Array(*reader, "b16", kMaster) == Raw(masters));
  CHECK(SpecOf(*reader, "f16").dtype() == v1::DTYPE_F16);
  CHECK(Array(*reader, "f16", kParameters) == Raw(kHalves));
  CHECK(Array(*reader, "f16", kMaster) == Raw<float>({1.0f + 0x1p-10f, -0.0f, 65504.0f, 0x1p-24f}));
  CHECK(SpecOf(*reader, "scale").shape_size() == 1);  // [1]: a table has a dimension
  CHECK(SpecOf(*reader, "items").dim() == 2);
  CHECK(reader->FindTable("items")->rows() == 3);
  const auto rows = Rows(*reader, "items");
  REQUIRE(rows.size() == 3);
  const std::string values = Raw(kFloats);
  for (size_t i = 0; i < 3; ++i) {
    // values, then applies and two arrays of state
    CHECK(rows.at(kKeyNumbers[i]) ==
          values.substr(i * 8, 8) + Raw<uint32_t>({kAppliesOfNewState}) + std::string(8 + 8, '\0'));
  }
}

std::vector<Tensor> WithState() {
  return {{"w", "F32", "2,3", Raw(kFloats)},
          {"w.exp_avg", "F32", "2,3", Raw<float>({1, 2, 3, 4, 5, 6})},
          {"w.exp_avg_sq", "F32", "2,3", Raw<float>({7, 8, 9, 10, 11, 12})},
          {"w.applies", "U64", "1", Raw<uint64_t>({1'000'000'000'000})}};
}

ImportOptions Adam() {
  ImportOptions options;
  options.defaults.mutable_optimizer()->set_name("adam");
  options.defaults.mutable_optimizer()->set_rate(0.01);
  return options;
}

TEST_CASE("state that is beside a dense tensor is that of its table's optimizer") {
  ImportOptions options = Adam();
  if (GENERATE(false, true)) options.renamed = {{"w", "tower/w"}};
  const std::string table = options.renamed.empty() ? "w" : "tower/w";
  const std::vector<Tensor> tensors = WithState();
  Source source(tensors);
  const auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->manifest().tables_size() == 1);
  CHECK(Array(*reader, table, kParameters) == tensors[0].bytes);
  CHECK(Array(*reader, table, "exp_avg") == tensors[1].bytes);
  CHECK(Array(*reader, table, "exp_avg_sq") == tensors[2].bytes);
  CHECK(Array(*reader, table, kApplies) == tensors[3].bytes);
}

TEST_CASE("state that does not fit its table is refused") {
  const auto refused = [](size_t tensor, const Tensor& changed) {
    std::vector<Tensor> tensors = WithState();
    tensors[tensor] = changed;
    Source source(tensors);
    return std::string(source.Run(Adam()).status().message());
  };
  CHECK_THAT(refused(1, {"other", "F32", "1", Raw<float>({1})}),
             Contains("tensor \"w\" has no \"w.exp_avg\" beside") &&
                 Contains("exp_avg, exp_avg_sq, applies together, or none"));
  CHECK_THAT(refused(3, {"other", "F32", "1", Raw<float>({1})}), Contains("has no \"w.applies\""));
  CHECK_THAT(refused(1, {"w.exp_avg", "F32", "6", Raw<float>({1, 2, 3, 4, 5, 6})}),
             Contains("\"w.exp_avg\" has the shape [6]; allowed: [2, 3]"));
  CHECK_THAT(refused(1, {"w.exp_avg", "F16", "2,3", std::string(12, 0)}),
             Contains("\"w.exp_avg\" has the type F16; allowed: F32"));
  CHECK_THAT(refused(3, {"w.applies", "U64", "2", Raw<uint64_t>({1, 1})}),
             Contains("\"w.applies\" has the shape [2]; allowed: [1]"));
  CHECK_THAT(refused(3, {"w.applies", "U32", "1", Raw<uint32_t>({1})}),
             Contains("\"w.applies\" has the type U32; allowed: U64, I64"));
}

TEST_CASE("beside a table without such state a tensor is a table of its own") {
  Source source({WithState()[0], WithState()[1]});
  const auto reader = source.Run();
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->manifest().tables_size() == 2);
}

TEST_CASE("an import and an export afterwards give the same tensors, bit for bit") {
  Source source;
  ImportOptions options;
  options.file_bytes = 16;  // a file for each tensor
  options.skipped = {"scale"};
  const auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  const ExportOptions exported{.to = "/out.safetensors"};
  const auto plan = PlanExport(*reader, exported);
  REQUIRE(plan.ok());
  const auto none = [](uint64_t) { return absl::OkStatus(); };
  REQUIRE(Export(&source.disk, *reader, exported, *plan, none).ok());
  const auto file = SafetensorsReader::Open(&source.disk, "/out.safetensors");
  REQUIRE(file.ok());
  CHECK(file->header().tensors.size() == 5);
  for (const Tensor& tensor : Tensors()) {
    if (tensor.name == "scale") continue;
    const TensorInfo* found = file->Find(tensor.name);
    INFO(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(absl::StrJoin(found->shape, ",") == tensor.shape);
    std::string bytes(found->bytes(), '\0');
    CHECK(file->Read(*found, 0, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}).ok());
    CHECK(bytes == tensor.bytes);
  }
}

// The number of elements that differ. Any NaN equals any NaN: only a conversion to the same type
// copies a NaN's bits.
size_t DifferentNumbers(TensorType type, const std::string& given, const std::string& got) {
  std::vector<double> numbers[2];
  for (const std::string* text : {&given, &got}) {
    std::vector<double>& to = numbers[text == &got];
    to.resize(text->size() / BytesOf(type));
    ConvertNumbers(type, {reinterpret_cast<const std::byte*>(text->data()), text->size()},
                   TensorType::kF64,
                   {reinterpret_cast<std::byte*>(to.data()), to.size() * sizeof(double)});
  }
  size_t different = 0;
  for (size_t i = 0; i < numbers[0].size(); ++i) {
    const double a = numbers[0][i], b = numbers[1][i];
    different += std::isnan(a) ? !std::isnan(b) : a != b || std::signbit(a) != std::signbit(b);
  }
  return different;
}

// Patterns of all bits, special numbers and the largest and smallest ones included.
std::string Patterns(TensorType type, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count * BytesOf(type); ++i) {
    bytes.push_back(static_cast<char>(type == TensorType::kBool ? i % 2 : i * 37 + i / 256));
  }
  return bytes;
}

TEST_CASE("every type of number: a round trip with its bits, or refused by name and skipped") {
  constexpr size_t kCount = 256;
  const std::vector<std::string> tables = {"F32", "BF16", "F16"};
  for (int i = 0; i <= static_cast<int>(TensorType::kU64); ++i) {
    const auto type = static_cast<TensorType>(i);
    const std::string name = TypeName(type);
    INFO(name);
    CHECK(TypeNames().find(name) != std::string::npos);
    const Tensor tensor = {"t", name, absl::StrCat(kCount), Patterns(type, kCount)};
    if (std::find(tables.begin(), tables.end(), name) == tables.end()) {
      Refused({tensor},
              {absl::StrCat("tensor \"t\" has the type ", name), "allowed: F32, BF16, F16"});
      Source source({tensor, {"w", "F32", "1", Raw<float>({1})}});
      ImportOptions options;
      options.skipped = {"t"};
      const auto reader = source.Run(options);
      REQUIRE(reader.ok());
      CHECK(reader->manifest().tables_size() == 1);
      continue;
    }
    Source source({tensor});
    const auto reader = source.Run();
    REQUIRE(reader.ok());
    // To each type that has all its numbers, and back.
    for (const char* to : {"F32", "BF16", "F16", "F64"}) {
      if (name != to && (name == "F32" ? to != std::string("F64") : to[0] != 'F' || to[1] == '1')) {
        continue;
      }
      INFO("to " << to);
      const std::string path = absl::StrCat("/out.", to);
      const ExportOptions exported{.to = path, .dtype = ParseType(to)};
      const auto plan = PlanExport(*reader, exported);
      REQUIRE(plan.ok());
      const auto none = [](uint64_t) { return absl::OkStatus(); };
      REQUIRE(Export(&source.disk, *reader, exported, *plan, none).ok());
      ImportOptions back;
      back.from = path;
      back.to = absl::StrCat("/back.", to);
      back.dtype = name == "F32" ? v1::DTYPE_F32 : name == "F16" ? v1::DTYPE_F16 : v1::DTYPE_BF16;
      const auto again = source.Run(back);
      REQUIRE(again.ok());
      const std::string given = Array(*reader, "t", kParameters);
      const std::string got = Array(*again, "t", kParameters);
      CHECK(given == tensor.bytes);
      CHECK((name == to ? given == got : DifferentNumbers(type, given, got) == 0));
    }
  }
}

TEST_CASE("regression: an export never makes an infinite number of a finite one") {
  const std::vector<float> numbers = {INFINITY, NAN, 65504, -65520};
  Source source({{"w", "F32", "4", Raw(numbers)},
                 {"e.keys", "U64", "2", Raw<uint64_t>({1, 2})},
                 {"e.values", "F32", "2,2", Raw(numbers)}});
  const auto reader = source.Run();
  REQUIRE(reader.ok());
  for (const std::string table : {"w", "e"}) {
    ExportOptions options{.to = "/out", .tables = {table}};
    const auto run = [&](TensorType type) {
      options.dtype = type;
      const auto plan = PlanExport(*reader, options);
      REQUIRE(plan.ok());
      return Export(&source.disk, *reader, options, *plan,
                    [](uint64_t) { return absl::OkStatus(); })
          .status();
    };
    const absl::Status refused = run(TensorType::kF16);
    CHECK(absl::IsInvalidArgument(refused));
    CHECK_THAT(std::string(refused.message()),
               Contains("table \"" + table + "\": element ") &&
                   Contains(" is -65520, too large for F16; --dtype names another type"));
    CHECK(absl::IsNotFound(source.disk.Open("/out").status()));
    options.to = "/out." + table;
    CHECK(run(TensorType::kBF16).ok());
  }
}

TEST_CASE("tables are imported with the specifications of a file, or of another checkpoint") {
  Source source;
  source.disk.Put("/spec.json", R"({"tables": [
      {"spec": {"name": "items", "job": "ads", "dim": 2, "optimizer": {"name": "rowwise_adagrad",
       "rate": 0.5}, "initializer": {"kind": "NORMAL", "b": 0.25, "seed": "9223372036854775809"}}},
      {"spec": {"name": "b16", "dtype": "DTYPE_F32", "shape": ["4"]}}]})");
  ImportOptions options;
  options.specs = *ReadTableSpecs(&source.disk, "/spec.json");
  options.defaults.mutable_optimizer()->set_rate(0.125);
  auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  const v1::TableSpec& items = SpecOf(*reader, "items");
  CHECK(items.job() == "ads");
  CHECK(items.initializer().seed() == 9223372036854775809u);
  CHECK(Rows(*reader, "items").at(7).size() == 8 + 4 + 4);
  CHECK(SpecOf(*reader, "b16").dtype() == v1::DTYPE_F32);
  CHECK(SpecOf(*reader, "b16").optimizer().rate() == 0);
  CHECK(SpecOf(*reader, "f16").optimizer().rate() == 0.125);
  CHECK(SpecOf(*reader, "f16").job() == "ads");
  // As the tables of that one.
  options.specs = *ReadTableSpecs(&source.disk, Join(reader->path(), kManifestName));
  options.defaults = {};
  options.to = "/again";
  const auto again = source.Run(options);
  INFO(again.status());
  REQUIRE(again.ok());
  for (int i = 0; i < 5; ++i) {
    CHECK(again->manifest().tables(i).spec().SerializeAsString() ==
          reader->manifest().tables(i).spec().SerializeAsString());
  }

  options.to = "/c2";
  const auto fails = [&](const char* json, const std::vector<std::string>& words,
                         absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    source.disk.Put("/spec.json", json);
    const auto specs = ReadTableSpecs(&source.disk, "/spec.json");
    if (specs.ok()) options.specs = *specs;
    const absl::Status status = specs.ok() ? source.Run(options).status() : specs.status();
    INFO(status);
    CHECK(status.code() == code);
    for (const auto& word : words) CHECK_THAT(std::string(status.message()), Contains(word));
  };
  fails("{\"tables\": [{\"spec\": {\"nom\": 1}}]}", {"/spec.json: ", "nom", "allowed: "});
  fails("{\"tables\": [{\"spec\": {}}]}", {"tables[0].spec.name is \"\"; allowed"});
  fails("{\"tables\": [{\"spec\": {\"name\": \"a\"}}, {\"spec\": {\"name\": \"a\"}}]}",
        {"tables[1].spec.name is \"a\", as another one's is"});
  fails("{\"tables\": [{\"spec\": {\"name\": \"head\"}}]}",
        {"/m.safetensors has no tensor for the table \"head\"", "it has: \"b16\""},
        absl::StatusCode::kNotFound);
  fails("{\"tables\": [{\"spec\": {\"name\": \"b16\", \"shape\": [2, 2]}}]}",
        {"tensor \"b16\" has the shape [4]; allowed: [2, 2]"});
  fails("{\"tables\": [{\"spec\": {\"name\": \"b16\", \"dim\": 4}}]}",
        {"\"b16\" has the shape [4]; allowed: [N, DIM]"});
  fails("{\"tables\": [{\"spec\": {\"name\": \"items\", \"dim\": 4}}]}",
        {"\"items.values\" has rows of 2; allowed: ", "dim 4"});
  fails(
      "{\"tables\": [{\"spec\": {\"name\": \"b16\", \"job\": \"a\"}}, "
      "{\"spec\": {\"name\": \"f16\", \"job\": \"b\"}}]}",
      {"is of job \"b\", and others are of \"a\""});
  fails("{\"tables\": [{\"spec\": {\"name\": \"b16\", \"optimizer\": {\"rate\": -1}}}]}",
        {"/m.safetensors: tensor \"b16\": ", "rate is -1"});
}

TEST_CASE("a matrix becomes an embedding table if its specification has a dim") {
  Source source(
      {{"embedding.weight", "F32", "3,2", Raw(kFloats)}, {"flat", "F32", "6", Raw(kFloats)}});
  v1::TableSpec spec;
  spec.set_name("embedding.weight");
  spec.set_dim(2);
  ImportOptions options;
  options.specs = {spec};
  const auto reader = source.Run(options);
  INFO(reader.status());
  REQUIRE(reader.ok());
  const auto rows = Rows(*reader, "embedding.weight");
  REQUIRE(rows.size() == 3);
  for (uint64_t key = 0; key < 3; ++key) {
    CHECK(rows.at(key).substr(0, 8) == Raw(kFloats).substr(key * 8, 8));
  }
  CHECK(SpecOf(*reader, "flat").dim() == 0);
  options.to = "/c2";
  options.specs[0].set_dim(3);
  source.Fails(options, absl::StatusCode::kInvalidArgument,
               {"\"embedding.weight\" has rows of 2; allowed: ", "dim 3"});
  options.specs[0].set_name("flat");
  source.Fails(options, absl::StatusCode::kInvalidArgument,
               {"\"flat\" has the shape [6]; allowed: [N, DIM], rows of the keys 0 to N - 1"});
}

TEST_CASE("numbers are converted on request, and never become infinite") {
  const std::vector<double> doubles = {1.0 / 3, -2.5, 1e-300};
  const std::vector<Tensor> tensors = {{"d", "F64", "3", Raw(doubles)},
                                       {"f", "F32", "2", Raw<float>({1.00390625f, NAN})}};
  Refused(tensors, {"/m.safetensors: tensor \"d\" has the type F64", "--dtype f32"});
  Source source(tensors);
  ImportOptions options;
  options.dtype = v1::DTYPE_F32;
  auto reader = source.Run(options);
  REQUIRE(reader.ok());
  CHECK(Array(*reader, "d", kParameters) == Raw<float>({1.0f / 3, -2.5f, 0}));
  options.dtype = v1::DTYPE_BF16;
  options.to = "/b";
  reader = source.Run(options);
  REQUIRE(reader.ok());
  // The master copy keeps the bits that the parameters lose when they are rounded to even.
  CHECK(Array(*reader, "f", kMaster) == Raw<float>({1.00390625f, NAN}));
  CHECK(Array(*reader, "f", kParameters).substr(0, 2) == Raw<uint16_t>({0x3f80}));
  CHECK(Array(*reader, "d", kMaster) == Raw<float>({1.0f / 3, -2.5f, 0}));

  options.dtype = v1::DTYPE_F16;
  Refused({{"w", "F32", "3", Raw<float>({INFINITY, 65504, 65520})}},
          {"/m.safetensors: tensor \"w\": element 2 is 65520, too large for F16"}, options);
  Refused({{"w", "F64", "1", Raw<double>({1e300})}}, {"element 0 is 1e+300, too large for F32"},
          options);
  Refused({{"e.keys", "U64", "1", Raw<uint64_t>({1})},
           {"e.values", "F64", "1,2", Raw<double>({1, -1e39})}},
          {"tensor \"e.values\": element 1 is -1e+39, too large for F32"}, options);
  Refused(
      {{"e.keys", "U64", "1", Raw<uint64_t>({1})}, {"e.values", "F64", "1,1", Raw<double>({1})}},
      {"tensor \"e.values\" has the type F64"});
  // Rows are f32 always; narrower types convert to f32 exactly.
  Source rows({{"e.keys", "U64", "1", Raw<uint64_t>({1})},
               {"e.values", "F16", "1,2", Raw<uint16_t>({0x3c00, 1})}});
  reader = rows.Run();
  REQUIRE(reader.ok());
  CHECK(Rows(*reader, "e").at(1).substr(0, 8) == Raw<float>({1, 0x1p-24f}));
}

TEST_CASE("an import takes the tables asked for, and refuses a name that the file does not have") {
  Source source;
  const auto missing = [&](const ImportOptions& options, const std::string& word) {
    source.Fails(options, absl::StatusCode::kNotFound,
                 {"/m.safetensors has no " + word, "it has: \"b16\", \"f16\", \"items\""});
  };
  ImportOptions options;
  options.tables = {"head"};
  missing(options, "table \"head\"");
  options = {};
  options.renamed = {{"head", "h"}};
  missing(options, "table \"head\"");
  options = {};
  options.skipped = {"head"};
  missing(options, "tensor \"head\"");
  options = {};
  options.tables = {"items", "f16"};
  options.renamed = {{"items", "goods"}};
  const auto reader = source.Run(options);
  REQUIRE(reader.ok());
  CHECK(reader->manifest().tables_size() == 2);
  CHECK(SpecOf(*reader, "goods").dim() == 2);
}

TEST_CASE("an import that fails leaves no checkpoint, and can be tried again") {
  Source source;
  const uint64_t used = UINT64_MAX - *source.disk.FreeBytes("/");
  source.disk.SetCapacity(used + 1500);
  CHECK(source.Run().status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(source.disk.List("/c")->size() == 1);  // LOCK
  source.disk.SetCapacity(UINT64_MAX);
  ImportOptions options;
  options.from = "/m.safetensors";
  options.to = "/c";
  const auto plan = PlanImport(&source.disk, options);
  REQUIRE(plan.ok());
  int calls = 0;
  const auto cancelled = Import(&source.disk, options, *plan, [&](uint64_t) {
    return ++calls < 4 ? absl::OkStatus() : absl::CancelledError("a signal came");
  });
  CHECK(absl::IsCancelled(cancelled.status()));
  CHECK(source.disk.List("/c")->size() == 1);
  CHECK(source.Run().ok());
  source.disk.Put("/file", "x");
  options.to = "/file";
  CHECK_FALSE(source.Run(options).ok());
}

TEST_CASE("after a crash at any moment of an import there is a whole checkpoint, or none") {
  const ImportOptions options{.from = "/m.safetensors", .to = "/c"};
  bool finished = false;
  int made = 0;
  for (uint64_t operation = 1; !finished; ++operation) {
    INFO("crash at operation " << operation);
    Source source;
    source.disk.CrashAt(source.disk.operations() + operation);
    const bool succeeded = source.Run(options).ok();
    finished = !source.disk.crashed();
    source.disk.Reboot();
    const auto all = ListCheckpoints(&source.disk, "/c");
    const size_t there = all.ok() ? all->size() : 0;
    made += there > 0 ? 1 : 0;
    if (succeeded) CHECK(there == 1);
    if (there == 0) {
      CHECK(source.Run(options).ok());
      continue;
    }
    const auto reader = CheckpointReader::Open(&source.disk, "/c/checkpoint-00000001");
    REQUIRE(reader.ok());
    CHECK(reader->Verify([](uint64_t) { return absl::OkStatus(); }).ok());
    CHECK(Array(*reader, "tower.weight", kParameters) == Raw(kFloats));
    CHECK(absl::IsAlreadyExists(source.Run(options).status()));
  }
  CHECK(made > 1);  // also before the end
}

}  // namespace
}  // namespace verbena::checkpoint::test
