// Cold rows in RocksDB: a read returns the last write, whatever requests run meanwhile; a full disk
// loses nothing; a changed file is noticed; a failed read is retried.
#include "server/cold/rocks_store.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/cold/cold_directory.h"
#include "tests/support/good.h"
#include "tests/support/process.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;
using shard::ColdKey;
using shard::RowOfColdKey;
using test::Eventually;
using test::Good;
using test::Value;

constexpr size_t kBytes = 200;

std::vector<std::byte> Content(uint64_t key, uint32_t version) {
  std::vector<std::byte> content(kBytes);
  std::mt19937 random(static_cast<uint32_t>(key * 31 + version));
  for (std::byte& b : content) b = static_cast<std::byte>(random());
  return content;
}

// Reads of files of rows fail, so many times.
class FailingDisk final : public rocksdb::FileSystemWrapper {
 public:
  FailingDisk() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "failing disk"; }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& how,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, how, file, debug);
    if (status.ok()) *file = std::make_unique<File>(std::move(*file), &failures);
    return status;
  }

  std::atomic<int> failures{0};

 private:
  class File final : public rocksdb::FSRandomAccessFileOwnerWrapper {
   public:
    File(std::unique_ptr<rocksdb::FSRandomAccessFile> file, std::atomic<int>* failures)
        : FSRandomAccessFileOwnerWrapper(std::move(file)), failures_(failures) {}
    rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                           rocksdb::Slice* result, char* to,
                           rocksdb::IODebugContext* debug) const override {
      if (Fails()) return rocksdb::IOStatus::IOError("planted");
      return FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, to, debug);
    }
    rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                                const rocksdb::IOOptions& options,
                                rocksdb::IODebugContext* debug) override {
      if (Fails()) return rocksdb::IOStatus::IOError("planted");
      return FSRandomAccessFileOwnerWrapper::MultiRead(requests, count, options, debug);
    }

   private:
    bool Fails() const {
      int left = failures_->load();
      while (left > 0 && !failures_->compare_exchange_weak(left, left - 1)) {
      }
      return left > 0;
    }
    std::atomic<int>* const failures_;
  };
};

struct Store {
  explicit Store(const std::string& path, rocksdb::Env* env = nullptr)
      : directory(Value(ColdDirectory::Open(path))) {
    RocksStoreOptions options;
    options.env = env;
    options.directory = directory.OfShard(0);
    options.name = "cold";
    options.wake = [this] { ++wakes; };
    options.log = [this](const std::string& text) {
      const std::lock_guard<std::mutex> lock(mutex);
      log += text + "\n";
    };
    rocks = Value(RocksStore::Open(options));
    Good(rocks->Start());
  }
  std::string said() {
    const std::lock_guard<std::mutex> lock(mutex);
    return log;
  }
  bool TakeAll(size_t count, std::vector<shard::ColdStore::Done>* done,
               absl::Duration at_most = absl::Seconds(30)) {
    return Eventually(
        [&] {
          rocks->TakeDone(done);
          return done->size() >= count;
        },
        at_most);
  }

  std::atomic<int> wakes{0};
  std::mutex mutex;
  std::string log;
  ColdDirectory directory;
  std::unique_ptr<RocksStore> rocks;
};

TEST_CASE("a read returns the last write, in any order with other requests") {
  test::TemporaryDirectory directory;
  Store store(directory.path());
  std::mt19937 random(7);
  const uint32_t life = store.rocks->NewLife();
  const uint32_t other = store.rocks->NewLife();
  CHECK(life != other);
  std::map<uint64_t, uint32_t> versions;
  std::vector<shard::ColdStore::Done> done;
  for (uint32_t round = 1; round <= 20; ++round) {
    size_t asked = 0;
    for (int i = 0; i < 300; ++i) {
      const uint64_t key = ColdKey(random() % 2 == 0 ? life : other, random() % 500);
      // Twice without waiting: a read returns the second.
      for (int n = 0; n < 2; ++n, ++asked) {
        const uint32_t version = ++versions[key];
        store.rocks->Write(key, version, Content(key, version));
      }
    }
    done.clear();
    REQUIRE(store.TakeAll(asked, &done));
    CHECK(done.size() == asked);
    for (const auto& d : done) CHECK_FALSE(d.read);
    asked = 0;
    for (const auto& [key, version] : versions) {
      if (random() % 3 != 0) continue;
      store.rocks->Read(key, version);
      ++asked;
    }
    done.clear();
    REQUIRE(store.TakeAll(asked, &done));
    for (const auto& d : done) {
      REQUIRE(d.status.ok());
      CHECK(d.cookie == versions[d.key]);
      CHECK(d.content == Content(d.key, versions[d.key]));
    }
  }
  CHECK(store.wakes > 0);
  std::vector<uint64_t> keys;
  for (const auto& [key, version] : versions) keys.push_back(key);
  std::vector<std::byte> all(keys.size() * kBytes);
  uint64_t failed = 0;
  Good(store.rocks->ReadNow(keys, kBytes, all.data(), &failed));
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<std::byte> wanted = Content(keys[i], versions[keys[i]]);
    CHECK(std::memcmp(all.data() + i * kBytes, wanted.data(), kBytes) == 0);
  }
  // A life that is over leaves nothing, and the other everything.
  store.rocks->Forget(life);
  const uint64_t of_other = std::prev(versions.end())->first;
  store.rocks->Write(of_other, 1, Content(of_other, 1));
  done.clear();
  REQUIRE(store.TakeAll(1, &done));
  const std::vector<uint64_t> gone = {versions.begin()->first}, there = {of_other};
  CHECK(store.rocks->ReadNow(gone, kBytes, all.data(), &failed).code() ==
        absl::StatusCode::kDataLoss);
  CHECK(failed == gone[0]);
  Good(store.rocks->ReadNow(there, kBytes, all.data(), &failed));
  CHECK(store.rocks->statistics().memory_bytes > 0);
}

TEST_CASE("a directory is used by one process, and nothing is left in it") {
  test::TemporaryDirectory directory;
  const std::string path = directory.File("cold");
  {
    Store store(path);
    CHECK(std::filesystem::exists(path + "/verbena-cold-0/CURRENT"));
    const absl::Status second = ColdDirectory::Open(path).status();
    CHECK(second.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(second.message()),
               Contains(path) &&
                   Contains("in use by another verbenad (pid " + std::to_string(getpid()) + ")"));
    CHECK(std::filesystem::exists(path + "/verbena-cold-0/CURRENT"));
    store.rocks.reset();
  }
  CHECK_FALSE(std::filesystem::exists(path + "/verbena-cold-0"));
  // Leftovers of a killed process are removed; files that the store did not make stay.
  std::filesystem::create_directories(path + "/verbena-cold-3");
  test::WriteFile(path + "/verbena-cold-3/x", "old");
  test::WriteFile(path + "/notes", "mine");
  test::WriteFile(path + "/verbena-cold-notes", "mine, too");
  const ColdDirectory again = Value(ColdDirectory::Open(path));
  CHECK_FALSE(std::filesystem::exists(path + "/verbena-cold-3"));
  CHECK(test::ReadFile(path + "/notes") == "mine");
  CHECK(test::ReadFile(path + "/verbena-cold-notes") == "mine, too");
  const absl::Status file = ColdDirectory::Open(path + "/notes").status();
  CHECK(file.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(file.message()), Contains("not a directory") && Contains("--cold-dir"));
}

TEST_CASE("the disk space of an ended life is freed, also without further writes") {
  test::TemporaryDirectory directory;
  Store store(directory.path());
  const std::vector<std::byte> content(4000, std::byte{7});
  const uint32_t life = store.rocks->NewLife();
  const auto rows = static_cast<uint32_t>(6 * RocksStore::kWriteBufferBytes / content.size());
  std::vector<shard::ColdStore::Done> done;
  // Not in their order, so that files overlap and are merged.
  for (uint32_t i = 0; i < rows; ++i) {
    const uint32_t row = static_cast<uint32_t>(uint64_t{i} * 7919 % rows);
    store.rocks->Write(ColdKey(life, row), row, content);
  }
  REQUIRE(store.TakeAll(rows, &done));
  // RocksDB has made one file of the first four.
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(directory.path() + "/verbena-cold-0")) {
      count += entry.path().extension() == ".sst" ? 1 : 0;
    }
    return count;
  };
  const auto stored = [&] { return store.rocks->statistics().stored_bytes; };
  REQUIRE(Eventually([&] { return stored() > 5 * RocksStore::kWriteBufferBytes && files() <= 3; }));
  store.rocks->Forget(life);
  CHECK(Eventually([&] { return stored() < 3 * RocksStore::kWriteBufferBytes; }));
  // Rows that are still to be written when it ends need not be.
  const uint32_t other = store.rocks->NewLife();
  for (uint32_t row = 0; row < rows; ++row) store.rocks->Write(ColdKey(other, row), row, content);
  store.rocks->Forget(other);
  const uint32_t last = store.rocks->NewLife();
  store.rocks->Write(ColdKey(last, 0), 0, content);
  done.clear();
  REQUIRE(Eventually([&] {
    store.rocks->TakeDone(&done);
    return !done.empty() && done.back().key == ColdKey(last, 0);
  }));
  std::vector<std::byte> to(content.size());
  uint64_t failed = 0;
  for (const uint64_t key : {ColdKey(life, 0), ColdKey(life, rows - 1), ColdKey(other, 0)}) {
    CHECK_FALSE(store.rocks->ReadNow({&key, 1}, content.size(), to.data(), &failed).ok());
  }
}

// So many that they are in files, not in RocksDB's buffers.
constexpr uint32_t kMany = 2 * RocksStore::kWriteBufferBytes / kBytes;

TEST_CASE("a block that was changed on the disk is not read as if nothing were") {
  test::TemporaryDirectory directory;
  Store store(directory.path());
  const uint32_t life = store.rocks->NewLife();
  std::vector<shard::ColdStore::Done> done;
  for (uint32_t row = 0; row < kMany; ++row) {
    store.rocks->Write(ColdKey(life, row), row, Content(row, 0));
  }
  REQUIRE(store.TakeAll(kMany, &done));
  REQUIRE(Eventually([&] { return store.rocks->statistics().stored_bytes > 0; }));
  for (const auto& entry :
       std::filesystem::directory_iterator(directory.path() + "/verbena-cold-0")) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 100; at < entry.file_size() / 2; at += 1000) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put('\x5a');
    }
  }
  uint32_t lost = 0, right = 0;
  std::vector<std::byte> content(kBytes);
  for (uint32_t row = 0; row < kMany; row += 97) {
    uint64_t failed = 0;
    const std::vector<uint64_t> key = {ColdKey(life, row)};
    const absl::Status status = store.rocks->ReadNow(key, kBytes, content.data(), &failed);
    if (status.ok()) {
      REQUIRE(content == Content(row, 0));
      ++right;
    } else {
      CHECK(status.code() == absl::StatusCode::kDataLoss);
      CHECK_THAT(std::string(status.message()), Contains("Corruption"));
      ++lost;
    }
  }
  CHECK(lost > 100);
  CHECK(right > 100);
  done.clear();
  store.rocks->Read(ColdKey(life, 0), 5);
  REQUIRE(store.TakeAll(1, &done));
  CHECK(done[0].status.code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("a read that the disk fails is tried again, for a while") {
  test::TemporaryDirectory directory;
  const auto disk = std::make_shared<FailingDisk>();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(disk);
  Store store(directory.path(), env.get());
  const uint32_t life = store.rocks->NewLife();
  const uint32_t gone = store.rocks->NewLife();
  std::vector<shard::ColdStore::Done> done;
  store.rocks->Write(ColdKey(gone, 0), 0, Content(0, 0));
  for (uint32_t row = 0; row < kMany; ++row) {
    store.rocks->Write(ColdKey(life, row), row, Content(row, 0));
  }
  REQUIRE(store.TakeAll(kMany + 1, &done));
  REQUIRE(Eventually([&] { return store.rocks->statistics().stored_bytes > 0; }));

  // Keys of the first file, which is merged with no other; far apart, so that none is in the cache.
  disk->failures = 3;
  done.clear();
  for (uint32_t i = 0; i < 5; ++i) store.rocks->Read(ColdKey(life, i * 9'000), i);
  REQUIRE(store.TakeAll(5, &done));
  for (const auto& d : done) {
    INFO(d.status.ToString());
    REQUIRE(d.status.ok());
    CHECK(d.content == Content(RowOfColdKey(d.key), 0));
  }
  CHECK(disk->failures == 0);
  CHECK_THAT(store.said(), Contains("tried again") && Contains("planted"));
  // The shard's thread does not wait.
  disk->failures = 2;
  std::vector<std::byte> content(kBytes);
  uint64_t failed = 0;
  const uint64_t key = ColdKey(life, 45'000);
  Good(store.rocks->ReadNow({&key, 1}, kBytes, content.data(), &failed));
  CHECK(content == Content(45'000, 0));
  CHECK(disk->failures == 0);

  // A read that fails for ever; nothing is reported to a life that has ended.
  disk->failures = 1'000'000;
  done.clear();
  const auto start = absl::Now();
  store.rocks->Read(ColdKey(life, 50'000), 1);
  store.rocks->Read(ColdKey(gone, 0), 2);
  store.rocks->Forget(gone);
  REQUIRE(store.TakeAll(1, &done));
  CHECK(absl::Now() - start > absl::Seconds(3));
  CHECK(done.size() == 1);
  CHECK(done[0].key == ColdKey(life, 50'000));
  CHECK(done[0].status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(done[0].status.message()), Contains("planted"));
  CHECK(store.rocks->ReadNow({&key, 1}, kBytes, content.data(), &failed).ok());  // in the cache
  const uint64_t other = ColdKey(life, 40'000);
  CHECK(store.rocks->ReadNow({&other, 1}, kBytes, content.data(), &failed).code() ==
        absl::StatusCode::kUnavailable);
  CHECK(failed == other);
}

TEST_CASE("on a disk that is full nothing is lost, and it goes on when there is room",
          "[.small-disk]") {
  // Of 100 MiB, made by small_disk_test.sh.
  const std::string disk = std::getenv("VERBENA_SMALL_DISK");
  test::WriteFile(disk + "/filler", std::string(size_t{90} << 20, 'x'));
  Store store(disk + "/cold");
  const uint32_t life = store.rocks->NewLife();
  std::vector<shard::ColdStore::Done> done;
  for (uint32_t row = 0; row < 2 * kMany; ++row) {
    store.rocks->Write(ColdKey(life, row), row, Content(row, 0));
  }
  REQUIRE(Eventually([&] { return !store.rocks->health().ok(); }));
  CHECK(store.rocks->health().code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(store.rocks->health().message()), Contains("No space left on device"));
  CHECK(store.rocks->statistics().write_failures > 0);
  CHECK_THAT(store.said(), Contains("stay in memory") && Contains("No space left on device"));
  // Reads go on, of all that was reported as written.
  store.rocks->TakeDone(&done);
  REQUIRE_FALSE(done.empty());
  REQUIRE(done.size() < 2 * kMany);
  std::vector<std::byte> content(kBytes);
  for (size_t i = 0; i < done.size(); i += 101) {
    uint64_t failed = 0;
    const std::vector<uint64_t> key = {done[i].key};
    Good(store.rocks->ReadNow(key, kBytes, content.data(), &failed));
    CHECK(content == Content(done[i].cookie, 0));
  }
  std::filesystem::remove(disk + "/filler");
  REQUIRE(store.TakeAll(2 * kMany, &done));
  CHECK(store.rocks->health().ok());
  CHECK_THAT(store.said(), Contains("written again"));
  for (uint32_t row = 0; row < 2 * kMany; row += 101) {
    uint64_t failed = 0;
    const std::vector<uint64_t> key = {ColdKey(life, row)};
    Good(store.rocks->ReadNow(key, kBytes, content.data(), &failed));
    CHECK(content == Content(row, 0));
  }
}

}  // namespace
}  // namespace verbena::server
