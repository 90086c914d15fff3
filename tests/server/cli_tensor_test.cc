// The tensor of a file that a table is assigned from: its checks, and its numbers as the table has
// them.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "server/cli/verbena/table_tensor.h"
#include "tests/server/checkpoint/import_fixture.h"

namespace verbena::cli {
namespace {

using Catch::Matchers::Contains;
using checkpoint::test::Raw;
using checkpoint::test::Tensor;

v1::TableSpec Dense(std::vector<uint64_t> shape, v1::DType dtype) {
  v1::TableSpec spec;
  spec.set_name("w");
  for (const uint64_t extent : shape) spec.add_shape(extent);
  spec.set_dtype(dtype);
  return spec;
}

v1::TableSpec Rows(uint32_t dim) {
  v1::TableSpec spec;
  spec.set_name("items");
  spec.set_dim(dim);
  return spec;
}

absl::StatusOr<TableTensor> Open(const std::vector<Tensor>& tensors, const std::string& name,
                                 const v1::TableSpec& spec) {
  // Tensors are read from it.
  static std::vector<std::unique_ptr<checkpoint::test::SimDisk>> disks;
  disks.push_back(std::make_unique<checkpoint::test::SimDisk>(1));
  disks.back()->Put("/m", checkpoint::test::File(tensors));
  return TableTensor::Open(disks.back().get(), "/m", name, spec);
}

std::string Refusal(const std::vector<Tensor>& tensors, const std::string& name,
                    const v1::TableSpec& spec) {
  return std::string(Open(tensors, name, spec).status().message());
}

const std::vector<Tensor> kTensors = {
    {"w", "F32", "2,3", Raw<float>({1, 2, 3, 4, 5, 1e6f})},
    {"f8", "F8_E4M3", "2,3", std::string(6, 'x')},
    {"keys", "I64", "2", Raw<int64_t>({-1, 7})},
};

TEST_CASE("table assign: numbers are converted to the table's type") {
  const auto tensor = Open(kTensors, "w", Dense({2, 3}, v1::DTYPE_BF16));
  REQUIRE(tensor.ok());
  CHECK(tensor->elements() == 6);
  CHECK(tensor->rows() == 0);
  CHECK(tensor->bytes() == 12);
  std::vector<uint16_t> halves(2);
  REQUIRE(tensor->Read(3, {reinterpret_cast<std::byte*>(halves.data()), 4}).ok());
  CHECK(halves == std::vector<uint16_t>{0x4080, 0x40a0});
}

TEST_CASE("table assign: a number that the table cannot hold is named") {
  const auto tensor = Open(kTensors, "w", Dense({2, 3}, v1::DTYPE_F16));
  REQUIRE(tensor.ok());
  std::vector<std::byte> bytes(12);
  const absl::Status status = tensor->Read(0, absl::MakeSpan(bytes));
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()),
             Contains("/m: tensor 'w': element 5 is 1e+06") && Contains("F16"));
}

TEST_CASE("table assign: a tensor that does not fit the table is refused with both shapes") {
  CHECK_THAT(Refusal(kTensors, "x", Dense({2, 3}, v1::DTYPE_F32)),
             Contains("no tensor 'x'; it has 'w', 'f8', 'keys'; choose one with --tensor"));
  CHECK_THAT(Refusal(kTensors, "w", Dense({3, 2}, v1::DTYPE_F32)),
             Contains("the shape [2, 3]; table 'w' needs [3, 2]"));
  CHECK_THAT(Refusal(kTensors, "w", Rows(4)), Contains("table 'items' needs [rows, 4]"));
  CHECK_THAT(Refusal(kTensors, "f8", Dense({2, 3}, v1::DTYPE_F32)),
             Contains("type F8_E4M3") && Contains("allowed: F32"));
}

TEST_CASE("table assign: keys of rows are a tensor, or count from 0") {
  const auto tensor = Open(kTensors, "w", Rows(3));
  REQUIRE(tensor.ok());
  CHECK(tensor->rows() == 2);
  CHECK(*tensor->ReadKeys("") == std::vector<uint64_t>{0, 1});
  CHECK(*tensor->ReadKeys("keys") == std::vector<uint64_t>{UINT64_MAX, 7});
  CHECK_THAT(std::string(tensor->ReadKeys("w").status().message()),
             Contains("is F32 [2, 3]; the keys need type I64 or U64 and the shape [2]"));
}

}  // namespace
}  // namespace verbena::cli
