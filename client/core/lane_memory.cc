#include "client/core/lane_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/lane_set.h"

namespace verbena::client {
namespace {

constexpr size_t kMostRefusedOfDevice = 256;
constexpr size_t kMostRefusals = 64;

}  // namespace

rdma::Endpoint* LaneMemory::EndpointOf(const Stream& stream) const {
  return (*transports_)[stream.endpoint].endpoint;
}

// ---- registering and exposing -------------------------------------------------------------------

absl::Status LaneMemory::Register(Stream* stream, const rdma::MemoryBlock& block) {
  if (block.id() == stream->registered_block) return absl::OkStatus();
  absl::Status status = Ready(stream, block);
  if (status.ok()) stream->registered_block = block.id();
  return status;
}

absl::StatusOr<rdma::RemoteMemory> LaneMemory::Expose(
    Stream* stream, const std::shared_ptr<rdma::MemoryBlock>& block, const std::byte* data,
    size_t bytes) {
  if (block->id() != stream->exposed_block) {
    if (absl::Status s = Ready(stream, *block); !s.ok()) return s;
  }
  if (const Refusal* refusal = Refused(*stream, block->id())) return refusal->status;
  const CurrentCall::Scope scope(call_, "exposing memory", block->size());
  rdma::WorkerLane::Unexposed unexposed;
  // A piece's last reference must not be dropped in another thread.
  const bool threaded = registrar_->threaded() && &block->root() == block.get();
  auto remote = stream->lane->Expose(block, data, bytes, threaded ? &unexposed : nullptr);
  if (unexposed.registration != nullptr) {
    if (auto pending = StartExposure(*stream, block, std::move(unexposed))) return *pending;
    remote = stream->lane->Expose(block, data, bytes);
  }
  Note(stream->endpoint, block->id(), remote.status());
  if (remote.ok()) stream->exposed_block = block->id();
  return remote;
}

std::optional<absl::Status> LaneMemory::StartExposure(
    const Stream& stream, const std::shared_ptr<rdma::MemoryBlock>& block,
    rdma::WorkerLane::Unexposed unexposed) {
  const Registrar::Purpose purpose = {stream.endpoint, block->id(), stream.lane->connection(),
                                      unexposed.piece};
  if (const auto progress = registrar_->Find(purpose)) return Pending(stream, *progress);
  if (!registrar_
           ->Start(purpose, stream.transport, block, unexposed.bytes,
                   std::move(unexposed.registration))
           .ok()) {
    return std::nullopt;
  }
  return Pending(stream, {clock_->NowNanos(), 0, unexposed.bytes});
}

absl::Status LaneMemory::FinishExposure(Registrar::Over over, FindStream find) {
  const Registrar::Purpose purpose = over.purpose;
  Stream* const stream = find(purpose.endpoint, purpose.connection);
  if (stream == nullptr || !stream->open()) {
    registrar_->Discard(std::move(over));
    return absl::CancelledError("its requests are sent over another lane");
  }
  const CurrentCall::Scope scope(call_, "exposing memory", 0);
  return stream->lane->FinishExposure(purpose.block, purpose.piece, std::move(over.registration));
}

// The root is registered, because a piece's last reference must not be dropped in another thread.
absl::Status LaneMemory::Ready(Stream* stream, const rdma::MemoryBlock& block) {
  const rdma::MemoryBlock& root = block.root();
  if (const Refusal* refusal = Refused(*stream, root.id())) return refusal->status;
  // shared_from_this() needs a non-const reference; the block is not changed.
  const auto shared = const_cast<rdma::MemoryBlock&>(root).shared_from_this();
  auto steps = EndpointOf(*stream)->StartRegistration(shared);
  absl::Status status = steps.status();
  if (status.ok() && *steps == nullptr) return absl::OkStatus();
  if (status.ok() && registrar_->threaded()) {
    const Registrar::Purpose purpose = {stream->endpoint, root.id()};
    if (const auto progress = registrar_->Find(purpose)) return Pending(*stream, *progress);
    status = registrar_->Start(purpose, stream->transport, shared, root.size(), *std::move(steps));
    if (status.ok()) return Pending(*stream, {clock_->NowNanos(), 0, root.size()});
  }
  if (status.ok()) {
    const CurrentCall::Scope scope(call_, "registering memory", root.size());
    while (status.ok() && !(*steps)->complete()) status = (*steps)->Step();
  }
  if (!status.ok()) {
    status = absl::Status(status.code(),
                          absl::StrCat("transport ", stream->transport, ": ", status.message()));
  }
  Note(stream->endpoint, root.id(), status);
  return status;
}

absl::Status LaneMemory::Pending(const Stream& stream, const Registrar::Progress& progress) const {
  const int64_t ns = clock_->NowNanos() - progress.started_ns;
  const std::string text = absl::StrCat(
      "transport ", stream.transport, ": the memory is being registered: ", progress.registered,
      " of ", progress.bytes, " bytes after ", ns / kMillisecond, " ms");
  return ns < kPatienceNanos ? absl::AbortedError(text) : absl::UnavailableError(text);
}

bool LaneMemory::BeingRegistered(const Stream& stream, const rdma::MemoryBlock& block) const {
  return registrar_->Pending(stream.endpoint, block.root().id());
}

bool LaneMemory::RunOnce(FindStream find) {
  std::vector<Registrar::Over> over = registrar_->TakeOver();
  for (Registrar::Over& job : over) {
    const Registrar::Purpose purpose = job.purpose;
    absl::Status status = job.status;
    if (job.registration != nullptr) status = FinishExposure(std::move(job), find);
    if (absl::IsCancelled(status)) continue;  // the block or the lane is gone
    if (!status.ok()) {
      const rdma::Endpoint& endpoint = *(*transports_)[purpose.endpoint].endpoint;
      status = absl::Status(
          status.code(),
          absl::StrCat("transport ", std::string(endpoint.transport()), ": ", status.message()));
    }
    Note(purpose.endpoint, purpose.block, status);
  }
  return !over.empty();
}

// ---- refusals -----------------------------------------------------------------------------------

const LaneMemory::Refusal* LaneMemory::Refused(const Stream& stream, uint64_t block) const {
  for (const Refusal& refusal : refusals_) {
    if (refusal.endpoint != stream.endpoint || refusal.block != block) continue;
    return clock_->NowNanos() < refusal.retry_at ? &refusal : nullptr;
  }
  return nullptr;
}

void LaneMemory::Note(size_t endpoint, uint64_t block, const absl::Status& status) {
  if (status.ok() && refusals_.empty()) return;
  const auto same = [&](const Refusal& r) { return r.endpoint == endpoint && r.block == block; };
  auto refusal = std::find_if(refusals_.begin(), refusals_.end(), same);
  if (status.ok()) {
    if (refusal != refusals_.end()) refusals_.erase(refusal);
    return;
  }
  if (refusal == refusals_.end()) {
    // The oldest is most likely from a freed block.
    if (refusals_.size() == kMostRefusals) refusals_.erase(refusals_.begin());
    refusals_.push_back({endpoint, block, {}, {}, 0});
    refusal = std::prev(refusals_.end());
  }
  refusal->status = status;
  refusal->retry_at = clock_->NowNanos() + refusal->backoff.Next(*random_);
}

void LaneMemory::OnLaneOpen(size_t endpoint) {
  for (DeviceReach& reach : reaches_) {
    if (reach.endpoint == endpoint) reach.refused.clear();
  }
  std::erase_if(refusals_, [&](const Refusal& r) { return r.endpoint == endpoint; });
}

// ---- memory of devices --------------------------------------------------------------------------

DeviceReach& LaneMemory::ReachOf(const Stream& stream, const rdma::Device& device) {
  for (DeviceReach& reach : reaches_) {
    if (reach.endpoint == stream.endpoint && reach.device == &device) return reach;
  }
  const rdma::DevicePath path = EndpointOf(stream)->PathTo(device);
  return reaches_.emplace_back(DeviceReach{stream.endpoint, &device, path, {}, {}});
}

bool LaneMemory::Reaches(const Stream& stream, const rdma::MemoryBlock& block) {
  const DeviceReach& reach = ReachOf(stream, *block.device());
  return reach.path.direct() &&
         std::find(reach.refused.begin(), reach.refused.end(), block.id()) == reach.refused.end();
}

void LaneMemory::Refuse(const Stream& stream, const rdma::MemoryBlock& block, absl::Status status) {
  DeviceReach& reach = ReachOf(stream, *block.device());
  // The oldest entries are from freed blocks: ids are never reused.
  if (reach.refused.size() >= kMostRefusedOfDevice) reach.refused.erase(reach.refused.begin());
  reach.refused.push_back(block.id());
  reach.last_refusal = std::move(status);
}

void LaneMemory::RefuseNow(const Stream& stream, const rdma::MemoryBlock& block,
                           absl::Status status) {
  // A pending registration is not a refusal.
  if (absl::IsAborted(status) || BeingRegistered(stream, block)) return;
  ReachOf(stream, *block.device()).last_refusal = std::move(status);
}

absl::Status LaneMemory::WhyNot(const Stream& stream, const rdma::MemoryBlock& block) {
  const DeviceReach& reach = ReachOf(stream, *block.device());
  return absl::FailedPreconditionError(absl::StrCat(
      "rdma.gpu_direct is required, and transport ", stream.transport,
      stream.device.empty() ? "" : " on ", stream.device, " does not reach memory of ",
      reach.device->name(), ": ",
      reach.path.direct() ? reach.last_refusal.message() : absl::string_view(reach.path.reason)));
}

}  // namespace verbena::client
