// The simulated fabric of SimNetwork: virtual time, links, and the course of each write.
//
// A write is split into pieces. Each piece is read from the sender's memory at one time and written
// to the receiver's at a later time. The write takes effect (its receive is consumed) when all
// pieces have landed. Its send completion is due at any time after the last read. All times are
// drawn when the write is posted.
//
// Sides of a link: kCreated -> kConnecting | kRequested -> kAccepting -> kEstablished -> kEnded.
//
// **Thread safety**: one thread.
#ifndef VERBENA_RDMA_SIM_SIM_CORE_H_
#define VERBENA_RDMA_SIM_SIM_CORE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rdma/sim/sim_network.h"
#include "rdma/transport.h"

namespace verbena::rdma {

class SimEndpoint;

struct SimExposed {
  std::shared_ptr<MemoryBlock> block;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct SimPiece {
  uint64_t offset = 0;  // in the write's payload
  uint64_t bytes = 0;
  bool read = false;
  bool landed = false;
  bool deferred = false;  // until the last moment before the peer is dead
};

struct SimWrite {
  uint64_t wr_id = 0;
  bool signaled = true;
  std::optional<uint32_t> immediate;
  Wakes wakes = Wakes::kPeer;  // for a write with an immediate
  RemoteMemory remote;
  uint64_t total = 0;
  struct Source {
    std::weak_ptr<const MemoryBlock> block;
    const std::byte* data;
    uint32_t bytes;
  };
  absl::InlinedVector<Source, 2> sources;
  absl::InlinedVector<SimPiece, 4> pieces;
  std::unique_ptr<std::byte[]> payload;  // what was read of it; null: nothing is written
  int64_t effect_at = 0;
  bool receive_taken = false;  // it has consumed a receive of the peer
  bool receive_reported = false;
  bool failed = false;  // this write put the connection in error

  bool AllRead() const;
  bool AllLanded() const;
  bool Overlaps(const SimWrite& other) const;
};

struct SimSide {
  enum class State : uint8_t {
    kCreated,
    kConnecting,
    kRequested,
    kAccepting,
    kEstablished,
    kEnded
  };
  SimEndpoint* endpoint = nullptr;  // null after destruction
  std::string host;
  ConnectionId id = ConnectionId::kNone;
  State state = State::kCreated;
  bool prepared = false;
  bool hung = false;      // its posted writes do not move
  bool reported = false;  // PollEvents() has returned kEstablished
  ConnectionLimits limits = {0, 0};
  uint32_t receives = 0;  // posted and not consumed
  uint32_t taken = 0;     // receives of acknowledged writes that are not reported yet
  std::map<uint64_t, SimExposed> exposed;
  std::deque<std::shared_ptr<SimWrite>> sends;     // not complete for the sender
  std::deque<std::shared_ptr<SimWrite>> inflight;  // not in effect at the peer
  bool closed = false;                             // by its owner
  bool lingering = false;                          // ended, but not dead yet
  int64_t dead_at = 0;                             // when lingering: time of death
  int64_t established_at = 0;
  int64_t last_effect_at = 0;
  int64_t last_sent_at = 0;
  // After the link broke: the times until which events still happen, and a missed failure.
  int64_t effect_cutoff = 0;  // for writes toward this side
  int64_t send_cutoff = 0;    // for this side's send completions
  absl::Status missed;        // the loss that was not reported to this side
};

struct SimLink {
  SimSide sides[2];  // [0] is the connecting side
  bool broken = false;
  bool fail_after_accept = false;
};

class SimCore {
 public:
  SimCore(uint64_t seed, const SimFaults& faults) : state_(seed), faults_(faults) {}

  const Clock& clock() const { return clock_; }
  int64_t now() const { return clock_.NowNanos(); }
  bool Advance(int64_t limit_ns);
  void set_faults(const SimFaults& faults) { faults_ = faults; }
  const SimFaults& faults() const { return faults_; }
  void set_write_observer(SimNetwork::WriteObserver observer) { observer_ = std::move(observer); }
  void set_device_memory(SimNetwork::DeviceMemory bytes_of) {
    device_memory_ = std::move(bytes_of);
  }
  bool reaches_devices() const { return device_memory_ != nullptr; }

  uint32_t AddEndpoint(SimEndpoint* endpoint);
  void RemoveEndpoint(uint32_t number) { endpoints_.erase(number); }
  void Crash(const std::string& host);
  void Cut(const std::string& host, bool cut);
  void Stall(const std::string& host, int64_t until_ns) { stalled_[host] = until_ns; }
  void Slow(const std::string& host, int64_t most_ns) { slow_[host] = most_ns; }
  void Hang(const std::string& host);
  void AddListener(const std::string& address, SimEndpoint* e) { listeners_[address] = e; }
  void RemoveListener(const std::string& address) { listeners_.erase(address); }
  uint64_t NextKey() { return next_key_++; }
  uint64_t receiver_not_ready() const { return receiver_not_ready_; }
  // How often an endpoint got something that its owner has to see.
  uint64_t news() const { return news_; }
  void CountNews() { ++news_; }

  // Operations of an endpoint; `side` is the caller's.
  void Connect(const std::shared_ptr<SimLink>& link, const std::string& address,
               std::string private_data);
  void Accept(const std::shared_ptr<SimLink>& link);
  void Reject(const std::shared_ptr<SimLink>& link, const std::string& reason);
  void Post(const std::shared_ptr<SimLink>& link, int side, const WriteRequest& request,
            uint64_t total);
  void Close(const std::shared_ptr<SimLink>& link, int side);
  // Whether Expose() refuses temporarily. If so, the endpoint is notified when a retry may succeed.
  bool RefusesExpose(uint32_t endpoint);
  // Sends the wake-up for writes with Wakes::kNobody; it takes effect with the last of them.
  void WakePeer(const std::shared_ptr<SimLink>& link, int side, Wakes wakes);

 private:
  class VirtualClock final : public Clock {
   public:
    int64_t NowNanos() const override { return now_.load(std::memory_order_relaxed); }
    void Set(int64_t now) { now_.store(now, std::memory_order_relaxed); }

   private:
    std::atomic<int64_t> now_{0};
  };
  using LinkPtr = std::shared_ptr<SimLink>;
  using WritePtr = std::shared_ptr<SimWrite>;

  uint64_t Random();
  int64_t Between(int64_t low, int64_t high);  // both inclusive
  bool Chance(double probability);
  // The time from which writes from or to `host` may move.
  int64_t Moves(const std::string& host);
  int64_t Delay() { return Between(faults_.min_delay_ns, faults_.max_delay_ns); }
  // An event: a step of a write, which most are, or another.
  struct Event {
    enum class Kind : uint8_t { kCall, kRead, kLand, kReceive, kEffect, kSent };
    Kind kind = Kind::kCall;
    int side = 0;
    size_t piece = 0;
    LinkPtr link;
    WritePtr write;
    std::function<void()> call;
  };
  // When and in which order an event is due, and its place in events_.
  struct Due {
    int64_t time;
    uint64_t order;
    size_t place;
    bool operator>(const Due& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void At(int64_t time, std::function<void()> what);
  void At(int64_t time, Event event);
  void Run(const Event& event);

  void ArriveRequest(const LinkPtr& link, const std::string& address, std::string private_data);
  void Establish(const LinkPtr& link, int side);
  void CutIntoPieces(SimWrite* write);
  void Schedule(const LinkPtr& link, int side, const WritePtr& write);
  void Read(const LinkPtr& link, int side, const WritePtr& write, size_t piece);
  void Land(const LinkPtr& link, int side, const WritePtr& write, size_t piece);
  void TakeEffect(const LinkPtr& link, int side, const WritePtr& write);
  void ReportReceive(const LinkPtr& link, int side, const WritePtr& write);
  void CompleteSend(const LinkPtr& link, int side, const WritePtr& write);
  const SimExposed* Lookup(const SimSide& target, const SimWrite& write) const;
  void FailWrite(const LinkPtr& link, int side, const WritePtr& write, const absl::Status& status);
  // The connection is broken; each side learns of it at its own time.
  void Break(const LinkPtr& link, const absl::Status& status);
  void Learn(const LinkPtr& link, int side, const absl::Status& status);
  // Flushes a side's work; the side is dead at once or after a while.
  void End(const LinkPtr& link, int side);
  // Whether the write has a receive; otherwise it fails.
  bool TakeReceive(const LinkPtr& link, int side, const WritePtr& write);

  VirtualClock clock_;
  uint64_t state_;
  SimFaults faults_;
  // Location of the bytes at `address` of the block; null: the memory is gone.
  std::byte* BytesAt(const MemoryBlock& block, const std::byte* address) const;

  SimNetwork::WriteObserver observer_;
  SimNetwork::DeviceMemory device_memory_;
  // A heap, the earliest first; the events themselves keep their places.
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<Event> events_;
  std::vector<size_t> free_places_;  // of events_
  uint64_t next_event_ = 0;
  uint64_t news_ = 0;
  uint64_t next_key_ = 1;
  uint64_t receiver_not_ready_ = 0;
  uint32_t next_endpoint_ = 1;
  std::map<uint32_t, SimEndpoint*> endpoints_;
  std::map<std::string, SimEndpoint*> listeners_;
  std::set<std::string> cut_;
  std::map<std::string, int64_t> stalled_;  // end times
  std::map<std::string, int64_t> slow_;     // maximum additional delays
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SIM_SIM_CORE_H_
