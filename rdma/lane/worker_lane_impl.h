// Implementation of WorkerLane. worker_lane.cc has set-up, completions and the end;
// worker_lane_post.cc has posting.
//
// **Thread safety**: one owner thread, like WorkerLane.
#ifndef VERBENA_RDMA_LANE_WORKER_LANE_IMPL_H_
#define VERBENA_RDMA_LANE_WORKER_LANE_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/lane/write_watch.h"

namespace verbena::rdma {

struct WorkerLane::Impl {
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Operation {
    uint64_t cookie = 0;
    uint64_t serial = 0;  // of the record; distinguishes it from the next one with this index
    uint64_t min_version = 0;
    uint32_t previous = kNone;  // in the order of posting
    uint32_t next = kNone;
    uint16_t group_count = 0;
    bool in_use = false;
    bool reading = false;   // the transport may still read the caller's payload
    bool replied = false;   // the reply is in `withheld`
    bool reported = false;  // failpoint: completed before its reply
  };
  struct Slot {
    uint64_t serial = 0;
    uint32_t operation = kNone;
    bool at_shard = false;  // not returned yet
    bool writing = false;   // this side's write has not completed
  };

  Endpoint* endpoint = nullptr;
  LaneTicket ticket;
  ConnectionId connection = ConnectionId::kNone;
  State state = State::kConnecting;
  bool broken = false;   // the connection is in error; kLost with the reason follows
  bool probing = false;  // an empty write is in flight
  absl::Status error;
  WriteWatch watch;
  WorkerLaneCounters counters;

  std::shared_ptr<MemoryBlock> mailbox;
  std::shared_ptr<MemoryBlock> staging;
  RemoteMemory ring;

  std::vector<Operation> operations;
  std::vector<Reply> withheld;  // by operation
  std::vector<Slot> slots;
  std::vector<uint32_t> free_operations;
  std::vector<uint32_t> free_small;
  std::vector<uint32_t> free_large;
  uint32_t oldest = kNone;
  uint32_t newest = kNone;
  uint32_t in_use = 0;
  uint64_t next_serial = 1;
  // By block id; elements are pieces of Endpoint::exposure_pieces(). Address 0: not exposed.
  absl::flat_hash_map<uint64_t, std::vector<RemoteMemory>> exposed;

  ~Impl() {
    if (connection != ConnectionId::kNone) endpoint->Destroy(connection);
  }

  const LaneConfig& config() const { return ticket.config; }

  absl::Status Start();
  std::vector<uint32_t>* FreeSlots(size_t group_count, size_t payload_bytes);
  absl::Status CheckRequest(const Request& request) const;
  static size_t PayloadBytes(const Request& request) {
    return request.prefix.size() + request.payload.bytes;
  }
  // The part of PayloadBytes() that is in the slot.
  static size_t SlotPayloadBytes(const Request& request) {
    return request.prefix.size() + (request.reference ? 0 : request.payload.bytes);
  }
  absl::Status Post(const Request& request);
  uint32_t WriteStaging(std::byte* to, const Request& request, uint32_t operation,
                        absl::Span<const std::byte> copied);
  void Begin(const Request& request, uint32_t operation, uint32_t slot, bool copied);
  void Probe();
  void OnSent(uint32_t index, std::vector<Answer>* answers);
  void OnReceived(uint32_t immediate, std::vector<Answer>* answers);
  void OnGrant(uint32_t index);
  void OnReply(uint32_t index, std::vector<Answer>* answers);
  bool ReturnSlot(uint32_t index);
  void FreeSlot(uint32_t index) {
    (index < config().small_slots ? free_small : free_large).push_back(index);
  }
  void EndOperation(uint32_t index);
  // Null: the piece is not exposed.
  const RemoteMemory* FindExposed(uint64_t block_id, size_t piece) const;
  void AddExposed(uint64_t block_id, size_t piece, const RemoteMemory& memory);
  absl::Status Closed() const;
  void Close(absl::Status reason);
  absl::Status Malformed(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("lane ", ticket.lane, " generation ", ticket.generation,
                                            ": the shard sent ", what));
  }
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_WORKER_LANE_IMPL_H_
