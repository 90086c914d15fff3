// The C API with tables of 16 bits and with codecs, against real daemons; and its conversions.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/client/c_api_support.h"

namespace verbena::test {
namespace {

verbena_table_spec NarrowSpec(const char* name, int32_t dtype, int32_t gradient_dtype) {
  verbena_table_spec spec = Spec(name);
  spec.dtype = dtype;
  spec.gradient_dtype = gradient_dtype;
  return spec;
}

uint16_t* Halves(const Handle<verbena_region>& region) {
  return static_cast<uint16_t*>(verbena_region_data(region.get()));
}

TEST_CASE("a program in C trains tables of 16 bits") {
  const ProcessCluster cluster({.servers = 1, .shards = 2});
  const Handle<verbena_client> client = Connect(Options(cluster.address().c_str()));
  struct Types {
    int32_t dtype, gradient_dtype;
    void (*widen)(const uint16_t*, float*, size_t);
  };
  for (const Types& types :
       {Types{VERBENA_DTYPE_BF16, VERBENA_DTYPE_BF16, verbena_f32_from_bf16},
        Types{VERBENA_DTYPE_F16, VERBENA_DTYPE_BF16, verbena_f32_from_f16},
        Types{VERBENA_DTYPE_BF16, VERBENA_DTYPE_DEFAULT, verbena_f32_from_bf16}}) {
    const std::string name =
        std::to_string(types.dtype) + "." + std::to_string(types.gradient_dtype);
    const bool narrow = types.gradient_dtype == VERBENA_DTYPE_BF16;
    const Handle<verbena_table> table =
        Create(client.get(), NarrowSpec(name.c_str(), types.dtype, types.gradient_dtype));
    verbena_table_info info = {};
    info.struct_size = sizeof(info);
    Good(verbena_table_get_info(table.get(), &info));
    CHECK(info.dtype == types.dtype);
    CHECK(info.gradient_dtype == (narrow ? VERBENA_DTYPE_BF16 : VERBENA_DTYPE_F32));
    CHECK(info.bytes == kElements * 2);
    CHECK(info.gradient_bytes == kElements * (narrow ? 2 : 4));
    CHECK(info.chunk_elements == (narrow ? 2048 : 1024));

    const Handle<verbena_region> gradient = Allocate(client.get(), info.gradient_bytes);
    const Handle<verbena_region> parameters = Allocate(client.get(), info.bytes);
    const std::vector<float> quarter(kElements, 0.25f);
    if (narrow) {
      verbena_bf16_from_f32(quarter.data(), Halves(gradient), kElements);
    } else {
      std::copy(quarter.begin(), quarter.end(), Floats(gradient));
    }
    verbena_ticket* raw = nullptr;
    Good(verbena_push_pull(client.get(), table.get(), gradient.get(), parameters.get(), nullptr,
                           kDefault, &raw));
    const Handle<verbena_ticket> ticket(raw);
    Good(verbena_ticket_wait(raw, kDefault));
    std::vector<float> got(kElements);
    types.widen(Halves(parameters), got.data(), kElements);
    CHECK(got == std::vector<float>(kElements, 1.75f));

    const verbena_range odd = {0, UINT64_MAX, 1};
    ExpectError(verbena_pull(client.get(), table.get(), parameters.get(), &odd,
                             VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw),
                VERBENA_INVALID_ARGUMENT, {"region_offset is 1", "multiples of 2"});
  }
}

TEST_CASE("a program in C pushes through every codec") {
  const ProcessCluster cluster({.servers = 1, .shards = 2});
  const Handle<verbena_client> client = Connect(Options(cluster.address().c_str()));
  for (int32_t codec = VERBENA_CODEC_NONE; codec <= VERBENA_CODEC_TOP_K; ++codec) {
    const std::string name = "codec-" + std::to_string(codec);
    verbena_table_spec spec = Spec(name.c_str());
    spec.push_codec = codec;
    const Handle<verbena_table> table = Create(client.get(), spec);
    verbena_table_info info = {};
    info.struct_size = sizeof(info);
    Good(verbena_table_get_info(table.get(), &info));
    CHECK(info.push_codec == codec);
    const Handle<verbena_region> gradient = Allocate(client.get(), info.gradient_bytes);
    const Handle<verbena_region> parameters = Allocate(client.get(), info.bytes);
    std::fill_n(Floats(gradient), kElements, 0.25f);
    verbena_ticket* raw = nullptr;
    Good(verbena_push_pull(client.get(), table.get(), gradient.get(), parameters.get(), nullptr,
                           kDefault, &raw));
    const Handle<verbena_ticket> ticket(raw);
    Good(verbena_ticket_wait(raw, kDefault));
    // top_k sends the first 20 numbers of each chunk of 1024, as all are equal.
    for (size_t i = 0; i < kElements; ++i) {
      const bool travels = codec != VERBENA_CODEC_TOP_K || i % info.chunk_elements < 20;
      INFO(codec << " " << i);
      REQUIRE(Floats(parameters)[i] == Approx(travels ? 1.75f : 2.0f).epsilon(1e-6));
    }
  }
}

// Pulls a table whose parameters are all different.
std::vector<float> Pulled(verbena_client* client, const verbena_table* table) {
  const Handle<verbena_region> region = Allocate(client, kElements * sizeof(float));
  verbena_ticket* raw = nullptr;
  Good(verbena_pull(client, table, region.get(), nullptr, VERBENA_MIN_VERSION_DEFAULT, kDefault,
                    &raw));
  const Handle<verbena_ticket> ticket(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  return {Floats(region), Floats(region) + kElements};
}

uint64_t BytesPulled(const verbena_client* client) {
  verbena_statistics statistics = {};
  statistics.struct_size = sizeof(statistics);
  Good(verbena_client_get_statistics(client, &statistics));
  return statistics.bytes_pulled;
}

TEST_CASE("a program in C pulls through every codec: as many bytes, and always the same bits") {
  const ProcessCluster cluster({.servers = 2, .shards = 2});
  const Handle<verbena_client> client = Connect(Options(cluster.address().c_str()));
  verbena_table_spec spec = Spec("plain");
  spec.initializer = VERBENA_INITIALIZER_NORMAL;
  spec.initializer_a = 0;
  spec.initializer_b = 1;
  spec.initializer_seed = 5;
  const Handle<verbena_table> plain = Create(client.get(), spec);
  const std::vector<float> exact = Pulled(client.get(), plain.get());
  // Largest error, relative to the number itself or to the greatest number of its block.
  constexpr double kLost[] = {0, 0, 1.0 / 256, 1.0 / 2048, 1.0 / 254, 1.0 / 16, 1.0 / 8};
  constexpr uint64_t kBytes[] = {0, 4, 2, 2, 1, 1, 1};
  for (int32_t codec = VERBENA_CODEC_NONE; codec <= VERBENA_CODEC_FP8_E5M2; ++codec) {
    const std::string name = "pull-codec-" + std::to_string(codec);
    spec.name = name.c_str();
    spec.pull_codec = codec;
    const Handle<verbena_table> table = Create(client.get(), spec);
    verbena_table_info info = {};
    info.struct_size = sizeof(info);
    Good(verbena_table_get_info(table.get(), &info));
    CHECK(info.pull_codec == codec);
    CHECK(info.push_codec == VERBENA_CODEC_NONE);
    CHECK(info.bytes == kElements * sizeof(float));
    const uint64_t before = BytesPulled(client.get());
    const std::vector<float> once = Pulled(client.get(), table.get());
    const uint64_t bytes = BytesPulled(client.get()) - before;
    CHECK(bytes >= kElements * kBytes[codec]);
    CHECK(bytes < kElements * kBytes[codec] * 11 / 10);
    CHECK(Pulled(client.get(), table.get()) == once);
    const bool scaled = codec >= VERBENA_CODEC_INT8;
    CHECK((once == exact) == (codec == VERBENA_CODEC_NONE));
    for (size_t i = 0; i < kElements; ++i) {
      const double reference = codec == VERBENA_CODEC_INT8 ? 6 : std::abs(exact[i]);
      INFO(codec << " " << i << " " << exact[i] << " " << once[i]);
      REQUIRE(std::abs(once[i] - exact[i]) <= kLost[codec] * reference + (scaled ? 1e-3 : 0));
    }
    // Opening it with another pull codec fails.
    spec.pull_codec = codec == VERBENA_CODEC_INT8 ? VERBENA_CODEC_BF16 : VERBENA_CODEC_INT8;
    verbena_table* other = nullptr;
    ExpectError(verbena_table_create(client.get(), &spec, kDefault, &other), VERBENA_ALREADY_EXISTS,
                {"pull_codec"});
  }
}

TEST_CASE("types that a table cannot have are refused by name") {
  const ProcessCluster cluster({.servers = 1, .shards = 1});
  const Handle<verbena_client> client = Connect(Options(cluster.address().c_str()));
  verbena_table* table = nullptr;
  const auto refused = [&](const verbena_table_spec& spec, const std::string& message) {
    ExpectError(verbena_table_create(client.get(), &spec, kDefault, &table),
                VERBENA_INVALID_ARGUMENT, {message});
    CHECK(table == nullptr);
  };
  refused(NarrowSpec("t", VERBENA_DTYPE_F32, VERBENA_DTYPE_F16), "gradient_dtype");
  refused(NarrowSpec("t", VERBENA_DTYPE_F32, 17), "gradient_dtype");
  refused(NarrowSpec("t", 17, VERBENA_DTYPE_F32), "dtype");
  verbena_table_spec signs = Spec("t");
  signs.pull_codec = VERBENA_CODEC_SIGN;
  refused(signs, "pull_codec is 7");
  verbena_table_spec rows = EmbeddingSpec("t");
  rows.dtype = VERBENA_DTYPE_BF16;
  refused(rows, "1 (f32) for an embedding table");

  // A program built against a release without gradient_dtype gets f32, and the field is left alone.
  verbena_table_spec old = NarrowSpec("t", VERBENA_DTYPE_BF16, 99);
  old.struct_size = offsetof(verbena_table_spec, gradient_dtype);
  const Handle<verbena_table> made = Create(client.get(), old);
  verbena_table_info info = {};
  info.gradient_dtype = -1;
  info.struct_size = offsetof(verbena_table_info, gradient_bytes);
  Good(verbena_table_get_info(made.get(), &info));
  CHECK(info.dtype == VERBENA_DTYPE_BF16);
  CHECK(info.bytes == kElements * 2);
  CHECK(info.gradient_dtype == -1);
  info.struct_size = sizeof(info);
  Good(verbena_table_get_info(made.get(), &info));
  CHECK(info.gradient_dtype == VERBENA_DTYPE_F32);
}

TEST_CASE("conversions in C round to the nearest, and take NULL") {
  const float in[] = {1.0f, -0.0f, 1.00390625f, 65520.0f, NAN};
  uint16_t bits[5] = {};
  float out[5] = {};
  verbena_bf16_from_f32(in, bits, 5);
  CHECK(bits[0] == 0x3f80);
  CHECK(bits[1] == 0x8000);
  CHECK(bits[2] == 0x3f80);  // a tie: the even one
  verbena_f32_from_bf16(bits, out, 5);
  CHECK(out[3] == 65536.0f);
  CHECK(std::isnan(out[4]));
  verbena_f16_from_f32(in, bits, 5);
  CHECK(bits[2] == 0x3c04);
  CHECK(bits[3] == 0x7c00);
  verbena_f32_from_f16(bits, out, 5);
  CHECK(out[2] == 1.00390625f);
  CHECK(std::isnan(out[4]));
  verbena_bf16_from_f32(nullptr, bits, 5);
  verbena_f16_from_f32(in, nullptr, 5);
  verbena_f32_from_bf16(nullptr, out, 5);
  verbena_f32_from_f16(bits, nullptr, 5);
  CHECK(bits[2] == 0x3c04);
  CHECK(out[2] == 1.00390625f);
}

}  // namespace
}  // namespace verbena::test
