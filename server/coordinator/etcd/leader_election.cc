#include "server/coordinator/etcd/leader_election.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::server {
namespace {

// A standby looks so often: it adds this to the time of a take-over.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLookAfterError = absl::Milliseconds(200);
// Extensions of a lease: so many that some minutes of a busy etcd, or its change of leader, do not
// end it.
constexpr int kExtensionsInLease = 5;
constexpr absl::Duration kGiveUpTime = absl::Seconds(2);
constexpr size_t kMostFormerLeases = 16;

}  // namespace

LeaderElection::LeaderElection(std::unique_ptr<EtcdClient> client, const Clock* clock,
                               std::function<void()> changed)
    : client_(std::move(client)), clock_(clock), changed_(std::move(changed)) {}

absl::StatusOr<std::unique_ptr<LeaderElection>> LeaderElection::Create(
    const EtcdOptions& options, const Clock* clock, std::function<void()> changed) {
  absl::StatusOr<std::unique_ptr<EtcdClient>> client = EtcdClient::Create(options);
  if (!client.ok()) return client.status();
  return std::unique_ptr<LeaderElection>(
      new LeaderElection(*std::move(client), clock, std::move(changed)));
}

LeaderElection::~LeaderElection() { Stop(); }

void LeaderElection::Start(const std::string& address) {
  address_ = address;
  sigset_t all, before;
  sigfillset(&all);
  // Signals are for the program's own threads.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LeaderElection::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

LeaderElection::Seat LeaderElection::seat() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seat_;
}

bool LeaderElection::Leads(int64_t create_revision) const {
  return clock_->NowNanos() < UntilNanos(create_revision);
}

int64_t LeaderElection::UntilNanos(int64_t create_revision) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool held = seat_.create_revision == create_revision && resigned_ != create_revision;
  return create_revision != 0 && held ? until_ns_ : 0;
}

void LeaderElection::Resign(int64_t create_revision, absl::Duration pause) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resigned_ = create_revision;
    successor_.clear();
    candidate_from_ns_ = clock_->NowNanos() + absl::ToInt64Nanoseconds(pause);
  }
  wake_.notify_all();
}

void LeaderElection::HandOver(int64_t create_revision, const std::string& successor) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resigned_ = create_revision;
    successor_ = successor;
  }
  wake_.notify_all();
}

uint64_t LeaderElection::failed_attempts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_attempts_;
}

void LeaderElection::Run() {
  for (;;) {
    const absl::Duration wait = Step();
    std::unique_lock<std::mutex> lock(mutex_);
    failed_attempts_ = client_->failed_attempts();
    wake_.wait_for(lock, std::chrono::nanoseconds(absl::ToInt64Nanoseconds(wait)), [this] {
      return stopping_ || (resigned_ != 0 && resigned_ == seat_.create_revision);
    });
    if (!stopping_) continue;
    const int64_t own = std::exchange(seat_.create_revision, 0);
    lock.unlock();
    if (own != 0) RemoveKey(own).IgnoreError();  // else its lease ends it
    return;
  }
}

absl::Duration LeaderElection::Step() { return seat().create_revision != 0 ? Keep() : Campaign(); }

int64_t LeaderElection::EndOfLease(int64_t sent_ns) const {
  return sent_ns + lease_s_ * 1'000'000'000 / 10 * 9;
}

void LeaderElection::Lead(int64_t create_revision, int64_t sent_ns) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    seat_ = {create_revision, address_, absl::OkStatus()};
    until_ns_ = EndOfLease(sent_ns);
  }
  changed_();
}

void LeaderElection::Follow(const std::string& leader, const absl::Status& problem) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool same =
        seat_.create_revision == 0 && seat_.leader == leader && seat_.problem.ok() == problem.ok();
    seat_ = {0, leader, problem};
    if (same) return;
  }
  changed_();
}

absl::Duration LeaderElection::Keep() {
  const Seat own = seat();
  bool resigned = false;
  std::string successor;
  int64_t until_ns = 0;  // also of one that is given up meanwhile
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resigned = resigned_ == own.create_revision;
    successor = successor_;
    until_ns = until_ns_;
  }
  if (resigned) {
    former_leases_.insert(std::exchange(lease_, 0));
    Follow("", absl::OkStatus());
    RemoveKey(own.create_revision, successor).IgnoreError();  // Campaign() tries again
    return absl::ZeroDuration();
  }
  const int64_t sent_ns = clock_->NowNanos();
  const absl::Duration left = absl::Nanoseconds(until_ns - sent_ns);
  absl::Status kept =
      left > absl::ZeroDuration()
          ? client_->KeepLease(lease_, std::min(left, client_->options().attempt))
          : absl::UnavailableError("etcd has not extended the leader's lease in time");
  // An answer after the end extends nothing: a standby may have found that the lease has ended.
  if (kept.ok() && clock_->NowNanos() >= until_ns) {
    kept = absl::UnavailableError("etcd has extended the leader's lease too late");
  }
  if (kept.ok()) kept = CheckKey(own.create_revision);
  if (kept.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    until_ns_ = EndOfLease(sent_ns);
    return absl::Seconds(lease_s_) / kExtensionsInLease;
  }
  if (!absl::IsNotFound(kept) && clock_->NowNanos() < until_ns) return kLook;
  former_leases_.insert(std::exchange(lease_, 0));
  // etcd has answered if the lease or the key is gone.
  Follow("", absl::IsNotFound(kept) ? absl::OkStatus() : kept);
  return absl::ZeroDuration();
}

// A lease lives on without the key that was attached to it.
absl::Status LeaderElection::CheckKey(int64_t create_revision) {
  etcdserverpb::RangeRequest request;
  request.set_key(Key());
  const absl::StatusOr<etcdserverpb::RangeResponse> found =
      client_->Range(request, client_->options().attempt);
  if (!found.ok()) return found.status();
  if (!found->kvs().empty() && found->kvs(0).create_revision() == create_revision)
    return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("etcd: the leader's key ", Key(), " was removed"));
}

absl::Status LeaderElection::RemoveKey(int64_t create_revision, const std::string& successor) {
  etcdserverpb::TxnRequest request;
  if (!successor.empty()) {
    // Without this lease any coordinator may lead next.
    if (const auto granted = client_->GrantLease(kSuccessorSeconds, kGiveUpTime); granted.ok()) {
      etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
      put->set_key(SuccessorKey());
      put->set_value(successor);
      put->set_lease(granted->id());
    }
  }
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(Key());
  compare->set_create_revision(create_revision);
  request.add_success()->mutable_request_delete_range()->set_key(Key());
  return client_->Txn(request, kGiveUpTime).status();
}

absl::Duration LeaderElection::Campaign() {
  etcdserverpb::RangeRequest request;
  request.set_key(Key());
  const absl::StatusOr<etcdserverpb::RangeResponse> found =
      client_->Range(request, 2 * client_->options().attempt);
  if (!found.ok()) {
    Follow("", found.status());
    return kLookAfterError;
  }
  if (found->kvs().empty()) return Candidate();
  const etcdserverpb::KeyValue& key = found->kvs(0);
  if (lease_ != 0 && key.lease() == lease_ && clock_->NowNanos() < EndOfLease(lease_sent_ns_)) {
    // It was created by an attempt without an answer.
    Lead(key.create_revision(), lease_sent_ns_);
    return absl::ZeroDuration();
  }
  if (former_leases_.contains(key.lease()) || (lease_ != 0 && key.lease() == lease_)) {
    if (RemoveKey(key.create_revision()).ok()) return absl::ZeroDuration();
    return kLookAfterError;
  }
  Follow(key.value(), absl::OkStatus());
  return Watch(key.lease(), found->header());
}

absl::Duration LeaderElection::Watch(int64_t lease, const etcdserverpb::ResponseHeader& header) {
  if (watch_.Ended(lease, header)) {
    const absl::Status revoked = client_->RevokeLease(lease, client_->options().attempt);
    // NOT_FOUND: etcd has ended it.
    return revoked.ok() || absl::IsNotFound(revoked) ? absl::ZeroDuration() : kLookAfterError;
  }
  const int64_t sent_ns = clock_->NowNanos();
  if (!watch_.Due(lease, sent_ns)) return kLook;
  const absl::StatusOr<etcdserverpb::LeaseTimeToLiveResponse> left =
      client_->TimeToLive(lease, client_->options().attempt);
  if (!left.ok()) return kLook;
  const int64_t now = clock_->NowNanos();
  watch_.OnAnswer(*left, sent_ns, now);
  // After the decisive answer the next step confirms it.
  if (sent_ns >= watch_.DecisiveNanos()) return absl::ZeroDuration();
  return std::min(kLook, absl::Nanoseconds(watch_.DecisiveNanos() - now));
}

absl::Duration LeaderElection::Candidate() {
  Follow("", absl::OkStatus());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || clock_->NowNanos() < candidate_from_ns_) return kLook;
  }
  etcdserverpb::RangeRequest successors;
  successors.set_key(SuccessorKey());
  const absl::StatusOr<etcdserverpb::RangeResponse> named =
      client_->Range(successors, client_->options().attempt);
  if (!named.ok()) {
    Follow("", named.status());
    return kLookAfterError;
  }
  if (!named->kvs().empty() && named->kvs(0).value() != address_) return kLook;
  // A lease of an earlier attempt may be attached to a key that is created late.
  if (lease_ != 0) former_leases_.insert(lease_);
  while (former_leases_.size() > kMostFormerLeases) former_leases_.erase(former_leases_.begin());
  lease_ = 0;
  lease_sent_ns_ = clock_->NowNanos();
  const absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted =
      client_->GrantLease(client_->options().lease_s, client_->options().attempt);
  if (!granted.ok()) {
    Follow("", granted.status());
    return kLookAfterError;
  }
  lease_ = granted->id();
  lease_s_ = granted->ttl();
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(Key());
  compare->set_create_revision(0);
  etcdserverpb::Compare* successor = request.add_compare();
  successor->set_target(etcdserverpb::Compare::MOD);
  successor->set_key(SuccessorKey());
  successor->set_mod_revision(named->kvs().empty() ? 0 : named->kvs(0).mod_revision());
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(Key());
  put->set_value(address_);
  put->set_lease(lease_);
  request.add_success()->mutable_request_delete_range()->set_key(SuccessorKey());
  const absl::StatusOr<etcdserverpb::TxnResponse> made =
      client_->Txn(request, client_->options().attempt);
  // Without an answer the next look shows the outcome.
  if (!made.ok()) return kLook;
  if (made->succeeded()) {
    Lead(made->header().revision(), lease_sent_ns_);
    return absl::Seconds(lease_s_) / kExtensionsInLease;
  }
  // Another one was faster, or an attempt without an answer was applied.
  return absl::ZeroDuration();
}

}  // namespace verbena::server
