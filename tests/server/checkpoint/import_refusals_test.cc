// Tensors that cannot become tables are refused in words that name them.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "server/checkpoint/files/import.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/server/checkpoint/import_fixture.h"

namespace verbena::checkpoint::test {
namespace {

TEST_CASE("tensors that cannot be tables are refused by name") {
  const std::string eight(8, '\0');
  Refused({{"steps", "I64", "1", eight}},
          {"/m.safetensors: tensor \"steps\" has the type I64; allowed: F32, BF16, F16",
           "--skip leaves a tensor out"});
  Refused({{"mask", "BOOL", "8", eight}}, {"tensor \"mask\" has the type BOOL"});
  Refused({{"q", "F8_E4M3", "8", eight}}, {"tensor \"q\" has the type F8_E4M3"});
  Refused({{"t.keys", "I64", "1", eight}}, {"tensor \"t.keys\" has the type I64"});
  Refused({{"t.keys", "I32", "2", eight}, {"t.values", "F32", "2,1", eight}},
          {"tensor \"t.keys\" has the type I32; allowed: U64, I64"});
  Refused({{"t.keys", "I64", "1", eight}, {"t.values", "I32", "1,2", eight}},
          {"tensor \"t.values\" has the type I32"});
  Refused({{"none", "F32", "0,7", ""}},
          {"tensor \"none\" has the shape [0, 7]; allowed: dimensions greater than 0"});
  Refused({{"nine", "F32", "1,1,1,1,1,1,1,1,2", eight}}, {"tensor \"nine\": ", "1..8 dimensions"});
  Refused({{"a b", "F32", "2", eight}},
          {"tensor \"a b\": ", "1..128 characters", "--rename TENSOR=TABLE"});
  ImportOptions options;
  options.renamed = {{"a", "b"}};
  Refused({{"a", "F32", "2", eight}, {"b", "F32", "2", eight}},
          {"tensor \"b\" and /m.safetensors: tensor \"a\" would both be table \"b\""}, options);
  Refused({}, {"/m.safetensors has no tensors that become tables"});
  // Names ending in .keys and .values do not make a pair without the types and shapes of one.
  Source attention({{"attn.keys", "F32", "2", eight}, {"attn.values", "F32", "1,2", eight}});
  CHECK(attention.Run()->manifest().tables_size() == 2);
}

TEST_CASE("regression: a tensor of an unknown type does not matter if it is skipped") {
  const std::string eight(8, '\0');
  Source source({{"a", "F32", "2", eight}, {"q", "F4", "4,4", eight}, {"z", "F32", "2", eight}});
  ImportOptions options;
  source.Fails(options, absl::StatusCode::kUnimplemented,
               {"/m.safetensors: tensor \"q\": its dtype is \"F4\"; known: BOOL, U8", "--skip"});
  options.skipped = {"q"};
  CHECK(source.Run(options)->manifest().tables_size() == 2);
  options = {};
  options.to = "/one";
  options.tables = {"z"};
  CHECK(source.Run(options)->manifest().tables_size() == 1);
  // The check of a tensor's offsets covers tensors of unknown types.
  std::string file = File({{"a", "F32", "2", eight}, {"q", "F4", "4", eight}});
  source.disk.Put("/m.safetensors", file.substr(0, file.size() - 1));
  options = {};
  options.to = "/cut";
  options.skipped = {"q"};
  source.Fails(options, absl::StatusCode::kDataLoss, {"the file was cut off"});
}

TEST_CASE("keys and values that do not go together are refused") {
  const auto pair = [](const std::string& key_shape, const std::vector<uint64_t>& keys,
                       const std::string& shape, size_t numbers) {
    return std::vector<Tensor>{{"t.keys", "U64", key_shape, Raw(keys)},
                               {"t.values", "F32", shape, std::string(numbers * 4, 'x')}};
  };
  Refused(pair("3", {1, 2, 3}, "2,2", 4),
          {"/m.safetensors: tensor \"t.values\" has the shape [2, 2]; allowed: [3, DIM]",
           "\"t.keys\""});
  Refused(pair("3", {1, 2, 3}, "3", 3), {"has the shape [3]; allowed: [3, DIM]"});
  Refused(pair("1", {1}, "1,0", 0), {"has the shape [1, 0]"});
  Refused(pair("1", {1}, "1,1025", 1025), {"has the shape [1, 1025]", "1..1024"});
  Refused(pair("1,1", {1}, "1,1", 1), {"tensor \"t.keys\" has the shape [1, 1]; allowed: one"});
  Refused(pair("4", {5, 9, 1, 9}, "4,1", 4),
          {"/m.safetensors: tensor \"t.keys\" has the key 9 in rows 1 and 3; allowed: each once"});
  Source none(pair("0", {}, "0,3", 0));
  const auto reader = none.Run();
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(SpecOf(*reader, "t").dim() == 3);
  CHECK(Rows(*reader, "t").empty());
}

}  // namespace
}  // namespace verbena::checkpoint::test
