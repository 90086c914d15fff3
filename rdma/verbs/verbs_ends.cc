#include "rdma/verbs/verbs_ends.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_endpoint_impl.h"

namespace verbena::rdma {
namespace {

constexpr int64_t kRetryStuckNanos = 100'000'000;  // between attempts to destroy a queue pair

}  // namespace

void VerbsEnds::LoseFailing() {
  while (!failing_.empty()) {
    const ConnectionId id = failing_.back();
    failing_.pop_back();
    if (VerbsConnection* connection = core_.Find(id)) Lose(connection, connection->failure());
  }
}

void VerbsEnds::Lose(VerbsConnection* connection, absl::Status reason) {
  if (connection->state == VerbsConnection::State::kLost ||
      connection->state == VerbsConnection::State::kClosed)
    return;
  const VerbsConnection::State before = connection->state;
  connection->state = VerbsConnection::State::kLost;
  Retire(connection);
  // The reason from the completions is nearer to the cause than that of a resulting event.
  if (connection->failing()) reason = connection->failure();
  core_.cm.Remove(connection);
  if (before != VerbsConnection::State::kIdle && before != VerbsConnection::State::kRequested &&
      connection->cm_id() != nullptr) {
    (void)rdma_disconnect(connection->cm_id());
  }
  core_.Report(before == VerbsConnection::State::kEstablished ? ConnectionEvent::Kind::kLost
                                                              : ConnectionEvent::Kind::kFailed,
               connection->id(), std::move(reason));
}

void VerbsEnds::Retire(VerbsConnection* connection) {
  if (TryRetire(connection)) return;
  stuck_.push_back(connection);
  next_retry_ns_ = core_.clock.NowNanos() + kRetryStuckNanos;
}

bool VerbsEnds::TryRetire(VerbsConnection* connection) {
  if (connection->retired()) return true;
  CompletionQueue* const queue = connection->queue();
  connection->Stop();
  // Received data is still reported; all other outstanding work is reported as flushed.
  core_.queues.Drain(queue);
  unread_.clear();
  const bool gone = core_.nic != nullptr && core_.nic->gone();
  if (absl::Status s = connection->Retire(gone, &unread_); !s.ok()) {
    const bool again = std::find(stuck_.begin(), stuck_.end(), connection) != stuck_.end();
    if (!again) {
      core_.Log(
          absl::StrCat("verbs lane to ", connection->Path().remote, ": ", s.message(),
                       "; it is not dead, and its buffers are not used again until the device "
                       "gives it up; see the kernel's log"));
    }
    return false;
  }
  if (core_.Find(connection->id()) == connection) {  // not destroyed by its owner
    for (const Completion& completion : unread_) core_.queues.Report(completion);
  }
  // Removes its entries from the queue before their space is given to other connections.
  core_.queues.Drain(queue);
  return true;
}

void VerbsEnds::Abandon() {
  failing_.clear();
  std::erase_if(stuck_, [this](VerbsConnection* connection) { return TryRetire(connection); });
  if (stuck_.empty()) return;
  core_.Log(absl::StrCat("verbs on ", core_.device(), ": ", stuck_.size(),
                         " queue pairs could not be taken down before the device was closed; their "
                         "memory is kept until this process ends; restart it"));
  for (VerbsConnection* connection : stuck_) connection->Abandon();
  stuck_.clear();
}

void VerbsEnds::RetryStuck() {
  if (stuck_.empty()) return;
  const int64_t now = core_.clock.NowNanos();
  if (now < next_retry_ns_) return;
  next_retry_ns_ = now + kRetryStuckNanos;
  std::erase_if(stuck_, [this](VerbsConnection* connection) {
    if (!TryRetire(connection)) return false;
    std::erase_if(forgotten_, [connection](const auto& one) { return one.get() == connection; });
    return true;
  });
}

}  // namespace verbena::rdma
