// The worker's (or sending server's) end of a lane: posts records into the shard's slots under
// credits, and takes replies from its mailbox.
//
// States: kConnecting -> kGranting (established, waiting for the ring) -> kOpen -> kDead.
//         any -> kClosing (Close() called or the connection lost) -> kDead when the transport
//         reports it dead on our side.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. An operation index is in use from Post() until its reply was taken or the lane is dead. Two
//     records never wait for the same mailbox entry.
//  2. A slot is in use from Post() until the shard has returned it (credit or reply) and its write
//     has completed on this side.
//  3. A receive is reposted before the credit or operation that it announced can be used again.
//  4. The transport may read the payload segment of a record until its reply or kDead. The reply is
//     withheld until the write that gathered the payload has completed here.
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
#include "proto/protocol_version.h"
#include "proto/wire/record.h"
#include "rdma/lane/lane_config.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// The shard's grant (OpenLaneResponse) in the types of this module.
struct LaneTicket {
  uint32_t lane = 0;
  uint32_t generation = 0;
  uint64_t incarnation = 0;  // of the opener
  uint8_t token[16] = {};
  std::string address;
  LaneConfig config;
  uint32_t protocol = kProtocolVersion;  // version of its records
};

struct WorkerLaneCounters {
  uint64_t records = 0;
  uint64_t payload_bytes = 0;
  uint64_t referenced_bytes = 0;  // of payload_bytes, read in place by the shard
  uint64_t replies = 0;
  uint64_t credit_stalls = 0;  // Post() refused because no slot or operation was free
  uint64_t malformed_replies = 0;
};

class WorkerLane {
 public:
  enum class State : uint8_t { kConnecting, kGranting, kOpen, kClosing, kDead };

  // Creates the connection, exposes the mailbox, posts the receives and starts to connect.
  static absl::StatusOr<std::unique_ptr<WorkerLane>> Open(Endpoint* endpoint,
                                                          const LaneTicket& ticket);
  ~WorkerLane();

  State state() const;
  ConnectionId connection() const;
  const absl::Status& error() const;  // reason for closing
  const WorkerLaneCounters& counters() const;
  const LaneTicket& ticket() const;

  // A record to post. `header` has type, table, dtype, destination*, min_version; Post() fills in
  // magic, version, generation, operation, incarnation and counts. `payload` may be empty.
  struct Request {
    RecordHeader header = {};
    absl::Span<const Group> groups;
    // The start of the payload, which is copied. It is a multiple of kRecordAlignment, and header,
    // groups and prefix fit kRecordStagingBytes.
    absl::Span<const std::byte> prefix = {};
    Segment payload;
    // Result of Refer(): the shard reads the payload there, and the slot needs no space for it.
    std::optional<RemoteMemory> reference = {};
    uint64_t cookie = 0;  // comes back with the reply
  };
  // Resources that this request leaves free for others.
  struct Reserve {
    uint32_t operations = 0;
    uint32_t small_slots = 0;  // for a record that uses a small slot; otherwise:
    uint32_t large_slots = 0;
  };
  // `payload_bytes` includes the prefix.
  bool CanPost(size_t group_count, size_t payload_bytes, const Reserve& reserve = {0, 0, 0}) const;
  // The address at which the shard can read this payload of a push, until it has replied. Empty: it
  // cannot, or a copy is cheaper.
  std::optional<RemoteMemory> Refer(const std::shared_ptr<MemoryBlock>& block,
                                    const std::byte* data, uint32_t bytes);
  // RESOURCE_EXHAUSTED: no slot or operation is free (CanPost() was false). INVALID_ARGUMENT: the
  // record fits no slot. FAILED_PRECONDITION: the lane is not open, or the connection is in error
  // (its kLost event follows). After an error nothing was posted. Posts one write with immediate:
  // header and groups from lane-owned memory, the payload gathered in place. A small payload for a
  // small slot is copied after the header instead.
  absl::Status Post(const Request& request);

  // Lets the shard write to all of `block` (pull destinations). Cached per block; Forget() ends it
  // when no operation uses it. IsNotNow(): as Endpoint::Expose(), or the lane is closing or dead.
  absl::StatusOr<RemoteMemory> Expose(const std::shared_ptr<MemoryBlock>& block);
  // Exposes [data, data + bytes) of a block that may be larger than one exposure
  // (Endpoint::max_exposure()). The returned address is that of the block, and the key is that of a
  // piece that contains the range. A range that no piece contains is exposed with the whole block.
  // INVALID_ARGUMENT: the block is larger than Endpoint::max_exposure(). If memory must be
  // registered for this lane only and `unexposed` is set, the call returns UNAVAILABLE and passes
  // the registration in it. If `unexposed` is null, the call registers the memory.
  struct Unexposed {
    size_t piece = 0;  // index in the block
    size_t bytes = 0;
    std::unique_ptr<Registration> registration;  // null: there is no registration to wait for
  };
  absl::StatusOr<RemoteMemory> Expose(const std::shared_ptr<MemoryBlock>& block,
                                      const std::byte* data, size_t bytes,
                                      Unexposed* unexposed = nullptr);
  // Call after the steps of that registration. IsNotNow(): as Expose().
  absl::Status FinishExposure(uint64_t block_id, size_t piece,
                              std::unique_ptr<Registration> complete);
  void Forget(uint64_t block_id);

  struct Answer {
    uint64_t cookie = 0;
    Reply reply = {};  // copied out of the mailbox and validated
  };
  // Processes one completion or event of this lane's connection, and appends replies to *answers. A
  // malformed reply closes the lane.
  void OnCompletion(const Completion& completion, std::vector<Answer>* answers);
  void OnEvent(const ConnectionEvent& event);
  // Advances kClosing to kDead. Returns whether anything changed.
  bool RunOnce();

  // Cookies of unanswered records in the order of posting. When state() is kDead, they may be
  // posted elsewhere and their buffers released.
  std::vector<uint64_t> Unanswered() const;
  uint32_t unanswered_count() const;

  // Probes the shard's end by an empty write. A worker that has missed the close of a lane would
  // otherwise wait for its replies forever (transport.h, invariant 8). Cheap; does nothing unless
  // the lane is open, or while the last probe is in flight.
  void Probe();
  // Call about every WriteWatch::kIntervalNanos. True: writes are in flight and none has completed
  // for `timeout_ns`. The lane is unusable, and the caller must close it.
  bool WritesHang(int64_t now_ns, int64_t timeout_ns);

  void Close(absl::Status reason);

 private:
  struct Impl;
  explicit WorkerLane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_WORKER_LANE_H_
