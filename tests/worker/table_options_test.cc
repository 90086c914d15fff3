// Options of the trainer's tables: each is set in the tables that may have its value.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "worker/stores/client_store.h"
#include "worker/stores/option_differences.h"

namespace verbena::worker {
namespace {

TEST_CASE("options are set in the tables that may have them") {
  TrainingSpec spec;
  spec.table_options = {
      {"dtype", "bf16"},      {"push_codec", "sign"},        {"pull_codec", "int8"},
      {"row_dtype", "f16"},   {"eviction.kind", "lfu"},      {"eviction.max_rows", "40"},
      {"non_finite", "skip"}, {"optimizer.clip_value", "2"}, {"stochastic_rounding", "true"}};
  Tensor tensor;
  tensor.name = "weights";
  tensor.shape = {3, 4};
  const v1::TableSpec dense = TableSpecOf(tensor, 0, "job", spec);
  CHECK(dense.dtype() == v1::DTYPE_BF16);
  CHECK(dense.push_codec() == v1::CODEC_SIGN);
  CHECK(dense.pull_codec() == v1::CODEC_INT8);
  CHECK(dense.non_finite() == v1::NON_FINITE_SKIP);
  CHECK(dense.optimizer().clip_value() == 2);
  CHECK(dense.row_dtype() == v1::DTYPE_UNSPECIFIED);
  CHECK_FALSE(dense.stochastic_rounding());
  CHECK_FALSE(dense.has_eviction());

  EmbeddingTable table;
  table.name = "rows";
  table.dim = 8;
  const v1::TableSpec rows = TableSpecOf(table, 1, "job", spec);
  CHECK(rows.dtype() == v1::DTYPE_F32);
  // sign has no codec for rows; they are sent without one.
  CHECK(rows.push_codec() <= v1::CODEC_NONE);
  CHECK(rows.pull_codec() == v1::CODEC_INT8);
  CHECK(rows.row_dtype() == v1::DTYPE_F16);
  CHECK(rows.stochastic_rounding());
  CHECK(rows.eviction().kind() == v1::Eviction::LFU);
  CHECK(rows.eviction().max_rows() == 40);

  // Sums of small integers are exact.
  tensor.counter = true;
  const v1::TableSpec counter = TableSpecOf(tensor, 2, "job", spec);
  CHECK(counter.dtype() == v1::DTYPE_F32);
  CHECK(counter.push_codec() <= v1::CODEC_NONE);
  CHECK(counter.optimizer().clip_value() == 0);
}

TEST_CASE("a table that exists with another specification is refused by the trainer's options") {
  const auto difference = [](const v1::TableSpec& kept, const v1::TableSpec& given, size_t index,
                             const std::vector<std::string>& sizes = {}) {
    const OptionDifference found =
        OptionDifferenceOf(CheckSameSpec(kept, given).message(), index, sizes);
    return absl::StrCat(found.option, ": ", found.kept, ", ", found.given);
  };
  const auto spec = [](std::vector<uint64_t> shape, uint64_t seed) {
    v1::TableSpec table;
    table.set_name("job/weights");
    table.set_job("job");
    for (const uint64_t dimension : shape) table.add_shape(dimension);
    table.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
    table.mutable_initializer()->set_b(1);
    table.mutable_initializer()->set_seed(TableSeed(seed, 3));
    table.mutable_optimizer()->set_name("adam");
    table.mutable_optimizer()->set_rate(0.5);
    return NormalizeTableSpec(table).value();
  };
  CHECK(difference(spec({4}, 7), spec({4}, UINT64_MAX), 3) == "--seed: 7, 18446744073709551615");
  CHECK(difference(spec({13, 64}, 1), spec({13, 32}, 1), 0, {"", "--hidden"}) ==
        "--hidden: 64, 32");
  CHECK(difference(spec({13, 64}, 1), spec({12, 32}, 1), 0, {"", "--hidden"}) ==
        "shape, which follows from --model, its sizes and the features of --data,: [13, 64], "
        "[12, 32]");
  v1::TableSpec other = spec({4}, 1);
  other.mutable_optimizer()->set_rate(0.25);
  CHECK(difference(spec({4}, 1), other, 0) == "--rate: 0.5, 0.25");
  other = spec({4}, 1);
  (*other.mutable_optimizer()->mutable_parameters())["beta1"] = 0.5;
  CHECK_THAT(difference(spec({4}, 1), NormalizeTableSpec(other).value(), 0),
             Catch::Matchers::Contains("optimizer.parameters[\"beta1\"]: ") &&
                 Catch::Matchers::EndsWith(", 0.5"));
  CHECK(OptionDifferenceOf("max_workers is 3, but job 'a' was started with 4", 0, {}).option == "");
}

}  // namespace
}  // namespace verbena::worker
