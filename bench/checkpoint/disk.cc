#include "bench/checkpoint/disk.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <list>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

using std::chrono::steady_clock;

constexpr size_t kBlockBytes = size_t{4} << 20;

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Memory that nobody had, in huge pages where there are some, as a server's is.
class NewMemory {
 public:
  explicit NewMemory(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ != MAP_FAILED) madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~NewMemory() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  NewMemory(const NewMemory&) = delete;
  NewMemory& operator=(const NewMemory&) = delete;
  char* get() const { return data_ == MAP_FAILED ? nullptr : static_cast<char*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

double Seconds(steady_clock::time_point since) {
  return std::chrono::duration<double>(steady_clock::now() - since).count();
}

absl::Status WriteAndSync(const std::string& path, const std::vector<uint64_t>& block,
                          uint64_t bytes) {
  const File file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (file.get() < 0) return absl::ErrnoToStatus(errno, path);
  while (bytes > 0) {
    const ssize_t n = write(file.get(), block.data(), std::min<uint64_t>(bytes, kBlockBytes));
    if (n <= 0) return absl::ErrnoToStatus(errno, path);
    bytes -= static_cast<uint64_t>(n);
  }
  return fsync(file.get()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
}

// To memory that is added to `kept`; null: to the same all the time.
absl::Status ReadAll(const std::string& path, std::list<NewMemory>* kept,
                     std::atomic<uint64_t>* bytes) {
  const File file(path, O_RDONLY);
  struct stat info = {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  const bool keep = kept != nullptr;
  std::list<NewMemory> once;
  // Its pages are made when they are read to.
  const NewMemory& memory =
      (keep ? *kept : once)
          .emplace_back(keep ? static_cast<size_t>(info.st_size) + kBlockBytes : kBlockBytes);
  if (memory.get() == nullptr) return absl::ErrnoToStatus(errno, "mmap");
  for (size_t at = 0;;) {
    const ssize_t n = read(file.get(), memory.get() + (keep ? at : 0), kBlockBytes);
    if (n < 0) return absl::ErrnoToStatus(errno, path);
    if (n == 0) return absl::OkStatus();
    at += static_cast<size_t>(n);
    *bytes += static_cast<uint64_t>(n);
  }
}

// The first error of all, or OK.
absl::Status OnThreads(int threads, const std::function<absl::Status(int thread)>& work) {
  std::vector<absl::Status> said(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { said[static_cast<size_t>(i)] = work(i); });
  }
  absl::Status all;
  for (int i = 0; i < threads; ++i) {
    running[static_cast<size_t>(i)].join();
    all.Update(said[static_cast<size_t>(i)]);
  }
  return all;
}

}  // namespace

void SettleDisk(const std::string& path) {
  const File folder(path, O_RDONLY | O_DIRECTORY);
  if (folder.get() >= 0) syncfs(folder.get());
}

void SettleMemory() { std::this_thread::sleep_for(std::chrono::seconds(3)); }

absl::StatusOr<double> WriteRate(const std::string& directory, uint64_t bytes, int threads) {
  std::vector<uint64_t> block(kBlockBytes / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t& number : block) number = random();
  const auto path = [&](int i) { return absl::StrCat(directory, "/limit-", i); };
  SettleDisk(directory);
  const auto start = steady_clock::now();
  const absl::Status status = OnThreads(threads, [&](int i) {
    return WriteAndSync(path(i), block, bytes / static_cast<uint64_t>(threads));
  });
  const double seconds = Seconds(start);
  for (int i = 0; i < threads; ++i) unlink(path(i).c_str());
  SettleDisk(directory);
  if (!status.ok()) return status;
  return static_cast<double>(bytes) / seconds;
}

absl::Status DropCache(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const File file(path, O_RDONLY);
    if (file.get() < 0) return absl::ErrnoToStatus(errno, path);
    const int error = posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (error != 0) return absl::ErrnoToStatus(error, path);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ReadRate(const std::vector<std::string>& files, int threads, bool keep) {
  std::atomic<uint64_t> bytes = 0;
  std::atomic<size_t> next = 0;
  std::vector<std::list<NewMemory>> kept(static_cast<size_t>(threads));
  const auto start = steady_clock::now();
  const absl::Status status = OnThreads(threads, [&](int thread) {
    std::list<NewMemory>* const to = keep ? &kept[static_cast<size_t>(thread)] : nullptr;
    for (size_t i = next++; i < files.size(); i = next++) {
      if (absl::Status read = ReadAll(files[i], to, &bytes); !read.ok()) return read;
    }
    return absl::OkStatus();
  });
  const double seconds = Seconds(start);
  if (!status.ok()) return status;
  return static_cast<double>(bytes) / seconds;
}

absl::StatusOr<WorkFolder> WorkFolder::Make(const std::string& parent, uint64_t bytes) {
  std::string path = parent + "/verbena-checkpoint.XXXXXXXX";
  if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp " + path);
  WorkFolder folder(path);
  struct statfs info = {};
  if (statfs(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (info.f_type == TMPFS_MAGIC) {
    std::printf("%s is in memory: these are no figures of a disk\n", path.c_str());
  }
  const uint64_t free = info.f_bavail * static_cast<uint64_t>(info.f_bsize);
  if (free < bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(parent, " has ", free >> 20, " MiB left, and ", bytes >> 20,
                     " MiB are needed: name another --directory, or smaller tables"));
  }
  return folder;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace verbena::bench
