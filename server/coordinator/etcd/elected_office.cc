#include "server/coordinator/etcd/elected_office.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/host_port.h"
#include "proto/control/standby.h"
#include "server/coordinator/etcd/failpoints.h"

namespace verbena::server {
namespace {

// Another coordinator may succeed where this one could not take office.
constexpr absl::Duration kPauseAfterRefusal = absl::Seconds(2);

}  // namespace

ElectedOffice::ElectedOffice(const EtcdOptions& etcd, const CoordinatorOptions& options,
                             const Clock* clock, WatchedStore::Say say, Log log)
    : etcd_(etcd), options_(options), clock_(clock), say_(std::move(say)), log_(std::move(log)) {}

absl::StatusOr<std::unique_ptr<ElectedOffice>> ElectedOffice::Create(
    const EtcdOptions& etcd, const CoordinatorOptions& options, const Clock* clock,
    WatchedStore::Say say, std::function<void()> changed, Log log) {
  std::unique_ptr<ElectedOffice> office(
      new ElectedOffice(etcd, options, clock, std::move(say), std::move(log)));
  absl::StatusOr<std::unique_ptr<EtcdClient>> client = EtcdClient::Create(etcd);
  if (!client.ok()) return client.status();
  office->client_ = *std::move(client);
  absl::StatusOr<std::unique_ptr<LeaderElection>> election =
      LeaderElection::Create(etcd, clock, std::move(changed));
  if (!election.ok()) return election.status();
  office->election_ = *std::move(election);
  return office;
}

ElectedOffice::~ElectedOffice() { Stop(); }

void ElectedOffice::Start(const std::string& address) {
  address_ = address;
  election_->Start(address);
}

void ElectedOffice::Stop() {
  held_.store(0, std::memory_order_relaxed);
  election_->Stop();
}

bool ElectedOffice::Leads() const {
  // Acquire: with the store's state of that office.
  return writes_.load(std::memory_order_acquire) &&
         (election_->Leads(held_.load(std::memory_order_relaxed)) ||
          VERBENA_FAILPOINT(etcd, stale_read));
}

absl::Status ElectedOffice::WhyEnded() const {
  if (!etcd_store_->status().ok()) return etcd_store_->status();
  if (election_->Leads(held_.load(std::memory_order_relaxed))) return absl::OkStatus();
  const LeaderElection::Seat seat = election_->seat();
  return absl::UnavailableError(absl::StrCat(
      "this coordinator leads no more: its lease in etcd could have ended",
      seat.problem.ok() ? "" : " (", seat.problem.message(), seat.problem.ok() ? "" : ")"));
}

void ElectedOffice::CountFailures() {
  if (store_ == nullptr) return;
  save_failures_.store(failures_before_ + store_->failures(), std::memory_order_relaxed);
  save_failing_.store(store_->failing(), std::memory_order_relaxed);
  if (!etcd_store_->status().ok()) writes_.store(false, std::memory_order_relaxed);
}

void ElectedOffice::NoteEtcd(const LeaderElection::Seat& seat) {
  if (seat.problem.ok() == answers_) return;
  answers_ = seat.problem.ok();
  log_(!answers_,
       answers_ ? "etcd answers again"
                : absl::StrCat("this coordinator cannot be elected: ", seat.problem.message()));
}

bool ElectedOffice::Follow(std::unique_ptr<Coordinator>* coordinator) {
  CountFailures();
  NoteEtcd(election_->seat());
  bool changed = false;
  if (store_ != nullptr) {
    const absl::Status why = WhyEnded();
    const std::string successor = std::exchange(successor_, "");
    const bool hands_over = why.ok() && !successor.empty();
    if (why.ok() && !hands_over) return false;
    log_(!hands_over, hands_over
                          ? absl::StrCat("this coordinator leads no more: its operator moves "
                                         "the office to ",
                                         successor)
                          : std::string(why.message()));
    const int64_t held = held_.exchange(0, std::memory_order_relaxed);
    writes_.store(false, std::memory_order_relaxed);
    coordinator->reset();
    failures_before_ += store_->failures();
    store_.reset();
    etcd_store_ = nullptr;
    if (hands_over) {
      election_->HandOver(held, successor);
    } else {
      election_->Resign(held, absl::ZeroDuration());
    }
    changed = true;
  }
  const int64_t own = election_->seat().create_revision;
  if (own == 0 || own == refused_ || !election_->Leads(own)) return changed;
  const absl::Status taken = Take(own, coordinator);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    problem_ = taken;
  }
  if (taken.ok()) {
    times_elected_.fetch_add(1, std::memory_order_relaxed);
    log_(false, absl::StrCat("this coordinator leads, since revision ", own, " of etcd, term ",
                             (*coordinator)->view().term()));
    return true;
  }
  log_(true, absl::StrCat("this coordinator was elected, and cannot lead: ", taken.message()));
  refused_ = own;
  election_->Resign(own, kPauseAfterRefusal);
  return changed;
}

absl::Status ElectedOffice::Take(int64_t create_revision,
                                 std::unique_ptr<Coordinator>* coordinator) {
  auto etcd_store = std::make_unique<EtcdStore>(
      client_.get(), clock_, EtcdStore::Leadership{create_revision, [this, create_revision] {
                                                     return election_->UntilNanos(create_revision);
                                                   }});
  EtcdStore* const inner = etcd_store.get();
  auto store = std::make_unique<WatchedStore>(std::move(etcd_store), say_);
  absl::StatusOr<std::unique_ptr<Coordinator>> created =
      Coordinator::Create(options_, clock_, store.get());
  if (!created.ok()) return created.status();
  etcd_store_ = inner;
  store_ = std::move(store);
  *coordinator = *std::move(created);
  held_.store(create_revision, std::memory_order_relaxed);
  // Release: held_ before it.
  writes_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status ElectedOffice::HandOver(const std::string& successor) {
  if (absl::Status parsed = SplitHostPort(successor).status(); !parsed.ok()) return parsed;
  if (successor == address_) {
    return absl::FailedPreconditionError(
        absl::StrCat("coordinator ", address_, " leads already; name one of its standbys"));
  }
  successor_ = successor;
  return absl::OkStatus();
}

absl::Status ElectedOffice::Absence() const {
  const LeaderElection::Seat seat = election_->seat();
  if (seat.create_revision != 0) {
    return StandbyError(
        absl::StrCat("coordinator ", address_, ": it has been elected and is taking office; retry"),
        "");
  }
  if (!seat.leader.empty()) {
    return StandbyError(
        absl::StrCat("coordinator ", address_, ": it is a standby; the leader is ", seat.leader),
        seat.leader);
  }
  return StandbyError(absl::StrCat("coordinator ", address_, ": no coordinator leads",
                                   seat.problem.ok() ? ", one is being elected"
                                                     : absl::StrCat(": ", seat.problem.message()),
                                   "; retry"),
                      "");
}

absl::Status ElectedOffice::problem() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!problem_.ok()) return problem_;
  }
  return election_->seat().problem;
}

}  // namespace verbena::server
