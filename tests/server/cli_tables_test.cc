// Output of the operator's program about tables: types, codecs, options, hot keys.
#include <catch2/catch.hpp>

#include "proto/spec/table_options.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/option_reference.h"
#include "server/cli/verbena/text_report.h"
#include "tests/server/cli_states.h"

namespace verbena::cli {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

TEST_CASE(
    "a table is shown with both of its types if they differ, and the size of its parameters") {
  ClusterState state = Healthy();
  const auto add = [&](v1::DType dtype, v1::DType gradient_dtype) {
    v1::TableSpec* spec = state.view.add_tables()->mutable_spec();
    spec->set_name("t");
    spec->add_shape(5000);
    spec->set_dtype(dtype);
    spec->set_gradient_dtype(gradient_dtype);
  };
  add(v1::DTYPE_BF16, v1::DTYPE_F32);
  add(v1::DTYPE_F16, v1::DTYPE_BF16);
  add(v1::DTYPE_BF16, v1::DTYPE_BF16);
  add(v1::DTYPE_F32, v1::DTYPE_UNSPECIFIED);  // stored before there was a choice
  const std::string text = TablesText(state);
  CHECK_THAT(text, Contains(" bf16 / f32 ") && Contains(" f16 / bf16 ") && Contains(" bf16   ") &&
                       Contains(" f32   ") && Contains("10.0 kB") && Contains("20.0 kB"));
  CHECK_THAT(TablesJson(state), Contains(R"("dtype": "bf16", "gradient_dtype": "f32",)") &&
                                    Contains(R"("dtype": "f16", "gradient_dtype": "bf16",)") &&
                                    Contains(R"("dtype": "f32", "gradient_dtype": "f32",)"));
}

TEST_CASE("a table with codecs is shown with the encodings of pulls and pushes") {
  ClusterState state = Healthy();
  v1::TableSpec* spec = state.view.add_tables()->mutable_spec();
  spec->set_name("t");
  spec->add_shape(5000);
  spec->set_dtype(v1::DTYPE_F32);
  spec->set_push_codec(v1::CODEC_SIGN);
  spec->set_pull_codec(v1::CODEC_INT8);
  CHECK_THAT(TablesText(state), Contains(" int8 / sign ") && Contains("20.0 kB"));
  CHECK_THAT(TablesJson(state), Contains(R"("push_codec": "sign", "pull_codec": "int8",)"));
  spec->clear_push_codec();
  spec->clear_pull_codec();
  CHECK_THAT(TablesJson(state), Contains(R"("push_codec": "none", "pull_codec": "none",)"));
}

TEST_CASE("reports show each option of a table, and null where it has no meaning") {
  ClusterState state = Healthy();
  v1::TableSpec* spec = state.view.add_tables()->mutable_spec();
  spec->set_name("items");
  spec->set_dim(8);
  spec->set_description("Items: \xe2\x82\xac");
  spec->set_chunk_bytes(4096);
  const std::string plain = TablesJson(state);
  for (const char* part :
       {"\"description\": \"Items: \xe2\x82\xac\"", R"("dim": 8, "dtype": "f32")", R"("shape": [])",
        R"("row_dtype": "f32", "stochastic_rounding": null, "consistency": "sync")",
        R"("staleness": null, "reduction": "mean", "non_finite": "reject")",
        R"("initializer": {"kind": "zeros", "a": null, "b": null, "seed": null})",
        R"("optimizer": {"name": "sgd", "rate": 0, "parameters": {}, "schedule": {"kind": )",
        R"("rates": []}, "clip_value": 0, "clip_chunk_norm": 0, "clip_global_norm": 0})",
        R"("admission": {"kind": "always", "min_count": null, "probability": null,)",
        R"("eviction": {"kind": "never", "ttl": null, "max_rows": null, "max_bytes": null})",
        R"("cold_tier": {"hot_bytes": 0}, "chunk_bytes": 4096)"}) {
    CHECK_THAT(plain, Contains(part));
  }
  CHECK_THAT(TablesText(state), Contains("description \"Items: \xe2\x82\xac\", chunk_bytes 4096"));
  spec->set_chunk_bytes(0);
  spec->clear_description();
  spec->mutable_cold_tier()->set_hot_bytes(1 << 20);
  spec->mutable_eviction()->set_kind(v1::Eviction::LFU);
  spec->mutable_eviction()->set_max_bytes(5000);
  spec->mutable_admission()->set_kind(v1::Admission::PROBABILITY);
  spec->mutable_admission()->set_probability(0.25);
  CHECK_THAT(
      TablesJson(state),
      Contains(R"("eviction": {"kind": "lfu", "ttl": null, "max_rows": 0, "max_bytes": 5000})") &&
          Contains(R"("kind": "probability", "min_count": null, "probability": 0.25)") &&
          Contains(R"("cold_tier": {"hot_bytes": 1048576})"));
  CHECK_THAT(TablesText(state),
             Contains("admission.kind probability, admission.probability 0.25, eviction.kind lfu, "
                      "eviction.max_bytes 5000, cold_tier.hot_bytes 1048576"));
  spec->set_dim(0);
  spec->add_shape(5);
  CHECK_THAT(TablesJson(state),
             Contains(R"("row_dtype": null)") && Contains(R"("eviction": null)"));
}

TEST_CASE("the reference of table options has each of them, in all three forms") {
  const std::string text = OptionReferenceText();
  const std::string json = OptionReferenceJson();
  const std::string page = OptionReferenceMarkdown();
  for (const TableOption& option : TableOptions()) {
    CHECK_THAT(text, Contains(std::string(option.name) + ": "));
    CHECK_THAT(json, Contains("{\"name\": \"" + std::string(option.name) + "\", \"type\""));
    CHECK_THAT(page, Contains("\n| `" + std::string(option.name) + "` | "));
  }
  CHECK_THAT(page, Contains("| `eviction.ttl` | uint64, applies or seconds | 1..1073741824 | "
                            "required | embedding tables, eviction.kind ttl_steps or "
                            "ttl_seconds | "));
  CHECK_THAT(text, Contains("allowed: f32, bf16, f16; embedding tables: f32; default: f32\n"));
}

TEST_CASE("hot keys are shown with their shard") {
  ClusterState state = Healthy();
  v1::Table* table = state.view.add_tables();
  table->set_id(3);
  table->mutable_spec()->set_name("items");
  table->mutable_spec()->set_dim(8);
  const auto add = [&](int server, int shard, uint64_t key, uint64_t count, uint64_t error) {
    v1::ShardStatistics* of = Shard(&state, server, shard);
    v1::TableStatistics* part = of->tables_size() > 0 ? of->mutable_tables(0) : of->add_tables();
    part->set_table(3);
    part->set_sampled_keys(10000);
    v1::HotKey* hot = part->add_hot_keys();
    hot->set_key(key);
    hot->set_count(count);
    hot->set_error(error);
  };
  CHECK_THAT(TablesText(state), !Contains("HOT KEY"));
  CHECK_THAT(TablesJson(state), Contains(R"("hot_keys": [])"));
  add(0, 0, 18446744073709551615u, 1300, 50);
  add(0, 0, 7, 300, 280);  // 0.2 %
  add(1, 0, 8, 5000, 0);
  add(1, 0, 9, 100, 4000);  // the error is larger than the count: not a hot key
  const std::string text = TablesText(state);
  CHECK_THAT(text, Contains("HOT KEY") && Contains("18446744073709551615") && Contains("12.5 %") &&
                       Contains("50.0 %"));
  CHECK(text.find("50.0 %") < text.find("12.5 %"));
  const std::string json = TablesJson(state);
  CHECK_THAT(json, Contains(R"({"key": "8", "server": "s6", "shard": 0, "share": 0.5})") &&
                       Contains(R"("key": "7")") && !Contains(R"("key": "9")"));
}

}  // namespace
}  // namespace verbena::cli
