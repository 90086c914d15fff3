// A file with given content, removed at the end of its scope.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_WORKER_TEMPORARY_FILE_H_
#define VERBENA_TESTS_WORKER_TEMPORARY_FILE_H_

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

namespace verbena::worker {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    path_ = (std::filesystem::temp_directory_path() / "verbena-test-XXXXXX").string();
    const int fd = mkstemp(path_.data());
    REQUIRE(fd >= 0);
    close(fd);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_TEMPORARY_FILE_H_
