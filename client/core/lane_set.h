// The lanes of this worker: one stream per (server incarnation, shard, rail), opened when it has
// records, reopened after a loss with backoff.
//
// A shard has as many rails as both sides have of the transport that its lanes use: rail i of the
// worker with rail i of the server. Rail 0 asks for a lane first; the answer says which transport
// it is and how many rails, and the other rails are opened then and kept open as long as the
// shard is used. A rail that cannot be opened is tried again with backoff while others work.
//
// States of a stream:
//   kIdle -> kAsking (OpenLane called) -> kOpening (connecting, granting) -> kOpen
//   kAsking -> kIdle with backoff when refused; any with a lane -> kClosing (lost or closed)
//   kClosing -> kIdle once the lane is dead: the listener gets its unanswered records back.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A stream has one lane at a time; the next is asked for only after the last is dead.
//  2. A transport that was named is the only one there is, so nothing is fallen back to.
//  3. All lanes to a shard use one transport: another one is chosen only when none is left of it,
//     and a transport is given up only when no rail of it opens.
#ifndef VERBENA_CLIENT_CORE_LANE_SET_H_
#define VERBENA_CLIENT_CORE_LANE_SET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/core/backoff.h"
#include "client/core/entry.h"
#include "client/core/lane_memory.h"
#include "client/core/rails.h"
#include "client/core/session.h"
#include "client/core/table_state.h"
#include "proto/control_channel.h"
#include "proto/verbena/v1/shard.pb.h"
#include "rdma/base/clock.h"
#include "rdma/choice/transports.h"
#include "rdma/lane/lane_watch.h"
#include "rdma/lane/open_failures.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/transport.h"

namespace verbena::client {

struct Stream;

// A shard, as this worker reaches it.
struct Peer {
  uint64_t server = 0;
  uint32_t shard = 0;
  std::vector<Stream*> rails;  // by number; never empty
  uint32_t rail_count = 1;     // of these, which may be opened
  std::string transport;       // of its lanes; empty: rail 0 asks which
  // Transports that did not open to this server: not offered again until an open lane is lost.
  std::vector<rdma::MissingTransport> unusable;
  RailPins pins;  // the journal's
};

struct Stream {
  enum class State : uint8_t { kIdle, kAsking, kOpening, kOpen, kClosing };

  Peer* peer = nullptr;
  uint64_t server = 0;  // 0: nowhere (partitions that no server has); never opened
  uint32_t shard = 0;
  uint32_t rail = 0;
  State state = State::kIdle;
  std::unique_ptr<rdma::WorkerLane> lane;
  size_t endpoint = 0;         // index of its transport
  bool needs_staging = false;  // the transport writes to allocated memory only
  bool was_open = false;       // this lane
  bool wanted = false;         // has records: keep it open
  uint64_t ask = 0;            // the OpenLane call whose answer counts
  int64_t changed_at = 0;
  int64_t retry_at = 0;
  Backoff backoff;
  int refusals = 0;        // FAILED_PRECONDITIONs in a row
  uint64_t refreshes = 0;  // Session::refreshes() at the first of them
  absl::Status last_error;
  std::string transport, device, reason;
  rdma::LaneWatch watch;
  uint64_t registered_block = 0;   // the last one made ready for writes of this lane
  uint64_t exposed_block = 0;      // the last one of which it has exposed something
  rdma::OpenFailures failures;     // over the same transport
  uint32_t wanted_slot_bytes = 0;  // reopened once to get slots of this size

  // ---- the journal's ----
  std::vector<TableLane*> table_lanes;
  EntryQueue pulls;    // pulls and awaits to be posted
  EntryQueue norms;    // norms and totals to be posted
  EntryQueue delayed;  // waiting for their backoff
  EntryQueue posted;   // all records unanswered on the lane
  uint32_t pulls_out = 0, awaits_out = 0;
  bool dirty = false;
  bool stalled = false;  // last time, something did not fit

  bool open() const { return state == State::kOpen; }
};

struct LaneCounters {
  uint64_t opened = 0, lost = 0, credit_stalls = 0;
};

class LaneListener {
 public:
  // Answers are handled until the turn is full; what is left is handled in the next one.
  virtual void BeginTurn() = 0;
  virtual bool TurnIsFull() const = 0;
  virtual void OnLaneOpen(Stream* stream) = 0;
  virtual void OnCredit(Stream* stream) = 0;
  virtual void OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) = 0;
  // Everything posted and not handed to OnAnswer() may be posted elsewhere.
  virtual void OnLaneDead(Stream* stream) = 0;
  // The server refuses for good (no common transport or wire version).
  virtual void OnLaneRefused(Stream* stream, const absl::Status& status) = 0;

 protected:
  ~LaneListener() = default;
};

class LaneSet {
 public:
  LaneSet(std::vector<LaneTransport> transports, std::vector<rdma::MissingTransport> missing,
          Session* session, ControlChannel* control, const Clock* clock, Random* random,
          CurrentCall* call, Registrar* registrar, LaneListener* listener);
  ~LaneSet();

  Peer* Get(uint64_t server, uint32_t shard);
  // Opens it when it has no lane, as soon as its backoff allows.
  void Want(Stream* stream);
  // What the streams' lanes do with memory.
  LaneMemory& memory() { return memory_; }
  const LaneMemory& memory() const { return memory_; }
  // LaneMemory::RunOnce() of these lanes.
  bool RunMemory() {
    return memory_.RunOnce([this](size_t endpoint, rdma::ConnectionId connection) {
      return Find(endpoint, connection);
    });
  }
  // The lane, if any, is closed; its records come back through OnLaneDead().
  void Close(Stream* stream, absl::Status reason);
  void CloseAll(const absl::Status& reason);
  // After a new view: closes lanes to servers that are gone.
  void OnView();

  bool Poll();
  bool RunTimers(int64_t now);
  int64_t NextTimerNanos() const;
  bool Arm(rdma::SleepUntil until);
  // While armed (Endpoint::WakeOnAnything()).
  bool WakeOnAnything();
  void Disarm();
  void AppendDescriptors(std::vector<int>* fds) const;

  const std::vector<std::unique_ptr<Stream>>& streams() const { return streams_; }
  static bool AnyOpen(const Peer& peer);
  LaneCounters counters() const;

 private:
  Stream* AddRail(Peer* peer);
  void Ask(Stream* stream);
  void AddOffers(const Peer& peer, v1::OpenLaneRequest* request) const;
  // Into transports_; its size: there is none.
  size_t FindTransport(const std::string& transport, uint32_t rail) const;
  // Follows what a grant says; the rails that there are now are opened.
  void SetRails(Peer* peer, uint32_t server_rails);
  // Tells the server that a lane is dead here, so that it waits for nothing on it any more; or that
  // a grant is not taken up, which would keep a lane's number and memory until it expires.
  void Disown(const Stream& stream, const rdma::LaneTicket& ticket);
  void OnGranted(Stream* stream, absl::StatusOr<v1::OpenLaneResponse> response);
  absl::Status Connect(Stream* stream, const v1::OpenLaneResponse& response);
  void Failed(Stream* stream, absl::Status status);
  // A lane over transports_[endpoint] did not open. Where another transport is left, enough
  // failures of every rail mean that the next lanes are asked for without this one.
  void NoteOpenFailure(Stream* stream, size_t endpoint, const absl::Status& status);
  void Advance(Stream* stream);
  bool HandleCompletions();  // those that were polled, until the turn is full
  void Forget(Stream* stream);
  Stream* Find(size_t endpoint, rdma::ConnectionId connection);

  std::vector<LaneTransport> transports_;
  std::vector<rdma::MissingTransport> missing_;
  Session* session_;
  ControlChannel* control_;
  const Clock* clock_;
  Random* random_;
  CurrentCall* call_;
  LaneListener* listener_;
  LaneMemory memory_;
  size_t transport_kinds_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> with_lane_;
  absl::flat_hash_map<uint64_t, Stream*> by_connection_;
  uint64_t last_key_ = 0;
  Stream* last_stream_ = nullptr;
  uint64_t asks_ = 0;
  LaneCounters counters_;
  std::vector<rdma::Completion> completions_;
  size_t polled_ = 0, handled_ = 0;  // of completions_
  size_t polled_from_ = 0;           // the endpoint that they are of
  size_t poll_first_ = 0;            // the endpoint to poll next
  std::vector<rdma::ConnectionEvent> events_;
  std::vector<rdma::WorkerLane::Answer> answers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LANE_SET_H_
