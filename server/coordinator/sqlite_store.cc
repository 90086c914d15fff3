#include "server/coordinator/sqlite_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/coordinator/sqlite.h"
#include "server/coordinator/sqlite_entries.h"
#include "server/coordinator/state_directory.h"

namespace verbena::server {
namespace {

constexpr int kSchemaVersion = 4;
constexpr int kApplicationId = 0x56524243;  // "VRBC"

// `state` has exactly one row, from the first moment. Answers have numbers without gaps.
constexpr char kSchema[] = R"(
  CREATE TABLE state(
    one INTEGER PRIMARY KEY CHECK(one = 1),
    view BLOB NOT NULL,
    next_incarnation INTEGER NOT NULL,
    next_table INTEGER NOT NULL,
    first_answer INTEGER NOT NULL,
    end_answer INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    ended_generation INTEGER NOT NULL DEFAULT 0,
    entries_sum INTEGER NOT NULL DEFAULT 0);
  CREATE TABLE answered(
    number INTEGER PRIMARY KEY,
    request_id BLOB NOT NULL,
    method BLOB NOT NULL,
    response BLOB NOT NULL,
    checksum INTEGER NOT NULL);
)";
// Since version 2, and 3. Each has exactly one row, too, which begins empty.
constexpr char kTokens[] = "tokens";
constexpr char kTerms[] = "terms";

// Since version 4 the view of `state` has no tables and no jobs: each is an entry of its own, so
// that a change writes only the differences. An upgraded file has all in `state` until the first
// Save().
constexpr char kAddEntries[] =
    "ALTER TABLE state ADD COLUMN ended_generation INTEGER NOT NULL DEFAULT 0; "
    "ALTER TABLE state ADD COLUMN entries_sum INTEGER NOT NULL DEFAULT 0";

class Checksum {
 public:
  Checksum& Add(int64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  // With its length, so that bytes cannot move from one field to the next.
  Checksum& Add(const std::string& bytes) {
    Add(static_cast<int64_t>(bytes.size()));
    bytes_ += bytes;
    return *this;
  }
  int64_t value() const { return static_cast<int64_t>(XXH3_64bits(bytes_.data(), bytes_.size())); }

 private:
  std::string bytes_;
};

// A table with one row, which is empty: a message of that name.
std::string MakeEmpty(const char* table) {
  return absl::StrCat("CREATE TABLE ", table,
                      "(one INTEGER PRIMARY KEY CHECK(one = 1), content BLOB NOT NULL, checksum "
                      "INTEGER NOT NULL); INSERT INTO ",
                      table, "(one, content, checksum) VALUES(1, x'', ",
                      Checksum().Add(std::string()).value(), ");");
}

int64_t AnswerChecksum(int64_t number, const CoordinatorState::Answered& answer) {
  return Checksum()
      .Add(number)
      .Add(answer.request_id)
      .Add(answer.method)
      .Add(answer.response)
      .value();
}

bool IsDamage(int code) {
  const int primary = code & 0xff;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_FORMAT ||
         primary == SQLITE_ERROR || primary == SQLITE_MISMATCH;
}

struct Ids {
  int64_t next_incarnation = 1;
  int64_t next_table = 1;
  int64_t first_answer = 0;
  int64_t end_answer = 0;
  int64_t ended_generation = 0;
  int64_t entries_sum = 0;  // of the checksums of all entries: none is missing
};

int64_t StateChecksum(const std::string& view, const Ids& ids, int version) {
  Checksum checksum;
  checksum.Add(view)
      .Add(ids.next_incarnation)
      .Add(ids.next_table)
      .Add(ids.first_answer)
      .Add(ids.end_answer);
  if (version >= 4) checksum.Add(ids.ended_generation).Add(ids.entries_sum);
  return checksum.value();
}

int WriteState(sqlite::Statement* statement, const std::string& view, const Ids& ids) {
  statement->BindBlob(1, view);
  statement->BindInt(2, ids.next_incarnation);
  statement->BindInt(3, ids.next_table);
  statement->BindInt(4, ids.first_answer);
  statement->BindInt(5, ids.end_answer);
  statement->BindInt(6, StateChecksum(view, ids, kSchemaVersion));
  statement->BindInt(7, ids.ended_generation);
  statement->BindInt(8, ids.entries_sum);
  const int code = statement->Step();
  statement->Reset();
  return code;
}

int WriteRow(sqlite::Statement* statement, const std::string& content) {
  statement->BindBlob(1, content);
  statement->BindInt(2, Checksum().Add(content).value());
  const int code = statement->Step();
  statement->Reset();
  return code;
}

constexpr char kWriteState[] =
    "INSERT OR REPLACE INTO state(one, view, next_incarnation, next_table, first_answer, "
    "end_answer, checksum, ended_generation, entries_sum) VALUES(1, ?, ?, ?, ?, ?, ?, ?, ?)";

std::string WithoutEntries(const v1::ClusterView& view) {
  v1::ClusterView rest;
  rest.set_cluster_id(view.cluster_id());
  rest.set_revision(view.revision());
  rest.set_term(view.term());
  rest.set_lease_ms(view.lease_ms());
  rest.set_expected_servers(view.expected_servers());
  rest.set_replicas(view.replicas());
  rest.set_min_replicas(view.min_replicas());
  rest.set_protocol(view.protocol());
  rest.set_move_rate(view.move_rate());
  *rest.mutable_servers() = view.servers();
  *rest.mutable_partitions() = view.partitions();
  *rest.mutable_terms() = view.terms();
  return rest.SerializeAsString();
}

}  // namespace

struct SqliteStore::Impl {
  StateDirectory directory;
  std::string file;
  // Declared before the statements: they go first.
  sqlite::Database db;
  SqliteEntries entries;
  sqlite::Statement write_state, write_tokens, write_terms, add_answer, forget_answers;
  Ids ids;
  std::string tokens;      // as they are in the file
  uint64_t last_term = 0;  // in the file

  Impl(StateDirectory d) : directory(std::move(d)), file(directory.File("coordinator.db")) {}

  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError(absl::StrCat(
        file, " is damaged (", what,
        "): put its newest copy back (one that servers prove to be old is refused; see "
        "--accept-older-state), or move it away to start a new and empty cluster, whose tables "
        "must "
        "be created again"));
  }
  absl::Status Failed(int code) const {
    if (IsDamage(code)) return Damaged(db.Message(code));
    return absl::PermissionDeniedError(absl::StrCat("cannot open ", file, ": ", db.Message(code),
                                                    "; give user id ", geteuid(),
                                                    " the right to read and write it, or name "
                                                    "another directory (--state)"));
  }

  absl::Status MakeFile();
  absl::Status OpenFile();
  absl::Status CheckVersion();
  absl::Status Upgrade(int version);
  absl::Status LoadState(int version, std::string* view, Ids* loaded);
  absl::Status PrepareAll();
  int WriteTerms(const Terms& terms);
  int WriteAnswer(const CoordinatorState::Answered& answered, Ids* next);
  // One of the changes: its answer and its entries.
  int WriteChange(const CoordinatorState& state, const StateChange& change, Ids* next);
  int WriteAll(const CoordinatorState& state, const std::string* next_tokens,
               absl::Span<const StateChange> changes, Ids* next);
  // The one row of such a table; *content as it is in the file.
  absl::Status LoadRow(const char* table, std::string* content, google::protobuf::Message* into);
  absl::Status LoadAnswers(std::deque<CoordinatorState::Answered>* answered);
};

// A crash on the way leaves coordinator.db.new, which the next start overwrites.
absl::Status SqliteStore::Impl::MakeFile() {
  const std::string made = directory.File("coordinator.db.new");
  for (const char* suffix : {"", "-journal"}) unlink((made + suffix).c_str());
  // A log without its database belongs to one that was moved away: SQLite would replay it.
  for (const char* suffix : {"-wal", "-shm", "-journal"}) unlink((file + suffix).c_str());
  sqlite::Database fresh;
  sqlite::Statement write;
  int code = fresh.Open(made);
  if (code == SQLITE_OK) code = fresh.Execute("PRAGMA synchronous=FULL; BEGIN");
  if (code == SQLITE_OK) code = fresh.Execute(kSchema);
  if (code == SQLITE_OK) code = fresh.Execute(MakeEmpty(kTokens));
  if (code == SQLITE_OK) code = fresh.Execute(MakeEmpty(kTerms));
  if (code == SQLITE_OK) code = fresh.Execute(SqliteEntries::kSchema);
  if (code == SQLITE_OK) {
    code = fresh.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion,
                                      "; PRAGMA application_id=", kApplicationId));
  }
  if (code == SQLITE_OK) code = fresh.Prepare(kWriteState, &write);
  if (code == SQLITE_OK && (code = WriteState(&write, "", Ids())) == SQLITE_DONE) {
    code = fresh.Execute("COMMIT");
  }
  if (code != SQLITE_OK) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot make ", made, ": ", fresh.Message(code)));
  }
  write = sqlite::Statement();
  fresh.Close();
  if (rename(made.c_str(), file.c_str()) != 0) return CannotUse(directory.path(), errno);
  return directory.Sync();
}

absl::Status SqliteStore::Impl::CheckVersion() {
  std::string text;
  int version = 0, application = 0;
  int code = db.Query("PRAGMA user_version", &text);
  if (code != SQLITE_OK) return Failed(code);
  const bool numbers = absl::SimpleAtoi(text, &version);
  code = db.Query("PRAGMA application_id", &text);
  if (code != SQLITE_OK) return Failed(code);
  if (!numbers || !absl::SimpleAtoi(text, &application) || application != kApplicationId) {
    return Damaged("it is not a coordinator's database");
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " has schema version ", version, ", and this verbenad knows up to ",
                     kSchemaVersion, ": a newer version wrote it; use that one"));
  }
  if (version < 1) return Damaged("it has no schema version");
  return version < kSchemaVersion ? Upgrade(version) : absl::OkStatus();
}

// In one transaction: a crash leaves one version or the other.
absl::Status SqliteStore::Impl::Upgrade(int version) {
  int code = db.Execute("BEGIN IMMEDIATE");
  if (code == SQLITE_OK && version < 2) code = db.Execute(MakeEmpty(kTokens));
  if (code == SQLITE_OK && version < 3) code = db.Execute(MakeEmpty(kTerms));
  if (code == SQLITE_OK) code = db.Execute(kAddEntries);
  if (code == SQLITE_OK) code = db.Execute(SqliteEntries::kSchema);
  if (code != SQLITE_OK) return Failed(code);
  std::string view;
  Ids all;
  if (absl::Status status = LoadState(version, &view, &all); !status.ok()) return status;
  sqlite::Statement write;
  code = db.Prepare(kWriteState, &write);
  if (code == SQLITE_OK)
    code = WriteState(&write, view, all) == SQLITE_DONE ? SQLITE_OK : SQLITE_ERROR;
  if (code == SQLITE_OK) {
    code = db.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion, "; COMMIT"));
  }
  return code == SQLITE_OK ? absl::OkStatus() : Failed(code);
}

// The one row of `state`, as `version` of the schema has it.
absl::Status SqliteStore::Impl::LoadState(int version, std::string* view, Ids* loaded) {
  sqlite::Statement read;
  int code = db.Prepare(
      "SELECT view, next_incarnation, next_table, first_answer, end_answer, checksum, "
      "ended_generation, entries_sum FROM state",
      &read);
  if (code != SQLITE_OK) return Failed(code);
  code = read.Step();
  if (code == SQLITE_DONE) return Damaged("it has no state");
  if (code != SQLITE_ROW) return Failed(code);
  *view = read.Blob(0);
  *loaded = {read.Int(1), read.Int(2), read.Int(3), read.Int(4), read.Int(6), read.Int(7)};
  if (read.Int(5) != StateChecksum(*view, *loaded, version)) {
    return Damaged("checksum of the state");
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::Impl::OpenFile() {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) {
    if (errno != ENOENT) return CannotUse(directory.path(), errno);
    if (absl::Status status = MakeFile(); !status.ok()) return status;
  } else if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(file, " is not a file; move it away"));
  } else if (info.st_size == 0) {
    return Damaged("it is empty");
  }
  int code = db.Open(file);
  if (code != SQLITE_OK) return Failed(code);
  // No shared-memory index: no other process may use the file, and truncating it while it is mapped
  // would end the process with SIGBUS.
  code = db.Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (code == SQLITE_OK) {
    if (absl::Status status = CheckVersion(); !status.ok()) return status;
    code = db.Execute(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
        "PRAGMA wal_autocheckpoint=1");
  }
  if (code != SQLITE_OK) return Failed(code);
  std::string text;
  code = db.Query("PRAGMA quick_check(1)", &text);
  if (code != SQLITE_OK) return Failed(code);
  if (text != "ok") return Damaged(text);
  return PrepareAll();
}

absl::Status SqliteStore::Impl::PrepareAll() {
  int code = db.Prepare(kWriteState, &write_state);
  if (code == SQLITE_OK) {
    code = db.Prepare("UPDATE tokens SET content = ?, checksum = ?", &write_tokens);
  }
  if (code == SQLITE_OK) {
    code = db.Prepare(
        "INSERT INTO answered(number, request_id, method, response, checksum) "
        "VALUES(?, ?, ?, ?, ?)",
        &add_answer);
  }
  if (code == SQLITE_OK) {
    code = db.Prepare("DELETE FROM answered WHERE number < ?", &forget_answers);
  }
  if (code == SQLITE_OK) {
    code = db.Prepare("UPDATE terms SET content = ?, checksum = ?", &write_terms);
  }
  if (code == SQLITE_OK) code = entries.Prepare(&db);
  return code == SQLITE_OK ? absl::OkStatus() : Failed(code);
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& directory) {
  absl::StatusOr<StateDirectory> locked = StateDirectory::Open(directory);
  if (!locked.ok()) return locked.status();
  auto impl = std::make_unique<Impl>(*std::move(locked));
  if (absl::Status status = impl->OpenFile(); !status.ok()) return status;
  return std::unique_ptr<SqliteStore>(new SqliteStore(std::move(impl)));
}

SqliteStore::SqliteStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SqliteStore::~SqliteStore() = default;

uint64_t SqliteStore::entries_written() const { return impl_->entries.rows_written(); }

absl::Status SqliteStore::Impl::LoadAnswers(std::deque<CoordinatorState::Answered>* answered) {
  sqlite::Statement read;
  int code = db.Prepare(
      "SELECT number, request_id, method, response, checksum FROM answered ORDER BY number", &read);
  if (code != SQLITE_OK) return Failed(code);
  int64_t expected = ids.first_answer;
  while ((code = read.Step()) == SQLITE_ROW) {
    CoordinatorState::Answered answer{read.Blob(1), read.Blob(2), read.Blob(3)};
    if (read.Int(0) != expected || read.Int(4) != AnswerChecksum(expected, answer)) {
      return Damaged(absl::StrCat("answer ", expected));
    }
    ++expected;
    answered->push_back(std::move(answer));
  }
  if (code != SQLITE_DONE) return Failed(code);
  if (expected != ids.end_answer) return Damaged("answers are missing");
  return absl::OkStatus();
}

absl::Status SqliteStore::Impl::LoadRow(const char* table, std::string* content,
                                        google::protobuf::Message* into) {
  sqlite::Statement read;
  int code = db.Prepare(absl::StrCat("SELECT content, checksum FROM ", table).c_str(), &read);
  if (code != SQLITE_OK) return Failed(code);
  code = read.Step();
  if (code == SQLITE_DONE) return Damaged(absl::StrCat("it has no ", table, ", not even none"));
  if (code != SQLITE_ROW) return Failed(code);
  *content = read.Blob(0);
  if (read.Int(1) != Checksum().Add(*content).value()) {
    return Damaged(absl::StrCat("checksum of the ", table));
  }
  if (!into->ParseFromString(*content)) {
    return Damaged(absl::StrCat("the ", table, " are unreadable"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CoordinatorState> SqliteStore::Load() {
  Impl& impl = *impl_;
  std::string view;
  Ids ids;
  if (absl::Status s = impl.LoadState(kSchemaVersion, &view, &ids); !s.ok()) return s;
  CoordinatorState state;
  if (!state.view.ParseFromString(view)) return impl.Damaged("the view is unreadable");
  int64_t sum = 0;
  const int code = impl.entries.Load(&state.view, &sum);
  if (code != SQLITE_DONE) return impl.Failed(code);
  if (sum != ids.entries_sum) return impl.Damaged("checksum of the tables and jobs");
  state.next_incarnation = static_cast<uint64_t>(ids.next_incarnation);
  state.next_table = static_cast<uint32_t>(ids.next_table);
  state.ended_generation = static_cast<uint32_t>(ids.ended_generation);
  impl.ids = ids;
  v1::History history;
  std::string content;
  if (absl::Status s = impl.LoadRow(kTerms, &content, &history); !s.ok()) return s;
  state.terms.Swap(history.mutable_terms());
  if (!state.terms.empty()) impl.last_term = state.terms.rbegin()->number();
  if (absl::Status s = impl.LoadRow(kTokens, &impl.tokens, &state.access); !s.ok()) return s;
  if (absl::Status status = impl.LoadAnswers(&state.answered); !status.ok()) return status;
  return state;
}

// They change once a start.
int SqliteStore::Impl::WriteTerms(const Terms& terms) {
  if (terms.empty() || terms.rbegin()->number() == last_term) return SQLITE_DONE;
  v1::History history;
  *history.mutable_terms() = terms;
  return WriteRow(&write_terms, history.SerializeAsString());
}

int SqliteStore::Impl::WriteAnswer(const CoordinatorState::Answered& answered, Ids* next) {
  const int64_t number = next->end_answer++;
  const auto kept = static_cast<int64_t>(kAnswersKept);
  next->first_answer = std::max(next->first_answer, next->end_answer - kept);
  add_answer.BindInt(1, number);
  add_answer.BindBlob(2, answered.request_id);
  add_answer.BindBlob(3, answered.method);
  add_answer.BindBlob(4, answered.response);
  add_answer.BindInt(5, AnswerChecksum(number, answered));
  int code = add_answer.Step();
  add_answer.Reset();
  if (code != SQLITE_DONE) return code;
  forget_answers.BindInt(1, next->first_answer);
  code = forget_answers.Step();
  forget_answers.Reset();
  return code;
}

// Adds its changes of the entries to next->entries_sum.
int SqliteStore::Impl::WriteChange(const CoordinatorState& state, const StateChange& change,
                                   Ids* next) {
  const int code = change.answered != nullptr ? WriteAnswer(*change.answered, next) : SQLITE_DONE;
  if (code != SQLITE_DONE) return code;
  return change.view == nullptr
             ? entries.WriteAll(state.view, &next->entries_sum)
             : entries.Write(*change.view, change.gone_members, &next->entries_sum);
}

int SqliteStore::Impl::WriteAll(const CoordinatorState& state, const std::string* next_tokens,
                                absl::Span<const StateChange> changes, Ids* next) {
  int code = db.Execute("BEGIN IMMEDIATE");
  if (code != SQLITE_OK) return code;
  code = WriteTerms(state.terms);
  for (const StateChange& change : changes) {
    if (code == SQLITE_DONE) code = WriteChange(state, change, next);
  }
  if (code == SQLITE_DONE) code = WriteState(&write_state, WithoutEntries(state.view), *next);
  if (code == SQLITE_DONE && next_tokens != nullptr) code = WriteRow(&write_tokens, *next_tokens);
  return code == SQLITE_DONE ? db.Execute("COMMIT") : code;
}

absl::Status SqliteStore::SaveAll(const CoordinatorState& state,
                                  absl::Span<const StateChange> changes) {
  Impl& impl = *impl_;
  Ids next = impl.ids;
  next.next_incarnation = static_cast<int64_t>(state.next_incarnation);
  next.next_table = state.next_table;
  next.ended_generation = state.ended_generation;
  const bool access = std::any_of(changes.begin(), changes.end(),
                                  [](const StateChange& change) { return change.access; });
  std::string tokens = access ? state.access.SerializeAsString() : impl.tokens;
  const int code = impl.WriteAll(state, tokens != impl.tokens ? &tokens : nullptr, changes, &next);
  if (code == SQLITE_OK) {
    impl.ids = next;
    impl.tokens = std::move(tokens);
    if (!state.terms.empty()) impl.last_term = state.terms.rbegin()->number();
    return absl::OkStatus();
  }
  const std::string message = impl.db.Message(code);
  if (impl.db.in_transaction()) impl.db.Execute("ROLLBACK");
  return absl::UnavailableError(absl::StrCat(
      "cannot save the cluster's state to ", impl.file, ": ", message,
      (code & 0xff) == SQLITE_FULL ? "; free some space" : "", "; nothing was changed"));
}

}  // namespace verbena::server
