// Directories with a coordinator's state in SQLite, for tests of its store.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "server/coordinator/sqlite_store.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {

class TempDirectory {
 public:
  // `quick`: in memory where there is such a place, for tests of thousands of Save()s.
  explicit TempDirectory(bool quick = false) {
    const bool memory = quick && access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent =
        memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string pattern = parent / "verbena-store-XXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string Read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
inline void Write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::unique_ptr<SqliteStore> MustOpen(const std::string& directory) {
  auto store = SqliteStore::Open(directory);
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return *std::move(store);
}

inline absl::StatusOr<CoordinatorState> Load(const std::string& directory) {
  auto store = SqliteStore::Open(directory);
  if (!store.ok()) return store.status();
  return (*store)->Load();
}

inline void Fill(TestCoordinator& c) {
  c.JoinServer("a", 2);
  REQUIRE(c.JoinWorker("job", 2).ok());
  for (int t = 0; t < 5; ++t) {
    REQUIRE(c.CreateTable(c.Spec("t" + std::to_string(t), 6400)).ok());
  }
  c.JoinServer("a", 2);
}

inline bool Same(const CoordinatorState& a, const CoordinatorState& b) {
  if (a.view.SerializeAsString() != b.view.SerializeAsString()) return false;
  if (a.access.SerializeAsString() != b.access.SerializeAsString()) return false;
  v1::History a_terms, b_terms;
  *a_terms.mutable_terms() = a.terms, *b_terms.mutable_terms() = b.terms;
  if (a_terms.SerializeAsString() != b_terms.SerializeAsString()) return false;
  if (a.next_incarnation != b.next_incarnation || a.next_table != b.next_table) return false;
  if (a.answered.size() != b.answered.size()) return false;
  for (size_t i = 0; i < a.answered.size(); ++i) {
    if (a.answered[i].request_id != b.answered[i].request_id ||
        a.answered[i].method != b.answered[i].method ||
        a.answered[i].response != b.answered[i].response) {
      return false;
    }
  }
  return true;
}

}  // namespace verbena::server
