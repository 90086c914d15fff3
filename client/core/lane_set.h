// The lanes of this worker: one stream per (server incarnation, shard, rail), opened when it has
// records, and reopened with backoff after a loss.
//
// The number of rails of a shard is the number that both sides have of its lanes' transport. Rail i
// of the worker connects to rail i of the server. Rail 0 requests a lane first; the answer has the
// transport and the number of rails. The other rails are then opened, and kept open as long as the
// shard is used. A rail that cannot be opened is retried with backoff while others work.
//
// States of a stream:
//   kIdle -> kAsking (OpenLane called) -> kOpening (connecting, granting) -> kOpen
//   kAsking -> kIdle with backoff when refused; any with a lane -> kClosing (lost or closed)
//   kClosing -> kIdle when the lane is dead: its unanswered records return to the listener.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A stream has one lane at a time; the next is requested only after the last is dead.
//  2. With a named transport no other transport is used.
//  3. All lanes to a shard use one transport. Another one is selected only when no lane of it is
//     left, and a transport is given up only when no rail of it opens.
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
#include "client/core/lane_memory.h"
#include "client/core/pending_request.h"
#include "client/core/pull_queue.h"
#include "client/core/rails.h"
#include "client/core/session.h"
#include "client/core/table_state.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "rdma/lane/lane_watch.h"
#include "rdma/lane/open_failures.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/selection/transports.h"
#include "rdma/transport.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::client {

struct Stream;

// A shard, as a peer of this worker.
struct Peer {
  uint64_t server = 0;
  uint32_t shard = 0;
  std::vector<Stream*> rails;  // by number; never empty
  uint32_t rail_count = 1;     // number of rails that may be opened
  std::string transport;       // of its lanes; empty: rail 0 determines it
  // Transports that did not open to this server. They are not offered again until an open lane is
  // lost.
  std::vector<rdma::MissingTransport> unusable;
  RailPins pins;  // owned by the tracker
};

struct Stream {
  enum class State : uint8_t { kIdle, kAsking, kOpening, kOpen, kClosing };

  Peer* peer = nullptr;
  uint64_t server = 0;  // 0: none (for partitions without a server); never opened
  uint32_t shard = 0;
  uint32_t rail = 0;
  State state = State::kIdle;
  std::unique_ptr<rdma::WorkerLane> lane;
  size_t endpoint = 0;         // index of its transport
  bool needs_staging = false;  // the transport writes only to allocated memory
  bool was_open = false;       // the current lane
  bool wanted = false;         // has records: keep it open
  uint64_t ask = 0;            // id of the valid OpenLane call
  int64_t changed_at = 0;
  int64_t retry_at = 0;
  Backoff backoff;
  int refusals = 0;        // number of consecutive FAILED_PRECONDITIONs
  uint64_t refreshes = 0;  // Session::refreshes() at the first of them
  absl::Status last_error;
  std::string transport, device, reason;
  rdma::LaneWatch watch;
  uint64_t registered_block = 0;  // the last block registered for writes of this lane
  uint64_t exposed_block = 0;     // the last block of which a part is exposed
  rdma::OpenFailures failures;    // over the same transport
  uint32_t record_bytes = 0;      // reopened once to get slots for a record of this size

  // ---- owned by the tracker ----
  std::vector<TableLane*> table_lanes;  // by the priority of their table, the greatest first
  PullQueue pulls;                      // pulls and awaits to be posted
  PendingRequestQueue norms;            // norms and totals to be posted
  PendingRequestQueue delayed;          // waiting for their backoff
  PendingRequestQueue posted;           // all unanswered records on the lane
  uint32_t pulls_out = 0, awaits_out = 0;
  int64_t reclaim_at = 0, reclaim_pause = 0;  // RecordStaging: not closed for ended pulls before
  bool dirty = false;
  bool stalled = false;  // last time, a record did not fit

  bool open() const { return state == State::kOpen; }
};

struct LaneCounters {
  uint64_t opened = 0, lost = 0, credit_stalls = 0;
};

class LaneListener {
 public:
  // Replies are handled until the turn is full; the rest is handled in the next turn.
  virtual void BeginTurn() = 0;
  virtual bool TurnIsFull() const = 0;
  virtual void OnLaneOpen(Stream* stream) = 0;
  virtual void OnCredit(Stream* stream) = 0;
  virtual void OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) = 0;
  // All posted records without an OnAnswer() call may be posted elsewhere.
  virtual void OnLaneDead(Stream* stream) = 0;
  // The server refuses permanently (no common transport or wire version).
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
  // Opens a lane if there is none, as soon as the backoff allows.
  void Want(Stream* stream);
  // Memory of the streams' lanes.
  LaneMemory& memory() { return memory_; }
  const LaneMemory& memory() const { return memory_; }
  // LaneMemory::RunOnce() of these lanes.
  bool RunMemory() {
    return memory_.RunOnce([this](size_t endpoint, rdma::ConnectionId connection) {
      return Find(endpoint, connection);
    });
  }
  // Closes the lane, if any; its records return through OnLaneDead().
  void Close(Stream* stream, absl::Status reason);
  void CloseAll(const absl::Status& reason);
  // After a view with other servers: closes lanes to servers that are gone.
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
  // Index in transports_; its size: not found.
  size_t FindTransport(const std::string& transport, uint32_t rail) const;
  // Applies the number of rails in a grant, and opens the available rails.
  void SetRails(Peer* peer, uint32_t server_rails);
  // Reports to the server that a lane is dead here, so that the server stops waiting for it. Also
  // returns an unused grant, which would keep a lane's number and memory until it expires.
  void Disown(const Stream& stream, const rdma::LaneTicket& ticket);
  void OnGranted(Stream* stream, absl::StatusOr<v1::OpenLaneResponse> response);
  absl::Status Connect(Stream* stream, const v1::OpenLaneResponse& response);
  void Failed(Stream* stream, absl::Status status);
  // A lane over transports_[endpoint] did not open. If another transport is left, enough failures
  // of every rail exclude this one from the next lane requests.
  void NoteOpenFailure(Stream* stream, size_t endpoint, const absl::Status& status);
  void Advance(Stream* stream);
  bool HandleCompletions();  // handles polled completions until the turn is full
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
  size_t polled_ = 0, handled_ = 0;  // indexes in completions_
  size_t polled_from_ = 0;           // the endpoint of completions_
  size_t poll_first_ = 0;            // the endpoint to poll next
  std::vector<rdma::ConnectionEvent> events_;
  std::vector<rdma::WorkerLane::Answer> answers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LANE_SET_H_
