// The safetensors format (huggingface.co/docs/safetensors): 8 bytes with the length of a JSON
// header (little-endian), the header, and the tensors' bytes. The header has their places.
//
// **Thread safety**: functions are pure; a SafetensorsReader may be read by any threads at once.
//
// Invariants:
//  1. A parsed header is consistent: tensors are contiguous, without holes, up to the end of the
//     file, each as long as its shape and type require, and names differ. So a reader that follows
//     it stays inside the file.
//  2. Parsing takes memory in proportion to the header, whatever its contents.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_SAFETENSORS_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {

// The limit of the format's own implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr uint64_t kHeaderLengthBytes = 8;
// Tensors begin on a cache line of a mapped file; the format requires 8 at least.
inline constexpr uint64_t kHeaderAlignment = 64;

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;    // of its bytes, counted from the end of the header
  std::string unknown_type = {};  // not empty: the name of a type that TensorType has not

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Handling of a tensor whose type is unknown: an error, or one that can be skipped.
enum class UnknownTypes : uint8_t { kRefuse, kKeep };

// `json`: the header alone, of the file `path`, followed by `data_bytes` of data. DATA_LOSS names
// path, tensor, problem and allowed values; so does UNIMPLEMENTED for an unknown type.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    const std::string& path, std::string_view json, uint64_t data_bytes,
    UnknownTypes unknown = UnknownTypes::kRefuse);

// UNIMPLEMENTED: the tensor has an unknown type.
absl::Status CheckKnownType(const std::string& path, const TensorInfo& tensor);

// The first bytes of a file of these tensors, up to the first tensor's; sets `begin` and `end`, in
// this order. INVALID_ARGUMENT: names that are equal, empty, or "__metadata__", no UTF-8, or more
// than fits. Types of more bytes should come first, so that all are aligned.
absl::StatusOr<std::string> MakeSafetensorsHeader(
    std::vector<TensorInfo>* tensors, const std::map<std::string, std::string>& metadata);

class SafetensorsReader {
 public:
  static absl::StatusOr<SafetensorsReader> Open(Disk* disk, const std::string& path,
                                                UnknownTypes unknown = UnknownTypes::kRefuse);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // The file's first bytes, up to the first tensor's.
  const std::string& head() const { return head_; }
  // Null: it has none of that name.
  const TensorInfo* Find(std::string_view name) const;
  // Bytes [offset, offset + to.size()) of a tensor of this file. OUT_OF_RANGE: it has fewer.
  absl::Status Read(const TensorInfo& tensor, uint64_t offset, absl::Span<std::byte> to) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  std::string head_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::unique_ptr<ReadableFile> file_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_SAFETENSORS_H_
