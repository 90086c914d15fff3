#include "rdma/verbs/verbs_queues.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_endpoint_impl.h"
#include "rdma/verbs/verbs_errors.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kQueueEntries = 4096;  // size of the first completion queue; each next one
                                          // doubles
constexpr size_t kPollBatch = 32;
constexpr int64_t kBindWaitNanos = 1'000'000;

}  // namespace

absl::StatusOr<CompletionQueue*> VerbsQueues::WithRoom(uint32_t entries) {
  for (const auto& queue : queues_) {
    if (!queue->broken && queue->capacity - queue->used >= entries) return queue.get();
  }
  const uint32_t most = static_cast<uint32_t>(std::max(0, core_.nic->attributes().max_cqe));
  if (entries > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("a connection needs a completion queue of ", entries, " entries; device ",
                     core_.nic->name(), " has at most ", most,
                     " (max_cqe): use fewer slots or operations for each lane"));
  }
  auto queue = std::make_unique<CompletionQueue>();
  // Few queues to poll with many lanes, and little memory with few lanes.
  const uint64_t usual = uint64_t{kQueueEntries} << std::min<size_t>(queues_.size(), 20);
  auto size = static_cast<uint32_t>(std::min<uint64_t>(most, std::max<uint64_t>(entries, usual)));
  while (true) {
    queue->cq.reset(ibv_create_cq(core_.nic->context(), static_cast<int>(size), queue.get(),
                                  core_.completion_channel.get(), 0));
    if (queue->cq != nullptr) break;
    // Queues are locked memory: a device may refuse sizes below max_cqe.
    if (errno != ENOMEM || size == entries) {
      return ErrnoStatus(absl::StrCat("cannot make a completion queue of ", size, " entries on ",
                                      core_.nic->name()),
                         errno);
    }
    size = std::max(entries, size / 2);
  }
  core_.nic->Watch(queue->cq.get(), {core_.inbox, 0});
  queue->capacity = static_cast<uint32_t>(queue->cq->cqe);
  queues_.push_back(std::move(queue));
  return queues_.back().get();
}

size_t VerbsQueues::Poll(absl::Span<Completion> out) {
  if (ready_.empty()) {
    for (size_t i = 0; i < queues_.size(); ++i) PollQueue(queues_[i].get(), out.size());
    core_.ends.LoseFailing();
  }
  size_t n = 0;
  while (n < out.size() && !ready_.empty()) out[n++] = ready_.pop();
  return n;
}

void VerbsQueues::PollQueue(CompletionQueue* queue, size_t budget) {
  std::array<ibv_wc, kPollBatch> completions;
  while (budget > 0) {
    const int want = static_cast<int>(std::min(budget, completions.size()));
    const int got = ibv_poll_cq(queue->cq.get(), want, completions.data());
    for (int i = 0; i < got; ++i) HandleCompletion(completions[static_cast<size_t>(i)]);
    if (got < want) return;
    budget -= static_cast<size_t>(got);
  }
}

void VerbsQueues::Drain(CompletionQueue* queue) { PollQueue(queue, queue->capacity); }

void VerbsQueues::HandleCompletion(const ibv_wc& completion) {
  VerbsConnection* connection = core_.Find(VerbsConnection::ConnectionOf(completion.wr_id));
  // The queue pair is gone: its outstanding work has been reported.
  if (connection == nullptr || !connection->has_queue_pair()) return;
  core_.last = connection;
  const bool was_failing = connection->failing();
  scratch_.clear();
  connection->OnWorkCompletion(completion, &scratch_);
  for (const Completion& each : scratch_) Report(each);
  if (connection->failing()) {
    if (!was_failing) core_.ends.Fail(connection->id());
  } else if (connection->state == VerbsConnection::State::kBinding && !connection->binding()) {
    core_.cm.FinishBinding(connection);
  }
}

void VerbsQueues::Report(Completion completion) {
  VerbsConnection* connection = core_.Find(completion.connection);
  if (connection != nullptr && !connection->reported &&
      completion.kind == Completion::Kind::kReceive && completion.ok) {
    connection->held.push_back(completion);  // transport.h, invariant 7
    return;
  }
  ready_.push(completion);
}

void VerbsQueues::OnError(const ibv_cq* cq) {
  const auto queue = std::find_if(queues_.begin(), queues_.end(),
                                  [cq](const auto& one) { return one->cq.get() == cq; });
  if (queue == queues_.end()) return;
  (*queue)->broken = true;
  Drain(queue->get());
  const std::string text = absl::StrCat(
      "verbs on ", core_.device(), ": a completion queue of ", (*queue)->capacity,
      " entries has failed (IBV_EVENT_CQ_ERR: an overrun, or an error of the device; see the "
      "kernel's log); its lanes end, and open again on a new queue");
  core_.Log(text);
  for (const auto& [id, connection] : core_.connections) {
    if (connection->queue() != queue->get() || connection->state == VerbsConnection::State::kClosed)
      continue;
    connection->Fail(absl::UnavailableError(text));
    core_.ends.Fail(connection->id());
  }
}

void VerbsQueues::WaitForBinds(VerbsConnection* connection) {
  const int64_t give_up = core_.clock.NowNanos() + kBindWaitNanos;
  do {
    Drain(connection->queue());
    if (!connection->binds_full() || connection->failing()) return;
  } while (!connection->binds_stall && core_.clock.NowNanos() < give_up);
  connection->binds_stall = true;
}

void VerbsQueues::Close() {
  for (const auto& queue : queues_) {
    if (core_.nic != nullptr) core_.nic->Unwatch(queue->cq.get());
  }
  queues_.clear();
}

void VerbsQueues::DropBroken() {
  std::erase_if(queues_, [this](const auto& queue) {
    if (!queue->broken || queue->used != 0) return false;
    if (core_.nic != nullptr) core_.nic->Unwatch(queue->cq.get());
    return true;
  });
}

void VerbsQueues::Release(VerbsConnection* connection) {
  for (const Completion& completion : connection->held) ready_.push(completion);
  connection->held.clear();
}

void VerbsQueues::Forget(ConnectionId id) {
  ready_.RemoveIf([id](const Completion& completion) { return completion.connection == id; });
}

void VerbsQueues::Arm() {
  DrainChannel();
  for (const auto& queue : queues_) {
    if (queue->armed) continue;
    if (ibv_req_notify_cq(queue->cq.get(), 0) == 0) queue->armed = true;
  }
  // A completion between the last poll and the request raises no event, so poll again. Drain all of
  // it: a remaining completion would wait for the next one's event.
  for (size_t i = 0; i < queues_.size(); ++i) Drain(queues_[i].get());
}

void VerbsQueues::DrainChannel() {
  if (core_.completion_channel == nullptr) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(core_.completion_channel.get(), &cq, &context) == 0) {
    static_cast<CompletionQueue*>(context)->armed = false;
    ibv_ack_cq_events(cq, 1);
  }
}

}  // namespace verbena::rdma
