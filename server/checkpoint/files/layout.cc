#include "server/checkpoint/files/layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/json.h"
#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {
namespace {

// Files are not cut smaller than that to give every writer one: opening and syncing each has a
// cost.
constexpr uint64_t kLeastFileBytes = uint64_t{64} << 20;

uint64_t TensorBytes(const v1::CheckpointTensor& tensor) {
  uint64_t bytes = BytesOf(*ParseType(tensor.dtype()));
  for (const uint64_t d : tensor.shape()) bytes *= d;
  return bytes;
}

v1::CheckpointTensor TensorOf(const std::string& name, const std::string& table,
                              const ArraySpec& array) {
  v1::CheckpointTensor tensor;
  tensor.set_name(name);
  tensor.set_table(table);
  tensor.set_array(array.name);
  tensor.set_dtype(array.dtype);
  tensor.mutable_shape()->Add(array.shape.begin(), array.shape.end());
  tensor.set_block_bytes(array.block_bytes);
  return tensor;
}

std::vector<PlannedFile> Cut(const char* kind, std::vector<v1::CheckpointTensor> tensors,
                             uint64_t most) {
  std::vector<PlannedFile> files;
  for (v1::CheckpointTensor& tensor : tensors) {
    const uint64_t bytes = TensorBytes(tensor);
    if (files.empty() || files.back().bytes + bytes > most) files.emplace_back();
    files.back().bytes += bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = absl::StrFormat("%s-%05d-of-%05d.safetensors", kind, i + 1, files.size());
  }
  return files;
}

// The largest files first, each to the writer with the least bytes.
void Spread(size_t writers, std::vector<PlannedFile>* files) {
  std::vector<PlannedFile*> order;
  for (PlannedFile& file : *files) order.push_back(&file);
  std::stable_sort(order.begin(), order.end(),
                   [](const PlannedFile* a, const PlannedFile* b) { return a->bytes > b->bytes; });
  std::vector<uint64_t> load(std::max<size_t>(1, writers));
  for (PlannedFile* file : order) {
    file->writer = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[file->writer] += file->bytes + 1;
  }
}

}  // namespace

std::vector<PlannedFile> PlanDense(const std::vector<v1::TableSpec>& specs, uint64_t file_bytes,
                                   size_t writers) {
  std::vector<v1::CheckpointTensor> model, optimizer;
  uint64_t all = 0;
  for (const v1::TableSpec& spec : specs) {
    if (spec.dim() > 0) continue;
    for (const ArraySpec& array : DenseArrays(spec)) {
      const std::string name = DenseTensorName(spec.name(), array.name);
      auto* to = array.name == kParameters ? &model : &optimizer;
      to->push_back(TensorOf(name, spec.name(), array));
      all += TensorBytes(to->back());
    }
  }
  const uint64_t share = std::max(kLeastFileBytes, all / std::max<size_t>(1, writers));
  const uint64_t most = std::min(file_bytes, share);
  std::vector<PlannedFile> files = Cut("model", std::move(model), most);
  for (PlannedFile& file : Cut("optimizer", std::move(optimizer), most)) {
    files.push_back(std::move(file));
  }
  Spread(writers, &files);
  return files;
}

std::vector<v1::CheckpointTensor> PartitionTensors(const v1::TableSpec& spec,
                                                   absl::Span<const uint32_t> chunks,
                                                   size_t writer) {
  const DenseLayout layout = LayoutOf(spec);
  std::vector<v1::CheckpointTensor> tensors;
  for (ArraySpec array : DenseArrays(spec)) {
    const std::string name =
        absl::StrCat(DenseTensorName(spec.name(), array.name), ".slice.", writer);
    const bool applies = array.name == kApplies;
    array.shape.clear();
    v1::CheckpointTensor tensor = TensorOf(name, spec.name(), array);
    uint64_t elements = 0;
    for (const uint32_t chunk : chunks) {
      const uint64_t first = applies ? chunk : layout.first_element(chunk);
      const uint64_t count = applies ? 1 : layout.elements_of(chunk);
      elements += count;
      // Neighbours are one range.
      if (tensor.ranges_size() > 0) {
        auto* last = tensor.mutable_ranges(tensor.ranges_size() - 1);
        if (last->first() + last->count() == first) {
          last->set_count(last->count() + count);
          continue;
        }
      }
      auto* range = tensor.add_ranges();
      range->set_first(first);
      range->set_count(count);
    }
    tensor.add_shape(elements);
    if (applies) tensor.set_block_bytes(sizeof(uint64_t));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string PartitionFileName(size_t writer, size_t file) {
  return absl::StrFormat("slices-%d-%05d.safetensors", writer, file);
}

std::vector<v1::CheckpointTensor> RowTensors(const v1::TableSpec& spec, uint64_t rows) {
  std::vector<v1::CheckpointTensor> tensors;
  for (const ArraySpec& array : RowArrays(spec, rows)) {
    tensors.push_back(TensorOf(array.name, spec.name(), array));
  }
  return tensors;
}

uint64_t RowsInFile(const v1::TableSpec& spec, uint64_t file_bytes) {
  uint64_t row_bytes = 0;
  for (const v1::CheckpointTensor& tensor : RowTensors(spec, 1)) row_bytes += TensorBytes(tensor);
  return std::max<uint64_t>(1, file_bytes / row_bytes);
}

std::string RowFileName(size_t table, size_t writer, size_t file) {
  return absl::StrFormat("rows-%04d-%d-%05d.safetensors", table, writer, file);
}

std::string IndexText(const v1::CheckpointManifest& manifest) {
  std::map<std::string, std::string> files;
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) {
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      if (tensor.array() != kParameters) continue;
      if (tensor.ranges_size() > 0) return "";
      files[tensor.name()] = file.name();
      bytes += TensorBytes(tensor);
    }
  }
  if (files.empty()) return "";
  JsonWriter metadata, map, index;
  metadata.Add("total_size", bytes);
  for (const auto& [tensor, file] : files) map.Add(tensor, file);
  index.Add("metadata", metadata);
  index.Add("weight_map", map);
  return index.ToString() + "\n";
}

}  // namespace verbena::checkpoint
