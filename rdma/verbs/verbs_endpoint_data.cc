// The data path (posting, polling, sleeping) and the handling of failed connections.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_endpoint_impl.h"

namespace verbena::rdma {
namespace {

constexpr size_t kPollBatch = 32;
constexpr int64_t kRetryStuckNanos = 100'000'000;  // between attempts to destroy a queue pair

}  // namespace

absl::Status VerbsEndpointImpl::PostReceives(ConnectionId id, uint32_t count) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  last_ = connection;
  return connection->PostReceives(count);
}

absl::Status VerbsEndpointImpl::PostWrite(ConnectionId id, const WriteRequest& request) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  last_ = connection;
  absl::Status status = connection->PostWrite(request);
  if (connection->failing() && connection->state == State::kEstablished) {
    failing_.push_back(id);
  }
  return status;
}

// ---- completions --------------------------------------------------------------------------------

size_t VerbsEndpointImpl::Poll(absl::Span<Completion> out) {
  if (ready_.empty()) {
    for (size_t i = 0; i < queues_.size(); ++i) PollQueue(queues_[i].get(), out.size());
    LoseFailing();
  }
  size_t n = 0;
  while (n < out.size() && !ready_.empty()) out[n++] = ready_.pop();
  return n;
}

void VerbsEndpointImpl::PollQueue(CompletionQueue* queue, size_t budget) {
  std::array<ibv_wc, kPollBatch> completions;
  while (budget > 0) {
    const int want = static_cast<int>(std::min(budget, completions.size()));
    const int got = ibv_poll_cq(queue->cq.get(), want, completions.data());
    for (int i = 0; i < got; ++i) HandleCompletion(completions[static_cast<size_t>(i)]);
    if (got < want) return;
    budget -= static_cast<size_t>(got);
  }
}

void VerbsEndpointImpl::DrainQueue(CompletionQueue* queue) { PollQueue(queue, queue->capacity); }

void VerbsEndpointImpl::HandleCompletion(const ibv_wc& completion) {
  VerbsConnection* connection = Find(VerbsConnection::ConnectionOf(completion.wr_id));
  // The queue pair is gone: its outstanding work has been reported.
  if (connection == nullptr || !connection->has_queue_pair()) return;
  last_ = connection;
  const bool was_failing = connection->failing();
  scratch_.clear();
  connection->OnWorkCompletion(completion, &scratch_);
  for (const Completion& each : scratch_) Report(each);
  if (connection->failing()) {
    if (!was_failing) failing_.push_back(connection->id());
  } else if (connection->state == State::kBinding && !connection->binding()) {
    FinishBinding(connection);
  }
}

void VerbsEndpointImpl::Report(Completion completion) {
  VerbsConnection* connection = Find(completion.connection);
  if (connection != nullptr && !connection->reported &&
      completion.kind == Completion::Kind::kReceive && completion.ok) {
    connection->held.push_back(completion);  // transport.h, invariant 7
    return;
  }
  ready_.push(completion);
}

void VerbsEndpointImpl::Report(ConnectionEvent::Kind kind, ConnectionId id, absl::Status status,
                               std::string private_data) {
  events_.push({kind, id, std::move(private_data), std::move(status)});
}

// ---- failing ------------------------------------------------------------------------------------

void VerbsEndpointImpl::LoseFailing() {
  while (!failing_.empty()) {
    const ConnectionId id = failing_.back();
    failing_.pop_back();
    if (VerbsConnection* connection = Find(id)) Lose(connection, connection->failure());
  }
}

void VerbsEndpointImpl::Lose(VerbsConnection* connection, absl::Status reason) {
  if (connection->state == State::kLost || connection->state == State::kClosed) return;
  const State before = connection->state;
  connection->state = State::kLost;
  Retire(connection);
  // The reason from the completions is nearer to the cause than that of a resulting event.
  if (connection->failing()) reason = connection->failure();
  connecting_.erase(std::remove(connecting_.begin(), connecting_.end(), connection),
                    connecting_.end());
  if (before != State::kIdle && before != State::kRequested && connection->cm_id() != nullptr) {
    (void)rdma_disconnect(connection->cm_id());
  }
  Report(
      before == State::kEstablished ? ConnectionEvent::Kind::kLost : ConnectionEvent::Kind::kFailed,
      connection->id(), std::move(reason));
}

void VerbsEndpointImpl::Retire(VerbsConnection* connection) {
  if (TryRetire(connection)) return;
  stuck_.push_back(connection);
  next_retry_ns_ = clock_.NowNanos() + kRetryStuckNanos;
}

bool VerbsEndpointImpl::TryRetire(VerbsConnection* connection) {
  if (connection->retired()) return true;
  CompletionQueue* const queue = connection->queue();
  connection->Stop();
  // Received data is still reported; all other outstanding work is reported as flushed.
  DrainQueue(queue);
  unread_.clear();
  const bool gone = device_ != nullptr && device_->gone();
  if (absl::Status s = connection->Retire(gone, &unread_); !s.ok()) {
    const bool again = std::find(stuck_.begin(), stuck_.end(), connection) != stuck_.end();
    if (!again) {
      Log(absl::StrCat("verbs lane to ", connection->Path().remote, ": ", s.message(),
                       "; it is not dead, and its buffers are not used again until the device "
                       "gives it up; see the kernel's log"));
    }
    return false;
  }
  if (Find(connection->id()) == connection) {  // not destroyed by its owner
    for (const Completion& completion : unread_) Report(completion);
  }
  // Removes its entries from the queue before their space is given to other connections.
  DrainQueue(queue);
  return true;
}

void VerbsEndpointImpl::RetryStuck() {
  if (stuck_.empty()) return;
  const int64_t now = clock_.NowNanos();
  if (now < next_retry_ns_) return;
  next_retry_ns_ = now + kRetryStuckNanos;
  std::erase_if(stuck_, [this](VerbsConnection* connection) {
    if (!TryRetire(connection)) return false;
    std::erase_if(forgotten_, [connection](const auto& one) { return one.get() == connection; });
    return true;
  });
}

// ---- sleeping -----------------------------------------------------------------------------------

void VerbsEndpointImpl::AppendDescriptors(std::vector<int>* fds) const {
  if (events_channel_ != nullptr) fds->push_back(events_channel_->fd);
  if (wake_.valid()) fds->push_back(wake_.get());
  if (channel_ != nullptr) fds->push_back(channel_->fd);
  if (device_ != nullptr) fds->push_back(device_->async_fd());
}

void VerbsEndpointImpl::DrainChannel() {
  if (channel_ == nullptr) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &cq, &context) == 0) {
    static_cast<CompletionQueue*>(context)->armed = false;
    ibv_ack_cq_events(cq, 1);
  }
}

bool VerbsEndpointImpl::Arm(SleepUntil) {
  if (!ready_.empty() || !events_.empty() || !failing_.empty()) return false;
  DrainChannel();
  for (const auto& queue : queues_) {
    if (queue->armed) continue;
    if (ibv_req_notify_cq(queue->cq.get(), 0) == 0) queue->armed = true;
  }
  // A completion between the last poll and the request raises no event, so poll again. Drain all of
  // it: a remaining completion would wait for the next one's event.
  for (size_t i = 0; i < queues_.size(); ++i) DrainQueue(queues_[i].get());
  LoseFailing();
  return ready_.empty() && events_.empty();
}

void VerbsEndpointImpl::Disarm() {
  DrainChannel();
  look_ = true;
}

}  // namespace verbena::rdma
