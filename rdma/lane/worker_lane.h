// The worker's (or sending server's) end of a lane: posts records into the shard's slots under
// credits, takes replies from its mailbox.
//
// States: kConnecting -> kGranting (established, waiting for the ring) -> kOpen -> kDead.
//         any -> kClosing (Close() called or the connection lost) -> kDead once the transport says
//         that it is dead on our side.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. An operation index is in use from Post() until its reply was taken or the lane is dead; its
//     mailbox entry is never awaited by two records.
//  2. A slot is in use from Post() until the shard returned it (credit or reply) and its write
//     completed on this side.
//  3. A receive is reposted before the credit or operation it announced can be used again.
//  4. The payload segment of a record may be read by the transport until its answer or kDead: the
//     answer is withheld until the write that gathered the payload has completed here.
#ifndef VERBENA_RDMA_LANE_WORKER_LANE_H_
#define VERBENA_RDMA_LANE_WORKER_LANE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/record.h"
#include "rdma/lane/lane_config.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// What the shard granted (OpenLaneResponse), in this room's terms.
struct LaneTicket {
  uint32_t lane = 0;
  uint32_t generation = 0;
  uint64_t incarnation = 0;  // of who opens it
  uint8_t token[16] = {};
  std::string address;
  LaneConfig config;
};

struct WorkerLaneCounters {
  uint64_t records = 0;
  uint64_t payload_bytes = 0;
  uint64_t referenced_bytes = 0;  // of these, read by the shard where they lie
  uint64_t replies = 0;
  uint64_t credit_stalls = 0;  // Post() refused for want of a slot or operation
  uint64_t malformed_replies = 0;
};

class WorkerLane {
 public:
  enum class State : uint8_t { kConnecting, kGranting, kOpen, kClosing, kDead };

  // Creates the connection, exposes the mailbox, posts the receives and starts connecting.
  static absl::StatusOr<std::unique_ptr<WorkerLane>> Open(Endpoint* endpoint,
                                                          const LaneTicket& ticket);
  ~WorkerLane();

  State state() const;
  ConnectionId connection() const;
  const absl::Status& error() const;  // why it is closing or dead
  const WorkerLaneCounters& counters() const;
  const LaneTicket& ticket() const;

  // What to post: `header` with type, table, dtype, destination*, min_version set; magic, version,
  // generation, operation, incarnation, counts are filled in. `payload` may have no data.
  struct Request {
    RecordHeader header = {};
    absl::Span<const Group> groups;
    // The payload's beginning, which is copied; a multiple of kRecordAlignment, and so short that
    // header, groups and it fit kRecordStagingBytes.
    absl::Span<const std::byte> prefix = {};
    Segment payload;
    // As Refer() said: the shard reads the payload there, and the record needs no room for it.
    std::optional<RemoteMemory> reference = {};
    uint64_t cookie = 0;  // comes back with the reply
  };
  // What is to be left free for others.
  struct Reserve {
    uint32_t operations = 0;
    uint32_t small_slots = 0;  // for a record that takes one; else:
    uint32_t large_slots = 0;
  };
  // `payload_bytes`: with the prefix.
  bool CanPost(size_t group_count, size_t payload_bytes, const Reserve& reserve = {0, 0, 0}) const;
  // Where the shard can read this payload of a push itself, until it has answered; nothing: it
  // cannot, or a copy is cheaper.
  std::optional<RemoteMemory> Refer(const std::shared_ptr<MemoryBlock>& block,
                                    const std::byte* data, uint32_t bytes);
  // RESOURCE_EXHAUSTED when there is no slot or operation (CanPost() was false);
  // INVALID_ARGUMENT when the record fits no slot; FAILED_PRECONDITION when not open or the
  // connection is in error (its kLost event follows). After an error nothing was posted. Posts one
  // write with immediate: header and groups from lane-owned memory, payload gathered from where it
  // is (payloads that share a small slot are copied behind the header instead of gathered when
  // small).
  absl::Status Post(const Request& request);

  // Lets the shard write to [offset, +bytes) of `block` (pull destinations). Cached per block;
  // Forget() ends it once no operation uses it. IsNotNow(): as Endpoint::Expose(), or the lane is
  // closing or dead.
  absl::StatusOr<RemoteMemory> Expose(const std::shared_ptr<MemoryBlock>& block);
  // The same of [data, data + bytes) of a block that may be larger than the transport exposes at
  // once (Endpoint::max_exposure()). The address is the block's, the key of a piece with the range.
  // A range that no piece has is exposed with all of the block. INVALID_ARGUMENT: that is larger
  // than Endpoint::max_exposure(). `unexposed`: memory that has to be registered for this lane
  // alone is not, but handed out here, with UNAVAILABLE; null: it is registered in the call.
  struct Unexposed {
    size_t piece = 0;  // of the block
    size_t bytes = 0;
    std::unique_ptr<Registration> registration;  // null: there is none to wait for
  };
  absl::StatusOr<RemoteMemory> Expose(const std::shared_ptr<MemoryBlock>& block,
                                      const std::byte* data, size_t bytes,
                                      Unexposed* unexposed = nullptr);
  // After the steps of that registration. IsNotNow(): as Expose().
  absl::Status FinishExposure(uint64_t block_id, size_t piece,
                              std::unique_ptr<Registration> complete);
  void Forget(uint64_t block_id);

  struct Answer {
    uint64_t cookie = 0;
    Reply reply = {};  // copied out of the mailbox and validated
  };
  // Feeds one completion or event of this lane's connection. Answers are appended to *answers.
  // A malformed reply closes the lane.
  void OnCompletion(const Completion& completion, std::vector<Answer>* answers);
  void OnEvent(const ConnectionEvent& event);
  // Advances kClosing to kDead. Returns whether anything changed.
  bool RunOnce();

  // Cookies of records posted and unanswered, in the order they were posted. They may be posted
  // elsewhere, and their buffers given back, once state() is kDead.
  std::vector<uint64_t> Unanswered() const;
  uint32_t unanswered_count() const;

  // Asks the transport whether the shard's end is still there, by an empty write: one that has
  // missed that the lane is closed would wait for its answers for ever (transport.h, invariant 8).
  // Cheap; does nothing unless open, or while the last one is under way.
  void Probe();
  // To be called about every WriteWatch::kIntervalNanos: whether no write has ended for so long
  // while some were under way. The lane is of no use any more, and is the caller's to close.
  bool WritesHang(int64_t now_ns, int64_t timeout_ns);

  void Close(absl::Status reason);

 private:
  struct Impl;
  explicit WorkerLane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_WORKER_LANE_H_
