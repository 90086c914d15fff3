// Implementation of ShardLane. shard_lane.cc has set-up, receiving and the end;
// shard_lane_answers.cc has replies.
//
// **Thread safety**: one owner thread, like ShardLane.
#ifndef VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_
#define VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/lane/shard_lane.h"
#include "rdma/lane/write_watch.h"

namespace verbena::rdma {

struct ShardLane::Impl {
  // Kind of a send completion: kind in the upper half of the wr_id, index in the lower.
  enum class Sent : uint32_t { kGrant, kData, kReply, kCredit };
  static uint64_t WrId(Sent kind, uint32_t index) {
    return static_cast<uint64_t>(kind) << 32 | index;
  }

  // A data write before a reply.
  struct Data {
    bool present = false;
    uint64_t cookie = 0;
    Segment segment;
    RemoteMemory destination;
  };
  // An operation has two reply entries in `staging`. At most one is in flight. The other may wait
  // for its completion, if the worker's next record overtook the acknowledgement.
  struct Operation {
    bool unanswered = false;
    bool under_way = false;
    bool waiting = false;
    bool urgent = false;  // the last reply
    uint8_t entry = 0;    // the next reply is built here
    Data sent;
    Data next;
  };
  struct Slot {
    bool in_use = false;  // holds a record that has not been returned
    bool credit_under_way = false;
    bool credit_waiting = false;
    std::shared_ptr<const void> payload;  // of the record, if borrowed
  };

  Endpoint* endpoint = nullptr;
  ConnectionId connection = ConnectionId::kNone;
  bool taken_over = false;  // this object destroys the connection
  LaneHello hello = {};
  Params params;
  State state = State::kAccepting;
  bool broken = false;  // the connection is in error; kLost with the reason follows
  absl::Status error;
  ShardLaneCounters counters;

  WriteWatch watch;
  std::shared_ptr<MemoryBlock> ring;
  std::shared_ptr<MemoryBlock> staging;
  RemoteMemory exposed_ring;
  std::vector<Operation> operations;
  std::vector<Slot> slots;
  std::vector<uint64_t> abandoned;  // cookies of data writes that were never posted
  uint32_t receives_owed = 0;       // failpoint: consumed and not reposted
  uint32_t unanswered = 0;
  bool together = false;   // BeginAnswers()
  bool owes_wake = false;  // a write since BeginAnswers() has not woken the worker yet
  bool urgent = false;     // such a write may need a reaction of the worker

  ~Impl() {
    slots.clear();  // borrowed memory is released before the connection ends
    if (taken_over) endpoint->Destroy(connection);
  }

  const LaneConfig& config() const { return params.config; }
  std::byte* Entry(uint32_t operation, uint8_t entry) const {
    return staging->data() + (size_t{2} * operation + entry) * kMailboxEntryBytes;
  }
  std::byte* GrantEntry() const { return Entry(config().operations, 0); }
  RemoteMemory Mailbox(uint32_t index) const {
    return {hello.mailbox_address + size_t{index} * kMailboxEntryBytes, hello.mailbox_key};
  }

  // ---- shard_lane.cc: set-up, receiving, the end ----
  absl::Status Start();
  bool PostWrite(const WriteRequest& write);
  void SendGrant();
  void RepostReceive();
  bool OnReceived(uint32_t immediate, Arrival* arrival);
  absl::Status ReadRecord(uint32_t slot, Arrival* arrival);
  void Close(absl::Status reason);

  // ---- shard_lane_answers.cc: replies, returned slots, wake-ups of the worker ----
  bool CheckAnswer(const Answer& answer);
  void Reply(const Data& data, const Answer& answer);
  void PostReply(uint32_t operation, uint8_t entry, const Data& data);
  bool TakeSlot(uint32_t slot);
  void Credit(uint32_t slot);
  Wakes WakesFor(bool urgent_write);
  void OnSent(uint64_t wr_id, bool ok, std::vector<uint64_t>* written);
  void OnReplySent(uint32_t index, std::vector<uint64_t>* written);

  bool Violation(absl::string_view what) {
    Close(absl::InvalidArgumentError(absl::StrCat("lane ", params.lane, " of worker ",
                                                  params.incarnation, ": the worker sent ", what)));
    return false;
  }
  // A bug of this process, not of the peer. It is reported, and affects only this lane.
  void Misuse(absl::string_view what) {
    Close(absl::InternalError(absl::StrCat("lane ", params.lane, ": ", what)));
  }
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_
