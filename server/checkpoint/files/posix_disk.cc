// The computer's own file system, as disk.h wants it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/own_file.h"
#include "server/checkpoint/files/disk.h"

namespace verbena::checkpoint {
namespace {

// Linux transfers at most 0x7ffff000 bytes a call (write(2)).
constexpr size_t kMostBytesACall = size_t{1} << 30;
// Twice the bytes that a fast disk reads in a millisecond.
constexpr uint64_t kAheadBytes = uint64_t{4} << 20;

absl::Status Failed(const char* verb, const std::string& path, int error) {
  const std::string what = absl::StrCat("cannot ", verb, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(what);
    case EEXIST:
      return absl::AlreadyExistsError(what);
    case ENOSPC:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, "; free some space, or keep fewer checkpoints"));
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(what, "; ask for a greater quota"));
    case EFBIG:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, "; this file system, or a ulimit, allows no file that large"));
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "; mount it writable, or name another directory"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "; give user id ", geteuid(), " the right to, or name another place"));
    case EIO:
      return absl::DataLossError(
          absl::StrCat(what, "; the device failed: see the kernel's log (dmesg)"));
    case ENOTDIR:
      return absl::FailedPreconditionError(absl::StrCat(what, "; name a directory"));
    case EISDIR:
      return absl::FailedPreconditionError(absl::StrCat(what, "; name a file"));
    case ENOTEMPTY:
      return absl::FailedPreconditionError(what);
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(absl::StrCat(what, "; raise the limit (ulimit -n)"));
    default:
      return absl::UnavailableError(what);
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixWritable final : public WritableFile {
 public:
  PosixWritable(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  absl::Status Reserve(uint64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    int result = 0;
    do {
      result = fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return absl::OkStatus();
    if (errno != EOPNOTSUPP && errno != ENOSYS) return Failed("make room for", path_, errno);
    if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
    return Failed("make room for", path_, errno);
  }

  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), kMostBytesACall),
                 static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed("write", path_, errno);
      if (written == 0) return Failed("write", path_, EIO);
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    // After a failed fsync the pages count as clean: a second fsync would return OK (fsync(2)).
    if (fsync(fd_.get()) == 0) return absl::OkStatus();
    return Failed("make durable", path_, errno);
  }

  void BeginSync() override {
    // Sync() reports errors (sync_file_range(2): it makes nothing durable by itself).
    (void)sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }

  absl::Status Close() override {
    const int fd = fd_.Release();
    if (fd < 0 || close(fd) == 0 || errno == EINTR) return absl::OkStatus();
    return Failed("close", path_, errno);
  }

 private:
  const std::string path_;
  Descriptor fd_;
};

class PosixReadable final : public ReadableFile {
 public:
  PosixReadable(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  uint64_t size() const override { return size_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const override {
    const uint64_t start = offset, end = offset + bytes.size();
    while (!bytes.empty()) {
      const ssize_t got = pread(fd_.get(), bytes.data(), std::min(bytes.size(), kMostBytesACall),
                                static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read", path_, errno);
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset,
                                                ", and bytes up to ", end, " are wanted"));
      }
      bytes.remove_prefix(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
    ReadAhead(start, end);
    return absl::OkStatus();
  }

 private:
  // Files are mostly read from front to back: the disk reads the next window while the caller works
  // on this one. Begun where a read crosses into another window.
  void ReadAhead(uint64_t start, uint64_t end) const {
    if (start / kAheadBytes == end / kAheadBytes) return;
    const uint64_t next = (end / kAheadBytes + 1) * kAheadBytes;
    if (next >= size_) return;
    (void)posix_fadvise(fd_.get(), static_cast<off_t>(next), static_cast<off_t>(kAheadBytes),
                        POSIX_FADV_WILLNEED);
  }

  const std::string path_;
  const Descriptor fd_;
  const uint64_t size_;
};

// Files are their owner's alone, unless the directory that they are in hands its group on (setgid):
// then that group may read them, whatever the umask.
bool ForGroup(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  struct stat info = {};
  return stat(parent.empty() ? "." : parent.c_str(), &info) == 0 && (info.st_mode & S_ISGID) != 0;
}

class PosixLock final : public DiskLock {
 public:
  explicit PosixLock(int fd) : fd_(fd) {}

 private:
  Descriptor fd_;
};

class Posix final : public Disk {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    Descriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0) return Failed("create", path, errno);
    if (ForGroup(path) && fchmod(fd.get(), 0640) != 0) return Failed("share", path, errno);
    return std::make_unique<PosixWritable>(path, fd.Release());
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // Nonblocking: opening a pipe would wait for its other end.
    Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info = {};
    if (fd.get() < 0 || fstat(fd.get(), &info) != 0) return Failed("open", path, errno);
    if (S_ISDIR(info.st_mode)) return Failed("open", path, EISDIR);
    if (!S_ISREG(info.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is no ordinary file"));
    }
    return std::make_unique<PosixReadable>(path, fd.Release(), static_cast<uint64_t>(info.st_size));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed("rename", absl::StrCat(from, " to ", to), errno);
  }
  absl::Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path, errno);
  }
  absl::Status RemoveDirectory(const std::string& path) override {
    return rmdir(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path, errno);
  }

  absl::Status MakeDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0700) == 0) {
      if (!ForGroup(path) || chmod(path.c_str(), 02750) == 0) return absl::OkStatus();
      return Failed("share", path, errno);
    }
    const int error = errno;
    struct stat info = {};
    if (error == EEXIST && stat(path.c_str(), &info) == 0) {
      return S_ISDIR(info.st_mode) ? absl::OkStatus() : Failed("make directory", path, ENOTDIR);
    }
    return Failed("make directory", path, error);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return Failed("open", path, errno);
    // Some file systems need no fsync of a directory, and return EINVAL.
    if (fsync(fd.get()) == 0 || errno == EINVAL) return absl::OkStatus();
    return Failed("make durable", path, errno);
  }

  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
    if (directory == nullptr) return Failed("list", path, errno);
    std::vector<Entry> entries;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(directory.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat info = {};
      // Gone since it was listed: another process removes.
      if (fstatat(dirfd(directory.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      entries.push_back({name, S_ISDIR(info.st_mode)});
    }
    if (errno != 0) return Failed("list", path, errno);
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    return entries;
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs info = {};
    if (statvfs(path.c_str(), &info) != 0) return Failed("ask for the free space of", path, errno);
    return uint64_t{info.f_bavail} * info.f_frsize;
  }

  absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) override {
    const absl::StatusOr<int> opened =
        OpenOwnFile(path, [&path](int error) { return Failed("open", path, error); });
    if (!opened.ok()) return opened.status();
    Descriptor fd(*opened);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Failed("lock", path, errno);
      char text[64] = {};
      const ssize_t got = pread(fd.get(), text, sizeof(text) - 1, 0);
      const long pid = got > 0 ? std::strtol(text, nullptr, 10) : 0;
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is locked by another process (pid ", pid > 0 ? absl::StrCat(pid) : "unknown",
          "): it saves or prunes there; wait for it, or use another directory"));
    }
    // For messages only: on a full disk, which a prune must be able to empty, the lock holds
    // without it.
    const std::string pid = absl::StrCat(getpid(), "\n");
    const bool written =
        ftruncate(fd.get(), 0) == 0 && pwrite(fd.get(), pid.data(), pid.size(), 0) > 0;
    static_cast<void>(written);
    // The file stays: removing it would let two processes lock two files of one name.
    return std::make_unique<PosixLock>(fd.Release());
  }
};

}  // namespace

Disk* PosixDisk() {
  static Posix disk;
  return &disk;
}

}  // namespace verbena::checkpoint
