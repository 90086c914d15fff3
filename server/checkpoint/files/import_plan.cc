#include "server/checkpoint/files/import_plan.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/tensor_type.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {
namespace {

constexpr char kKeysSuffix[] = ".keys";
constexpr char kValuesSuffix[] = ".values";
constexpr char kDefaultJob[] = "default";
constexpr size_t kMostNamesSaid = 10;

bool IsInteger(TensorType type) {
  switch (type) {
    case TensorType::kU8:
    case TensorType::kI8:
    case TensorType::kI16:
    case TensorType::kU16:
    case TensorType::kI32:
    case TensorType::kU32:
    case TensorType::kI64:
    case TensorType::kU64:
      return true;
    default:
      return false;
  }
}

std::optional<v1::DType> DTypeOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return v1::DTYPE_F32;
    case TensorType::kBF16:
      return v1::DTYPE_BF16;
    case TensorType::kF16:
      return v1::DTYPE_F16;
    default:
      return std::nullopt;
  }
}

std::string ShapeOf(const SourceTensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.info->shape, ", "), "]");
}

absl::Status Bad(const SourceTensor& tensor, const std::string& is, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(Which(tensor), is, "; allowed: ", allowed));
}

// `name` without the suffix; none: it has another end.
std::optional<std::string> Without(const std::string& name, const std::string& suffix) {
  if (name.size() <= suffix.size() || !absl::EndsWith(name, suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

class Planner {
 public:
  Planner(const ImportOptions& options, ModelSource source)
      : options_(options), plan_{std::move(source), {}, 0} {
    for (const v1::TableSpec& spec : options.specs) specs_.emplace(spec.name(), &spec);
  }

  absl::StatusOr<ImportPlan> Run() {
    if (absl::Status status = ChooseJob(); !status.ok()) return status;
    for (const SourceTensor& tensor : plan_.source.tensors()) {
      if (absl::Status status = Add(tensor); !status.ok()) return status;
    }
    if (absl::Status status = CheckNamed(); !status.ok()) return status;
    for (const ImportedTable& table : plan_.tables) {
      for (const ArraySpec& array :
           table.spec.dim() > 0 ? RowArrays(table.spec, table.rows) : DenseArrays(table.spec)) {
        plan_.bytes += array.elements * BytesOf(*ParseType(array.dtype));
      }
    }
    return std::move(plan_);
  }

 private:
  absl::Status ChooseJob() {
    job_ = options_.job;
    if (!job_.empty()) return absl::OkStatus();
    for (const v1::TableSpec& spec : options_.specs) {
      if (spec.job().empty()) continue;
      if (job_.empty()) job_ = spec.job();
      if (spec.job() == job_) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "table ", Quoted(spec.name()), " is of job ", Quoted(spec.job()), ", and others are of ",
          Quoted(job_), "; allowed: one job for all tables (--job names it)"));
    }
    if (job_.empty()) job_ = kDefaultJob;
    return absl::OkStatus();
  }

  // The values of a pair whose keys this is, or the keys of one whose values; null: neither. Keys
  // are integers.
  const SourceTensor* ValuesOf(const SourceTensor& tensor) const {
    const std::optional<std::string> base = Without(tensor.info->name, kKeysSuffix);
    if (!base || !IsInteger(tensor.info->type)) return nullptr;
    return plan_.source.Find(absl::StrCat(*base, kValuesSuffix));
  }
  const SourceTensor* KeysOf(const SourceTensor& tensor) const {
    const std::optional<std::string> base = Without(tensor.info->name, kValuesSuffix);
    const SourceTensor* keys = base ? plan_.source.Find(absl::StrCat(*base, kKeysSuffix)) : nullptr;
    return keys != nullptr && IsInteger(keys->info->type) ? keys : nullptr;
  }

  // The specification of the table that the tensor becomes.
  const v1::TableSpec& SpecOf(const std::string& tensor) const {
    const auto renamed = options_.renamed.find(tensor);
    const auto spec = specs_.find(renamed == options_.renamed.end() ? tensor : renamed->second);
    return spec == specs_.end() ? options_.defaults : *spec->second;
  }

  // The array of a dense table's state that "T.ARRAY" is, beside a tensor T; none: no such array.
  std::optional<std::string> ArrayOf(const SourceTensor& tensor) const {
    const std::string& name = tensor.info->name;
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    const SourceTensor* parameters = plan_.source.Find(name.substr(0, dot));
    if (parameters == nullptr) return std::nullopt;
    const v1::TableSpec& spec = SpecOf(parameters->info->name);
    std::string array = name.substr(dot + 1);
    const std::vector<std::string> state = StateNames(spec.optimizer());
    const TensorType type = parameters->info->type;
    const bool narrow = spec.dtype() == v1::DTYPE_BF16 || spec.dtype() == v1::DTYPE_F16 ||
                        type == TensorType::kBF16 || type == TensorType::kF16;
    const bool is = std::find(state.begin(), state.end(), array) != state.end() ||
                    (array == kApplies && IsInteger(tensor.info->type)) ||
                    (array == kMaster && narrow);
    if (!is || spec.dim() > 0) return std::nullopt;
    return array;
  }

  // Sets table->arrays, of a normal specification.
  absl::Status SetArrays(ImportedTable* table) const {
    const std::string& name = table->values.info->name;
    for (const ArraySpec& array : DenseArrays(table->spec)) {
      const SourceTensor* tensor = plan_.source.Find(absl::StrCat(name, ".", array.name));
      if (tensor == nullptr || ArrayOf(*tensor) != array.name) continue;
      const bool count = array.name == kApplies;
      const TensorType type = tensor->info->type;
      if (count ? type != TensorType::kU64 && type != TensorType::kI64 : type != TensorType::kF32) {
        return Bad(*tensor, absl::StrCat(" has the type ", TypeName(type)),
                   count ? "U64, I64" : "F32, as the state of an optimizer");
      }
      if (tensor->info->shape != (count ? array.shape : table->values.info->shape)) {
        return Bad(*tensor, absl::StrCat(" has the shape ", ShapeOf(*tensor)),
                   count ? absl::StrCat("[", array.elements, "], a count for each chunk")
                         : absl::StrCat(ShapeOf(table->values), ", as ", Quoted(name), " has"));
      }
      table->arrays.emplace(array.name, *tensor);
    }
    std::vector<std::string> needed = StateNames(table->spec.optimizer());
    needed.emplace_back(kApplies);
    for (const std::string& array : needed) {
      if (table->arrays.empty() || table->arrays.contains(array)) continue;
      return Bad(table->values,
                 absl::StrCat(" has no ", Quoted(absl::StrCat(name, ".", array)), " beside ",
                              Quoted(table->arrays.begin()->second.info->name)),
                 absl::StrCat(absl::StrJoin(needed, ", "),
                              " together, or none; --skip leaves a "
                              "tensor out"));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const SourceTensor& tensor) {
    if (ArrayOf(tensor)) return absl::OkStatus();            // comes with its parameters
    if (KeysOf(tensor) != nullptr) return absl::OkStatus();  // comes with them
    const SourceTensor* values = ValuesOf(tensor);
    const std::string name =
        values != nullptr ? *Without(tensor.info->name, kKeysSuffix) : tensor.info->name;
    bases_.insert(name);
    const auto& wanted = options_.tables;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      return absl::OkStatus();
    }
    ImportedTable table;
    if (values != nullptr) table.keys = tensor;
    table.values = values != nullptr ? *values : tensor;
    if (absl::Status status = CheckName(tensor, name); !status.ok()) return status;
    const auto spec = specs_.find(name_);
    table.spec = spec == specs_.end() ? options_.defaults : *spec->second;
    table.spec.set_name(name_);
    table.spec.set_job(job_);
    const bool rows = values != nullptr || table.spec.dim() > 0;
    absl::Status status = rows ? SetRows(&table) : SetDense(&table);
    if (!status.ok()) return status;
    absl::StatusOr<v1::TableSpec> normal = NormalizeTableSpec(std::move(table.spec));
    if (!normal.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Which(tensor), ": ", std::string(normal.status().message())));
    }
    table.spec = *std::move(normal);
    if (!rows) status = SetArrays(&table);
    if (!status.ok()) return status;
    plan_.tables.push_back(std::move(table));
    return absl::OkStatus();
  }

  // Sets name_, the name of the table.
  absl::Status CheckName(const SourceTensor& tensor, const std::string& name) {
    const auto renamed = options_.renamed.find(name);
    name_ = renamed == options_.renamed.end() ? name : renamed->second;
    v1::TableSpec probe;  // nothing but its name can be wrong
    probe.set_name(name_);
    probe.set_job(kDefaultJob);
    probe.add_shape(1);
    const absl::Status status = NormalizeTableSpec(std::move(probe)).status();
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(Which(tensor), ": ",
                                                     std::string(status.message()),
                                                     "; --rename TENSOR=TABLE gives it another"));
    }
    const auto [there, added] = names_.emplace(name_, Which(tensor));
    if (added) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Which(tensor), " and ", there->second,
                                                   " would both be table ", Quoted(name_),
                                                   "; --rename gives one another name"));
  }

  // Whether its numbers can be a table's.
  absl::Status CheckType(const SourceTensor& tensor, const v1::TableSpec& spec) const {
    const absl::Status known = CheckKnownType(tensor.file->path(), *tensor.info);
    if (!known.ok()) {
      return absl::UnimplementedError(
          absl::StrCat(std::string(known.message()), "; --skip leaves a tensor out"));
    }
    const TensorType type = tensor.info->type;
    if (DTypeOf(type)) return absl::OkStatus();
    if (type != TensorType::kF64) {
      return Bad(tensor, absl::StrCat(" has the type ", TypeName(type)),
                 absl::StrCat("F32, BF16, F16, and F64 with --dtype; integers as the keys of "
                              "T.keys and T.values; --skip leaves a tensor out"));
    }
    if (spec.dtype() != v1::DTYPE_UNSPECIFIED || options_.dtype) return absl::OkStatus();
    return Bad(tensor, " has the type F64, which no table has",
               "F32, BF16, F16; --dtype f32 rounds it");
  }

  absl::Status SetDense(ImportedTable* table) const {
    const SourceTensor& tensor = table->values;
    v1::TableSpec& spec = table->spec;
    if (absl::Status status = CheckType(tensor, spec); !status.ok()) return status;
    if (spec.dtype() == v1::DTYPE_UNSPECIFIED) {
      spec.set_dtype(options_.dtype ? *options_.dtype : *DTypeOf(tensor.info->type));
    }
    std::vector<uint64_t> shape = tensor.info->shape;
    if (shape.empty()) shape.push_back(1);
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
      return Bad(tensor, absl::StrCat(" has the shape ", ShapeOf(tensor)),
                 "dimensions greater than 0; --skip leaves a tensor out");
    }
    if (spec.shape_size() > 0 &&
        !std::equal(shape.begin(), shape.end(), spec.shape().begin(), spec.shape().end())) {
      return Bad(tensor, absl::StrCat(" has the shape ", ShapeOf(tensor)),
                 absl::StrCat(ShapeString(spec), ", as in the specification of table ",
                              Quoted(spec.name())));
    }
    spec.mutable_shape()->Assign(shape.begin(), shape.end());
    return absl::OkStatus();
  }

  absl::Status SetRows(ImportedTable* table) const {
    const SourceTensor& values = table->values;
    const std::vector<uint64_t>& shape = values.info->shape;
    v1::TableSpec& spec = table->spec;
    std::string wanted = "[N, DIM], rows of the keys 0 to N - 1,";
    table->rows = shape.empty() ? 0 : shape[0];
    if (table->keys.file != nullptr) {
      const SourceTensor& keys = table->keys;
      if (keys.info->type != TensorType::kU64 && keys.info->type != TensorType::kI64) {
        return Bad(keys, absl::StrCat(" has the type ", TypeName(keys.info->type)), "U64, I64");
      }
      if (keys.info->shape.size() != 1) {
        return Bad(keys, absl::StrCat(" has the shape ", ShapeOf(keys)), "one dimension");
      }
      table->rows = keys.info->shape[0];
      wanted = absl::StrCat("[", table->rows, ", DIM], a row for each of ", Quoted(keys.info->name),
                            ",");
    }
    if (absl::Status status = CheckType(values, spec); !status.ok()) return status;
    if (shape.size() != 2 || shape[0] != table->rows || shape[1] == 0 ||
        shape[1] > kMaxRowElements) {
      return Bad(values, absl::StrCat(" has the shape ", ShapeOf(values)),
                 absl::StrCat(wanted, " with DIM in 1..", kMaxRowElements));
    }
    if ((spec.dim() != 0 && spec.dim() != shape[1]) || spec.shape_size() > 0) {
      return Bad(values, absl::StrCat(" has rows of ", shape[1]),
                 absl::StrCat("as in the specification of table ", Quoted(spec.name()), ": ",
                              spec.dim() != 0 ? absl::StrCat("dim ", spec.dim())
                                              : absl::StrCat("shape ", ShapeString(spec))));
    }
    spec.set_dim(static_cast<uint32_t>(shape[1]));
    return absl::OkStatus();
  }

  // Every named table has to exist.
  absl::Status CheckNamed() const {
    std::vector<std::string> named = options_.tables;
    for (const auto& [name, table] : options_.renamed) named.push_back(name);
    for (const std::string& name : named) {
      if (!bases_.contains(name)) return NotThere(absl::StrCat("table ", Quoted(name)));
    }
    for (const std::string& name : options_.skipped) {
      if (!plan_.source.Has(name)) return NotThere(absl::StrCat("tensor ", Quoted(name)));
    }
    for (const auto& [name, spec] : specs_) {
      if (!options_.tables.empty() || names_.contains(name)) continue;
      return NotThere(
          absl::StrCat("tensor for the table ", Quoted(name), ", which has a specification"));
    }
    if (!plan_.tables.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(options_.from, " has no tensors that become tables"));
  }

  absl::Status NotThere(const std::string& what) const {
    std::string known;
    size_t said = 0;
    for (const std::string& name : bases_) {
      if (said++ == kMostNamesSaid) {
        absl::StrAppend(&known, ", and ", bases_.size() - kMostNamesSaid, " more");
        break;
      }
      absl::StrAppend(&known, known.empty() ? "" : ", ", Quoted(name));
    }
    return absl::NotFoundError(absl::StrCat(options_.from, " has no ", what, "; it has: ", known));
  }

  const ImportOptions& options_;
  ImportPlan plan_;
  std::string job_;
  std::string name_;  // of the table at hand
  std::map<std::string, const v1::TableSpec*> specs_;
  std::set<std::string> bases_;               // tables of the source, wanted or not
  std::map<std::string, std::string> names_;  // of tables, and whose they are
};

}  // namespace

uint64_t ImportPlan::rows() const {
  uint64_t all = 0;
  for (const ImportedTable& table : tables) all += table.rows;
  return all;
}

absl::StatusOr<ImportPlan> PlanImport(Disk* disk, const ImportOptions& options) {
  absl::StatusOr<ModelSource> source = ModelSource::Open(disk, options.from, options.skipped);
  if (!source.ok()) return source.status();
  return Planner(options, *std::move(source)).Run();
}

absl::StatusOr<std::vector<v1::TableSpec>> ReadTableSpecs(Disk* disk, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWhole(disk, path, kMaxManifestBytes);
  if (!text.ok()) return text.status();
  v1::CheckpointManifest manifest;
  if (!ManifestChecksum(*text).empty()) {
    absl::StatusOr<v1::CheckpointManifest> whole = ParseManifest(path, *text);
    if (!whole.ok()) return whole.status();
    manifest = *std::move(whole);
  } else {
    const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &manifest);
    if (!parsed.ok()) {
      const std::string why(parsed.message());
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", Quoted(why), "; allowed: {\"tables\": [{\"spec\": {\"name\": ...}}, ...]}"));
    }
  }
  std::vector<v1::TableSpec> specs;
  std::set<std::string> names;
  for (const v1::CheckpointTable& table : manifest.tables()) {
    const std::string& name = table.spec().name();
    if (name.empty() || !names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tables[", specs.size(), "].spec.name is ", Quoted(name),
                       name.empty() ? "; allowed: the name of a table" : ", as another one's is"));
    }
    specs.push_back(table.spec());
  }
  return specs;
}

}  // namespace verbena::checkpoint
