#include "server/checkpoint/files/export.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "proto/base/json.h"
#include "proto/spec/spec_text.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/npy.h"
#include "server/checkpoint/files/safetensors.h"

namespace verbena::checkpoint {
namespace {

// Table names have slashes, and may begin with a dot; no table's name has a '%'.
std::string FileNameOf(const std::string& tensor) {
  std::string name = absl::StrReplaceAll(tensor, {{"/", "%2F"}});
  if (name.front() == '.') name.replace(0, 1, "%2E");
  return name;
}

bool IsServed(const std::string& array) {
  return array == kParameters || array == kValues || array == kKeys;
}

// An output file, and its tensors.
struct PlannedOutput {
  std::string name;
  std::vector<size_t> tensors;  // of the plan, in the order of their bytes
};

std::vector<PlannedOutput> CutOutputs(const std::vector<ExportedTensor>& plan, bool model,
                                      uint64_t most) {
  std::vector<PlannedOutput> outputs;
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    if ((plan[i].array == kParameters) != model) continue;
    if (outputs.empty() || bytes + plan[i].bytes() > most) {
      outputs.emplace_back();
      bytes = 0;
    }
    outputs.back().tensors.push_back(i);
    bytes += plan[i].bytes();
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].name = absl::StrFormat("%s-%05d-of-%05d.safetensors", model ? "model" : "other",
                                      i + 1, outputs.size());
  }
  return outputs;
}

std::vector<PlannedOutput> PlanOutputs(const std::vector<ExportedTensor>& plan,
                                       const ExportOptions& options) {
  std::vector<PlannedOutput> outputs;
  switch (options.format) {
    case ExportFormat::kSafetensors:
      outputs.push_back({BaseName(options.to), {}});
      for (size_t i = 0; i < plan.size(); ++i) outputs[0].tensors.push_back(i);
      break;
    case ExportFormat::kSharded: {
      const uint64_t most = options.file_bytes == 0 ? kDefaultFileBytes : options.file_bytes;
      outputs = CutOutputs(plan, true, most);
      for (PlannedOutput& output : CutOutputs(plan, false, most)) {
        outputs.push_back(std::move(output));
      }
      break;
    }
    case ExportFormat::kNpy:
      for (size_t i = 0; i < plan.size(); ++i) {
        outputs.push_back({FileNameOf(plan[i].name) + ".npy", {i}});
      }
      break;
  }
  return outputs;
}

class Exporter {
 public:
  Exporter(Disk* disk, const CheckpointReader& reader, const ExportOptions& options,
           const std::vector<ExportedTensor>& plan, const CheckpointReader::Progress& written)
      : disk_(disk), reader_(reader), options_(options), plan_(plan), written_(written) {
    temporary_ = absl::StrCat(options.to, ".tmp");
    places_.resize(plan.size());
    for (size_t i = 0; i < plan.size(); ++i) of_table_[plan[i].table].push_back(i);
  }

  absl::StatusOr<ExportReport> Run() {
    if (absl::Status status = Check(); !status.ok()) return status;
    absl::Status status = Make();
    if (status.ok()) status = Fill();
    if (status.ok()) status = Finish();
    if (status.ok()) return report_;
    // Report the first error. Files that cannot be removed have a name that marks them as
    // unfinished.
    files_.clear();
    if (made_) (void)(one_file() ? disk_->Remove(temporary_) : RemoveTree(disk_, temporary_));
    return status;
  }

 private:
  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
  };

  bool one_file() const { return options_.format == ExportFormat::kSafetensors; }

  absl::Status Check() const {
    for (const std::string& path : {options_.to, temporary_}) {
      const absl::StatusOr<std::unique_ptr<ReadableFile>> file = disk_->Open(path);
      if (absl::IsNotFound(file.status())) continue;
      // An error of another kind than "a directory" will come again, with its own words.
      if (!file.ok() && !absl::IsFailedPrecondition(file.status())) return file.status();
      return absl::AlreadyExistsError(
          absl::StrCat(path, " is there; remove it, or name another place"));
    }
    return absl::OkStatus();
  }

  absl::Status Make() {
    if (!one_file()) {
      if (absl::Status status = disk_->MakeDirectory(temporary_); !status.ok()) return status;
      made_ = true;
    }
    for (PlannedOutput& output : PlanOutputs(plan_, options_)) {
      const std::string path = one_file() ? temporary_ : Join(temporary_, output.name);
      absl::StatusOr<std::unique_ptr<WritableFile>> file = disk_->Create(path);
      if (!file.ok()) return file.status();
      made_ = true;
      files_.push_back(*std::move(file));
      report_.files.push_back(output.name);
      const absl::Status status = WriteHead(&output);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status WriteHead(PlannedOutput* output) {
    std::string head;
    uint64_t size = 0;
    if (options_.format == ExportFormat::kNpy) {
      const ExportedTensor& tensor = plan_[output->tensors[0]];
      head = NpyHeader(tensor.type, tensor.shape);
      places_[output->tensors[0]] = {files_.size() - 1, head.size()};
      size = head.size() + tensor.bytes();
    } else {
      // Wide types first, so that all are aligned.
      std::stable_sort(output->tensors.begin(), output->tensors.end(), [&](size_t a, size_t b) {
        return BytesOf(plan_[a].type) > BytesOf(plan_[b].type);
      });
      std::vector<TensorInfo> infos;
      for (const size_t i : output->tensors) {
        infos.push_back({plan_[i].name, plan_[i].type, plan_[i].shape, 0, 0});
      }
      absl::StatusOr<std::string> made = MakeSafetensorsHeader(&infos, {{"format", "pt"}});
      if (!made.ok()) return made.status();
      head = *std::move(made);
      for (size_t k = 0; k < infos.size(); ++k) {
        places_[output->tensors[k]] = {files_.size() - 1, head.size() + infos[k].begin};
        if (plan_[output->tensors[k]].array == kParameters) {
          index_.Add(infos[k].name, output->name);
          index_bytes_ += infos[k].bytes();
        }
      }
      size = head.size() + (infos.empty() ? 0 : infos.back().end);
    }
    report_.tensors += output->tensors.size();
    report_.bytes += size - head.size();
    absl::Status status = files_.back()->Reserve(size);
    if (status.ok()) {
      status =
          files_.back()->WriteAt(0, {reinterpret_cast<const std::byte*>(head.data()), head.size()});
    }
    return status;
  }

  // Elements of tensor i, from element `first` on.
  absl::Status Put(size_t i, uint64_t first, absl::Span<const std::byte> bytes) {
    const ExportedTensor& tensor = plan_[i];
    absl::Span<const std::byte> out = bytes;
    if (tensor.from != tensor.type) {
      converted_.resize(bytes.size() / BytesOf(tensor.from) * BytesOf(tensor.type));
      ConvertNumbers(tensor.from, bytes, tensor.type, absl::MakeSpan(converted_));
      const auto large = FindTooLarge(tensor.from, bytes, tensor.type, converted_);
      if (large) {
        return absl::InvalidArgumentError(
            absl::StrCat("table ", Quoted(tensor.table), ": element ", first + large->index, " of ",
                         tensor.array, " is ", Number(large->number), ", too large for ",
                         TypeName(tensor.type), "; --dtype names another type, such as BF16"));
      }
      out = converted_;
    }
    const Place& place = places_[i];
    const absl::Status status =
        files_[place.file]->WriteAt(place.offset + first * BytesOf(tensor.type), out);
    return status.ok() ? written_(out.size()) : status;
  }

  absl::Status Fill() {
    std::set<std::string> done;
    for (size_t i = 0; i < plan_.size(); ++i) {
      const std::string& table = plan_[i].table;
      absl::Status status;
      if (reader_.FindTable(table)->spec().dim() > 0) {
        if (done.insert(table).second) status = FillRows(table);
      } else {
        status = reader_.ReadArray(table, plan_[i].array,
                                   [&](uint64_t first, absl::Span<const std::byte> bytes) {
                                     return Put(i, first, bytes);
                                   });
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status FillRows(const std::string& table) {
    const std::vector<ArraySpec> arrays = RowArrays(reader_.FindTable(table)->spec(), 1);
    const std::vector<size_t>& planned = of_table_[table];
    uint64_t row = 0;
    return reader_.ReadRows(table, [&](const RowBatch& batch) {
      for (size_t c = 0; c < arrays.size(); ++c) {
        for (const size_t i : planned) {
          if (plan_[i].array != arrays[c].name) continue;
          const absl::Status status = Put(i, row * arrays[c].elements, batch.columns[c]);
          if (!status.ok()) return status;
        }
      }
      row += batch.count;
      return absl::OkStatus();
    });
  }

  absl::Status Finish() {
    for (const std::unique_ptr<WritableFile>& file : files_) {
      absl::Status status = file->Sync();
      if (status.ok()) status = file->Close();
      if (!status.ok()) return status;
    }
    absl::Status status;
    if (options_.format == ExportFormat::kSharded) {
      JsonWriter metadata, index;
      metadata.Add("total_size", index_bytes_);
      index.Add("metadata", metadata);
      index.Add("weight_map", index_);
      status = WriteWhole(disk_, Join(temporary_, kIndexName), index.ToString() + "\n");
      report_.files.emplace_back(kIndexName);
    }
    if (status.ok() && !one_file()) status = disk_->SyncDirectory(temporary_);
    if (status.ok()) status = disk_->Rename(temporary_, options_.to);
    if (!status.ok()) return status;
    made_ = false;
    return disk_->SyncDirectory(ParentOf(options_.to));
  }

  Disk* const disk_;
  const CheckpointReader& reader_;
  const ExportOptions& options_;
  const std::vector<ExportedTensor>& plan_;
  const CheckpointReader::Progress& written_;
  std::string temporary_;
  bool made_ = false;
  std::vector<std::unique_ptr<WritableFile>> files_;
  std::vector<Place> places_;
  std::map<std::string, std::vector<size_t>> of_table_;  // places in the plan
  std::vector<std::byte> converted_;
  JsonWriter index_;
  uint64_t index_bytes_ = 0;
  ExportReport report_;
};

absl::Status AddTensor(const ExportOptions& options, const std::string& table,
                       const ArraySpec& array, bool rows, std::vector<ExportedTensor>* plan) {
  if (!options.optimizer && !IsServed(array.name)) return absl::OkStatus();
  const auto renamed = options.renamed.find(table);
  const std::string& base = renamed == options.renamed.end() ? table : renamed->second;
  ExportedTensor tensor;
  tensor.name = rows ? absl::StrCat(base, ".", array.name) : DenseTensorName(base, array.name);
  tensor.table = table;
  tensor.array = array.name;
  tensor.from = tensor.type = *ParseType(array.dtype);
  tensor.shape = array.shape;
  tensor.elements = array.elements;
  if (options.dtype && (array.name == kParameters || array.name == kValues)) {
    tensor.type = *options.dtype;
  }
  if (!CanConvert(tensor.from, tensor.type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", Quoted(table), ": ", TypeName(tensor.from), " cannot become ",
                     TypeName(tensor.type), "; allowed: F64, F32, F16, BF16"));
  }
  if (options.format == ExportFormat::kNpy && NpyHeader(tensor.type, {}).empty()) {
    // Exact.
    if (!options.dtype) {
      tensor.type = TensorType::kF32;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("NumPy has no ", TypeName(tensor.type), "; allowed: F64, F32, F16"));
    }
  }
  plan->push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status CheckNames(const CheckpointReader& reader, const ExportOptions& options) {
  std::vector<std::string> named = options.tables;
  for (const auto& [table, name] : options.renamed) {
    named.push_back(table);
    if (name.empty() || name.front() == '%') {
      return absl::InvalidArgumentError(
          absl::StrCat("table ", Quoted(table), " cannot be called ", Quoted(name)));
    }
  }
  for (const std::string& table : named) {
    if (reader.FindTable(table) != nullptr) continue;
    std::string known;
    for (const v1::CheckpointTable& t : reader.manifest().tables()) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", t.spec().name());
    }
    return absl::NotFoundError(
        absl::StrCat(reader.path(), " has no table ", Quoted(table), "; it has: ", known));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ExportedTensor>> PlanExport(const CheckpointReader& reader,
                                                       const ExportOptions& options) {
  if (absl::Status status = CheckNames(reader, options); !status.ok()) return status;
  std::vector<ExportedTensor> plan;
  const std::set<std::string> named(options.tables.begin(), options.tables.end());
  for (const v1::CheckpointTable& table : reader.manifest().tables()) {
    const std::string& name = table.spec().name();
    if (!named.empty() && !named.contains(name)) continue;
    const bool dense = table.spec().dim() == 0;
    const absl::StatusOr<uint64_t> rows =
        dense ? absl::StatusOr<uint64_t>(0) : reader.CountRows(name);
    if (!rows.ok()) return rows.status();
    for (const ArraySpec& array :
         dense ? DenseArrays(table.spec()) : RowArrays(table.spec(), *rows)) {
      const absl::Status status = AddTensor(options, name, array, !dense, &plan);
      if (!status.ok()) return status;
    }
  }
  std::set<std::string> names;
  for (const ExportedTensor& tensor : plan) {
    if (names.insert(tensor.name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("two arrays would be called ",
                                                   Quoted(tensor.name),
                                                   "; give a table another name (--rename)"));
  }
  return plan;
}

absl::StatusOr<ExportReport> Export(Disk* disk, const CheckpointReader& reader,
                                    const ExportOptions& options,
                                    const std::vector<ExportedTensor>& plan,
                                    const CheckpointReader::Progress& written) {
  return Exporter(disk, reader, options, plan, written).Run();
}

}  // namespace verbena::checkpoint
