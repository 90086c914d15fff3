// Specifications of tables: defaults, and invalid values with their errors.
#include "proto/spec/table_spec.h"

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

TEST_CASE("defaults are filled in") {
  const auto spec = NormalizeTableSpec(Spec());
  REQUIRE(spec.ok());
  CHECK(spec->dtype() == v1::DTYPE_F32);
  CHECK(spec->consistency() == v1::CONSISTENCY_SYNC);
  CHECK(spec->reduction() == v1::REDUCTION_MEAN);
  CHECK(spec->non_finite() == v1::NON_FINITE_REJECT);
  CHECK(spec->chunk_bytes() == kDefaultChunkBytes);
  CHECK(spec->initializer().kind() == v1::Initializer::ZEROS);
  CHECK(spec->optimizer().name() == "sgd");
  const DenseLayout layout = LayoutOf(*spec);
  CHECK(layout.elements == 128 * 64);
  CHECK(layout.chunk_elements == kDefaultChunkBytes / 4);
  CHECK(layout.parameter_bytes == 4);
  CHECK(layout.gradient_bytes == 4);
  CHECK(ShapeString(*spec) == "[128, 64]");
  // Normalising again changes nothing.
  CHECK(NormalizeTableSpec(*spec)->SerializeAsString() == spec->SerializeAsString());
}

TEST_CASE("a chunk holds its parameters and its gradients") {
  const auto layout = [](v1::DType dtype, v1::DType gradient) {
    v1::TableSpec spec = Spec();
    spec.set_dtype(dtype);
    spec.set_gradient_dtype(gradient);
    return LayoutOf(*NormalizeTableSpec(spec));
  };
  const DenseLayout narrow = layout(v1::DTYPE_BF16, v1::DTYPE_BF16);
  CHECK(narrow.parameter_bytes == 2);
  CHECK(narrow.gradient_bytes == 2);
  CHECK(narrow.chunk_elements == kDefaultChunkBytes / 2);
  const DenseLayout mixed = layout(v1::DTYPE_F16, v1::DTYPE_F32);
  CHECK(mixed.parameter_bytes == 2);
  CHECK(mixed.gradient_bytes == 4);
  CHECK(mixed.chunk_elements == kDefaultChunkBytes / 4);
}

TEST_CASE("types of a view that this version does not know have a size") {
  v1::TableSpec spec = *NormalizeTableSpec(Spec());
  for (const int unknown : {0, 4, 256, -1}) {
    spec.set_dtype(static_cast<v1::DType>(unknown));
    spec.set_gradient_dtype(static_cast<v1::DType>(unknown));
    CHECK(LayoutOf(spec).parameter_bytes == 4);
    CHECK(LayoutOf(spec).chunk_elements == kDefaultChunkBytes / 4);
  }
}

TEST_CASE("16-bit types are only for dense tables, and tables with other types differ") {
  const auto row = [](auto set) {
    return Refused([&](auto* s) {
      s->clear_shape();
      s->set_dim(8);
      set(s);
    });
  };
  CHECK_THAT(row([](auto* s) { s->set_dtype(v1::DTYPE_BF16); }),
             Contains("dtype is 2 (bf16); allowed: 1 (f32) for an embedding table"));
  CHECK_THAT(row([](auto* s) { s->set_gradient_dtype(v1::DTYPE_BF16); }),
             Contains("gradient_dtype is 2 (bf16); allowed: 1 (f32) for an embedding table"));
  v1::TableSpec other = Spec();
  other.set_gradient_dtype(v1::DTYPE_BF16);
  CHECK_THAT(
      std::string(CheckSameSpec(*NormalizeTableSpec(Spec()), *NormalizeTableSpec(other)).message()),
      Contains("gradient_dtype is f32 in the existing table and bf16"));
}

TEST_CASE("a push codec is only for f32 gradients, and tables with other codecs differ") {
  CHECK_THAT(Refused([](auto* s) { s->set_push_codec(static_cast<v1::Codec>(9)); }),
             Contains("push_codec is 9; allowed: 1 (none), 2 (bf16), 3 (f16), 4 (int8)"));
  CHECK_THAT(
      Refused([](auto* s) {
        s->set_push_codec(v1::CODEC_INT8);
        s->set_gradient_dtype(v1::DTYPE_BF16);
      }),
      Contains("gradient_dtype is bf16; allowed: f32 where push_codec, which is int8, is not "
               "none"));
  CHECK_THAT(Refused([](auto* s) {
               s->clear_shape();
               s->set_dim(8);
               s->set_push_codec(v1::CODEC_SIGN);
             }),
             Contains("push_codec is 7 (sign); allowed: 1 (none), 2 (bf16), 3 (f16), 4 (int8), "
                      "5 (fp8_e4m3), 6 (fp8_e5m2) for an embedding table: other codecs need "
                      "memory for the rounding error of each row"));
  const v1::TableSpec plain = *NormalizeTableSpec(Spec());
  CHECK(plain.push_codec() == v1::CODEC_NONE);
  CHECK(PushType(plain) == ElementType::kF32);
  for (const char* name : {"bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2", "sign", "top_k"}) {
    v1::TableSpec spec = Spec();
    REQUIRE(SetOption(*FindTableOption("push_codec"), name, &spec).ok());
    const v1::TableSpec coded = *NormalizeTableSpec(spec);
    CHECK(CodecName(coded.push_codec()) == name);
    CHECK(static_cast<int>(PushType(coded)) == static_cast<int>(coded.push_codec()));
    CHECK(LayoutOf(coded).gradient_bytes == 4);
    CHECK_THAT(std::string(CheckSameSpec(plain, coded).message()),
               Contains(std::string("push_codec is none in the existing table and ") + name));
  }
  // Stored before there were any.
  v1::TableSpec stored = plain;
  stored.clear_push_codec();
  CHECK(CheckSameSpec(stored, plain).ok());
}

TEST_CASE("a pull codec is only for f32 parameters, and tables with other codecs differ") {
  for (const v1::Codec codec : {v1::CODEC_SIGN, v1::CODEC_TOP_K, static_cast<v1::Codec>(9)}) {
    CHECK_THAT(Refused([&](auto* s) { s->set_pull_codec(codec); }),
               Contains("pull_codec is " + std::to_string(codec)) &&
                   Contains("; allowed: 1 (none), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), "
                            "6 (fp8_e5m2)"));
  }
  CHECK_THAT(Refused([](auto* s) {
               s->set_pull_codec(v1::CODEC_INT8);
               s->set_dtype(v1::DTYPE_F16);
             }),
             Contains("dtype is f16; allowed: f32 where pull_codec, which is int8, is not none"));
  const v1::TableSpec plain = *NormalizeTableSpec(Spec());
  CHECK(plain.pull_codec() == v1::CODEC_NONE);
  CHECK(!HasPullCodec(plain));
  CHECK(PullType(plain) == ElementType::kF32);
  v1::TableSpec narrow = Spec();
  narrow.set_dtype(v1::DTYPE_BF16);
  CHECK(PullType(*NormalizeTableSpec(narrow)) == ElementType::kBf16);
  for (const char* name : {"bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"}) {
    v1::TableSpec spec = Spec();
    REQUIRE(SetOption(*FindTableOption("pull_codec"), name, &spec).ok());
    spec.set_push_codec(v1::CODEC_SIGN);  // each direction has its own
    v1::TableSpec coded = *NormalizeTableSpec(spec);
    CHECK(HasPullCodec(coded));
    CHECK(static_cast<int>(PullType(coded)) == static_cast<int>(coded.pull_codec()));
    CHECK(PushType(coded) == ElementType::kSign);
    CHECK(LayoutOf(coded).parameter_bytes == 4);
    coded.set_push_codec(v1::CODEC_NONE);
    CHECK_THAT(std::string(CheckSameSpec(plain, coded).message()),
               Contains(std::string("pull_codec is none in the existing table and ") + name));
  }
  // Stored before there were any.
  v1::TableSpec stored = plain;
  stored.clear_pull_codec();
  CHECK(CheckSameSpec(stored, plain).ok());
}

TEST_CASE("the error of a negative rate names it") {
  CHECK_THAT(Refused([](auto* s) { s->mutable_optimizer()->set_rate(-0.1); }),
             Equals("table \"emb\": optimizer.rate is -0.1; allowed: a finite number >= 0"));
  CHECK_THAT(Refused([](auto* s) { s->mutable_optimizer()->set_rate(std::nan("")); }),
             Contains("optimizer.rate is nan"));
  CHECK_THAT(Refused([](auto* s) { s->mutable_optimizer()->set_rate(1e300); }),
             Contains("optimizer.rate is 1e+300"));
  CHECK_THAT(Refused([](auto* s) { s->mutable_optimizer()->set_rate(0); }), Equals("accepted"));
}

TEST_CASE("a staleness is only for ssp, and limited") {
  v1::TableSpec one = Spec();
  one.set_consistency(v1::CONSISTENCY_SSP);
  one.set_staleness(1);
  v1::TableSpec two = one;
  two.set_staleness(2);
  CHECK_THAT(
      std::string(CheckSameSpec(*NormalizeTableSpec(one), *NormalizeTableSpec(two)).message()),
      Contains("staleness is 1 in the existing table and 2"));
  CHECK_THAT(Refused([](auto* s) { s->set_staleness(3); }),
             Equals("table \"emb\": staleness is 3; allowed: 0, unless consistency is 3 (ssp)"));
  const auto ssp = [](uint32_t staleness) {
    return Refused([=](auto* s) {
      s->set_consistency(v1::CONSISTENCY_SSP);
      s->set_staleness(staleness);
    });
  };
  CHECK_THAT(ssp(0), Equals("accepted"));
  CHECK_THAT(ssp(1'000'000), Equals("accepted"));
  CHECK_THAT(ssp(1'000'001), Contains("staleness is 1000001; allowed: 0..1000000"));
}

TEST_CASE("norms over several chunks are only for dense sync tables") {
  const auto with = [](v1::Consistency consistency, uint32_t dim, const char* name, double clip) {
    return Refused([=](auto* s) {
      s->set_consistency(consistency);
      s->set_dim(dim);
      if (dim > 0) s->clear_shape();
      s->mutable_optimizer()->set_name(name);
      s->mutable_optimizer()->set_clip_global_norm(clip);
    });
  };
  CHECK_THAT(with(v1::CONSISTENCY_SYNC, 0, "adam", 1), Equals("accepted"));
  CHECK_THAT(with(v1::CONSISTENCY_SYNC, 0, "lamb", 1), Equals("accepted"));
  CHECK_THAT(with(v1::CONSISTENCY_ASYNC, 0, "adam", 0), Equals("accepted"));
  for (const v1::Consistency c : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
    CHECK_THAT(with(c, 0, "adam", 2),
               Contains("optimizer.clip_global_norm is 2; allowed: 0 for an async or ssp table"));
    CHECK_THAT(with(c, 0, "lamb", 0),
               Contains("optimizer.name is \"lamb\"; allowed: another for an async or ssp table"));
  }
  CHECK_THAT(with(v1::CONSISTENCY_SYNC, 8, "adam", 2), Contains("0 for an embedding table"));
  CHECK_THAT(with(v1::CONSISTENCY_SYNC, 8, "lamb", 0), Contains("another for an embedding table"));
}

TEST_CASE("names") {
  CHECK_THAT(Refused([](auto* s) { s->set_name(""); }),
             Equals("table \"\": name is \"\"; allowed: 1..128 characters of [A-Za-z0-9_./-]"));
  CHECK_THAT(Refused([](auto* s) { s->set_name("a b"); }), Contains("name is \"a b\""));
  CHECK_THAT(Refused([](auto* s) { s->set_name("a\nb"); }), Contains("name is \"a\\nb\""));
  CHECK_THAT(Refused([](auto* s) { s->set_name(std::string(129, 'x')); }), Contains("1..128"));
  CHECK_THAT(Refused([](auto* s) { s->set_name("layer.0/w_Q-1"); }), Equals("accepted"));
  CHECK_THAT(Refused([](auto* s) { s->set_job(""); }), Contains("job is \"\"; allowed: 1..128"));
  CHECK_THAT(Refused([](auto* s) { s->set_job("a\tb"); }), Contains("job is \"a\\tb\""));
}

TEST_CASE("shapes") {
  CHECK_THAT(Refused([](auto* s) { s->clear_shape(); }),
             Contains("shape is []; allowed: 1..8 dimensions"));
  CHECK_THAT(Refused([](auto* s) {
               for (int i = 0; i < 7; ++i) s->add_shape(1);
             }),
             Contains("shape is of 9 dimensions"));
  CHECK_THAT(Refused([](auto* s) { s->set_shape(1, 0); }),
             Contains("shape[1] is 0; allowed: 1 and more"));
  CHECK_THAT(Refused([](auto* s) { s->set_shape(1, uint64_t{1} << 34); }),
             Contains("shape is [128, 17179869184]; allowed: at most 2^40 elements"));
  // A product that wraps around is not a small table.
  CHECK_THAT(Refused([](auto* s) {
               s->set_shape(0, uint64_t{1} << 63);
               s->set_shape(1, 2);
             }),
             Contains("at most 2^40"));
  CHECK_THAT(Refused([](auto* s) { s->set_shape(1, uint64_t{1} << 33); }), Equals("accepted"));
}

TEST_CASE("chunks") {
  const auto chunk = [](uint32_t bytes) {
    return Refused([bytes](auto* s) { s->set_chunk_bytes(bytes); });
  };
  CHECK_THAT(chunk(100), Contains("chunk_bytes is 100; allowed: a multiple of 64 in 256..8388608"));
  CHECK_THAT(chunk(192), Contains("chunk_bytes is 192"));
  CHECK_THAT(chunk((8 << 20) + 64), Contains("chunk_bytes is 8388672"));
  CHECK(chunk(256) == "accepted");
  CHECK(chunk(8 << 20) == "accepted");
  CHECK_THAT(Refused([](auto* s) {
               s->set_shape(1, uint64_t{1} << 33);
               s->set_chunk_bytes(256);
             }),
             Contains("chunk_bytes is 256; allowed: enough to cut shape [128, 8589934592]"));
  // A limit of the shards: they keep an index entry for each chunk.
  const auto chunks = [](uint64_t count) {
    return Refused([count](auto* s) {
      s->set_shape(0, count);
      s->set_shape(1, 64);
      s->set_chunk_bytes(256);
    });
  };
  CHECK(chunks(1 << 24) == "accepted");
  CHECK_THAT(chunks((1 << 24) + 1), Contains("at most 16777216 chunks, not 16777217"));
}

TEST_CASE("initializers, optimizer parameters and unknown enum values") {
  const auto init = [](v1::Initializer::Kind kind, double a, double b) {
    return Refused([=](auto* s) {
      s->mutable_initializer()->set_kind(kind);
      s->mutable_initializer()->set_a(a);
      s->mutable_initializer()->set_b(b);
    });
  };
  CHECK(init(v1::Initializer::UNIFORM, -1, 1) == "accepted");
  CHECK_THAT(init(v1::Initializer::UNIFORM, 1, 1),
             Contains("initializer.b is 1; allowed: more than initializer.a, which is 1"));
  CHECK(init(v1::Initializer::NORMAL, 0, 0) == "accepted");
  CHECK_THAT(init(v1::Initializer::NORMAL, 0, -2), Contains("initializer.b is -2"));
  CHECK_THAT(init(v1::Initializer::CONSTANT, INFINITY, 0), Contains("initializer.a is inf"));
  CHECK_THAT(init(v1::Initializer::CONSTANT, 1e39, 0), Contains("initializer.a is 1e+39"));
  CHECK_THAT(init(static_cast<v1::Initializer::Kind>(9), 0, 0), Contains("initializer.kind is 9"));
  CHECK_THAT(Refused([](auto* s) {
               (*s->mutable_optimizer()->mutable_parameters())["beta1"] = -INFINITY;
             }),
             Contains("optimizer.parameters[\"beta1\"] is -inf; allowed: a finite number"));
  CHECK_THAT(Refused([](auto* s) { s->set_dtype(static_cast<v1::DType>(4)); }),
             Contains("dtype is 4; allowed: 1 (f32), 2 (bf16), 3 (f16)"));
  CHECK_THAT(Refused([](auto* s) { s->set_gradient_dtype(v1::DTYPE_F16); }),
             Contains("gradient_dtype is 3 (f16); allowed: 1 (f32), 2 (bf16) for a dense table"));
  CHECK_THAT(Refused([](auto* s) { s->set_reduction(static_cast<v1::Reduction>(4)); }),
             Contains("reduction is 4"));
  CHECK_THAT(Refused([](auto* s) { s->set_consistency(static_cast<v1::Consistency>(4)); }),
             Contains("consistency is 4"));
  CHECK_THAT(Refused([](auto* s) { s->set_non_finite(static_cast<v1::NonFinite>(4)); }),
             Contains("non_finite is 4; allowed: 1 (reject), 2 (apply), 3 (skip)"));
  CHECK_THAT(Refused([](auto* s) { s->set_non_finite(v1::NON_FINITE_SKIP); }), Equals("accepted"));
}

TEST_CASE("two tables of one name: the first difference is named with both values") {
  const v1::TableSpec existing = *NormalizeTableSpec(Spec());
  const auto differs = [&existing](const std::function<void(v1::TableSpec*)>& change) {
    v1::TableSpec spec = Spec();
    change(&spec);
    const absl::Status same = CheckSameSpec(existing, *NormalizeTableSpec(spec));
    if (same.ok()) return std::string("same");
    CHECK(same.code() == absl::StatusCode::kAlreadyExists);
    return std::string(same.message());
  };
  CHECK(differs([](auto*) {}) == "same");
  // A value that the initializer does not use is no difference.
  CHECK(differs([](auto* s) { s->mutable_initializer()->set_seed(5); }) == "same");
  CHECK_THAT(differs([](auto* s) { s->set_shape(0, 64); }),
             Equals("table \"emb\": shape is [128, 64] in the existing table and [64, 64] in the "
                    "one asked for"));
  CHECK_THAT(differs([](auto* s) { s->mutable_optimizer()->set_rate(0.25); }),
             Contains("optimizer.rate is 0.5 in the existing table and 0.25"));
  CHECK_THAT(differs([](auto* s) { s->mutable_optimizer()->set_name("adam"); }),
             Contains("optimizer.name is \"sgd\" in the existing table and \"adam\""));
  CHECK_THAT(
      differs([](auto* s) { (*s->mutable_optimizer()->mutable_parameters())["momentum"] = 0.9; }),
      Contains("optimizer.parameters[\"momentum\"] is not set in the existing table and 0.9"));
  CHECK_THAT(differs([](auto* s) { s->set_consistency(v1::CONSISTENCY_ASYNC); }),
             Contains("consistency is sync in the existing table and async"));
  CHECK_THAT(differs([](auto* s) { s->set_reduction(v1::REDUCTION_SUM); }), Contains("reduction"));
  CHECK_THAT(differs([](auto* s) { s->set_non_finite(v1::NON_FINITE_APPLY); }),
             Contains("non_finite"));
  CHECK_THAT(differs([](auto* s) { s->set_chunk_bytes(4096); }),
             Contains("chunk_bytes is 262144 in the existing table and 4096"));
  CHECK_THAT(differs([](auto* s) { s->set_job("other"); }), Contains("job is \"job\""));
  CHECK_THAT(
      differs([](auto* s) { s->mutable_initializer()->set_kind(v1::Initializer::CONSTANT); }),
      Contains("initializer.kind is zeros in the existing table and constant"));
}

}  // namespace
}  // namespace verbena::test
