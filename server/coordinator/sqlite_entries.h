// The tables, jobs and members of a coordinator's view in SQLite, each with a row of its own.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
//  1. `*sum` is the sum of the checksums of all rows, modulo 2^64: a reader that gets another sum
//     lacks a row, or has one that is damaged or was not written.
//  2. A write changes only the rows that the change names.
#ifndef VERBENA_SERVER_COORDINATOR_SQLITE_ENTRIES_H_
#define VERBENA_SERVER_COORDINATOR_SQLITE_ENTRIES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/coordinator/sqlite.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class SqliteEntries {
 public:
  // `key` is a table's id, a job's name, or a member's incarnation.
  static constexpr char kSchema[] =
      "CREATE TABLE entries(kind INTEGER NOT NULL, key BLOB NOT NULL, content BLOB NOT NULL, "
      "checksum INTEGER NOT NULL, PRIMARY KEY(kind, key)) WITHOUT ROWID";

  // The database outlives this. SQLITE_OK or an error.
  int Prepare(sqlite::Database* db);
  // Adds all rows to the view. SQLITE_DONE, or an error: SQLITE_CORRUPT for an invalid row.
  int Load(v1::ClusterView* view, int64_t* sum);
  // Within a transaction: replaces all rows; or makes the rows follow a change. SQLITE_DONE or an
  // error.
  int WriteAll(const v1::ClusterView& view, int64_t* sum);
  int Write(const v1::ViewChange& change, absl::Span<const uint64_t> gone_members, int64_t* sum);
  uint64_t rows_written() const { return rows_written_; }  // and removed, ever

 private:
  enum Kind : int64_t { kTable = 1, kJob = 2, kMember = 3 };
  struct Key {
    Kind kind;
    int64_t number = 0;
    std::string_view name = {};  // of a job
  };

  static int64_t ChecksumOf(const Key& key, const std::string& content);
  static void Bind(const Key& key, sqlite::Statement* statement);
  int Put(const Key& key, const google::protobuf::Message& content, int64_t* sum);
  int Remove(const Key& key, int64_t* sum);
  int PutJob(const v1::Job& header, int64_t* sum);
  int PutMember(const std::string& job, const v1::Worker& member, int64_t* sum);

  sqlite::Database* db_ = nullptr;
  sqlite::Statement put_, remove_;
  uint64_t rows_written_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_SQLITE_ENTRIES_H_
