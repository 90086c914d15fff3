#include "server/checkpoint/files/manifest.h"

#include <google/protobuf/util/json_util.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/manifest_check.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {
namespace {

namespace util = google::protobuf::util;

// The text before and after the checksum. Protobuf indents by one space.
constexpr std::string_view kBefore = ",\n \"checksum\": \"";
constexpr std::string_view kAfter = "\"\n}\n";
constexpr size_t kHashBytes = 16;

absl::Status NoManifest(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", std::string(what)));
}

// The program and version that wrote a manifest: two members of the outermost object, which are
// equal in all versions. The rest is skipped: it may be large, and of a later version anything.
class VersionHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  uint64_t version() const { return version_; }
  const std::string& writer() const { return writer_; }

  bool key(string_t& text) override {
    if (depth_ == 1) member_ = text;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 1 && member_ == "format_version") version_ = value;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 1 && member_ == "written_by") writer_ = text;
    return true;
  }
  bool start_object(size_t) override { return Enter(1); }
  bool end_object() override { return Enter(-1); }
  bool start_array(size_t) override { return Enter(1); }
  bool end_array() override { return Enter(-1); }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool Enter(int by) {
    depth_ += by;
    return true;
  }
  int depth_ = 0;
  std::string member_, writer_;
  uint64_t version_ = 0;
};

absl::Status CheckVersion(const std::string& path, const std::string& json) {
  VersionHandler handler;
  if (!nlohmann::json::sax_parse(json, &handler)) return NoManifest(path, "is not JSON");
  if (handler.version() == 0) return NoManifest(path, "has no format_version");
  if (handler.version() <= kFormatVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " has format_version ", handler.version(), ", written by ", Quoted(handler.writer()),
      "; this program reads versions up to ", kFormatVersion, ": use a newer one"));
}

uint64_t BlockBytes(const DenseLayout& layout, uint64_t element_bytes) {
  return uint64_t{layout.chunk_elements} * element_bytes;
}

}  // namespace

std::string ManifestChecksum(std::string_view text) {
  const size_t tail = kBefore.size() + kHashBytes + kAfter.size();
  if (text.size() < tail || text.substr(text.size() - kAfter.size()) != kAfter ||
      text.substr(text.size() - tail, kBefore.size()) != kBefore) {
    return "";
  }
  const std::string_view hash = text.substr(text.size() - kAfter.size() - kHashBytes, kHashBytes);
  return IsHashText(hash) ? std::string(hash) : "";
}

absl::StatusOr<std::string> ManifestText(const v1::CheckpointManifest& manifest) {
  v1::CheckpointManifest copy = manifest;
  copy.set_format_version(kFormatVersion);
  if (absl::Status status = CheckManifest(copy); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kManifestName, ": ", std::string(status.message())));
  }
  util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = util::MessageToJsonString(copy, &json, options);
  const size_t end = json.rfind("\n}");
  if (!printed.ok() || end == std::string::npos) {
    return absl::InternalError(
        absl::StrCat("a manifest cannot be printed: ", std::string(printed.message())));
  }
  json.resize(end);
  // The comma and the line's end are before the line of the checksum.
  const std::string hash = HashText(json + ",\n");
  return absl::StrCat(json, std::string(kBefore), hash, std::string(kAfter));
}

absl::StatusOr<v1::CheckpointManifest> ParseManifest(const std::string& path,
                                                     std::string_view text) {
  const std::string checksum = ManifestChecksum(text);
  if (checksum.empty()) {
    return NoManifest(path, "does not end with its checksum: it was cut off, or is no manifest");
  }
  const std::string_view body =
      text.substr(0, text.size() - kBefore.size() - kHashBytes - kAfter.size());
  const std::string found = HashText(absl::StrCat(std::string(body), ",\n"));
  if (found != checksum) {
    return NoManifest(path, absl::StrCat("its checksum is ", found, ", and it records ", checksum,
                                         ": it was changed since it was written"));
  }
  const std::string json = absl::StrCat(std::string(body), "\n}");
  if (absl::Status status = CheckVersion(path, json); !status.ok()) return status;
  v1::CheckpointManifest manifest;
  const auto parsed = util::JsonStringToMessage(json, &manifest);
  if (!parsed.ok()) {
    const std::string why(parsed.message());
    return NoManifest(path, absl::StrCat("is no manifest: ", Quoted(why)));
  }
  if (absl::Status status = CheckManifest(manifest); !status.ok()) {
    return NoManifest(path, std::string(status.message()));
  }
  return manifest;
}

namespace {

// The same list as in registry.cc in shard/optimizer; a test compares.
const std::map<std::string, std::vector<std::string>>& Optimizers() {
  static const auto& names =
      *new std::map<std::string, std::vector<std::string>>{{"adagrad", {"sum"}},
                                                           {"adam", {"exp_avg", "exp_avg_sq"}},
                                                           {"adamw", {"exp_avg", "exp_avg_sq"}},
                                                           {"ftrl", {"z", "n"}},
                                                           {"lamb", {"exp_avg", "exp_avg_sq"}},
                                                           {"momentum", {"momentum_buffer"}},
                                                           {"nesterov", {"momentum_buffer"}},
                                                           {"rmsprop", {"square_avg"}},
                                                           {"rowwise_adagrad", {"sum"}},
                                                           {"sgd", {}}};
  return names;
}

}  // namespace

bool IsKnownOptimizer(const std::string& name) { return Optimizers().contains(name); }

std::vector<std::string> StateNames(const v1::Optimizer& optimizer) {
  const auto found = Optimizers().find(optimizer.name());
  return found == Optimizers().end() ? std::vector<std::string>{} : found->second;
}

std::vector<std::string> StateArrays(const v1::TableSpec& spec) {
  if (spec.dim() > 0) return {};
  std::vector<std::string> names = StateNames(spec.optimizer());
  if (spec.dtype() != v1::DTYPE_F32) names.emplace_back(kMaster);
  return names;
}

bool StateIsRowWise(const v1::Optimizer& optimizer) {
  return optimizer.name() == "rowwise_adagrad";
}

std::vector<ArraySpec> DenseArrays(const v1::TableSpec& spec) {
  const DenseLayout layout = LayoutOf(spec);
  const std::vector<uint64_t> shape(spec.shape().begin(), spec.shape().end());
  std::vector<ArraySpec> arrays = {{kParameters, TypeName(TypeOf(spec.dtype())), shape,
                                    layout.elements, BlockBytes(layout, layout.parameter_bytes)}};
  const auto add = [&](const std::string& name) {
    arrays.push_back({name, "F32", shape, layout.elements, BlockBytes(layout, sizeof(float))});
  };
  if (spec.dtype() != v1::DTYPE_F32) add(kMaster);
  for (const std::string& name : StateNames(spec.optimizer())) add(name);
  arrays.push_back({kApplies, "U64", {layout.chunks()}, layout.chunks(), 0});
  return arrays;
}

std::vector<ArraySpec> RowArrays(const v1::TableSpec& spec, uint64_t rows) {
  const uint64_t dim = spec.dim();
  std::vector<ArraySpec> arrays = {{kKeys, "U64", {rows}, rows, 0},
                                   {kValues, "F32", {rows, dim}, rows * dim, 0},
                                   {kApplies, "U32", {rows}, rows, 0}};
  for (const std::string& name : StateNames(spec.optimizer())) {
    if (StateIsRowWise(spec.optimizer())) {
      arrays.push_back({name, "F32", {rows}, rows, 0});
    } else {
      arrays.push_back({name, "F32", {rows, dim}, rows * dim, 0});
    }
  }
  return arrays;
}

std::string DenseTensorName(const std::string& table, const std::string& array) {
  return array == kParameters ? table : absl::StrCat(table, ".", array);
}

}  // namespace verbena::checkpoint
