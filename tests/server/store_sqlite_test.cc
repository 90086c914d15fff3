// The coordinator's state on disk: kept, refused when damaged, used by one process at a time. The
// directory's lock: state_directory_test.cc.
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "proto/protocol_version.h"
#include "server/coordinator/sqlite_store.h"
#include "server/coordinator/state_directory.h"
#include "server/coordinator/watched_store.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

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

std::string Read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
void Write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

std::unique_ptr<SqliteStore> MustOpen(const std::string& directory) {
  auto store = SqliteStore::Open(directory);
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return *std::move(store);
}

TEST_CASE("a failing store is counted, and its failure and its recovery are reported once each") {
  class Full final : public Store {
   public:
    explicit Full(const bool* full) : full_(full) {}
    absl::StatusOr<CoordinatorState> Load() override { return CoordinatorState(); }
    absl::Status SaveAll(const CoordinatorState&, absl::Span<const StateChange>) override {
      return *full_ ? absl::UnavailableError("the disk is full") : absl::OkStatus();
    }

   private:
    const bool* full_;
  };
  bool full = false;
  std::vector<std::string> said;
  WatchedStore store(std::make_unique<Full>(&full), [&](bool failing, const std::string& text) {
    CHECK(failing == full);
    said.push_back(text);
  });
  for (const bool now : {false, true, true, false, false}) {
    full = now;
    CHECK(store.Save({}, {}).ok() == !now);
    CHECK(store.failing() == now);
  }
  CHECK(store.failures() == 2);
  REQUIRE(said.size() == 2);
  CHECK_THAT(said[0], Catch::Matchers::Contains("cannot save its state") &&
                          Catch::Matchers::Contains("the disk is full"));
  CHECK(said[1] == "the coordinator's state is saved again");
}

void Fill(TestCoordinator& c) {
  c.JoinServer("a", 2);
  REQUIRE(c.JoinWorker("job", 2).ok());
  for (int t = 0; t < 5; ++t) {
    REQUIRE(c.CreateTable(c.Spec("t" + std::to_string(t), 6400)).ok());
  }
  c.JoinServer("a", 2);
}

bool Same(const CoordinatorState& a, const CoordinatorState& b) {
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

absl::StatusOr<CoordinatorState> Load(const std::string& directory) {
  auto store = SqliteStore::Open(directory);
  if (!store.ok()) return store.status();
  return (*store)->Load();
}

TEST_CASE("saved state is there after a restart") {
  TempDirectory dir;
  const std::string nested = dir.File("made/for/us");
  v1::ClusterView before;
  v1::JoinServerRequest request;
  {
    const auto store = MustOpen(nested);
    TestCoordinator c({.partitions = 16}, store.get());
    Fill(c);
    request = c.ServerRequest("z");
    REQUIRE(c.Call(&Coordinator::JoinServer, request).ok());
    before = c.view();
  }
  const auto store = MustOpen(nested);
  TestCoordinator c({.partitions = 16}, store.get());
  before.set_term(before.term() + 1);
  before.set_revision(before.revision() + 1);
  REQUIRE(c.view().terms_size() == before.terms_size() + 1);
  *before.add_terms() = *c.view().terms().rbegin();
  REQUIRE(c.view().SerializeAsString() == before.SerializeAsString());
  REQUIRE(c.Call(&Coordinator::JoinServer, request)->incarnation() == c.Server("z").incarnation());
  REQUIRE(c.view().SerializeAsString() == before.SerializeAsString());
}

TEST_CASE("regression: the settings of a view are all stored") {
  TempDirectory dir;
  v1::ClusterView before;
  {
    const auto store = MustOpen(dir.path());
    CoordinatorOptions options;
    options.move_rate = 12345;
    TestCoordinator c(options, store.get());
    v1::JoinServerRequest request = c.ServerRequest("a");
    SetProtocols({kOldestProtocolVersion, kProtocolVersion}, request.mutable_protocol());
    REQUIRE(c.Call(&Coordinator::JoinServer, request).ok());
    before = SettingsOf(c.view());
  }
  REQUIRE(before.protocol() == kProtocolVersion);
  const auto store = MustOpen(dir.path());
  const absl::StatusOr<CoordinatorState> state = store->Load();
  REQUIRE(state.ok());
  CHECK(SettingsOf(state->view).DebugString() == before.DebugString());
}

TEST_CASE("a process killed at any moment loses nothing that it had answered") {
  for (int round = 0; round < 16; ++round) {
    const int group = round % 2 == 0 ? 1 : 5;  // calls whose changes are saved together
    TempDirectory dir;
    int answers[2];
    REQUIRE(pipe(answers) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(answers[0]);
      auto store = SqliteStore::Open(dir.path());
      ManualClock clock;
      auto c = store.ok() ? Coordinator::Create({}, &clock, store->get())
                          : absl::StatusOr<std::unique_ptr<Coordinator>>(store.status());
      for (int i = 0; c.ok(); ++i) {
        if (i % group == 0) (*c)->EndGroup();
        if (i % group == 0 && group > 1) (*c)->BeginGroup();
        v1::JoinServerRequest request;
        request.set_request_id(std::string(12, 'x') + std::to_string(1000 + i));
        request.set_name("s" + std::to_string(i));
        request.set_address("h:1");
        request.set_shards(1);
        (*c)->JoinServer(request, [&](absl::StatusOr<v1::JoinServerResponse> response) {
          const uint64_t incarnation = response.ok() ? response->incarnation() : 0;
          if (write(answers[1], &incarnation, sizeof(incarnation)) < 0) _exit(1);
        });
      }
      _exit(1);
    }
    close(answers[1]);
    uint64_t last = 0, incarnation = 0;
    for (int i = 0; i < 5 + 7 * (round / 2); ++i) {
      REQUIRE(read(answers[0], &incarnation, sizeof(incarnation)) == sizeof(incarnation));
      last = incarnation;
    }
    kill(child, SIGKILL);
    while (read(answers[0], &incarnation, sizeof(incarnation)) == sizeof(incarnation)) {
      last = incarnation;
    }
    close(answers[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    const auto state = Load(dir.path());
    INFO(state.status().ToString());
    REQUIRE(state.ok());
    REQUIRE(last >= 5);
    REQUIRE(state->next_incarnation > last);
    REQUIRE(state->view.servers_size() == static_cast<int>(state->next_incarnation - 1));
    REQUIRE(state->answered.size() == state->next_incarnation - 1);
    REQUIRE(state->view.servers_size() % group == 0);
  }
}

TEST_CASE(
    "regression: a change writes the rows that it changes, and all of them are loaded again") {
  TempDirectory dir(true);
  v1::ClusterView view;
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    c.JoinServer("a");
    for (int i = 0; i < 200; ++i) {
      const std::string job = "job-" + std::to_string(1000 + i);
      const std::string table = "table-" + std::to_string(i);
      uint64_t before = store->entries_written();
      REQUIRE(c.CreateTable(c.Spec(table, 64, v1::CONSISTENCY_ASYNC, job)).ok());
      CHECK(store->entries_written() == before + 1);
      before = store->entries_written();
      const auto first = c.JoinWorker(job, 2);
      REQUIRE(c.JoinWorker(job, 2).ok());
      CHECK(store->entries_written() <= before + 5);  // a job's row is removed and written
      before = store->entries_written();
      REQUIRE(c.Leave(first->incarnation()).ok());
      if (i % 3 == 0) REQUIRE(c.DropTable(table).ok());
      CHECK(store->entries_written() <= before + 4);
    }
    view = c.view();
  }
  const auto loaded = Load(dir.path());
  INFO(loaded.status());
  REQUIRE(loaded.ok());
  CHECK(loaded->view.SerializeAsString() == view.SerializeAsString());
}

TEST_CASE("regression: a row of a table or job that is missing is found") {
  TempDirectory dir;
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    c.JoinServer("a");
    REQUIRE(c.CreateTable(c.Spec("one", 64)).ok());
    REQUIRE(c.CreateTable(c.Spec("two", 64)).ok());
  }
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(dir.File("coordinator.db").c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, "DELETE FROM entries WHERE kind = 1 AND key = 1", nullptr, nullptr,
                       nullptr) == SQLITE_OK);
  sqlite3_close(db);
  REQUIRE_STATUS(Load(dir.path()).status(), kDataLoss, "tables and jobs");
}

TEST_CASE("only the last answers are kept on disk") {
  TempDirectory dir(true);
  CoordinatorState state;
  {
    const auto store = MustOpen(dir.path());
    for (size_t i = 0; i < kAnswersKept + 20; ++i) {
      CoordinatorState::Answered answer{"id" + std::to_string(i), "m", ""};
      REQUIRE(store->Save(state, {.answered = &answer}).ok());
    }
  }
  const auto loaded = Load(dir.path());
  REQUIRE(loaded.ok());
  REQUIRE(loaded->answered.size() == kAnswersKept);
  REQUIRE(loaded->answered.front().request_id == "id20");
}

TEST_CASE("a second daemon on the same state is refused, with the process that uses it") {
  TempDirectory dir;
  auto store = MustOpen(dir.path());
  REQUIRE_STATUS(SqliteStore::Open(dir.path()).status(), kFailedPrecondition,
                 "state directory " + dir.path() + " is in use by another verbenad (pid " +
                     std::to_string(getpid()) + ")");
  store.reset();
  REQUIRE(SqliteStore::Open(dir.path()).ok());
}

TEST_CASE("the error about an unusable state directory names it and the remedy") {
  TempDirectory dir;
  Write(dir.File("file"), "x");
  REQUIRE_STATUS(SqliteStore::Open(dir.File("file")).status(), kFailedPrecondition,
                 dir.File("file") + " is not a directory");
  REQUIRE_STATUS(SqliteStore::Open(dir.File("file/below")).status(), kFailedPrecondition,
                 "--state");
  // Nobody, root included, can make files there.
  REQUIRE_STATUS(SqliteStore::Open("/proc/verbena").status(), kPermissionDenied, "/proc/verbena");
  REQUIRE_STATUS(SqliteStore::Open("/proc").status(), kPermissionDenied, "--state");
  REQUIRE_STATUS(SqliteStore::Open("").status(), kInvalidArgument, "empty");
  if (geteuid() != 0) {
    REQUIRE(chmod(dir.path().c_str(), 0500) == 0);
    REQUIRE_STATUS(SqliteStore::Open(dir.path()).status(), kPermissionDenied, dir.path());
    REQUIRE(chmod(dir.path().c_str(), 0700) == 0);
  }
  std::filesystem::create_directory(dir.File("coordinator.db"));
  REQUIRE_STATUS(SqliteStore::Open(dir.path()).status(), kFailedPrecondition, "is not a file");
}

TEST_CASE("a file of a newer version is refused") {
  TempDirectory dir;
  { MustOpen(dir.path()); }
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(dir.File("coordinator.db").c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, "PRAGMA user_version=5", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
  REQUIRE_STATUS(SqliteStore::Open(dir.path()).status(), kFailedPrecondition, "schema version 5");
}

// The state as versions 1 to 3 have it: the whole view in one row.
void PutBackOneRow(sqlite3* db, const v1::ClusterView& view) {
  REQUIRE(sqlite3_exec(db,
                       "DROP TABLE entries; ALTER TABLE state DROP COLUMN entries_sum; "
                       "ALTER TABLE state DROP COLUMN ended_generation",
                       nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_stmt* read = nullptr;
  REQUIRE(sqlite3_prepare_v2(
              db, "SELECT next_incarnation, next_table, first_answer, end_answer FROM state", -1,
              &read, nullptr) == SQLITE_OK);
  REQUIRE(sqlite3_step(read) == SQLITE_ROW);
  const std::string bytes = view.SerializeAsString();
  std::string summed;
  const auto add = [&](int64_t value) {
    summed.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(static_cast<int64_t>(bytes.size()));
  summed += bytes;
  for (int i = 0; i < 4; ++i) add(sqlite3_column_int64(read, i));
  sqlite3_finalize(read);
  sqlite3_stmt* write = nullptr;
  REQUIRE(sqlite3_prepare_v2(db, "UPDATE state SET view = ?, checksum = ?", -1, &write, nullptr) ==
          SQLITE_OK);
  sqlite3_bind_blob(write, 1, bytes.data(), static_cast<int>(bytes.size()), SQLITE_STATIC);
  sqlite3_bind_int64(write, 2, static_cast<int64_t>(XXH3_64bits(summed.data(), summed.size())));
  REQUIRE(sqlite3_step(write) == SQLITE_DONE);
  sqlite3_finalize(write);
}

TEST_CASE("a file of an earlier version is taken over, and has tokens and terms from then on") {
  const int version = GENERATE(1, 2, 3);
  TempDirectory dir;
  CoordinatorState good;
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    Fill(c);
    good = *store->Load();
  }
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(dir.File("coordinator.db").c_str(), &db) == SQLITE_OK);
  PutBackOneRow(db, good.view);
  const char* const back = version == 1
                               ? "DROP TABLE terms; DROP TABLE tokens; PRAGMA user_version=1"
                           : version == 2 ? "DROP TABLE terms; PRAGMA user_version=2"
                                          : "PRAGMA user_version=3";
  REQUIRE(sqlite3_exec(db, back, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
  CoordinatorState earlier = good;
  if (version < 3) earlier.terms.Clear();
  REQUIRE(Same(*Load(dir.path()), earlier));
  {
    const auto store = MustOpen(dir.path());
    TestCoordinator c({.partitions = 16}, store.get());
    good = *store->Load();
    REQUIRE(good.terms.size() == earlier.view.terms_size() + 1);
  }
  v1::Token* token = good.access.add_tokens();
  token->set_id("0123456789ab");
  token->set_hash(std::string(32, 'h'));
  {
    const auto store = MustOpen(dir.path());
    REQUIRE(store->Load().ok());
    REQUIRE(store->Save(good, {}).ok());
  }
  REQUIRE(Same(*Load(dir.path()), good));
}

TEST_CASE("another program's database is refused") {
  TempDirectory dir;
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(dir.File("coordinator.db").c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, "CREATE TABLE x(y)", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
  REQUIRE_STATUS(SqliteStore::Open(dir.path()).status(), kDataLoss, "coordinator.db is damaged");
}

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

TEST_CASE("a full disk undoes the change, with an error") {
  TempDirectory dir;
  const auto store = MustOpen(dir.path());
  TestCoordinator c({.partitions = 16}, store.get());
  Fill(c);
  const std::string before = c.view().SerializeAsString();
  struct rlimit unlimited;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  struct rlimit limited = unlimited;
  limited.rlim_cur = 8192;
  const auto old = signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  const auto refused = c.CreateTable(c.Spec("more", 64)).status();
  REQUIRE(setrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  signal(SIGXFSZ, old);
  REQUIRE_STATUS(refused, kUnavailable, "cannot save the cluster's state to " + dir.path());
  REQUIRE(c.view().SerializeAsString() == before);
  REQUIRE(c.CreateTable(c.Spec("more", 64)).ok());
}

}  // namespace
}  // namespace verbena::server
