// Any bytes as the index of a model in several files: it is refused, naming it, or every file that
// it names is beside it, and a model is opened by it or refused.
#include <cstdint>
#include <string>
#include <vector>

#include "server/checkpoint/files/model_source.h"
#include "server/checkpoint/files/weight_index.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  return {R"({"metadata": {"total_size": 8}, "weight_map": {"a": "1", "b": "2.safetensors"}})",
          R"({"weight_map": {}, "x": [1, -2, 3.5e7, null, true, {"weight_map": {"a": []}}]})",
          R"({"weight_map": {"\u00e4\n": "1"}})", "{}"};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::checkpoint;
  const std::string path = "/m/model.safetensors.index.json";
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto files = ParseWeightIndex(path, text);
  if (!files.ok()) {
    FUZZ_CHECK(std::string(files.status().message()).find(path) != std::string::npos);
    return 0;
  }
  test::SimDisk disk(1);
  (void)disk.MakeDirectory("/m");
  disk.Put(path, text);
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (const auto& [tensor, file] : *files) {
    FUZZ_CHECK(BaseName(file) == file && !file.empty() && file != "." && file != "..");
    disk.Put("/m/" + file, verbena::fuzz::BytesOf(uint64_t{header.size()}) + header + "xxxx");
  }
  const auto source = ModelSource::Open(&disk, path, {});
  if (!source.ok()) return 0;
  // The source has exactly the tensors and files of the index.
  for (const SourceTensor& tensor : source->tensors()) {
    FUZZ_CHECK(files->at(tensor.info->name) == BaseName(tensor.file->path()));
  }
  FUZZ_CHECK(source->tensors().size() == files->size());
  return 0;
}
