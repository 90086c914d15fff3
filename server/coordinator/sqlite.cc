#include "server/coordinator/sqlite.h"

#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/base/own_file.h"

namespace verbena::server::sqlite {

std::string Message(sqlite3* db, int code) {
  std::string text = sqlite3_errstr(code);
  const int system = db == nullptr ? 0 : sqlite3_system_errno(db);
  const int primary = code & 0xff;
  if (system != 0 && (primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN)) {
    absl::StrAppend(&text, ": ", std::strerror(system));
  }
  return text;
}

void Statement::BindInt(int index, int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
}

void Statement::BindBlob(int index, std::string_view bytes) {
  // A null pointer would bind NULL.
  const char* data = bytes.empty() ? "" : bytes.data();
  sqlite3_bind_blob64(statement_.get(), index, data, bytes.size(), SQLITE_STATIC);
}

void Statement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

std::string Statement::Blob(int column) {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr || bytes <= 0) return std::string();
  return std::string(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

int Database::Open(const std::string& path) {
  // SQLite would create it readable for all, and its log with the same mode. An error here repeats
  // below, with a reason. A link that the operator made is followed there.
  const absl::StatusOr<int> made = OpenOwnFile(
      path, [](int error) { return absl::ErrnoToStatus(error, "coordinator's state"); });
  if (made.ok()) close(*made);
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      nullptr);
  db_.reset(db);  // also after an error
  return code;
}

int Database::Execute(const std::string& sql) {
  return sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr);
}

int Database::Prepare(const std::string& sql, Statement* statement) {
  sqlite3_stmt* prepared = nullptr;
  const int code = sqlite3_prepare_v2(db_.get(), sql.c_str(), -1, &prepared, nullptr);
  *statement = Statement(prepared);
  return code;
}

int Database::Query(const std::string& sql, std::string* value) {
  Statement statement;
  if (const int code = Prepare(sql, &statement); code != SQLITE_OK) return code;
  const int code = statement.Step();
  if (code != SQLITE_ROW) return code == SQLITE_DONE ? SQLITE_CORRUPT : code;
  *value = statement.Blob(0);
  return SQLITE_OK;
}

}  // namespace verbena::server::sqlite
