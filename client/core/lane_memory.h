// Memory for the lanes of one client: registers it for a transport, exposes it to a server, and
// determines the access of transports to device memory. Refusals are cached, so that a transport is
// not called for every record.
//
// The registrar registers memory without the core's owner: for a transport, or for a lane if each
// lane needs its own registration. Until then Register() and Expose() return ABORTED for the first
// kPatienceNanos, in which waiting is best. Afterwards they return UNAVAILABLE, and the caller
// should use another path (staging) if there is one. When a registration for a lane is complete,
// RunOnce() exposes the memory and returns true, once.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_LANE_MEMORY_H_
#define VERBENA_CLIENT_CORE_LANE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/backoff.h"
#include "client/core/lease_keeper.h"
#include "client/registrar.h"
#include "rdma/base/clock.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "rdma/transport.h"

namespace verbena::client {

struct Stream;

struct LaneTransport {
  rdma::Endpoint* endpoint;
  std::string host;
  uint32_t rail = 0;
  uint64_t opened = 0;  // number of lanes opened over it so far
};

// Access of one transport to memory of one device.
struct DeviceReach {
  size_t endpoint = 0;
  const rdma::Device* device = nullptr;  // kept alive by the request tracker
  rdma::DevicePath path;
  std::vector<uint64_t>
      refused;  // blocks that it cannot access although it can access others; until a lane opens
  absl::Status last_refusal;
};

class LaneMemory {
 public:
  static constexpr int64_t kPatienceNanos = 100 * kMillisecond;

  // `transports` and all other arguments must outlive this object.
  LaneMemory(const std::vector<LaneTransport>* transports, Registrar* registrar, const Clock* clock,
             Random* random, CurrentCall* call)
      : transports_(transports),
        registrar_(registrar),
        clock_(clock),
        random_(random),
        call_(call) {}

  // Registers `block` for writes on the stream's lane, which must exist. Cheap if it is registered,
  // or was refused recently.
  absl::Status Register(Stream* stream, const rdma::MemoryBlock& block);
  // Lets the server write to [data, +bytes) of `block`, or to all of it, over the stream's lane,
  // which must exist.
  absl::StatusOr<rdma::RemoteMemory> Expose(Stream* stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block,
                                            const std::byte* data, size_t bytes);
  absl::StatusOr<rdma::RemoteMemory> Expose(Stream* stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block) {
    return Expose(stream, block, block->data(), block->size());
  }
  // Whether a registration of the block for the stream's transport is in progress, for this lane or
  // another.
  bool BeingRegistered(const Stream& stream, const rdma::MemoryBlock& block) const;

  // Whether the stream's lane, which must exist, can access this device memory directly.
  bool Reaches(const Stream& stream, const rdma::MemoryBlock& block);
  // Records that it cannot; `status` has the reason.
  void Refuse(const Stream& stream, const rdma::MemoryBlock& block, absl::Status status);
  // Records a reason although access is retried.
  void RefuseNow(const Stream& stream, const rdma::MemoryBlock& block, absl::Status status);
  // FAILED_PRECONDITION with the reason for the missing access.
  absl::Status WhyNot(const Stream& stream, const rdma::MemoryBlock& block);
  // All pairs that were examined so far.
  const std::vector<DeviceReach>& reaches() const { return reaches_; }

  // Clears refusals of this transport, which may have been caused by a lane about to end.
  void OnLaneOpen(size_t endpoint);
  // The memory is about to be freed. InUse() is true while a registration has it.
  void ReleaseBlock(uint64_t block) { registrar_->GiveUp(block); }
  bool InUse(uint64_t block) const { return registrar_->Holds(block); }
  // The stream of this lane; null: it is gone.
  using FindStream = absl::FunctionRef<Stream*(size_t endpoint, rdma::ConnectionId connection)>;
  // Whether memory has become ready, or was refused, since the last call.
  bool RunOnce(FindStream find);

 private:
  // Memory that a transport refused to register or expose: not retried before `retry_at`.
  struct Refusal {
    size_t endpoint = 0;
    uint64_t block = 0;
    absl::Status status;
    Backoff backoff;
    int64_t retry_at = 0;
  };
  rdma::Endpoint* EndpointOf(const Stream& stream) const;
  absl::Status Ready(Stream* stream, const rdma::MemoryBlock& block);
  // Not OK: registration is in progress. Empty: no thread can register it.
  std::optional<absl::Status> StartExposure(const Stream& stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block,
                                            rdma::WorkerLane::Unexposed unexposed);
  absl::Status FinishExposure(Registrar::Over over, FindStream find);
  absl::Status Pending(const Stream& stream, const Registrar::Progress& progress) const;
  // Null: it was not refused, or may be retried.
  const Refusal* Refused(const Stream& stream, uint64_t block) const;
  void Note(size_t endpoint, uint64_t block, const absl::Status& status);
  DeviceReach& ReachOf(const Stream& stream, const rdma::Device& device);

  const std::vector<LaneTransport>* const transports_;
  Registrar* const registrar_;
  const Clock* const clock_;
  Random* const random_;
  CurrentCall* const call_;
  std::vector<DeviceReach> reaches_;  // only a few
  std::vector<Refusal> refusals_;     // only a few; at most kMostRefusals
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LANE_MEMORY_H_
