// What a shard's end of a lane is made of: shard_lane.cc has its set-up, what arrives and its end,
// shard_lane_answers.cc what the worker is told.
//
// **Thread safety**: one owner thread, as ShardLane.
#ifndef VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_
#define VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/lane/shard_lane.h"
#include "rdma/lane/write_watch.h"
#include "rdma/sim/sim_network.h"

namespace verbena::rdma {

struct ShardLane::Impl {
  // What a send completion is of: kind in the upper half of the wr_id, index in the lower.
  enum class Sent : uint32_t { kGrant, kData, kReply, kCredit };
  static uint64_t WrId(Sent kind, uint32_t index) {
    return static_cast<uint64_t>(kind) << 32 | index;
  }

  // A data write that goes out ahead of a reply.
  struct Data {
    bool present = false;
    uint64_t cookie = 0;
    Segment segment;
    RemoteMemory destination;
  };
  // An operation has two reply entries in `staging`. At most one is under way; the other may wait
  // for its completion, when the worker's next record overtook the acknowledgement.
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
    bool in_use = false;  // holds a record that was not returned
    bool credit_under_way = false;
    bool credit_waiting = false;
    std::shared_ptr<const void> payload;  // of the record, if it is borrowed
  };

  Endpoint* endpoint = nullptr;
  ConnectionId connection = ConnectionId::kNone;
  bool taken_over = false;  // the connection is ours to destroy
  LaneHello hello = {};
  Params params;
  const PlantedBugs* bugs = nullptr;
  State state = State::kAccepting;
  bool broken = false;  // in error; kLost with the reason follows
  absl::Status error;
  ShardLaneCounters counters;

  WriteWatch watch;
  std::shared_ptr<MemoryBlock> ring;
  std::shared_ptr<MemoryBlock> staging;
  RemoteMemory exposed_ring;
  std::vector<Operation> operations;
  std::vector<Slot> slots;
  std::vector<uint64_t> abandoned;  // cookies of data writes that were never posted
  uint32_t receives_owed = 0;       // planted bug: consumed and not reposted
  uint32_t unanswered = 0;
  bool together = false;   // BeginAnswers()
  bool owes_wake = false;  // since then: something was written
  bool urgent = false;     // of that, something that the worker may have to act upon

  ~Impl() {
    slots.clear();  // what is borrowed goes back before the connection ends
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

  // ---- shard_lane.cc: set-up, what arrives, the end ----
  absl::Status Start();
  bool PostWrite(const WriteRequest& write);
  void SendGrant();
  void RepostReceive();
  bool OnReceived(uint32_t immediate, Arrival* arrival);
  absl::Status ReadRecord(uint32_t slot, Arrival* arrival);
  void Close(absl::Status reason);

  // ---- shard_lane_answers.cc: answers, slots that are given back, what wakes the worker ----
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
  // A mistake of this process, not of the peer: loud, but only this lane pays.
  void Misuse(absl::string_view what) {
    Close(absl::InternalError(absl::StrCat("lane ", params.lane, ": ", what)));
  }
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_SHARD_LANE_IMPL_H_
