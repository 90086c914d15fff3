// Any bytes as a safetensors file: it is refused, naming the file, or its tensors lie inside of it,
// one behind the other.
#include <cstdint>
#include <string>
#include <vector>

#include "server/checkpoint/files/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::fuzz {
namespace {

std::string File(const std::string& header, size_t data) {
  return BytesOf(static_cast<uint64_t>(header.size())) + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> Seeds() {
  return {
      File(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      File(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},)"
          R"("a":{"shape":[3],"data_offsets":[0,6],"dtype":"BF16"},)"
          R"("none":{"dtype":"F64","shape":[0,7],"data_offsets":[14,14]}}   )",
          14),
      File("{}", 0)};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::checkpoint;
  test::SimDisk disk(1);
  disk.Put("/file", std::string(reinterpret_cast<const char*>(data), size));
  const auto reader = SafetensorsReader::Open(&disk, "/file");
  if (!reader.ok()) {
    FUZZ_CHECK(std::string(reader.status().message()).find("/file") != std::string::npos);
    return 0;
  }
  uint64_t at = 0;
  for (const TensorInfo& tensor : reader->header().tensors) {
    FUZZ_CHECK(tensor.begin == at && tensor.end >= at);
    at = tensor.end;
    FUZZ_CHECK(reader->Find(tensor.name) == &tensor);
    std::vector<std::byte> bytes(tensor.bytes());
    FUZZ_CHECK(reader->Read(tensor, 0, absl::MakeSpan(bytes)).ok());
  }
  FUZZ_CHECK(reader->head().size() + at == size);
  return 0;
}
