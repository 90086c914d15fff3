// The safetensors reader on files of any kind, and the writer.
#include "server/checkpoint/files/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "server/checkpoint/files/tensor_file.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;

std::string File(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data, '\x5a');
}

absl::Status OpenFile(const std::string& content) {
  SimDisk disk(1);
  disk.Put("/f.safetensors", content);
  return SafetensorsReader::Open(&disk, "/f.safetensors").status();
}

TEST_CASE("the layout of another program's file is read from its header") {
  SimDisk disk(1);
  // Out of order, with a scalar, an empty tensor, metadata, and spaces behind the header.
  disk.Put("/f", File(R"({"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},
      "__metadata__":{"format":"pt","by":"é"},
      "a":{"shape":[3,1],"data_offsets":[0,6],"dtype":"BF16"},
      "none":{"dtype":"F64","shape":[0,7],"data_offsets":[14,14]}}   )",
                      14));
  const auto reader = SafetensorsReader::Open(&disk, "/f");
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->header().metadata.at("by") == "é");
  REQUIRE(reader->header().tensors.size() == 3);
  const TensorInfo* a = reader->Find("a");
  REQUIRE(a != nullptr);
  CHECK(a->type == TensorType::kBF16);
  CHECK(a->shape == std::vector<uint64_t>{3, 1});
  CHECK(reader->Find("b")->bytes() == 8);
  CHECK(reader->Find("none")->bytes() == 0);
  CHECK(reader->Find("c") == nullptr);
  std::vector<std::byte> bytes(4);
  CHECK(reader->Read(*a, 2, absl::MakeSpan(bytes)).ok());
  CHECK(bytes[3] == std::byte{0x5a});
  CHECK_THAT(std::string(reader->Read(*a, 3, absl::MakeSpan(bytes)).message()),
             Contains("\"a\" has 6 bytes") && Contains("[3, 7)"));
}

TEST_CASE("an error in a safetensors file names file, tensor and problem") {
  const auto wrong = [](const std::string& content, const std::string& what) {
    const absl::Status status = OpenFile(content);
    INFO(status);
    CHECK_FALSE(status.ok());
    CHECK_THAT(std::string(status.message()), Contains("/f.safetensors") && Contains(what));
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  CHECK(OpenFile(File(tensor("\"F32\"", "[2]", "[0,8]"), 8)).ok());
  CHECK(OpenFile(File("{}", 0)).ok());
  wrong("abc", "has 3 bytes");
  wrong(std::string(8, '\xff'), "its header has 18446744073709551615 bytes; allowed: 100000000");
  wrong(std::string("\x10\0\0\0\0\0\0\0{}", 10), "its header has 16 bytes");
  wrong(File("", 0), "not JSON");
  wrong(File("[]", 0), "an array where none is allowed");
  wrong(File("{", 0), "not JSON");
  wrong(File("{} x", 0), "not JSON");
  wrong(File(std::string(100'000, '['), 0), "an array where none is allowed");
  wrong(File("{\"w\":" + std::string(100'000, '{'), 0), "not JSON");
  wrong(File("{\"w\xff\":1}", 0), "not JSON");
  wrong(File(R"({"w":1})", 0), "a number where none is allowed, at tensor \"w\"");
  wrong(File(tensor("\"F33\"", "[2]", "[0,8]"), 8), "\"w\": its dtype is \"F33\"; known: BOOL, U8");
  wrong(File(tensor("4", "[2]", "[0,8]"), 8), "a number where none is allowed, at tensor \"w\"");
  wrong(File(tensor("\"F32\"", "[-2]", "[0,8]"), 8), "tensor \"w\" has the number -2");
  wrong(File(tensor("\"F32\"", "[2.5]", "[0,8]"), 8), "tensor \"w\" has the number 2.5");
  wrong(File(tensor("\"F32\"", "[[2]]", "[0,8]"), 8), "an array");
  wrong(File(tensor("\"F32\"", "[2]", "[0]"), 8), "tensor \"w\" has not two data_offsets");
  wrong(File(tensor("\"F32\"", "[2]", "[0,4,8]"), 8), "tensor \"w\" has not two data_offsets");
  wrong(File(tensor("\"F32\"", "[2]", "[8,0]"), 8), "\"w\" lies at [8, 0)");
  wrong(File(tensor("\"F32\"", "[3]", "[0,8]"), 8), "F32 of shape [3] takes 12 bytes");
  wrong(File(tensor("\"F32\"", "[2]", "[4,12]"), 12), "begins at byte 4 of the data");
  wrong(File(tensor("\"F32\"", "[2]", "[0,8]"), 7),
        "end at byte 8 of the data, of which there are 7");
  wrong(File(tensor("\"F32\"", "[2]", "[0,8]"), 9), "of which there are 9");
  wrong(File(tensor("\"F32\"", "[4294967296,4294967296,2]", "[0,0]"), 0), "less than 2^63 bytes");
  wrong(File(R"({"w":{"dtype":"F32","shape":[2]}})", 8), "tensor \"w\" lacks one of");
  wrong(File(R"({"w":{"dtype":"F32","shape":[2],"x":[]}})", 8), "has the member \"x\"");
  wrong(File(R"({"w":{"dtype":"F32","dtype":"F32"}})", 8), "has the member dtype twice");
  wrong(File(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                 "w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
             2),
        "tensor \"w\" is there twice");
  wrong(File(R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                 "w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
             3),
        "tensor \"w\" begins at byte 1 of the data, and the tensor before it ends at 2");
  wrong(File(R"({"__metadata__":{"a":1}})", 0), "a number where none is allowed");
}

TEST_CASE("a written safetensors file is aligned, with the widest types first") {
  SimDisk disk(1);
  std::vector<v1::CheckpointTensor> tensors(2);
  tensors[0].set_name("narrow");
  tensors[0].set_dtype("U8");
  tensors[0].add_shape(3);
  tensors[1].set_name("wide \"\n");
  tensors[1].set_dtype("F64");
  tensors[1].add_shape(2);
  tensors[1].set_block_bytes(8);
  auto writer = TensorFileWriter::Create(&disk, "/f", tensors);
  REQUIRE(writer.ok());
  const std::vector<std::byte> eight(8, std::byte{1}), three(3, std::byte{2});
  CHECK((*writer)->WriteBlock(1, 1, eight).ok());
  CHECK((*writer)->Append(0, absl::MakeConstSpan(three).first(2)).ok());
  const auto early = (*writer)->Finish();
  CHECK(early.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(early.status().message()), Contains("lacks 1 of its 2 blocks"));
  CHECK_THAT(std::string((*writer)->WriteBlock(1, 1, eight).message()),
             Contains("each of 2 blocks of 8 bytes once"));
  CHECK_FALSE((*writer)->WriteBlock(1, 2, eight).ok());
  CHECK_FALSE((*writer)->WriteBlock(1, 0, three).ok());
  CHECK_FALSE((*writer)->WriteBlock(2, 0, three).ok());
  CHECK((*writer)->WriteBlock(1, 0, eight).ok());
  CHECK((*writer)->Append(0, absl::MakeConstSpan(three).last(1)).ok());
  CHECK_FALSE((*writer)->Append(0, three).ok());
  const auto entry = (*writer)->Finish();
  REQUIRE(entry.ok());
  const auto reader = SafetensorsReader::Open(&disk, "/f");
  REQUIRE(reader.ok());
  CHECK(reader->head().size() % kHeaderAlignment == 0);
  CHECK(reader->header().tensors[0].name == "wide \"\n");
  CHECK(reader->header().metadata.at("format") == "pt");
  CHECK(disk.Content("/f").size() == entry->bytes());
  CHECK(disk.Content("/f").substr(reader->head().size()) ==
        std::string(16, '\1') + std::string(3, '\2'));
}

TEST_CASE("names that a header cannot have are refused before anything is written") {
  for (const char* name : {"", "__metadata__", "a\xff"}) {
    std::vector<TensorInfo> infos = {{name, TensorType::kF32, {1}, 0, 0}};
    CHECK_THAT(std::string(MakeSafetensorsHeader(&infos, {}).status().message()),
               Contains("allowed: UTF-8, not empty, not __metadata__"));
  }
  std::vector<TensorInfo> twice = {{"a", TensorType::kF32, {1}, 0, 0},
                                   {"a", TensorType::kF32, {1}, 0, 0}};
  CHECK_FALSE(MakeSafetensorsHeader(&twice, {}).ok());
}

TEST_CASE("numbers become other types, rounded once") {
  const auto convert = [](TensorType from, auto value, TensorType to, auto out) {
    ConvertNumbers(from, {reinterpret_cast<const std::byte*>(&value), sizeof(value)}, to,
                   {reinterpret_cast<std::byte*>(&out), sizeof(out)});
    return out;
  };
  using T = TensorType;
  CHECK(convert(T::kF32, 1.5f, T::kF64, 0.0) == 1.5);
  CHECK(convert(T::kBF16, uint16_t{0x3fc0}, T::kF32, 0.0f) == 1.5f);
  CHECK(convert(T::kF16, uint16_t{0x3e00}, T::kF32, 0.0f) == 1.5f);
  CHECK(convert(T::kI64, int64_t{-3}, T::kF32, 0.0f) == -3.0f);
  CHECK(convert(T::kU64, UINT64_MAX, T::kF64, 0.0) == 0x1p64);
  CHECK(convert(T::kF32, 1.0f + 0x1p-8f, T::kBF16, uint16_t{0}) == 0x3f80);  // to even
  // By way of f32 this would first become the tie between two, and then the wrong one.
  CHECK(convert(T::kF64, 1.0 + 0x1p-8 + 0x1p-40, T::kBF16, uint16_t{0}) == 0x3f81);
  CHECK(convert(T::kF64, -(1.0 + 0x1p-8 + 0x1p-40), T::kBF16, uint16_t{0}) == 0xbf81);
  CHECK(convert(T::kF64, 1.0 + 0x1p-8 - 0x1p-40, T::kBF16, uint16_t{0}) == 0x3f80);
  CHECK(convert(T::kF64, 1e300, T::kF16, uint16_t{0}) == 0x7c00);
  CHECK(CanConvert(T::kBool, T::kF32));
  CHECK_FALSE(CanConvert(T::kF32, T::kI32));
  CHECK_FALSE(CanConvert(T::kF8E4M3, T::kF32));
}

}  // namespace
}  // namespace verbena::checkpoint::test
