#include "rdma/verbs/verbs_memory.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/base/exposure_pieces.h"
#include "rdma/verbs/verbs_endpoint_impl.h"

namespace verbena::rdma {
namespace {

// About ten lanes; registration takes 0.5 ms.
constexpr size_t kSlabBytes = size_t{16} << 20;

// A registration in each domain of an endpoint.
class VerbsRegistration final : public rdma::Registration {
 public:
  using Steps = std::vector<std::shared_ptr<VerbsDomain::MemorySteps>>;
  explicit VerbsRegistration(Steps steps) : steps_(std::move(steps)) {}

  absl::Status Step() override {
    for (const auto& steps : steps_) {
      if (!steps->complete()) return steps->Step();
    }
    return absl::OkStatus();
  }
  bool complete() const override {
    return std::all_of(steps_.begin(), steps_.end(),
                       [](const auto& steps) { return steps->complete(); });
  }
  uint64_t registered_bytes() const override {
    uint64_t least = UINT64_MAX;
    for (const auto& steps : steps_) least = std::min(least, steps->registered_bytes());
    return least;
  }

 private:
  const Steps steps_;  // at least one
};

// A registration of a range for one connection.
class VerbsExposure final : public rdma::Registration {
 public:
  VerbsExposure(ConnectionId of, std::shared_ptr<MemoryBlock> memory, size_t begin, size_t size,
                std::shared_ptr<VerbsDomain::MemorySteps> part)
      : connection(of),
        block(std::move(memory)),
        offset(begin),
        bytes(size),
        steps(std::move(part)) {}

  absl::Status Step() override { return steps->Step(); }
  bool complete() const override { return steps->complete(); }
  uint64_t registered_bytes() const override { return steps->registered_bytes(); }

  const ConnectionId connection;
  const std::shared_ptr<MemoryBlock> block;
  const size_t offset, bytes;
  const std::shared_ptr<VerbsDomain::MemorySteps> steps;
};

}  // namespace

absl::Status VerbsMemory::Open(int numa_node) {
  if (core_.nic->windows()) {
    absl::StatusOr<std::shared_ptr<DomainView>> view = View(0);
    if (!view.ok()) return view.status();
    common_view_ = *std::move(view);
  }
  SlabPoolOptions slabs;
  slabs.slab_bytes = kSlabBytes;
  slabs.label = "verbena-lanes";
  slabs.max_slab_bytes = core_.nic->max_registration();
  slabs.pages.numa_node = numa_node;
  // The pool may outlive this device, with pieces of lanes that are still being destroyed.
  slabs.on_new_slab = [view = std::weak_ptr<DomainView>(common_view_)](
                          const std::shared_ptr<MemoryBlock>& slab) -> absl::Status {
    const std::shared_ptr<DomainView> alive = view.lock();
    return alive == nullptr ? absl::OkStatus() : alive->domain->Register(*slab).status();
  };
  slabs_ = std::make_shared<SlabPool>(std::move(slabs));
  return absl::OkStatus();
}

void VerbsMemory::Close() {
  stepped_.clear();  // waits for the steps in progress
  common_view_.reset();
  views_.clear();
  slabs_.reset();
}

absl::StatusOr<std::shared_ptr<DomainView>> VerbsMemory::View(uint64_t key) {
  if (common_view_ != nullptr) return common_view_;
  std::weak_ptr<DomainView>& known = views_[key];
  if (std::shared_ptr<DomainView> view = known.lock()) return view;
  for (auto it = views_.begin(); it != views_.end();) {
    it = it->first != key && it->second.expired() ? views_.erase(it) : std::next(it);
  }
  absl::StatusOr<std::shared_ptr<VerbsDomain>> domain = core_.nic->Domain(key);
  if (!domain.ok()) return domain.status();
  auto view = std::make_shared<DomainView>();
  view->domain = *std::move(domain);
  known = view;
  return view;
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> VerbsMemory::Allocate(size_t bytes,
                                                                   std::string_view label) {
  if (absl::Status s = core_.NeedDevice(); !s.ok()) return s;
  return slabs_->Allocate(bytes, label);
}

absl::Status VerbsMemory::Register(const std::shared_ptr<MemoryBlock>& block) {
  if (absl::Status s = core_.NeedDevice(); !s.ok()) return s;
  if (common_view_ != nullptr) return common_view_->Find(*block).status();
  for (const auto& [key, known] : views_) {
    const std::shared_ptr<DomainView> view = known.lock();
    if (view == nullptr) continue;
    if (absl::Status s = view->Find(*block).status(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Registration>> VerbsMemory::StartRegistration(
    const std::shared_ptr<MemoryBlock>& block) {
  if (absl::Status s = core_.NeedDevice(); !s.ok()) return s;
  VerbsRegistration::Steps all;
  const auto add = [&](const std::shared_ptr<DomainView>& view) {
    auto steps = view->StepsOf(*block);
    if (steps == nullptr) return;
    Keep(view, steps);
    all.push_back(std::move(steps));
  };
  if (common_view_ != nullptr) {
    add(common_view_);
  } else {
    for (const auto& [key, known] : views_) {
      if (const std::shared_ptr<DomainView> view = known.lock()) add(view);
    }
  }
  if (all.empty()) return nullptr;
  return std::make_unique<VerbsRegistration>(std::move(all));
}

void VerbsMemory::Keep(std::shared_ptr<DomainView> view,
                       const std::shared_ptr<VerbsDomain::MemorySteps>& steps) {
  const auto same = [&](const Stepped& one) {
    return !one.steps.owner_before(steps) && !steps.owner_before(one.steps);
  };
  if (std::any_of(stepped_.begin(), stepped_.end(), same)) return;
  stepped_.push_back({steps, std::move(view)});
}

void VerbsMemory::LetGo() {
  std::erase_if(stepped_, [](const Stepped& one) { return one.steps.expired(); });
}

size_t VerbsMemory::max_exposure() const {
  if (core_.nic == nullptr || !core_.nic->windows()) return SIZE_MAX;
  return std::min<uint64_t>(core_.options.max_window, core_.nic->max_registration());
}

Endpoint::ExposurePieces VerbsMemory::exposure_pieces() const {
  const PieceSizes sizes = core_.nic->piece_sizes();
  // Without windows each exposure is a registration.
  if (!core_.nic->windows() && sizes.bytes > kExposedPieceBytes) {
    return {kExposedPieceBytes, kExposedPieceStride};
  }
  return {sizes.bytes, sizes.stride};
}

absl::StatusOr<std::unique_ptr<Registration>> VerbsMemory::StartExposure(
    ConnectionId id, const std::shared_ptr<MemoryBlock>& block, size_t offset, size_t bytes) {
  VerbsConnection* connection = core_.Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  auto steps = connection->StartExposure(*block, offset, bytes);
  if (!steps.ok()) return steps.status();
  if (*steps == nullptr) return nullptr;
  Keep(connection->view(), *steps);
  return std::make_unique<VerbsExposure>(id, block, offset, bytes, *std::move(steps));
}

absl::StatusOr<RemoteMemory> VerbsMemory::FinishExposure(std::unique_ptr<Registration> complete) {
  // StartExposure() of this endpoint made it.
  const auto& exposure = static_cast<const VerbsExposure&>(*complete);
  VerbsConnection* connection = core_.Find(exposure.connection);
  // While the queue pair exists, the connection keeps the domain that contains the region.
  if (connection == nullptr || !connection->has_queue_pair()) {
    return absl::UnavailableError("the connection has ended");
  }
  MrHandle region = exposure.steps->TakePart();
  if (region == nullptr) return absl::UnavailableError("the RDMA device was closed");
  if (connection->binds_full()) core_.queues.WaitForBinds(connection);
  return connection->Expose(exposure.block, exposure.offset, exposure.bytes, std::move(region));
}

}  // namespace verbena::rdma
