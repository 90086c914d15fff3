#include "tests/server/checkpoint/checkpoint_fixture.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/row_writer.h"
#include "server/checkpoint/files/tensor_file.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint::test {
namespace {

constexpr size_t kRows = 40;  // of a table, at first

v1::TableSpec Spec(const std::string& name, const std::vector<uint64_t>& shape, uint32_t dim,
                   v1::DType dtype, const std::string& optimizer) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("demo");
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  spec.set_dim(dim);
  spec.set_dtype(dtype);
  spec.set_chunk_bytes(256);
  spec.mutable_optimizer()->set_name(optimizer);
  spec.mutable_optimizer()->set_rate(0.1);
  spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec.mutable_initializer()->set_b(0.25);
  spec.mutable_initializer()->set_seed(0x8000000000000001u);
  return *NormalizeTableSpec(spec);
}

uint64_t ElementBytes(const ArraySpec& array) { return BytesOf(*ParseType(array.dtype)); }

// A dense table's chunks to a file, in random order, as shards come by them.
absl::Status WriteTensor(TensorFileWriter* writer, size_t index, const v1::CheckpointTensor& tensor,
                         const Bytes& content, std::mt19937_64* random) {
  const uint64_t element = BytesOf(*ParseType(tensor.dtype()));
  Bytes part;
  if (tensor.ranges().empty()) part = content;
  for (const auto& range : tensor.ranges()) {
    const auto from = content.begin() + static_cast<ptrdiff_t>(range.first() * element);
    part.insert(part.end(), from, from + static_cast<ptrdiff_t>(range.count() * element));
  }
  const uint64_t block = tensor.block_bytes();
  if (block == 0) return writer->Append(index, part);
  std::vector<uint64_t> order;
  for (uint64_t b = 0; b * block < part.size(); ++b) order.push_back(b);
  std::shuffle(order.begin(), order.end(), *random);
  for (const uint64_t b : order) {
    const size_t bytes = std::min<uint64_t>(block, part.size() - b * block);
    const absl::Status status =
        writer->WriteBlock(index, b, absl::MakeConstSpan(part).subspan(b * block, bytes));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

class CheckpointTask {
 public:
  CheckpointTask(Disk* disk, std::string path, const Model& model,
                 const CheckpointStartOptions& options)
      : disk_(disk), path_(std::move(path)), model_(model), options_(options), random_(model.step) {
    manifest_.set_written_by("test");
    manifest_.set_job(options.job);
    manifest_.set_step(model.step);
    manifest_.set_partitions(kModelPartitions);
    for (const v1::TableSpec& spec : model.specs) {
      *manifest_.add_tables()->mutable_spec() = spec;
      manifest_.mutable_tables()->rbegin()->set_steps(model.step);
      const auto id = model.ids.find(spec.name());
      manifest_.mutable_tables()->rbegin()->set_id(id == model.ids.end() ? 0 : id->second);
    }
    if (options.base != nullptr) {
      manifest_.mutable_base()->set_name(options.base->name);
      manifest_.mutable_base()->set_checksum(options.base->checksum);
    }
  }

  absl::StatusOr<v1::CheckpointManifest> Run() {
    for (PlannedFile& file : Plan()) {
      if (absl::Status status = WriteDense(file); !status.ok()) return status;
    }
    for (int i = 0; i < manifest_.tables_size(); ++i) {
      if (manifest_.tables(i).spec().dim() == 0) continue;
      if (absl::Status status = WriteRows(i); !status.ok()) return status;
    }
    const std::string index = IndexText(manifest_);
    if (index.empty()) return manifest_;
    const auto entry = WritePlainFile(disk_, path_, kIndexName, index);
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *entry;
    return manifest_;
  }

 private:
  std::vector<PlannedFile> Plan() const {
    if (!options_.slices) return PlanDense(model_.specs, options_.file_bytes, options_.writers);
    std::vector<PlannedFile> files;
    for (size_t w = 0; w < options_.writers; ++w) {
      size_t number = 0;
      for (const v1::TableSpec& spec : model_.specs) {
        std::vector<uint32_t> chunks;
        const uint32_t all = spec.dim() > 0 ? 0 : LayoutOf(spec).chunks();
        for (uint32_t c = static_cast<uint32_t>(w); c < all; c += options_.writers) {
          chunks.push_back(c);
        }
        if (chunks.empty()) continue;
        files.push_back({PartitionFileName(w, ++number), w, PartitionTensors(spec, chunks, w), 0});
      }
    }
    return files;
  }

  absl::Status WriteDense(const PlannedFile& file) {
    auto writer = TensorFileWriter::Create(disk_, Join(path_, file.name), file.tensors);
    if (!writer.ok()) return writer.status();
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      const v1::CheckpointTensor& tensor = file.tensors[i];
      const absl::Status status = WriteTensor(
          writer->get(), i, tensor, model_.dense.at(tensor.table()).at(tensor.array()), &random_);
      if (!status.ok()) return status;
    }
    auto entry = (*writer)->Finish();
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *entry;
    return absl::OkStatus();
  }

  absl::Status WriteRows(int index) {
    v1::CheckpointTable* table = manifest_.mutable_tables(index);
    const v1::TableSpec& spec = table->spec();
    const bool all = options_.base == nullptr;
    std::map<uint64_t, Bytes> rows = (all ? model_.rows : model_.changed).at(spec.name());
    for (const uint32_t partition : options_.whole) table->add_whole_partitions(partition);
    for (const auto& [key, content] : model_.rows.at(spec.name())) {
      if (options_.whole.contains(PartitionOf(model_, spec.name(), key))) rows[key] = content;
    }
    table->set_rows(rows.size());
    const std::vector<ArraySpec> arrays = RowArrays(spec, 1);
    for (size_t w = 0; w < options_.writers; ++w) {
      std::vector<Bytes> columns(arrays.size());
      uint64_t count = 0;
      for (const auto& [key, content] : rows) {
        if (key % options_.writers != w) continue;
        ++count;
        const auto* bytes = reinterpret_cast<const std::byte*>(&key);
        columns[0].insert(columns[0].end(), bytes, bytes + sizeof(key));
        auto from = content.begin();
        for (size_t c = 1; c < arrays.size(); ++c) {
          const auto end =
              from + static_cast<ptrdiff_t>(arrays[c].elements * ElementBytes(arrays[c]));
          columns[c].insert(columns[c].end(), from, end);
          from = end;
        }
      }
      RowWriter writer(disk_, path_, spec, static_cast<size_t>(index), w, count,
                       options_.file_bytes / 4);
      const std::vector<absl::Span<const std::byte>> spans(columns.begin(), columns.end());
      if (absl::Status status = writer.Append(count, spans); !status.ok()) return status;
      auto files = writer.Finish();
      if (!files.ok()) return files.status();
      for (const v1::CheckpointFile& file : *files) *manifest_.add_files() = file;
    }
    return absl::OkStatus();
  }

  Disk* const disk_;
  const std::string path_;
  const Model& model_;
  const CheckpointStartOptions& options_;
  std::mt19937_64 random_;
  v1::CheckpointManifest manifest_;
};

std::string DenseDiffers(const CheckpointReader& reader, const Model& model,
                         const v1::TableSpec& spec) {
  for (const auto& [array, content] : model.dense.at(spec.name())) {
    Bytes found(content.size());
    const size_t element = array == kApplies      ? 8
                           : array == kParameters ? BytesOf(TypeOf(spec.dtype()))
                                                  : 4;
    const absl::Status status = reader.ReadArray(
        spec.name(), array, [&](uint64_t first, absl::Span<const std::byte> bytes) {
          if (first * element + bytes.size() > found.size()) return absl::InternalError("too long");
          std::memcpy(found.data() + first * element, bytes.data(), bytes.size());
          return absl::OkStatus();
        });
    if (!status.ok()) return status.ToString();
    if (found != content) return absl::StrCat(spec.name(), ".", array, " has other bits");
  }
  return "";
}

std::string RowsDiffer(const CheckpointReader& reader, const Model& model,
                       const v1::TableSpec& spec) {
  std::map<uint64_t, Bytes> found;
  bool twice = false;
  const absl::Status status = reader.ReadRows(spec.name(), [&](const RowBatch& batch) {
    for (uint64_t r = 0; r < batch.count; ++r) {
      Bytes row;
      for (size_t c = 1; c < batch.columns.size(); ++c) {
        const size_t bytes = batch.columns[c].size() / batch.count;
        const auto part = batch.columns[c].subspan(r * bytes, bytes);
        row.insert(row.end(), part.begin(), part.end());
      }
      twice |= !found.emplace(batch.keys()[r], std::move(row)).second;
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status.ToString();
  if (twice) return absl::StrCat(spec.name(), " has a key twice");
  return found == model.rows.at(spec.name()) ? "" : absl::StrCat(spec.name(), " has other rows");
}

}  // namespace

Bytes Model::Random(size_t bytes) {
  Bytes content(bytes);
  for (std::byte& byte : content) byte = static_cast<std::byte>(random());
  return content;
}

Model::Model(uint64_t seed) : random(seed) {
  specs = {Spec("tower/w", {37, 20}, 0, v1::DTYPE_F32, "adam"),
           Spec("items", {}, 4, v1::DTYPE_F32, "adagrad"),
           Spec("tower/bias", {5}, 0, v1::DTYPE_BF16, "momentum"),
           Spec("users", {}, 3, v1::DTYPE_F32, "rowwise_adagrad"),
           Spec("head", {130}, 0, v1::DTYPE_F16, "sgd")};
  Train();
}

Model Model::OfManyTables(uint64_t seed, size_t tables) {
  Model model(seed);
  model.specs.clear();
  model.dense.clear();
  model.rows.clear();
  model.changed.clear();
  for (size_t i = 0; i < tables; ++i) {
    model.specs.push_back(Spec(absl::StrCat("many/", i), {130}, 0, v1::DTYPE_F16, "sgd"));
  }
  model.Train();
  return model;
}

void Model::Train() {
  ++step;
  for (const v1::TableSpec& spec : specs) {
    if (spec.dim() == 0) {
      for (const ArraySpec& array : DenseArrays(spec)) {
        dense[spec.name()][array.name] = Random(array.elements * ElementBytes(array));
      }
      continue;
    }
    auto& table = rows[spec.name()];
    auto& changes = changed[spec.name()];
    changes.clear();
    size_t bytes = 0;
    for (const ArraySpec& array : RowArrays(spec, 1)) bytes += array.elements * ElementBytes(array);
    for (const auto& [key, content] : table) {
      if (random() % 4 == 0) changes[key] = Random(bytes - sizeof(uint64_t));
    }
    const size_t more = table.empty() ? kRows : 3;
    for (size_t i = 0; i < more; ++i) changes[random()] = Random(bytes - sizeof(uint64_t));
    for (const auto& [key, content] : changes) table[key] = content;
  }
}

uint32_t PartitionOf(const Model& model, const std::string& table, uint64_t key) {
  const auto id = model.ids.find(table);
  return PartitionOfKey(id == model.ids.end() ? 0 : id->second, key, kModelPartitions);
}

void MakeVersion1(Disk* disk, const std::string& path) {
  const std::string name = Join(path, kManifestName);
  std::string text = *ReadWhole(disk, name, kMaxManifestBytes);
  // The last member of a tensor: the comma before it goes, too.
  for (size_t at = text.find("\"block_xxh3\""); at != std::string::npos;
       at = text.find("\"block_xxh3\"")) {
    const size_t comma = text.rfind(',', at);
    text.erase(comma, text.find('\n', at) - comma);
  }
  const std::string version = "\"format_version\": 2";
  text.replace(text.find(version), version.size(), "\"format_version\": 1");
  const size_t line = text.rfind(" \"checksum\"");
  text = absl::StrCat(text.substr(0, line), " \"checksum\": \"", HashText(text.substr(0, line)),
                      "\"\n}\n");
  // Written beside it: a file is created once.
  (void)disk->Remove(name);
  (void)WriteWhole(disk, name, text);
}

absl::StatusOr<std::string> Save(Disk* disk, CheckpointDirectory* directory, const Model& model,
                                 const CheckpointStartOptions& options) {
  const absl::StatusOr<std::string> path = directory->Begin();
  if (!path.ok()) return path.status();
  const auto manifest = CheckpointTask(disk, *path, model, options).Run();
  absl::StatusOr<std::string> name =
      manifest.ok() ? directory->Commit(*manifest) : absl::StatusOr<std::string>(manifest.status());
  if (!name.ok()) (void)directory->Abandon();
  return name;
}

absl::StatusOr<std::string> Save(Disk* disk, const std::string& root, const Model& model,
                                 const CheckpointStartOptions& options) {
  const auto directory = CheckpointDirectory::Open(disk, root);
  if (!directory.ok()) return directory.status();
  return Save(disk, directory->get(), model, options);
}

std::string Differs(const CheckpointReader& reader, const Model& model) {
  const absl::Status verified = reader.Verify([](uint64_t) { return absl::OkStatus(); });
  if (!verified.ok()) return verified.ToString();
  if (reader.manifest().step() != model.step) return "is of another step";
  for (const v1::TableSpec& spec : model.specs) {
    const std::string differs =
        spec.dim() == 0 ? DenseDiffers(reader, model, spec) : RowsDiffer(reader, model, spec);
    if (!differs.empty()) return differs;
  }
  return "";
}

std::string Differs(Disk* disk, const std::string& path, const Model& model) {
  const auto reader = CheckpointReader::Open(disk, path);
  return reader.ok() ? Differs(*reader, model) : reader.status().ToString();
}

}  // namespace verbena::checkpoint::test
