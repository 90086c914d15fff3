// Options of the trainer's tables: each is set in the tables that may have its value.
#include <catch2/catch.hpp>

#include "worker/stores/client_store.h"

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

}  // namespace
}  // namespace verbena::worker
