// Damage to the coordinator's files on disk is named, and is never read as an older or empty state.
#include <sqlite3.h>

#include <filesystem>
#include <random>

#include "tests/server/sqlite_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("a damaged file is named, never read as an older or empty state") {
  TempDirectory dir(true);
  const std::string file = dir.File("coordinator.db");
  CoordinatorState good;
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    Fill(c);
    good = *store->Load();
  }
  const std::string bytes = Read(file);
  REQUIRE(bytes.size() >= 3 * 4096);
  REQUIRE(Same(*Load(dir.path()), good));

  int refused = 0;
  const auto check = [&](const std::string& damaged) {
    Write(file, damaged);
    const auto loaded = Load(dir.path());
    if (loaded.ok()) {
      // Damage in bytes that mean nothing.
      REQUIRE(Same(*loaded, good));
      return;
    }
    ++refused;
    INFO(loaded.status().ToString());
    REQUIRE(Contains(std::string(loaded.status().message()), file));
    // A version that only seems newer is refused as such.
    REQUIRE((absl::IsDataLoss(loaded.status()) ||
             Contains(std::string(loaded.status().message()), "schema version")));
  };

  SECTION("cut") {
    std::mt19937_64 random(1);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{99}, size_t{100}, size_t{512},
                              size_t{4095}, size_t{4096}, bytes.size() - 4096, bytes.size() - 1}) {
      check(bytes.substr(0, size));
    }
    for (int i = 0; i < 40; ++i) check(bytes.substr(0, random() % bytes.size()));
    REQUIRE(refused == 49);
  }
  SECTION("one byte flipped, in every part of the header and the pages") {
    std::mt19937_64 random(2);
    for (size_t at = 0; at < 100; ++at) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (random() % 8)));
      check(damaged);
    }
    for (int i = 0; i < 480; ++i) {
      std::string damaged = bytes;
      const size_t at = random() % damaged.size();
      damaged[at] = static_cast<char>(damaged[at] ^ (1 + random() % 255));
      check(damaged);
    }
    REQUIRE(refused > 100);
  }
  SECTION("a page zeroed, or replaced by another one") {
    for (size_t page = 0; page < bytes.size() / 4096; ++page) {
      std::string damaged = bytes;
      damaged.replace(page * 4096, 4096, std::string(4096, '\0'));
      check(damaged);
      if (page == 0) continue;
      damaged.replace(page * 4096, 4096, bytes.substr((page % 2 + 1) * 4096, 4096));
      check(damaged);
    }
  }
  SECTION("not a database at all") {
    check("hello");
    check(std::string(20000, 'x'));
    REQUIRE(refused == 2);
  }
}

TEST_CASE("rows that are gone from a sound database are noticed") {
  TempDirectory dir;
  const auto with = [&](const char* sql) {
    std::filesystem::remove_all(dir.path());
    {
      const auto store = MustOpen(dir.path());
      TestCoordinator c({.partitions = 16}, store.get());
      Fill(c);
    }
    sqlite3* db = nullptr;
    REQUIRE(sqlite3_open(dir.File("coordinator.db").c_str(), &db) == SQLITE_OK);
    REQUIRE(sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(db);
    return Load(dir.path()).status();
  };
  REQUIRE(with("SELECT 1").ok());
  REQUIRE_STATUS(with("DELETE FROM state"), kDataLoss, "no state");
  REQUIRE_STATUS(with("UPDATE state SET next_incarnation = 1"), kDataLoss, "checksum");
  REQUIRE_STATUS(with("DELETE FROM answered WHERE number = 1"), kDataLoss, "answer 1");
  REQUIRE_STATUS(with("DELETE FROM answered WHERE number = (SELECT max(number) FROM answered)"),
                 kDataLoss, "answers are missing");
  REQUIRE_STATUS(with("UPDATE answered SET response = x'00'"), kDataLoss, "answer 0");
  REQUIRE_STATUS(with("DELETE FROM terms"), kDataLoss, "no terms");
  REQUIRE_STATUS(with("UPDATE terms SET content = x'00'"), kDataLoss, "checksum of the terms");
  REQUIRE_STATUS(with("DROP TABLE answered"), kDataLoss, "damaged");
}

TEST_CASE("damage to the log of a killed process takes nothing back") {
  TempDirectory dir;
  // The copy has the files of an open store, as a kill would leave them.
  const auto store = MustOpen(dir.path());
  TestCoordinator c({.partitions = 16}, store.get());
  Fill(c);
  const CoordinatorState good = *store->Load();
  const std::string database = Read(dir.File("coordinator.db"));
  const std::string log = Read(dir.File("coordinator.db-wal"));
  REQUIRE(!log.empty());
  std::mt19937_64 random(3);
  for (int i = 0; i < 100; ++i) {
    TempDirectory copy(true);
    std::string damaged = log;
    if (i % 2 == 0) {
      damaged.resize(random() % damaged.size());
    } else {
      damaged[random() % damaged.size()] ^= static_cast<char>(1 + random() % 255);
    }
    Write(copy.File("coordinator.db"), database);
    Write(copy.File("coordinator.db-wal"), damaged);
    const auto loaded = Load(copy.path());
    INFO(loaded.status().ToString());
    REQUIRE(loaded.ok());
    REQUIRE(Same(*loaded, good));
  }
}

TEST_CASE("a log left behind by a database that was moved away is not replayed") {
  TempDirectory dir, other;
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    Fill(c);
    Write(other.File("coordinator.db-wal"), Read(dir.File("coordinator.db-wal")));
  }
  const auto loaded = Load(other.path());
  REQUIRE(loaded.ok());
  REQUIRE(loaded->next_incarnation == 1);
}

}  // namespace
}  // namespace verbena::server
