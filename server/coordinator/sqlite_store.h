// The coordinator's state in DIR/coordinator.db (SQLite): durable at each SaveAll().
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. One process at a time: DIR/LOCK is locked (flock) and holds the owner's pid.
//  2. The changes of a SaveAll() that a crash interrupts are either all there or not at all; once
//  it
//     has returned they are there.
//  3. A file that is not exactly as written is DATA_LOSS, never an older or emptier state. The
//     database appears under its name complete (made aside, renamed). Its one state row and its one
//     row of tokens always exist, every row carries a checksum, and the state row lists the
//     existing answers.
//  4. The write-ahead log is copied into the database after every SaveAll(): damage to the log
//     cannot undo an acknowledged change.
#ifndef VERBENA_SERVER_COORDINATOR_SQLITE_STORE_H_
#define VERBENA_SERVER_COORDINATOR_SQLITE_STORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/store.h"

namespace verbena::server {

class SqliteStore final : public Store {
 public:
  // Creates the directory if it does not exist. Errors name the path and the fix:
  //   FAILED_PRECONDITION  another verbenad uses it, it is not a directory, or a newer version of
  //                        Verbena wrote it
  //   PERMISSION_DENIED    it cannot be written
  //   DATA_LOSS            the file is damaged
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& directory);
  ~SqliteStore() override;

  absl::StatusOr<CoordinatorState> Load() override;
  // UNAVAILABLE when it could not be written (disk full, for one); nothing has changed then.
  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override;
  // Rows of tables, jobs and members that were written and removed since Open().
  uint64_t entries_written() const;

 private:
  struct Impl;
  explicit SqliteStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_SQLITE_STORE_H_
