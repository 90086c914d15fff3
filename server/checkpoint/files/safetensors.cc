#include "server/checkpoint/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/json.h"
#include "proto/spec/spec_text.h"

namespace verbena::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr char kMetadataName[] = "__metadata__";
constexpr size_t kMostDimensions = 64;

// Reads the header while it is parsed, so that no tree of a file's contents is built. It stops at
// the first unexpected item.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(const std::string& path, UnknownTypes unknown, SafetensorsHeader* header)
      : path_(path), unknown_(unknown), header_(header) {}

  const absl::Status& status() const { return status_; }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Go(Place::kNames);
    if (place_ == Place::kTensor && depth_ == 1) {
      tensor_ = {};
      tensor_.name = name_;
      seen_.clear();
      depth_ = 2;
      return true;
    }
    if (place_ == Place::kMetadata && depth_ == 1) {
      depth_ = 2;
      return true;
    }
    return Unexpected("an object");
  }

  bool key(string_t& text) override {
    if (depth_ == 0) {
      name_ = text;
      if (!names_.insert(text).second) return Wrong("is there twice");
      depth_ = 1;
      return Go(text == kMetadataName ? Place::kMetadata : Place::kTensor);
    }
    field_ = text;
    if (place_ == Place::kMetadata) return true;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return Wrong(
          absl::StrCat("has the member ", Quoted(field_), "; allowed: dtype, shape, data_offsets"));
    }
    return seen_.insert(field_).second || Wrong(absl::StrCat("has the member ", field_, " twice"));
  }

  bool end_object() override {
    if (depth_ == 2) {
      depth_ = 0;
      if (place_ == Place::kMetadata) return Go(Place::kNames);
      if (seen_.size() != 3) return Wrong("lacks one of dtype, shape, data_offsets");
      header_->tensors.push_back(std::move(tensor_));
      return Go(Place::kNames);
    }
    return Go(Place::kEnd);
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && place_ == Place::kMetadata) {
      if (header_->metadata.emplace(field_, text).second) return true;
      return Wrong(absl::StrCat("has the member ", Quoted(field_), " twice"));
    }
    if (depth_ != 2 || array_ || field_ != "dtype") return Unexpected("a text");
    const std::optional<TensorType> type = ParseType(text);
    if (type) {
      tensor_.type = *type;
      return true;
    }
    if (text.empty()) return Wrong("has an empty dtype");
    tensor_.unknown_type = text;
    if (unknown_ == UnknownTypes::kRefuse) status_ = CheckKnownType(path_, tensor_);
    return status_.ok();
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || array_ || place_ != Place::kTensor || field_ == "dtype") {
      return Unexpected("an array");
    }
    array_ = true;
    offsets_ = 0;
    return true;
  }
  bool end_array() override {
    array_ = false;
    return field_ == "shape" || offsets_ == 2 || Wrong("has not two data_offsets");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!array_) return Unexpected("a number");
    if (field_ == "shape") {
      if (tensor_.shape.size() == kMostDimensions) {
        return Wrong(absl::StrCat("has more than ", kMostDimensions, " dimensions"));
      }
      tensor_.shape.push_back(value);
      return true;
    }
    (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
    return ++offsets_ <= 2 || Wrong("has not two data_offsets");
  }
  bool number_integer(number_integer_t value) override {
    return Wrong(absl::StrCat("has the number ", value, "; allowed: none below 0"));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Wrong(absl::StrCat("has the number ", text.substr(0, 32), "; allowed: whole ones"));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = absl::DataLossError(
        absl::StrCat(path_, ": its header is not JSON: wrong at byte ", position, " of it"));
    return false;
  }

 private:
  enum class Place { kStart, kNames, kTensor, kMetadata, kEnd };

  bool Go(Place place) {
    place_ = place;
    return true;
  }
  bool Wrong(const std::string& what) {
    status_ = absl::DataLossError(absl::StrCat(path_, ": tensor ", Quoted(name_), " ", what));
    return false;
  }
  bool Unexpected(const char* what) {
    status_ = absl::DataLossError(
        absl::StrCat(path_, ": its header has ", what, " where none is allowed",
                     depth_ > 0 ? absl::StrCat(", at tensor ", Quoted(name_)) : ""));
    return false;
  }

  const std::string& path_;
  const UnknownTypes unknown_;
  SafetensorsHeader* const header_;
  absl::Status status_;
  Place place_ = Place::kStart;
  int depth_ = 0;  // 0: among names; 1: behind a name; 2: inside its object
  bool array_ = false;
  int offsets_ = 0;
  std::string name_, field_;
  std::set<std::string> seen_;  // members of the tensor at hand
  std::set<std::string> names_;
  TensorInfo tensor_;
};

absl::Status Wrong(const std::string& path, const TensorInfo& tensor, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": tensor ", Quoted(tensor.name), " ", what));
}

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Sorts by place, and checks that they fill the data.
absl::Status CheckPlaces(const std::string& path, uint64_t data_bytes,
                         std::vector<TensorInfo>* tensors) {
  for (const TensorInfo& tensor : *tensors) {
    if (!tensor.unknown_type.empty() && tensor.begin <= tensor.end) continue;
    const std::optional<uint64_t> elements = ElementsOf(tensor.shape, BytesOf(tensor.type));
    if (!elements) {
      return Wrong(path, tensor,
                   absl::StrCat("has the shape ", ShapeText(tensor.shape),
                                "; allowed: less than 2^63 bytes"));
    }
    const uint64_t bytes = *elements * BytesOf(tensor.type);
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes) {
      return Wrong(path, tensor,
                   absl::StrCat("lies at [", tensor.begin, ", ", tensor.end, "), and ",
                                TypeName(tensor.type), " of shape ", ShapeText(tensor.shape),
                                " takes ", bytes, " bytes"));
    }
  }
  std::stable_sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const TensorInfo& tensor : *tensors) {
    if (tensor.begin != at) {
      return Wrong(path, tensor,
                   absl::StrCat("begins at byte ", tensor.begin,
                                " of the data, and the tensor "
                                "before it ends at ",
                                at, "; allowed: neither holes nor overlaps"));
    }
    at = tensor.end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": its tensors end at byte ", at,
                                          " of the data, of which there are ", data_bytes,
                                          " bytes: the file was cut off, or is another's"));
}

}  // namespace

absl::Status CheckKnownType(const std::string& path, const TensorInfo& tensor) {
  if (tensor.unknown_type.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(path, ": tensor ", Quoted(tensor.name),
                                               ": its dtype is ", Quoted(tensor.unknown_type),
                                               "; known: ", TypeNames()));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& path,
                                                         std::string_view json, uint64_t data_bytes,
                                                         UnknownTypes unknown) {
  SafetensorsHeader header;
  HeaderHandler handler(path, unknown, &header);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (!handler.status().ok()) return handler.status();
  if (!parsed) return absl::DataLossError(absl::StrCat(path, ": its header is not JSON"));
  const absl::Status status = CheckPlaces(path, data_bytes, &header.tensors);
  if (!status.ok()) return status;
  return header;
}

absl::StatusOr<std::string> MakeSafetensorsHeader(
    std::vector<TensorInfo>* tensors, const std::map<std::string, std::string>& metadata) {
  JsonWriter json;
  if (!metadata.empty()) {
    JsonWriter texts;
    for (const auto& [name, text] : metadata) texts.Add(name, text);
    json.Add(kMetadataName, texts);
  }
  std::set<std::string_view> names;
  uint64_t at = 0;
  for (TensorInfo& tensor : *tensors) {
    bool good = !tensor.name.empty() && tensor.name != kMetadataName;
    for (size_t i = 0; good && i < tensor.name.size();) {
      const size_t length = Utf8Length(tensor.name, i);
      good = length > 0;
      i += length;
    }
    if (!good || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("a tensor's name is ", Quoted(tensor.name),
                       good ? ", which another one of the file has too"
                            : "; allowed: UTF-8, not empty, not __metadata__"));
    }
    const std::optional<uint64_t> elements = ElementsOf(tensor.shape, BytesOf(tensor.type));
    uint64_t end = 0;
    if (!elements || __builtin_add_overflow(at, *elements * BytesOf(tensor.type), &end) ||
        end > INT64_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name),
                                                     " has the shape ", ShapeText(tensor.shape),
                                                     "; allowed: less than 2^63 bytes a file"));
    }
    tensor.begin = at;
    tensor.end = at = end;
    JsonArray shape, offsets;
    for (const uint64_t d : tensor.shape) shape.Add(d);
    offsets.Add(tensor.begin);
    offsets.Add(tensor.end);
    JsonWriter entry;
    entry.Add("dtype", TypeName(tensor.type));
    entry.Add("shape", shape);
    entry.Add("data_offsets", offsets);
    json.Add(tensor.name, entry);
  }
  std::string text = json.ToString();
  const uint64_t whole = kHeaderLengthBytes + text.size();
  text.append((kHeaderAlignment - whole % kHeaderAlignment) % kHeaderAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a header of ", tensors->size(), " tensors has ",
                                                   text.size(),
                                                   " bytes; allowed: ", kMaxHeaderBytes));
  }
  const uint64_t length = text.size();
  std::string head(reinterpret_cast<const char*>(&length), sizeof(length));
  return head + text;
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(Disk* disk, const std::string& path,
                                                          UnknownTypes unknown) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = disk->Open(path);
  if (!file.ok()) return file.status();
  const uint64_t size = (*file)->size();
  uint64_t length = 0;
  if (size < kHeaderLengthBytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", size, " bytes, and a safetensors file ",
                                            "at least ", kHeaderLengthBytes));
  }
  absl::Status status = (*file)->ReadAt(0, {reinterpret_cast<std::byte*>(&length), sizeof(length)});
  if (!status.ok()) return status;
  if (length > kMaxHeaderBytes || length > size - kHeaderLengthBytes) {
    return absl::DataLossError(absl::StrCat(
        path, ": its header has ", length, " bytes; allowed: ", kMaxHeaderBytes, " and the file's ",
        size - kHeaderLengthBytes, ": it was cut off, or is no safetensors file"));
  }
  SafetensorsReader reader;
  reader.path_ = path;
  reader.head_.resize(kHeaderLengthBytes + length);
  status =
      (*file)->ReadAt(0, {reinterpret_cast<std::byte*>(reader.head_.data()), reader.head_.size()});
  if (!status.ok()) return status;
  absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader(path, std::string_view(reader.head_).substr(kHeaderLengthBytes),
                             size - kHeaderLengthBytes - length, unknown);
  if (!header.ok()) return header.status();
  reader.header_ = *std::move(header);
  for (size_t i = 0; i < reader.header_.tensors.size(); ++i) {
    reader.by_name_.emplace(reader.header_.tensors[i].name, i);
  }
  reader.file_ = *std::move(file);
  return reader;
}

const TensorInfo* SafetensorsReader::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

absl::Status SafetensorsReader::Read(const TensorInfo& tensor, uint64_t offset,
                                     absl::Span<std::byte> to) const {
  if (offset > tensor.bytes() || to.size() > tensor.bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": tensor ", Quoted(tensor.name), " has ",
                                              tensor.bytes(), " bytes, and bytes [", offset, ", ",
                                              offset + to.size(), ") are wanted"));
  }
  return file_->ReadAt(head_.size() + tensor.begin + offset, to);
}

}  // namespace verbena::checkpoint
