// The coordinator's state on disk: kept, and used by one process at a time. Damage to it:
// store_damage_test.cc; the directory's lock: state_directory_test.cc.
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
#include <random>

#include "proto/protocol_version.h"
#include "server/coordinator/state_directory.h"
#include "server/coordinator/watched_store.h"
#include "tests/server/sqlite_fixture.h"

namespace verbena::server {
namespace {

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
