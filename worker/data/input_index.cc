#include "worker/data/input_index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/file.h"

namespace verbena::worker {
namespace {

template <typename T>
void Append(const T& value, std::string* to) {
  static_assert(std::is_trivially_copyable_v<T>);
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
bool Take(std::string_view* from, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (from->size() < sizeof *value) return false;
  std::memcpy(value, from->data(), sizeof *value);
  from->remove_prefix(sizeof *value);
  return true;
}

}  // namespace

int64_t ChangedNs(int fd) {
  struct stat now = {};
  if (fstat(fd, &now) != 0) return 0;
  return now.st_mtim.tv_sec * int64_t{1'000'000'000} + now.st_mtim.tv_nsec;
}

uint64_t InputIndex::BlockOf(uint64_t example) const {
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), example,
                       [](uint64_t number, const Block& b) { return number < b.first_example; });
  return static_cast<uint64_t>(after - blocks_.begin()) - 1;
}

uint64_t InputIndex::ExamplesOf(uint64_t block) const {
  const uint64_t next = block + 1 < blocks_.size() ? blocks_[block + 1].first_example : examples_;
  return next - blocks_[block].first_example;
}

const InputIndex::File& InputIndex::FileOf(uint64_t block) const {
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), block,
                       [](uint64_t number, const File& f) { return number < f.first_block; });
  return *(after - 1);
}

uint64_t InputIndex::EndOf(uint64_t block) const {
  const File& file = FileOf(block);
  const bool last = block + 1 == blocks_.size() || &FileOf(block + 1) != &file;
  return last ? file.end : blocks_[block + 1].begin;
}

absl::StatusOr<rdma::UniqueFd> InputIndex::Open(const File& file) const {
  rdma::UniqueFd fd(open(file.name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(file.name, "open", errno);
  if (ChangedNs(fd.get()) != file.changed_ns) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.name, ": was changed after training began; start again"));
  }
  return fd;
}

absl::Status InputIndex::Read(uint64_t block, std::string* out) const {
  const File& file = FileOf(block);
  rdma::UniqueFd opened;
  if (!file.copy.valid()) {
    absl::StatusOr<rdma::UniqueFd> fd = Open(file);
    if (!fd.ok()) return fd.status();
    opened = *std::move(fd);
  }
  const int fd = file.copy.valid() ? file.copy.get() : opened.get();
  const uint64_t begin = blocks_[block].begin;
  out->resize(EndOf(block) - begin);
  const absl::StatusOr<size_t> n = ReadAt(fd, file.name, begin, out->data(), out->size());
  if (!n.ok()) return n.status();
  if (*n == out->size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(file.name, ": has become shorter since training began"));
}

absl::StatusOr<uint64_t> InputIndex::LineOf(uint64_t block) const {
  const File& file = FileOf(block);
  uint64_t line = 1;
  std::string bytes;
  for (uint64_t b = file.first_block; b < block; ++b) {
    if (absl::Status status = Read(b, &bytes); !status.ok()) return status;
    line += static_cast<uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  }
  return line;
}

std::string InputIndex::ToBytes() const {
  std::string bytes;
  bytes.reserve(blocks_.size() * sizeof(Block));
  Append(format_, &bytes);
  for (const uint64_t number :
       {examples_, bytes_, features_, uint64_t{files_.size()}, uint64_t{blocks_.size()}}) {
    Append(number, &bytes);
  }
  for (const File& file : files_) {
    Append(file.copy.get(), &bytes);
    for (const uint64_t number :
         {file.begin, file.end, file.first_block, static_cast<uint64_t>(file.changed_ns),
          uint64_t{file.name.size()}}) {
      Append(number, &bytes);
    }
    bytes += file.name;
  }
  for (const Block& block : blocks_) Append(block, &bytes);
  return bytes;
}

absl::StatusOr<std::shared_ptr<const InputIndex>> InputIndex::FromBytes(const std::string& bytes) {
  const absl::Status bad = absl::InvalidArgumentError("damaged index of the inputs");
  auto index = std::make_shared<InputIndex>();
  std::string_view rest = bytes;
  uint64_t files = 0, blocks = 0;
  if (!Take(&rest, &index->format_) || !Take(&rest, &index->examples_) ||
      !Take(&rest, &index->bytes_) || !Take(&rest, &index->features_) || !Take(&rest, &files) ||
      !Take(&rest, &blocks)) {
    return bad;
  }
  for (uint64_t i = 0; i < files; ++i) {
    File file;
    int copy = -1;
    uint64_t changed = 0, name = 0;
    if (!Take(&rest, &copy) || !Take(&rest, &file.begin) || !Take(&rest, &file.end) ||
        !Take(&rest, &file.first_block) || !Take(&rest, &changed) || !Take(&rest, &name) ||
        rest.size() < name) {
      return bad;
    }
    file.copy.reset(copy);
    file.changed_ns = static_cast<int64_t>(changed);
    file.name = rest.substr(0, name);
    rest.remove_prefix(name);
    index->files_.push_back(std::move(file));
  }
  if (rest.size() / sizeof(Block) != blocks || rest.size() % sizeof(Block) != 0) return bad;
  index->blocks_.resize(blocks);
  std::memcpy(index->blocks_.data(), rest.data(), rest.size());
  return index;
}

}  // namespace verbena::worker
