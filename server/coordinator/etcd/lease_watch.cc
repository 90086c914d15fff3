#include "server/coordinator/etcd/lease_watch.h"

#include <limits>

namespace verbena::server {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// While more than a second is left: at least one reading in each second.
constexpr int64_t kPause = kSecond / 2;

}  // namespace

bool LeaseWatch::Due(int64_t lease, int64_t now) {
  if (lease != lease_) *this = LeaseWatch();
  lease_ = lease;
  return now >= next_ns_;
}

void LeaseWatch::OnAnswer(const etcdserverpb::LeaseTimeToLiveResponse& answer, int64_t sent_ns,
                          int64_t received_ns) {
  const etcdserverpb::ResponseHeader& header = answer.header();
  next_ns_ = answer.ttl() > 1 ? received_ns + kPause : 0;
  if (answer.ttl() > 0) {
    first_received_ns_ = 0;
    return;
  }
  // An extension shows for all of the lease but its last second.
  const int64_t shows_ns = (answer.grantedttl() - 1) * kSecond;
  if (first_received_ns_ == 0 || header.member_id() != member_ || header.raft_term() != term_ ||
      received_ns - last_sent_ns_ >= shows_ns) {
    first_received_ns_ = received_ns;
    member_ = header.member_id();
    term_ = header.raft_term();
  }
  last_sent_ns_ = sent_ns;
}

bool LeaseWatch::Ended(int64_t lease, const etcdserverpb::ResponseHeader& confirmed) const {
  return lease == lease_ && first_received_ns_ != 0 &&
         last_sent_ns_ >= first_received_ns_ + kSecond && confirmed.member_id() == member_ &&
         confirmed.raft_term() == term_;
}

int64_t LeaseWatch::DecisiveNanos() const {
  return first_received_ns_ == 0 ? std::numeric_limits<int64_t>::max()
                                 : first_received_ns_ + kSecond;
}

}  // namespace verbena::server
