#include "worker/data/inputs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/file.h"
#include "worker/data/input_indexer.h"
#include "worker/data/streamed_input.h"

namespace verbena::worker {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kIndexName[] = "the launcher's index";
constexpr std::chrono::seconds kProgressEvery(2);

// Prints the progress of a long pass on stderr.
class PassProgress {
 public:
  explicit PassProgress(const std::atomic<bool>* stop) : stop_(stop) {}

  absl::Status operator()(const std::string& file, uint64_t bytes) {
    if (stop_ != nullptr && stop_->load()) return absl::CancelledError("stopped by a signal");
    const auto now = SteadyClock::now();
    if (file != file_) {
      file_ = file;
      began_ = now;
    }
    if (now - printed_ < kProgressEvery) return absl::OkStatus();
    printed_ = now;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const double megabytes = static_cast<double>(bytes) / 1e6;
    std::fprintf(stderr, "looking through %s: %.0f MB, %.0f MB/s\n", file.c_str(), megabytes,
                 seconds > 0 ? megabytes / seconds : 0);
    return absl::OkStatus();
  }

 private:
  const std::atomic<bool>* stop_;
  std::string file_;
  SteadyClock::time_point began_, printed_ = SteadyClock::now();
};

ExampleFormat FormatOf(const Options& options) {
  if (options.format == "text") return ExampleFormat::kByte;
  return options.format == "criteo" ? ExampleFormat::kCriteo : ExampleFormat::kLibsvm;
}

absl::StatusOr<Inputs> FindInputs(const Options& options, const std::atomic<bool>* stop) {
  IndexOptions index;
  index.format = FormatOf(options);
  index.parse = ModelOf(options) == "logistic";
  index.block_bytes = BlockBytesFor(options.input_memory);
  index.progress = PassProgress(stop);
  if ((options.rank >= 0 && options.workers > 1) || options.max_workers > 1) {
    index.refuse_pipes =
        absl::StrCat("of which each of ", std::max(options.workers, options.max_workers),
                     " workers that are launched one by one would read another "
                     "part; give a file");
  }
  Spool spool(options.spool_bytes);
  Inputs inputs;
  auto data = InputIndexer::Index(options.data, index, &spool);
  if (!data.ok()) return data.status();
  inputs.data = *std::move(data);
  if (options.test.empty()) return inputs;
  auto test = InputIndexer::Index(options.test, index, &spool);
  if (!test.ok()) return test.status();
  inputs.test = *std::move(test);
  return inputs;
}

// The number of bytes, and the bytes.
std::string Framed(const std::shared_ptr<const InputIndex>& index) {
  const std::string bytes = index == nullptr ? "" : index->ToBytes();
  const uint64_t size = bytes.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes;
}

// Null: there is none.
absl::StatusOr<std::shared_ptr<const InputIndex>> ReadFramed(int fd, uint64_t* offset) {
  uint64_t size = 0;
  absl::StatusOr<size_t> n =
      ReadAt(fd, kIndexName, *offset, reinterpret_cast<char*>(&size), sizeof size);
  if (!n.ok()) return n.status();
  if (size == 0) return std::shared_ptr<const InputIndex>();
  struct stat found = {};
  if (fstat(fd, &found) != 0 || size > static_cast<uint64_t>(found.st_size)) {
    return absl::InvalidArgumentError(absl::StrCat(kIndexName, " is damaged"));
  }
  std::string bytes(size, '\0');
  n = ReadAt(fd, kIndexName, *offset + sizeof size, bytes.data(), size);
  if (!n.ok()) return n.status();
  *offset += sizeof size + size;
  return InputIndex::FromBytes(bytes);
}

absl::StatusOr<Inputs> ReadInputs(int fd) {
  Inputs inputs;
  uint64_t offset = 0;
  auto data = ReadFramed(fd, &offset);
  if (!data.ok()) return data.status();
  inputs.data = *std::move(data);
  auto test = ReadFramed(fd, &offset);
  if (!test.ok()) return test.status();
  inputs.test = *std::move(test);
  if (inputs.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(kIndexName, " is empty"));
  }
  return inputs;
}

}  // namespace

absl::StatusOr<Inputs> OpenInputs(const Options& options, const std::atomic<bool>* stop) {
  if (options.input_index < 0) return FindInputs(options, stop);
  return ReadInputs(rdma::UniqueFd(options.input_index).get());
}

absl::StatusOr<rdma::UniqueFd> ForChildren(const Inputs& inputs) {
  rdma::UniqueFd fd(memfd_create("verbena-train-inputs", 0));
  std::FILE* file = fd.valid() ? fdopen(dup(fd.get()), "wb") : nullptr;
  const std::string bytes = Framed(inputs.data) + Framed(inputs.test);
  const bool wrote =
      file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file == nullptr || std::fclose(file) != 0 || !wrote) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the workers' index of the inputs: ", std::strerror(errno)));
  }
  for (const auto& index : {inputs.data, inputs.test}) {
    if (index == nullptr) continue;
    for (const InputIndex::File& of_index : index->files()) {
      if (of_index.copy.valid()) fcntl(of_index.copy.get(), F_SETFD, 0);
    }
  }
  return fd;
}

}  // namespace verbena::worker
