// The shard's end of a lane: slots that one worker may write, and replies into its mailbox.
//
// States: kAccepting -> kOpen -> kClosing -> kDead (every send completion is reported or flushed).
//
// **Thread safety**: one owner thread (the shard's).
//
// Invariants:
//  1. A slot's bytes are read only after the receive completion for the slot, and only through
//     CopyRecord() (header and groups) and the payload span that it returns.
//  2. The receive is reposted before the slot's credit returns.
//  3. Every operation gets exactly one reply, unless the lane dies first.
//  4. At most one reply per operation and one credit per slot are in flight. The next one waits for
//     the completion here, so the send queue holds at most LaneConfig::shard_sends() writes.
//  5. A peer that violates the protocol (bad immediate, slot that it does not hold, malformed
//     header) loses its lane. It has no other effect.
#ifndef VERBENA_RDMA_LANE_SHARD_LANE_H_
#define VERBENA_RDMA_LANE_SHARD_LANE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/protocol_version.h"
#include "proto/wire/record.h"
#include "proto/wire/record_check.h"
#include "rdma/lane/lane_config.h"
#include "rdma/transport.h"

namespace verbena::rdma {

struct ShardLaneCounters {
  uint64_t records = 0;
  uint64_t payload_bytes = 0;   // received
  uint64_t borrowed_bytes = 0;  // of payload_bytes, read in place from the worker's memory
  uint64_t written_bytes = 0;   // data of pulls
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
    uint64_t domain = 0;                   // ConnectionLimits::domain: of the worker's job
    uint32_t protocol = kProtocolVersion;  // version of its records
  };
  // Takes over a kRequest connection whose hello was checked: allocates and exposes the ring, posts
  // the receives, accepts. The grant is sent on kEstablished. After an error the connection has
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
  // Number of received records without a reply.
  uint32_t unanswered_count() const;

  // A received record. `payload` is in the slot or in the worker's memory. It is readable until the
  // slot is returned, or until RunOnce() finds the lane closing. A faulty peer may still change it,
  // so only numbers are read from it.
  struct Arrival {
    Record record;
    uint32_t slot = 0;
    absl::Span<const std::byte> payload;
  };
  // Processes one completion of this lane's connection. True: *arrival is filled, and the caller
  // must answer record.header.operation and return the slot. The cookies of completed data writes
  // (from WriteAndReply()) are appended to *written.
  bool OnCompletion(const Completion& completion, Arrival* arrival, std::vector<uint64_t>* written);
  void OnEvent(const ConnectionEvent& event);

  // Returns the slot before the reply (its content was copied or is not needed).
  void ReturnSlot(uint32_t slot);

  struct Answer {
    uint32_t operation = 0;
    ReplyStatus status = ReplyStatus::kOk;
    absl::Span<const ReplyStatus> group_status;  // empty: every group has `status`
    uint16_t group_count = 1;
    uint32_t detail = 0;
    uint64_t version = 0;
    uint64_t applies = 0;
    bool return_slot = false;
    uint32_t slot = 0;
  };
  // Groups the replies between the two calls. EndAnswers() wakes a sleeping worker once. A worker
  // that sleeps until the last reply is woken only if the last reply is among them or a reply was
  // not OK.
  void BeginAnswers();
  void EndAnswers();
  void SendReply(const Answer& answer);
  // Writes `data` to the worker's memory, then the reply, on the same connection. When the
  // transport no longer reads `data`, `cookie` is returned by OnCompletion() (also when flushed),
  // or by TakeAbandoned() if the lane dies.
  void WriteAndReply(const Segment& data, const RemoteMemory& destination, uint64_t cookie,
                     const Answer& answer);

  // After the lane is dead: cookies of data writes that were never reported. A WriteAndReply() on a
  // lane that is not open returns its cookie here too.
  void TakeAbandoned(std::vector<uint64_t>* cookies);

  // Advances kClosing to kDead. A closing lane reads no more payload.
  bool RunOnce();
  // The same contract as WorkerLane::WritesHang().
  bool WritesHang(int64_t now_ns, int64_t timeout_ns);
  void Close(absl::Status reason);

 private:
  struct Impl;
  explicit ShardLane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_SHARD_LANE_H_
