#include "server/checkpoint/files/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"
#include "server/checkpoint/files/failpoints.h"

namespace verbena::checkpoint {
namespace {

// Bytes of one read: large enough for any disk, small compared to a server's memory.
constexpr uint64_t kReadBytes = uint64_t{4} << 20;
// Write-back starts each time so much is written, while more comes. Not sooner: blocks come in any
// order, and the kernel sorts the blocks that it has.
constexpr uint64_t kBeginBytes = uint64_t{16} << 20;
constexpr uint64_t kMostPlainBytes = uint64_t{1} << 30;

std::string Which(const std::string& path, const v1::CheckpointTensor& tensor) {
  return absl::StrCat(path, ": tensor ", Quoted(tensor.name()));
}

absl::StatusOr<TensorInfo> InfoOf(const std::string& path, v1::CheckpointTensor* entry) {
  TensorInfo info;
  info.name = entry->name();
  const std::optional<TensorType> type = ParseType(entry->dtype());
  if (!type) {
    return absl::InvalidArgumentError(absl::StrCat(Which(path, *entry), ": its dtype is ",
                                                   Quoted(entry->dtype()),
                                                   "; allowed: ", TypeNames()));
  }
  info.type = *type;
  info.shape.assign(entry->shape().begin(), entry->shape().end());
  if (entry->block_bytes() == 0) entry->set_block_bytes(kDefaultBlockBytes);
  if (entry->block_bytes() % BytesOf(*type) != 0 || entry->block_bytes() > kMostBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat(Which(path, *entry), ": block_bytes is ",
                                                   entry->block_bytes(), "; allowed: multiples of ",
                                                   BytesOf(*type), " up to ", kMostBlockBytes));
  }
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorFileWriter>> TensorFileWriter::Create(
    Disk* disk, const std::string& path, std::vector<v1::CheckpointTensor> tensors, bool reserve) {
  std::unique_ptr<TensorFileWriter> writer(new TensorFileWriter());
  writer->path_ = path;
  std::vector<TensorInfo> infos;
  for (v1::CheckpointTensor& entry : tensors) {
    absl::StatusOr<TensorInfo> info = InfoOf(path, &entry);
    if (!info.ok()) return info.status();
    infos.push_back(*std::move(info));
    writer->order_.push_back(writer->order_.size());
  }
  std::stable_sort(writer->order_.begin(), writer->order_.end(), [&](size_t a, size_t b) {
    return BytesOf(infos[a].type) > BytesOf(infos[b].type);
  });
  std::vector<TensorInfo> ordered;
  for (const size_t i : writer->order_) ordered.push_back(infos[i]);
  // transformers refuses a file without the name of the framework it is for.
  absl::StatusOr<std::string> head = MakeSafetensorsHeader(&ordered, {{"format", "pt"}});
  if (!head.ok()) return head.status();
  writer->head_ = *std::move(head);
  writer->data_start_ = writer->head_.size();
  writer->data_bytes_ = ordered.empty() ? 0 : ordered.back().end;
  writer->tensors_.resize(tensors.size());
  for (size_t i = 0; i < ordered.size(); ++i) {
    Tensor& tensor = writer->tensors_[writer->order_[i]];
    tensor.entry = std::move(tensors[writer->order_[i]]);
    tensor.begin = ordered[i].begin;
    tensor.bytes = ordered[i].bytes();
    tensor.hashes = BlockHashes(tensor.bytes, tensor.entry.block_bytes());
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> file = disk->Create(path);
  if (!file.ok()) return file.status();
  writer->file_ = *std::move(file);
  absl::Status status;
  if (reserve) status = writer->file_->Reserve(writer->file_bytes());
  if (status.ok()) {
    status = writer->file_->WriteAt(
        0, {reinterpret_cast<const std::byte*>(writer->head_.data()), writer->head_.size()});
  }
  if (!status.ok()) return status;
  return writer;
}

absl::Status TensorFileWriter::WriteBlock(size_t index, uint64_t block,
                                          absl::Span<const std::byte> bytes) {
  if (index >= tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": tensor number ", index, "; allowed: below ", tensors_.size()));
  }
  Tensor& tensor = tensors_[index];
  if (block >= tensor.hashes.blocks() || bytes.size() != tensor.hashes.BytesOf(block) ||
      tensor.hashes.has(block)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Which(path_, tensor.entry), ": block ", block, " of ", bytes.size(),
                     " bytes; allowed: each of ", tensor.hashes.blocks(), " blocks of ",
                     tensor.entry.block_bytes(), " bytes once, the last one shorter"));
  }
  const uint64_t offset = data_start_ + tensor.begin + block * tensor.entry.block_bytes();
  if (absl::Status status = file_->WriteAt(offset, bytes); !status.ok()) return status;
  tensor.hashes.Set(block, Hash(bytes));
  written_ += bytes.size();
  if (written_ - begun_ >= kBeginBytes) {
    file_->BeginSync();
    begun_ = written_;
  }
  return absl::OkStatus();
}

absl::Status TensorFileWriter::Append(size_t index, absl::Span<const std::byte> bytes) {
  if (index >= tensors_.size()) return WriteBlock(index, 0, bytes);
  Tensor& tensor = tensors_[index];
  while (!bytes.empty()) {
    if (tensor.next_block >= tensor.hashes.blocks()) {
      return WriteBlock(index, tensor.next_block, bytes);  // returns the precise error
    }
    const uint64_t whole = tensor.hashes.BytesOf(tensor.next_block);
    const size_t take = std::min<uint64_t>(bytes.size(), whole - tensor.partial.size());
    absl::Span<const std::byte> block = bytes.first(take);
    if (take < whole) {
      tensor.partial.insert(tensor.partial.end(), block.begin(), block.end());
      block = tensor.partial;
    }
    if (block.size() == whole) {
      const absl::Status status = WriteBlock(index, tensor.next_block, block);
      if (!status.ok()) return status;
      tensor.partial.clear();
      ++tensor.next_block;
    }
    bytes.remove_prefix(take);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointFile> TensorFileWriter::Finish() {
  v1::CheckpointFile entry;
  entry.set_name(BaseName(path_));
  entry.set_bytes(file_bytes());
  entry.set_xxh3(HashText(head_));
  for (const size_t i : order_) {
    Tensor& tensor = tensors_[i];
    if (tensor.hashes.missing() > 0) {
      return absl::FailedPreconditionError(absl::StrCat(Which(path_, tensor.entry), " lacks ",
                                                        tensor.hashes.missing(), " of its ",
                                                        tensor.hashes.blocks(), " blocks"));
    }
    tensor.entry.set_xxh3(tensor.hashes.ToString());
    tensor.entry.set_block_xxh3(tensor.hashes.Bytes());
    *entry.add_tensors() = tensor.entry;
  }
  absl::Status status =
      VERBENA_FAILPOINT(checkpoint, commit_unsynced) ? absl::OkStatus() : file_->Sync();
  if (status.ok()) status = file_->Close();
  if (!status.ok()) return status;
  return entry;
}

absl::StatusOr<SafetensorsReader> OpenTensorFile(Disk* disk, const std::string& directory,
                                                 const v1::CheckpointFile& entry) {
  const std::string path = Join(directory, entry.name());
  absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(disk, path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat(path, " is missing, although the manifest lists it"));
  }
  if (!file.ok()) return file.status();
  const std::vector<TensorInfo>& tensors = file->header().tensors;
  const uint64_t bytes = file->head().size() + (tensors.empty() ? 0 : tensors.back().end);
  if (bytes != entry.bytes()) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", bytes, " bytes, and in the manifest ", entry.bytes()));
  }
  if (HashText(file->head()) != entry.xxh3()) {
    return absl::DataLossError(absl::StrCat(
        path, ": the header's checksum is ", HashText(file->head()), ", and in the manifest ",
        entry.xxh3(), ": it was changed, or is of another model"));
  }
  if (tensors.size() != static_cast<size_t>(entry.tensors_size())) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", tensors.size(), " tensors, and in the manifest ", entry.tensors_size()));
  }
  for (const v1::CheckpointTensor& wanted : entry.tensors()) {
    const TensorInfo* found = file->Find(wanted.name());
    const bool same = found != nullptr && wanted.dtype() == TypeName(found->type) &&
                      std::equal(wanted.shape().begin(), wanted.shape().end(), found->shape.begin(),
                                 found->shape.end());
    if (same) continue;
    return absl::DataLossError(absl::StrCat(
        Which(path, wanted), found == nullptr ? " is missing" : " has another type or shape",
        " although the manifest lists it"));
  }
  return file;
}

absl::StatusOr<TensorCursor> TensorCursor::Open(const SafetensorsReader& file,
                                                const v1::CheckpointTensor& entry) {
  const TensorInfo* tensor = file.Find(entry.name());
  if (tensor == nullptr) {
    return absl::DataLossError(absl::StrCat(Which(file.path(), entry), " is missing"));
  }
  TensorCursor cursor(&file, &entry, tensor);
  if (absl::Status status = cursor.FindHashes(); !status.ok()) return status;
  return cursor;
}

TensorCursor::TensorCursor(const SafetensorsReader* file, const v1::CheckpointTensor* entry,
                           const TensorInfo* tensor)
    : file_(file), entry_(entry), tensor_(tensor) {}

uint64_t TensorCursor::BytesOf(uint64_t block) const {
  return std::min(entry_->block_bytes(), tensor_->bytes() - block * entry_->block_bytes());
}

absl::Status TensorCursor::FindHashes() {
  const uint64_t blocks = (tensor_->bytes() + entry_->block_bytes() - 1) / entry_->block_bytes();
  hashes_.resize(blocks);
  const std::string& known = entry_->block_xxh3();
  if (known.size() == blocks * sizeof(uint64_t) && blocks > 0) {
    std::memcpy(hashes_.data(), known.data(), known.size());
    return absl::OkStatus();
  }
  BlockHashes found(tensor_->bytes(), entry_->block_bytes());
  std::vector<std::byte> block;
  for (uint64_t b = 0; b < blocks; ++b) {
    block.resize(BytesOf(b));
    const absl::Status status =
        file_->Read(*tensor_, b * entry_->block_bytes(), absl::MakeSpan(block));
    if (!status.ok()) return status;
    hashes_[b] = Hash(block);
    found.Set(b, hashes_[b]);
  }
  if (found.ToString() == entry_->xxh3()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Which(file_->path(), *entry_), ": its checksum is ",
                                          found.ToString(), ", and in the manifest ",
                                          entry_->xxh3(), ": its bytes have changed"));
}

absl::Status TensorCursor::ReadBlock(uint64_t block, absl::Span<std::byte> to) const {
  const uint64_t offset = block * entry_->block_bytes();
  if (absl::Status status = file_->Read(*tensor_, offset, to); !status.ok()) return status;
  const uint64_t found = Hash(to);
  if (found == hashes_[block] || VERBENA_FAILPOINT(checkpoint, read_unverified))
    return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(Which(file_->path(), *entry_), ": its checksum is ", HashText(found), " of ",
                   to.size(), " bytes from ", offset, " on (of the file: from ",
                   file_->head().size() + tensor_->begin + offset, " on), and in the manifest ",
                   HashText(hashes_[block]), ": its bytes have changed"));
}

absl::Status TensorCursor::Read(absl::Span<std::byte> to) { return ReadAt(at_, to); }

absl::Status TensorCursor::ReadAt(uint64_t offset, absl::Span<std::byte> to) {
  if (offset > tensor_->bytes() || to.size() > tensor_->bytes() - offset) {
    // Read() reports the error.
    return file_->Read(*tensor_, offset, to);
  }
  while (!to.empty()) {
    const uint64_t block = offset / entry_->block_bytes();
    const uint64_t inside = offset - block * entry_->block_bytes();
    const uint64_t bytes = BytesOf(block);
    const uint64_t take = std::min<uint64_t>(bytes - inside, to.size());
    if (take == bytes && block != last_block_) {
      if (absl::Status status = ReadBlock(block, to.first(bytes)); !status.ok()) return status;
    } else {
      if (block != last_block_) {
        last_block_ = kNoBlock;
        last_.resize(bytes);
        const absl::Status status = ReadBlock(block, absl::MakeSpan(last_));
        if (!status.ok()) return status;
        last_block_ = block;
      }
      std::memcpy(to.data(), last_.data() + inside, take);
    }
    to.remove_prefix(take);
    offset += take;
  }
  at_ = offset;
  return absl::OkStatus();
}

absl::Status ReadChecked(const SafetensorsReader& file, const v1::CheckpointTensor& entry,
                         const TakeBytes& take) {
  absl::StatusOr<TensorCursor> cursor = TensorCursor::Open(file, entry);
  if (!cursor.ok()) return cursor.status();
  std::vector<std::byte> buffer;
  while (cursor->left() > 0) {
    const uint64_t offset = cursor->at();
    buffer.resize(std::min(cursor->left(), kReadBytes));
    absl::Status status = cursor->Read(absl::MakeSpan(buffer));
    if (status.ok()) status = take(offset, buffer);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadPlainFile(Disk* disk, const std::string& directory,
                                          const v1::CheckpointFile& entry) {
  const std::string path = Join(directory, entry.name());
  absl::StatusOr<std::string> content = ReadWhole(disk, path, kMostPlainBytes);
  if (absl::IsNotFound(content.status())) {
    return absl::DataLossError(absl::StrCat(path, " is missing, although the manifest lists it"));
  }
  if (!content.ok()) return content.status();
  if (content->size() != entry.bytes() || HashText(*content) != entry.xxh3()) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", content->size(), " bytes with the checksum ", HashText(*content),
        ", and in the manifest ", entry.bytes(), " and ", entry.xxh3(), ": it has changed"));
  }
  return content;
}

absl::StatusOr<v1::CheckpointFile> WritePlainFile(Disk* disk, const std::string& directory,
                                                  const std::string& name,
                                                  const std::string& content) {
  const absl::Status written = WriteWhole(disk, Join(directory, name), content);
  if (!written.ok()) return written;
  v1::CheckpointFile entry;
  entry.set_name(name);
  entry.set_bytes(content.size());
  entry.set_xxh3(HashText(content));
  return entry;
}

}  // namespace verbena::checkpoint
