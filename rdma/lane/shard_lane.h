// The shard's end of a lane: slots that one worker may write, replies into its mailbox.
//
// States: kAccepting -> kOpen -> kDead (closed; every send completion accounted for or flushed).
//
// **Thread safety**: one owner thread (the shard's).
//
// Invariants:
//  1. A slot's bytes are looked at only after the receive completion that names it, and only by
//     way of CopyRecord() (header and groups) and the payload span it returns.
//  2. The receive is reposted before the slot's credit returns.
//  3. Every operation gets exactly one reply, unless the lane dies first.
//  4. A reply's entry and a slot's credit are under way at most once each: the next one waits for
//     the completion here, so the send queue holds LaneConfig::shard_sends() at most.
//  5. A peer that breaks the rules (bad immediate, slot it does not hold, malformed header) loses
//     its lane; nothing else happens.
#ifndef VERBENA_RDMA_LANE_SHARD_LANE_H_
#define VERBENA_RDMA_LANE_SHARD_LANE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/record.h"
#include "proto/record_check.h"
#include "rdma/lane/lane_config.h"
#include "rdma/transport.h"

namespace verbena::rdma {

struct ShardLaneCounters {
  uint64_t records = 0;
  uint64_t payload_bytes = 0;   // received
  uint64_t borrowed_bytes = 0;  // of these, read where they lay in the worker's memory
  uint64_t written_bytes = 0;   // of pulls
  uint64_t replies = 0;
  uint64_t credits = 0;  // credit-only immediates
};

class ShardLane {
 public:
  enum class State : uint8_t { kAccepting, kOpen, kClosing, kDead };

  struct Params {
    uint32_t lane = 0;
    uint32_t generation = 0;
    uint64_t incarnation = 0;
    LaneConfig config;
    uint64_t domain = 0;  // ConnectionLimits::domain: of the worker's job
  };
  // Takes over a kRequest connection whose hello was checked: allocates the ring, exposes it,
  // posts the receives, accepts. The grant is sent on kEstablished. On an error the connection has
  // been rejected.
  static absl::StatusOr<std::unique_ptr<ShardLane>> Accept(Endpoint* endpoint,
                                                           ConnectionId connection,
                                                           const LaneHello& hello,
                                                           const Params& params);
  ~ShardLane();

  State state() const;
  ConnectionId connection() const;
  const absl::Status& error() const;
  const Params& params() const;
  const ShardLaneCounters& counters() const;
  // Records that arrived and have no answer.
  uint32_t unanswered_count() const;

  // A record that has arrived. `payload` lies in the slot, or in the worker's memory, and stays
  // readable until the slot is returned, or RunOnce() finds the lane closing; it may still change
  // under a faulty peer, so only numbers are read from it.
  struct Arrival {
    Record record;
    uint32_t slot = 0;
    absl::Span<const std::byte> payload;
  };
  // Feeds one completion of this lane's connection. True: *arrival is filled and the caller must
  // answer record.header.operation and return the slot. Send completions of data writes that
  // asked for it are appended to *written (the cookie given to WriteAndReply).
  bool OnCompletion(const Completion& completion, Arrival* arrival, std::vector<uint64_t>* written);
  void OnEvent(const ConnectionEvent& event);

  // Returns the slot without an answer yet (its content was copied or is not needed).
  void ReturnSlot(uint32_t slot);

  struct Answer {
    uint32_t operation = 0;
    ReplyStatus status = ReplyStatus::kOk;
    absl::Span<const ReplyStatus> group_status;  // empty: every group has `status`
    uint16_t group_count = 1;
    uint32_t detail = 0;
    uint64_t version = 0;
    bool return_slot = false;
    uint32_t slot = 0;
  };
  // Answers between the two wake a worker that sleeps once, at the end, and one that sleeps until
  // the last answer only if it is there or some answer was not OK.
  void BeginAnswers();
  void EndAnswers();
  void SendReply(const Answer& answer);
  // Writes `data` to the worker's memory, then the reply, on the same connection. When the
  // transport no longer reads `data`, `cookie` comes back through OnCompletion (also when flushed)
  // or through TakeAbandoned() if the lane dies.
  void WriteAndReply(const Segment& data, const RemoteMemory& destination, uint64_t cookie,
                     const Answer& answer);

  // After the lane is dead: cookies of data writes never reported. A WriteAndReply() on a lane that
  // is not open comes back here too.
  void TakeAbandoned(std::vector<uint64_t>* cookies);

  // Advances kClosing to kDead. Of a lane that closes, no payload is read any more.
  bool RunOnce();
  // As WorkerLane's.
  bool WritesHang(int64_t now_ns, int64_t timeout_ns);
  void Close(absl::Status reason);

 private:
  struct Impl;
  explicit ShardLane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_SHARD_LANE_H_
