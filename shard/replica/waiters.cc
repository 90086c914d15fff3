#include "shard/replica/waiters.h"

#include <algorithm>
#include <memory>

namespace verbena::shard {

void ReplicaWaiters::Add(List* entry) {
  if (asker_.token == nullptr) return;
  if (asker_.ticket == 0) asker_.ticket = ++last_ticket_;
  ++asker_.waits;
  entry->push_back({asker_.ticket, asker_.group});
}

bool ReplicaWaiters::EndRequest(const Answer& answer, absl::Span<const ReplyStatus> statuses) {
  const Asker asker = std::exchange(asker_, {});
  if (asker.waits == 0) return false;
  tickets_[asker.ticket] = {*asker.token, asker.waits, answer, {statuses.begin(), statuses.end()}};
  return true;
}

void ReplicaWaiters::Finish(List* entry, ReplyStatus status) {
  for (const Waiter& waiter : *entry) {
    // Finished while the request is still handled: there is nothing to wait for.
    if (waiter.ticket == asker_.ticket) {
      --asker_.waits;
      continue;
    }
    const auto it = tickets_.find(waiter.ticket);
    if (it == tickets_.end()) continue;  // its lane is gone
    Ticket& ticket = it->second;
    if (status != ReplyStatus::kOk && waiter.group < ticket.statuses.size()) {
      ticket.statuses[waiter.group] = status;
      ticket.answer.status = std::max(ticket.answer.status, status);
    }
    if (--ticket.remaining > 0) continue;
    Event event{Event::Kind::kReplicated, ticket.token, ticket.answer, {}, 0, 0, nullptr};
    event.group_status =
        std::make_shared<const std::vector<ReplyStatus>>(std::move(ticket.statuses));
    sink_.events.push_back(std::move(event));
    tickets_.erase(it);
  }
  entry->clear();
}

void ReplicaWaiters::ForgetLane(uint32_t lane) {
  absl::erase_if(tickets_, [&](const auto& t) { return t.second.token.lane == lane; });
}

}  // namespace verbena::shard
