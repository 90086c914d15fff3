// Memory as the lanes of one client use it: made ready for a transport, exposed to a server, and of
// devices: which transport reaches it. Refusals are remembered, so that a transport is not asked at
// every record.
//
// Memory that is not ready is registered by the registrar, without the core's owner, for a
// transport or, where each lane needs a registration of its own, for a lane. Until then Register()
// and Expose() say so: ABORTED for the first kPatienceNanos, in which waiting is best, then
// UNAVAILABLE, where the caller should take another path (staging) if there is one. When it is
// over, RunOnce() exposes what was registered for a lane, and returns true, once.
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
  uint64_t opened = 0;  // lanes over it, so far
};

// How one transport reaches memory of one device.
struct DeviceReach {
  size_t endpoint = 0;
  const rdma::Device* device = nullptr;  // which the journal keeps
  rdma::DevicePath path;
  std::vector<uint64_t>
      refused;  // blocks that it does not reach, though others; until a lane opens
  absl::Status last_refusal;
};

class LaneMemory {
 public:
  static constexpr int64_t kPatienceNanos = 100 * kMillisecond;

  // `transports` outlive this object, as everything else does.
  LaneMemory(const std::vector<LaneTransport>* transports, Registrar* registrar, const Clock* clock,
             Random* random, CurrentCall* call)
      : transports_(transports),
        registrar_(registrar),
        clock_(clock),
        random_(random),
        call_(call) {}

  // Makes `block` ready for writes on the stream's lane, which is there. Cheap when it is already,
  // and where it was refused a moment ago.
  absl::Status Register(Stream* stream, const rdma::MemoryBlock& block);
  // Lets the server write to [data, +bytes) of `block`, or to all of it, over the stream's lane,
  // which is there.
  absl::StatusOr<rdma::RemoteMemory> Expose(Stream* stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block,
                                            const std::byte* data, size_t bytes);
  absl::StatusOr<rdma::RemoteMemory> Expose(Stream* stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block) {
    return Expose(stream, block, block->data(), block->size());
  }
  // Whether the stream's transport has a registration of it under way, for this lane or another.
  bool BeingRegistered(const Stream& stream, const rdma::MemoryBlock& block) const;

  // Whether the stream's lane, which is there, reads and writes this memory of a device itself.
  bool Reaches(const Stream& stream, const rdma::MemoryBlock& block);
  // It was found that it does not; `status` says why.
  void Refuse(const Stream& stream, const rdma::MemoryBlock& block, absl::Status status);
  // The same, where it is tried again all the same.
  void RefuseNow(const Stream& stream, const rdma::MemoryBlock& block, absl::Status status);
  // FAILED_PRECONDITION: why it does not.
  absl::Status WhyNot(const Stream& stream, const rdma::MemoryBlock& block);
  // Of each pair that there was reason to look at.
  const std::vector<DeviceReach>& reaches() const { return reaches_; }

  // What was refused on this transport may have been so because a lane was about to end.
  void OnLaneOpen(size_t endpoint);
  // The memory is about to go. InUse() until no registration has it.
  void ReleaseBlock(uint64_t block) { registrar_->GiveUp(block); }
  bool InUse(uint64_t block) const { return registrar_->Holds(block); }
  // The stream whose lane this is; null: there is none any more.
  using FindStream = absl::FunctionRef<Stream*(size_t endpoint, rdma::ConnectionId connection)>;
  // Whether memory has become ready, or was refused, since the last call.
  bool RunOnce(FindStream find);

 private:
  // Memory that a transport did not register or expose: not tried again before `retry_at`.
  struct Refusal {
    size_t endpoint = 0;
    uint64_t block = 0;
    absl::Status status;
    Backoff backoff;
    int64_t retry_at = 0;
  };
  rdma::Endpoint* EndpointOf(const Stream& stream) const;
  absl::Status Ready(Stream* stream, const rdma::MemoryBlock& block);
  // Not OK: it is being registered. Nothing: it cannot be, by a thread.
  std::optional<absl::Status> StartExposure(const Stream& stream,
                                            const std::shared_ptr<rdma::MemoryBlock>& block,
                                            rdma::WorkerLane::Unexposed unexposed);
  absl::Status FinishExposure(Registrar::Over over, FindStream find);
  absl::Status Pending(const Stream& stream, const Registrar::Progress& progress) const;
  // Null: it was not refused, or may be tried again.
  const Refusal* Refused(const Stream& stream, uint64_t block) const;
  void Note(size_t endpoint, uint64_t block, const absl::Status& status);
  DeviceReach& ReachOf(const Stream& stream, const rdma::Device& device);

  const std::vector<LaneTransport>* const transports_;
  Registrar* const registrar_;
  const Clock* const clock_;
  Random* const random_;
  CurrentCall* const call_;
  std::vector<DeviceReach> reaches_;  // a handful
  std::vector<Refusal> refusals_;     // a handful; kMostRefusals at most
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LANE_MEMORY_H_
