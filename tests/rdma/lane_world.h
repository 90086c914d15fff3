// Lanes under random load: a shard that answers in any order, and workers that post whatever they
// have credits for. Everything a user of a lane relies on is checked on the way.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_LANE_WORLD_H_
#define VERBENA_TESTS_RDMA_LANE_WORLD_H_

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rdma/lane/shard_lane.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::rdma {

using Random = std::mt19937_64;

inline uint64_t Below(Random* random, uint64_t limit) { return (*random)() % limit; }

// The bytes that payload `id` consists of.
inline std::byte PatternByte(uint64_t id, size_t i) {
  return static_cast<std::byte>((id * 0x9e3779b97f4a7c15u + i * 0xd1b54a32d192ed03u) >> 56);
}
void FillPattern(uint64_t id, std::byte* to, size_t bytes);
bool IsPattern(uint64_t id, const std::byte* data, size_t bytes);

// The shard's side: accepts lanes whose token names them, checks records that arrive, answers at
// some later time in some order. The record states the expected answer: group.sequence is its id.
class LaneServer {
 public:
  LaneServer(Endpoint* endpoint, const LaneConfig& config, uint64_t seed);

  LaneTicket Grant(uint32_t lane);  // a ticket for a new lane
  void Pump();
  void set_answering(bool answering) { answering_ = answering; }

  const std::string& address() const { return address_; }
  ShardLane* lane(uint32_t number);
  bool Idle() const { return pending_.empty() && cookies_.empty(); }
  bool LanesDead() const;
  size_t unreturned_cookies() const { return cookies_.size(); }
  const std::vector<std::string>& violations() const { return violations_; }
  size_t memory_bytes() const { return source_->size(); }  // beside its lanes'

 private:
  struct Pending {
    uint32_t lane = 0;
    RecordHeader header = {};
    Group group = {};
    uint32_t slot = 0;
    bool holds_slot = false;
    absl::Span<const std::byte> payload;
  };
  void OnEvent(const ConnectionEvent& event);
  void OnCompletion(const Completion& completion);
  void OnArrival(uint32_t lane);
  void AnswerOne();
  void CheckPayload(const Pending& pending);
  void CheckHeld(uint32_t number);
  void Written(const std::vector<uint64_t>& cookies);

  Endpoint* endpoint_;
  LaneConfig config_;
  Random random_;
  std::string address_;
  bool answering_ = true;
  std::map<uint32_t, LaneTicket> granted_;
  std::map<uint32_t, std::unique_ptr<ShardLane>> lanes_;
  std::map<ConnectionId, uint32_t> connections_;
  std::vector<Pending> pending_;
  ShardLane::Arrival arrival_;
  std::vector<uint64_t> written_;
  std::shared_ptr<MemoryBlock> source_;
  std::set<uint64_t> cookies_;
  uint64_t next_cookie_ = 1;
  std::vector<std::string> violations_;
};

// A worker's side of one lane.
class LaneUser {
 public:
  LaneUser(Endpoint* endpoint, const LaneTicket& ticket, uint64_t seed);

  void OnEvent(const ConnectionEvent& event) { lane_->OnEvent(event); }
  void OnCompletion(const Completion& completion);
  // Posts up to `count` random records, while there are credits.
  void PostSome(uint32_t count);
  void RunOnce();

  WorkerLane* lane() { return lane_.get(); }
  uint64_t posted() const { return next_id_ - 1; }
  uint64_t answered() const { return answered_.size(); }
  // Whether the answered and the unanswered are exactly the posted records, the latter in order.
  bool Accounted() const;
  const std::vector<std::string>& violations() const { return violations_; }
  size_t memory_bytes() const { return buffer_->size(); }  // beside its lane's

 private:
  struct Expected {
    RecordType type = RecordType::kPull;
    uint32_t bytes = 0;
    uint32_t groups = 1;
    size_t offset = 0;  // in buffer_, of the payload or the destination
  };
  void OnAnswer(const WorkerLane::Answer& answer);
  void Violation(const std::string& what) { violations_.push_back(what); }

  std::unique_ptr<WorkerLane> lane_;
  Random random_;
  std::shared_ptr<MemoryBlock> buffer_;  // one area for each operation
  size_t area_bytes_;
  std::vector<size_t> free_areas_;
  std::map<uint64_t, Expected> expected_;
  std::set<uint64_t> answered_;
  std::vector<WorkerLane::Answer> answers_;
  uint64_t next_id_ = 1;
  std::vector<std::string> violations_;
};

// One server and some workers on two endpoints.
class LaneWorld {
 public:
  LaneWorld(Endpoint* workers, Endpoint* shard, const LaneConfig& config, uint32_t lanes,
            uint64_t seed, std::function<void()> advance);
  void Step(uint32_t posts);
  // Steps until `done`; false after `steps`.
  bool StepUntil(const std::function<bool()>& done, uint32_t posts, uint64_t steps);
  bool AllOpen();
  bool AllAnswered();
  bool AllDead();
  std::vector<std::string> Violations() const;
  size_t memory_bytes() const;  // beside the lanes'

  LaneServer& server() { return server_; }
  LaneUser& user(size_t i) { return *users_.at(i); }
  size_t users() const { return users_.size(); }

 private:
  Endpoint* workers_;
  LaneServer server_;
  std::vector<std::unique_ptr<LaneUser>> users_;
  std::function<void()> advance_;
};

// Such a world with endpoints of its own, where time passes by itself.
struct LanePair {
  LanePair(std::unique_ptr<Endpoint> for_workers, std::unique_ptr<Endpoint> for_shard,
           const LaneConfig& config, uint32_t lanes, uint64_t seed)
      : workers(std::move(for_workers)),
        shard(std::move(for_shard)),
        world(workers.get(), shard.get(), config, lanes, seed, [] {}) {}

  std::unique_ptr<Endpoint> workers;
  std::unique_ptr<Endpoint> shard;
  LaneWorld world;
};

// The bound of its steps.
inline constexpr uint64_t kLanePairSteps = 5'000'000;

// Few of everything, so that most is waited for.
inline LaneConfig TightLanes() {
  LaneConfig tight;
  tight.small_slots = 2;
  tight.large_slots = 1;
  tight.large_slot_bytes = 4096 + 65536;
  tight.operations = 3;
  return tight;
}

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_LANE_WORLD_H_
