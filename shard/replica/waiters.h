// Requests that wait for entries of the replication log, and their answers.
//
// A request waits for any number of entries. It is answered when the last one is finished, with the
// worst status of all.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A request for which EndRequest() returned true is answered once, by an event kReplicated,
//  when
//     all its entries are finished; never after ForgetLane().
//  2. Each entry's list is finished once.
#ifndef VERBENA_SHARD_REPLICA_WAITERS_H_
#define VERBENA_SHARD_REPLICA_WAITERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"

namespace verbena::shard {

class ReplicaWaiters {
 public:
  // One group of a request that waits.
  struct Waiter {
    uint64_t ticket;
    uint32_t group;
  };
  // The waiters of an entry.
  using List = std::vector<Waiter>;
  // The request that is handled now.
  struct Asker {
    const Token* token = nullptr;
    uint64_t ticket = 0;  // 0: it waits for nothing yet
    uint32_t group = 0;
    uint32_t waits = 0;
  };

  explicit ReplicaWaiters(EngineContext* sink) : sink_(*sink) {}

  void Ask(const Token* token) { asker_ = {token, 0, 0, 0}; }
  void AskGroup(uint32_t group) { asker_.group = group; }
  // Whether the request waits for anything. If so, it is answered later with these statuses, or
  // with those of entries that failed.
  bool EndRequest(const Answer& answer, absl::Span<const ReplyStatus> statuses);
  // Between Suspend() and Resume() there is no current request.
  Asker Suspend() { return std::exchange(asker_, {}); }
  void Resume(const Asker& asker) { asker_ = asker; }

  // The request, if there is one, waits for this entry, too.
  void Add(List* entry);
  // The entry is finished.
  void Finish(List* entry, ReplyStatus status);
  void ForgetLane(uint32_t lane);

 private:
  struct Ticket {
    Token token;
    uint32_t remaining = 0;
    Answer answer;
    std::vector<ReplyStatus> statuses;
  };

  EngineContext& sink_;
  absl::flat_hash_map<uint64_t, Ticket> tickets_;
  uint64_t last_ticket_ = 0;
  Asker asker_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_WAITERS_H_
