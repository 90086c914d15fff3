// The office of a coordinator that is elected: its state in etcd while it leads.
//
// **Thread safety**: Leads(), Absence() and the counters from any thread; the rest by the
// coordinator's thread.
//
// Invariants:
//  1. A coordinator of this office acts only while Leads(): the election's clock allows it, and its
//  store can
//     still write.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_ELECTED_OFFICE_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_ELECTED_OFFICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/etcd/etcd_store.h"
#include "server/coordinator/etcd/leader_election.h"
#include "server/coordinator/watched_store.h"

namespace verbena::server {

class ElectedOffice {
 public:
  // Called by the coordinator's thread: `bad` for an operator, else for the record.
  using Log = std::function<void(bool bad, const std::string& text)>;

  // `clock` outlives it. `changed`: by any thread, when Follow() has work. Errors: options that
  // cannot be used. etcd need not answer.
  static absl::StatusOr<std::unique_ptr<ElectedOffice>> Create(
      const EtcdOptions& etcd, const CoordinatorOptions& options, const Clock* clock,
      WatchedStore::Say say, std::function<void()> changed, Log log);
  ~ElectedOffice();

  // `address`: ours, as callers reach it.
  void Start(const std::string& address);
  // Another coordinator may lead at once. No coordinator of the office must exist any more.
  void Stop();

  // Whether the coordinator of this office may act at this moment.
  bool Leads() const;
  // Ends the office of *coordinator when this one leads no more, or takes it when it leads newly.
  // Returns whether *coordinator has changed.
  bool Follow(std::unique_ptr<Coordinator>* coordinator);
  // The next Follow() ends the office, and the coordinator at `successor` is elected. While
  // Leads(). INVALID_ARGUMENT: it is no host:port. FAILED_PRECONDITION: it is this one.
  absl::Status HandOver(const std::string& successor);
  // For callers of a coordinator that does not lead (proto/control/standby.h).
  absl::Status Absence() const;
  // Not OK: etcd does not answer, or this coordinator was elected last and could not take office;
  // the reason, for an operator.
  absl::Status problem() const;
  std::string leader() const { return election_->seat().leader; }

  // Of SaveAll(): as WatchedStore.
  uint64_t save_failures() const { return save_failures_.load(std::memory_order_relaxed); }
  bool save_failing() const { return save_failing_.load(std::memory_order_relaxed); }
  uint64_t times_elected() const { return times_elected_.load(std::memory_order_relaxed); }
  uint64_t etcd_failures() const { return election_->failed_attempts(); }

 private:
  ElectedOffice(const EtcdOptions& etcd, const CoordinatorOptions& options, const Clock* clock,
                WatchedStore::Say say, Log log);
  absl::Status Take(int64_t create_revision, std::unique_ptr<Coordinator>* coordinator);
  // Why the office that is held must end; OK: it goes on.
  absl::Status WhyEnded() const;
  void CountFailures();
  // Logs once when etcd does not answer, and once when it does again.
  void NoteEtcd(const LeaderElection::Seat& seat);

  const EtcdOptions etcd_;
  const CoordinatorOptions options_;
  const Clock* const clock_;
  const WatchedStore::Say say_;
  const Log log_;
  std::unique_ptr<LeaderElection> election_;
  std::unique_ptr<EtcdClient> client_;  // of the coordinator's thread
  std::string address_;

  // Of the coordinator's thread.
  EtcdStore* etcd_store_ = nullptr;      // inside store_
  std::unique_ptr<WatchedStore> store_;  // null: no office is held
  uint64_t failures_before_ = 0;         // of earlier stores
  int64_t refused_ = 0;                  // the leadership that could not take office
  std::string successor_;                // of the office that is held; empty: it goes on
  bool answers_ = true;                  // etcd, as logged last

  // Relaxed where they are single values: a scrape reads them.
  std::atomic<int64_t> held_ = 0;     // the create revision of the office that is held
  std::atomic<bool> writes_ = false;  // its store can write
  std::atomic<uint64_t> save_failures_ = 0, times_elected_ = 0;
  std::atomic<bool> save_failing_ = false;
  mutable std::mutex mutex_;
  absl::Status problem_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_ELECTED_OFFICE_H_
