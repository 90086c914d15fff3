// The few calls of SQLite that the store needs, with RAII and absl::Status.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_SQLITE_H_
#define VERBENA_SERVER_COORDINATOR_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::server::sqlite {

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// SQLite's text for `code`, with the operating system's where there is one.
std::string Message(sqlite3* db, int code);

class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  // The first parameter is 1. Blobs and texts stay alive until Reset().
  void BindInt(int index, int64_t value);
  void BindBlob(int index, std::string_view bytes);
  int Step() { return sqlite3_step(statement_.get()); }  // SQLITE_ROW, SQLITE_DONE or an error
  void Reset();

  // The first column is 0.
  int64_t Int(int column) { return sqlite3_column_int64(statement_.get(), column); }
  std::string Blob(int column);

 private:
  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement_;
};

class Database {
 public:
  // Opens or makes the file. The result is SQLite's code, or SQLITE_OK.
  int Open(const std::string& path);
  int Execute(const std::string& sql);
  // Also SQLITE_NOTADB or SQLITE_CORRUPT: SQLite reads the schema here.
  int Prepare(const std::string& sql, Statement* statement);
  // The first column of the first row.
  int Query(const std::string& sql, std::string* value);
  std::string Message(int code) const { return sqlite::Message(db_.get(), code); }
  bool in_transaction() const { return sqlite3_get_autocommit(db_.get()) == 0; }
  // Closes; this removes the write-ahead log unless an error occurred.
  void Close() { db_.reset(); }

 private:
  std::unique_ptr<sqlite3, CloseDatabase> db_;
};

}  // namespace verbena::server::sqlite

#endif  // VERBENA_SERVER_COORDINATOR_SQLITE_H_
