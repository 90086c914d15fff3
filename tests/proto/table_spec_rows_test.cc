// Specifications of embedding tables: their rows, which keys get one, and which go.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "proto/spec/option_value.h"
#include "tests/proto/table_spec_fixture.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

TEST_CASE("admissions: only for embedding tables, with the fields of their kind and no other") {
  const auto refused = [](v1::Admission::Kind kind, const std::function<void(v1::Admission*)>& set,
                          uint32_t dim = 8) {
    return Refused([&](auto* s) {
      s->set_dim(dim);
      if (dim > 0) s->clear_shape();
      s->mutable_admission()->set_kind(kind);
      set(s->mutable_admission());
    });
  };
  const auto none = [](v1::Admission*) {};
  CHECK_THAT(refused(static_cast<v1::Admission::Kind>(4), none),
             Contains("admission.kind is 4; allowed: 1 (always), 2 (min_count), 3 (probability)"));
  CHECK_THAT(refused(v1::Admission::MIN_COUNT, none, 0),
             Contains("admission.kind is 2 (min_count); allowed: 1 (always) for a dense table"));
  CHECK_THAT(refused(v1::Admission::MIN_COUNT, none),
             Contains("admission.min_count is 0; allowed: 2..255"));
  CHECK_THAT(refused(v1::Admission::MIN_COUNT, [](auto* a) { a->set_min_count(256); }),
             Contains("admission.min_count is 256; allowed: 2..255"));
  CHECK_THAT(refused(v1::Admission::MIN_COUNT,
                     [](auto* a) {
                       a->set_min_count(3);
                       a->set_sketch_bytes(4095);
                     }),
             Contains("admission.sketch_bytes is 4095; allowed: 4096..68719476736, or 0 for"));
  CHECK_THAT(refused(v1::Admission::ALWAYS, [](auto* a) { a->set_min_count(1); }),
             Contains("admission.min_count is 1; allowed: 0, unless admission.kind is 2"));
  CHECK_THAT(refused(v1::Admission::PROBABILITY, none),
             Contains("admission.probability is 0; allowed: more than 0 and less than 1"));
  CHECK_THAT(refused(v1::Admission::PROBABILITY, [](auto* a) { a->set_probability(std::nan("")); }),
             Contains("admission.probability is nan"));
  CHECK_THAT(refused(v1::Admission::ALWAYS, [](auto* a) { a->set_probability(0.5); }),
             Contains("admission.probability is 0.5; allowed: 0, unless admission.kind is 3"));
  CHECK_THAT(refused(v1::Admission::ALWAYS, [](auto* a) { a->set_seed(5); }),
             Contains("admission.seed is 5; allowed: 0, unless admission.kind is 3"));

  v1::TableSpec rows = Spec();
  rows.clear_shape();
  rows.set_dim(8);
  const v1::TableSpec plain = *NormalizeTableSpec(rows);
  CHECK_FALSE(plain.has_admission());
  rows.mutable_admission()->set_kind(v1::Admission::MIN_COUNT);
  rows.mutable_admission()->set_min_count(3);
  const v1::TableSpec counted = *NormalizeTableSpec(rows);
  CHECK(counted.admission().sketch_bytes() == 16 << 20);
  CHECK(CheckSameSpec(counted, counted).ok());
  CHECK_THAT(std::string(CheckSameSpec(plain, counted).message()),
             Contains("admission.kind is always in the existing table and min_count"));
  rows.mutable_admission()->set_min_count(4);
  CHECK_THAT(std::string(CheckSameSpec(counted, *NormalizeTableSpec(rows)).message()),
             Contains("admission.min_count is 3 in the existing table and 4"));
}

TEST_CASE("evictions: only for embedding tables, with the fields of their kind and no other") {
  const auto refused = [](v1::Eviction::Kind kind, const std::function<void(v1::Eviction*)>& set,
                          uint32_t dim = 8) {
    return Refused([&](auto* s) {
      s->set_dim(dim);
      if (dim > 0) s->clear_shape();
      s->mutable_eviction()->set_kind(kind);
      set(s->mutable_eviction());
    });
  };
  const auto none = [](v1::Eviction*) {};
  CHECK_THAT(refused(static_cast<v1::Eviction::Kind>(6), none),
             Contains("eviction.kind is 6; allowed: 1 (never), 2 (ttl_steps), 3 (ttl_seconds), "
                      "4 (lru), 5 (lfu)"));
  CHECK_THAT(refused(v1::Eviction::LRU, none, 0),
             Contains("eviction.kind is 4 (lru); allowed: 1 (never) for a dense table"));
  CHECK_THAT(refused(v1::Eviction::TTL_STEPS, none),
             Contains("eviction.ttl is 0; allowed: 1..1073741824"));
  CHECK_THAT(refused(v1::Eviction::TTL_SECONDS, [](auto* e) { e->set_ttl(1073741825); }),
             Contains("eviction.ttl is 1073741825; allowed: 1..1073741824"));
  CHECK_THAT(refused(v1::Eviction::NEVER, [](auto* e) { e->set_ttl(1); }),
             Contains("eviction.ttl is 1; allowed: 0, unless eviction.kind is 2"));
  CHECK_THAT(refused(v1::Eviction::LFU, none),
             Contains("eviction.max_rows is 0; allowed: 1 and more, or max_bytes instead"));
  CHECK_THAT(refused(v1::Eviction::LFU,
                     [](auto* e) {
                       e->set_max_rows(5);
                       e->set_max_bytes(7);
                     }),
             Contains("eviction.max_bytes is 7; allowed: 0 where max_rows is set"));
  CHECK_THAT(
      refused(v1::Eviction::TTL_STEPS,
              [](auto* e) {
                e->set_ttl(2);
                e->set_max_rows(5);
              }),
      Contains("eviction.max_rows is 5; allowed: 0, unless eviction.kind is 4 (lru) or 5 (lfu)"));

  v1::TableSpec rows = Spec();
  rows.clear_shape();
  rows.set_dim(8);
  const v1::TableSpec plain = *NormalizeTableSpec(rows);
  CHECK_FALSE(plain.has_eviction());
  rows.mutable_eviction()->set_kind(v1::Eviction::LRU);
  rows.mutable_eviction()->set_max_rows(30);
  const v1::TableSpec limited = *NormalizeTableSpec(rows);
  CHECK(CheckSameSpec(limited, limited).ok());
  CHECK_THAT(std::string(CheckSameSpec(plain, limited).message()),
             Contains("eviction.kind is never in the existing table and lru"));
  rows.mutable_eviction()->set_max_rows(31);
  CHECK_THAT(std::string(CheckSameSpec(limited, *NormalizeTableSpec(rows)).message()),
             Contains("eviction.max_rows is 30 in the existing table and 31"));
}

TEST_CASE("16-bit rows are only for embedding tables, and only they have stochastic rounding") {
  const auto refused = [](uint32_t dim, int row_dtype, bool stochastic) {
    return Refused([=](auto* s) {
      s->set_dim(dim);
      if (dim > 0) s->clear_shape();
      s->set_row_dtype(static_cast<v1::DType>(row_dtype));
      s->set_stochastic_rounding(stochastic);
    });
  };
  CHECK_THAT(refused(0, 2, false),
             Contains("row_dtype is 2 (bf16); allowed: 1 (f32) for a dense table"));
  CHECK_THAT(refused(8, 4, false), Contains("row_dtype is 4; allowed: 1 (f32), 2 (bf16), 3 (f16)"));
  CHECK_THAT(refused(8, 0, true), Contains("stochastic_rounding is true; allowed: false, unless"));
  CHECK_THAT(refused(8, 3, true), Equals("accepted"));
  v1::TableSpec rows = Spec();
  rows.clear_shape();
  rows.set_dim(8);
  const v1::TableSpec plain = *NormalizeTableSpec(rows);
  CHECK(plain.row_dtype() == v1::DTYPE_F32);
  rows.set_row_dtype(v1::DTYPE_BF16);
  const v1::TableSpec narrow = *NormalizeTableSpec(rows);
  CHECK_THAT(std::string(CheckSameSpec(plain, narrow).message()),
             Contains("row_dtype is f32 in the existing table and bf16"));
  rows.set_stochastic_rounding(true);
  CHECK_THAT(std::string(CheckSameSpec(narrow, *NormalizeTableSpec(rows)).message()),
             Contains("stochastic_rounding is false in the existing table and true"));
}

TEST_CASE("a cold tier is only for embedding tables, and needs memory for rows") {
  const auto refused = [](uint64_t bytes, uint32_t dim = 8) {
    return Refused([&](auto* s) {
      s->set_dim(dim);
      if (dim > 0) s->clear_shape();
      s->mutable_cold_tier()->set_hot_bytes(bytes);
    });
  };
  CHECK_THAT(refused(0), Equals("accepted"));
  CHECK_THAT(refused(0, 0), Equals("accepted"));
  CHECK_THAT(refused(65536), Equals("accepted"));
  CHECK_THAT(refused(65535), Contains("cold_tier.hot_bytes is 65535; allowed: 65536 and more, or "
                                      "0: all rows in memory"));
  CHECK_THAT(refused(1 << 20, 0),
             Contains("cold_tier.hot_bytes is 1048576; allowed: 0 for a dense table"));
  v1::TableSpec spec = Spec();
  spec.clear_shape();
  spec.set_dim(8);
  spec.mutable_cold_tier();
  const v1::TableSpec none = *NormalizeTableSpec(spec);
  CHECK_FALSE(none.has_cold_tier());
  spec.mutable_cold_tier()->set_hot_bytes(1 << 20);
  const v1::TableSpec tiered = *NormalizeTableSpec(spec);
  CHECK(CheckSameSpec(tiered, tiered).ok());
  CHECK_THAT(std::string(CheckSameSpec(none, tiered).message()),
             Contains("cold_tier.hot_bytes is 0 in the existing table and 1048576"));
}

TEST_CASE("rows are sent with codecs that encode every number, or else as f32") {
  for (const char* name : {"bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"}) {
    v1::TableSpec spec = Spec();
    spec.clear_shape();
    spec.set_dim(8);
    REQUIRE(SetOption(*FindTableOption("push_codec"), name, &spec).ok());
    spec.set_pull_codec(v1::CODEC_F16);
    const v1::TableSpec coded = *NormalizeTableSpec(spec);
    CHECK(static_cast<int>(PushType(coded)) == static_cast<int>(coded.push_codec()));
    CHECK(PullType(coded) == ElementType::kF16);
    v1::TableSpec plain = coded;
    plain.set_push_codec(v1::CODEC_NONE);
    CHECK(PushType(plain) == ElementType::kF32);
    CHECK_THAT(std::string(CheckSameSpec(plain, coded).message()),
               Contains(std::string("push_codec is none in the existing table and ") + name));
  }
  for (const v1::Codec codec : {v1::CODEC_SIGN, v1::CODEC_TOP_K, static_cast<v1::Codec>(77)}) {
    v1::TableSpec spec = Spec();
    spec.clear_shape();
    spec.set_dim(8);
    spec.set_push_codec(codec);
    CHECK_FALSE(NormalizeTableSpec(spec).ok());
    CHECK(PushType(spec) == ElementType::kF32);  // in a view, whatever made it
  }
}

TEST_CASE("an embedding table has a dim and no shape") {
  const auto rows = [](uint32_t dim) {
    return Refused([dim](auto* s) {
      s->clear_shape();
      s->set_dim(dim);
    });
  };
  CHECK_THAT(rows(16), Equals("accepted"));
  CHECK_THAT(rows(1024), Equals("accepted"));
  CHECK_THAT(rows(1025), Contains("dim is 1025; allowed: 1..1024, or 0: a dense table"));
  CHECK_THAT(Refused([](auto* s) { s->set_dim(16); }),
             Contains("shape is [128, 64]; allowed: none for an embedding table, as dim is 16"));
  CHECK_THAT(Refused([](auto* s) {
               s->clear_shape();
               s->set_dim(65);
               s->set_chunk_bytes(256);
             }),
             Contains("chunk_bytes is 256; allowed: enough for a row of dim 65: 260 bytes"));
  v1::TableSpec spec = Spec();
  spec.clear_shape();
  spec.set_dim(16);
  const v1::TableSpec table = *NormalizeTableSpec(spec);
  CHECK(LayoutOf(table).chunks() == 0);
  spec.set_dim(8);
  CHECK_THAT(std::string(CheckSameSpec(table, *NormalizeTableSpec(spec)).message()),
             Contains("dim is 16 in the existing table and 8 in the one asked for"));
}

}  // namespace
}  // namespace verbena::test
