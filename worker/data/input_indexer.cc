#include "worker/data/input_indexer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/criteo_reader.h"
#include "worker/data/decompressor.h"
#include "worker/data/file.h"
#include "worker/data/libsvm_reader.h"

namespace verbena::worker {
namespace {

constexpr size_t kBufferBytes = 2 * InputIndexer::kMaxLineBytes;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

const char* LineOfFormat(ExampleFormat format) {
  return format == ExampleFormat::kLibsvm ? "LABEL INDEX:VALUE ..."
                                          : "a label, 13 integers and 26 categories, with tabs";
}

}  // namespace

InputIndexer::InputIndexer(const IndexOptions& options, Spool* spool)
    : options_(options), spool_(*spool), index_(std::make_shared<InputIndex>()) {
  index_->format_ = options.format;
}

absl::StatusOr<std::shared_ptr<const InputIndex>> InputIndexer::Index(
    const std::vector<std::string>& paths, const IndexOptions& options, Spool* spool) {
  InputIndexer indexer(options, spool);
  for (const std::string& path : paths) {
    if (absl::Status status = indexer.AddFile(path); !status.ok()) return status;
  }
  return indexer.index_;
}

absl::Status InputIndexer::Progress(uint64_t bytes) const {
  if (!options_.progress) return absl::OkStatus();
  return options_.progress(index_->files_.back().name, bytes);
}

absl::Status InputIndexer::Open(const std::string& path, InputIndex::File* file,
                                rdma::UniqueFd* fd) {
  fd->reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd->valid()) return FileError(path, "open", errno);
  struct stat found = {};
  if (fstat(fd->get(), &found) != 0) return FileError(path, "read", errno);
  bool copy = !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode);
  if (copy && !options_.refuse_pipes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a regular file, ", options_.refuse_pipes));
  }
  if (!copy) {
    char first[kEncodingBytes];
    const absl::StatusOr<size_t> n = ReadAt(fd->get(), path, 0, first, sizeof first);
    if (!n.ok()) return n.status();
    const absl::StatusOr<Encoding> encoding = EncodingOf(path, std::string_view(first, *n));
    if (!encoding.ok()) return encoding.status();
    copy = *encoding != Encoding::kPlain;
  }
  if (copy) {
    absl::StatusOr<rdma::UniqueFd> made =
        spool_.Copy(fd->get(), path, [&](uint64_t bytes) { return Progress(bytes); });
    if (!made.ok()) return made.status();
    file->copy = *std::move(made);
    if (fstat(file->copy.get(), &found) != 0) return FileError(path, "read", errno);
  }
  file->end = static_cast<uint64_t>(found.st_size);
  file->changed_ns = ChangedNs(fd->get());
  return absl::OkStatus();
}

absl::Status InputIndexer::AddFile(const std::string& path) {
  InputIndex::File& file = index_->files_.emplace_back();
  file.name = path;
  file.first_block = index_->blocks_.size();
  rdma::UniqueFd opened;
  if (absl::Status status = Open(path, &file, &opened); !status.ok()) return status;
  if (file.end == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
  index_->bytes_ += file.end;
  if (options_.format == ExampleFormat::kByte) {
    AddBytes();
    return absl::OkStatus();
  }
  const uint64_t examples = index_->examples_;
  absl::Status status = AddLines(file.copy.valid() ? file.copy.get() : opened.get());
  if (!status.ok() || index_->examples_ > examples) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no example in it; a line is ", LineOfFormat(options_.format)));
}

void InputIndexer::AddBytes() {
  const InputIndex::File& file = index_->files_.back();
  for (uint64_t at = 0; at < file.end; at += options_.block_bytes) {
    index_->blocks_.push_back({at, index_->examples_ + at});
  }
  index_->examples_ += file.end;
}

absl::Status InputIndexer::AddLines(int fd) {
  InputIndex::File& file = index_->files_.back();
  std::string buffer(kBufferBytes, '\0');
  char mark[kByteOrderMark.size()];
  const absl::StatusOr<size_t> marked = ReadAt(fd, file.name, 0, mark, sizeof mark);
  if (!marked.ok()) return marked.status();
  if (std::string_view(mark, *marked) == kByteOrderMark) file.begin = kByteOrderMark.size();
  line_ = 1;
  offset_ = file.begin;
  size_t kept = 0;  // bytes of a line whose end was not read yet
  for (bool more = true; more;) {
    const absl::StatusOr<size_t> n =
        ReadAt(fd, file.name, offset_ + kept, buffer.data() + kept, buffer.size() - kept);
    if (!n.ok()) return n.status();
    more = *n == buffer.size() - kept;
    std::string_view rest(buffer.data(), kept + *n);
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos && more && rest.size() <= kMaxLineBytes) break;
      const std::string_view line = rest.substr(0, end == std::string_view::npos ? end : end + 1);
      if (absl::Status status = AddLine(line); !status.ok()) return status;
      rest.remove_prefix(line.size());
    }
    kept = rest.size();
    std::memmove(buffer.data(), rest.data(), kept);
    if (absl::Status status = Progress(offset_); !status.ok()) return status;
  }
  file.end = offset_;  // it may have grown meanwhile
  return absl::OkStatus();
}

bool InputIndexer::IsExample(std::string_view line) const {
  if (options_.format == ExampleFormat::kLibsvm) {
    const size_t first = line.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && line[first] != '#';
  }
  return !line.empty() && line != "\n" && line != "\r\n" && line != "\r";
}

absl::Status InputIndexer::AddLine(std::string_view line) {
  const InputIndex::File& file = index_->files_.back();
  if (line.size() > kMaxLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.name, ":", line_, ": a line of more than ", kMaxLineBytes, " bytes; allowed: up to ",
        kMaxLineBytes, ", as ", LineOfFormat(options_.format)));
  }
  std::vector<InputIndex::Block>& blocks = index_->blocks_;
  if (blocks.size() == file.first_block || offset_ - blocks.back().begin >= options_.block_bytes) {
    blocks.push_back({offset_, index_->examples_});
  }
  if (IsExample(line)) {
    if (options_.parse) {
      if (absl::Status status = Parse(line); !status.ok()) return status;
    }
    ++index_->examples_;
  }
  offset_ += line.size();
  ++line_;
  return absl::OkStatus();
}

absl::Status InputIndexer::Parse(std::string_view line) {
  const std::string& name = index_->files_.back().name;
  ClearRows(parsed_, &parsed_);
  absl::Status status;
  if (options_.format == ExampleFormat::kCriteo) {
    CriteoParser parser(name, &parsed_, line_);
    status = parser.Parse(line);
    if (status.ok()) status = parser.Finish();
  } else {
    LibsvmParser parser(name, LibsvmParser::kMaxDenseIndex, &parsed_, line_);
    status = parser.Parse(line);
    if (status.ok()) status = parser.Finish();
  }
  index_->features_ = parsed_.features;
  return status;
}

}  // namespace verbena::worker
