#include "rdma/verbs/verbs_domain.h"

#include <condition_variable>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace verbena::rdma {

struct VerbsDomain::Shared {
  std::mutex mutex;  // never held during registration or deregistration
  std::unordered_set<Registration*> live;
  std::unordered_map<uint64_t, std::weak_ptr<MemorySteps>> steps;  // of blocks, by root block id
  std::unordered_map<const MemorySteps*, std::weak_ptr<MemorySteps>> parts;  // for connections
  // Number of steps and registrations that may have regions outside of `live`.
  int open = 0;
  std::condition_variable closed;  // one of them has no region any more

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++open;
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex);
    --open;
    closed.notify_all();
  }
};

class VerbsDomain::Registration final : public MemoryBlock::Attachment {
 public:
  Registration(std::shared_ptr<Shared> shared, RegisteredMemory registered,
               std::vector<MrHandle> regions)
      : memory(std::move(registered)), shared_(std::move(shared)), regions_(std::move(regions)) {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->live.insert(this);
  }
  ~Registration() override {
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      if (shared_->live.erase(this) == 0) return;  // the domain has already ended it
      ++shared_->open;
    }
    regions_.clear();
    shared_->Close();
  }

  bool Of(const Shared* shared) const { return shared_.get() == shared; }
  // Called by the domain, under the lock.
  std::vector<MrHandle> TakeRegions() {
    memory.pieces.clear();
    return std::move(regions_);
  }

  RegisteredMemory memory;

 private:
  std::shared_ptr<Shared> shared_;
  std::vector<MrHandle> regions_;
};

// ---- steps --------------------------------------------------------------------------------------

VerbsDomain::MemorySteps::MemorySteps(const VerbsDomain& domain, const MemoryBlock& root,
                                      absl::Span<std::byte> range, PieceSizes sizes, int access,
                                      For purpose)
    : shared_(domain.shared_),
      gpu_direct_(domain.gpu_direct_),
      // shared_from_this() needs a non-const reference; the block is not changed.
      root_(const_cast<MemoryBlock&>(root).shared_from_this()),
      key_(&domain),
      data_(range.data()),
      access_(access),
      purpose_(purpose),
      pd_(domain.pd_.get()) {
  memory_ = {range.data(), range.size(), sizes, {}};
}

VerbsDomain::MemorySteps::~MemorySteps() {
  End(absl::CancelledError("the registration was given up"));  // no other thread has it any more
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->parts.erase(this);
  const auto known = shared_->steps.find(root_->id());
  if (known != shared_->steps.end() && known->second.expired()) shared_->steps.erase(known);
}

void VerbsDomain::MemorySteps::End(absl::Status reason) {
  if (pd_ == nullptr) return;
  pd_ = nullptr;
  failed_.store(!reason.ok(), std::memory_order_relaxed);
  ended_ = std::move(reason);
  source_.reset();
  regions_.clear();
  shared_->Close();
}

absl::Status VerbsDomain::MemorySteps::Step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (complete()) return absl::OkStatus();
  if (pd_ == nullptr) return ended_;
  if (absl::Status s = RegisterPiece(); !s.ok()) {
    End(s);
    return s;
  }
  if (memory_.pieces.size() * memory_.sizes.stride >= memory_.size) Complete();
  return absl::OkStatus();
}

absl::Status VerbsDomain::MemorySteps::RegisterPiece() {
  if (!source_.has_value()) {
    absl::StatusOr<MemorySource> source = MemorySource::Of(*root_, gpu_direct_.get());
    if (!source.ok()) return source.status();
    source_.emplace(*std::move(source));
  }
  const size_t begin = memory_.pieces.size() * memory_.sizes.stride;
  const size_t end = std::min(begin + memory_.sizes.bytes, memory_.size);
  const absl::StatusOr<ibv_mr*> region =
      source_->Register(pd_, data_ + begin, end - begin, access_);
  if (!region.ok()) return region.status();
  regions_.emplace_back(*region);
  memory_.pieces.push_back(*region);
  bytes_.store(end, std::memory_order_relaxed);
  return absl::OkStatus();
}

void VerbsDomain::MemorySteps::Complete() {
  if (purpose_ == For::kConnection) {
    complete_.store(true, std::memory_order_release);
    return;
  }
  auto registration =
      std::make_shared<Registration>(shared_, std::move(memory_), std::move(regions_));
  regions_.clear();
  root_->Attach(key_, std::move(registration));
  complete_.store(true, std::memory_order_release);
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->steps.erase(root_->id());
  }
  End(absl::OkStatus());
}

MrHandle VerbsDomain::MemorySteps::TakePart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pd_ == nullptr || regions_.empty()) return nullptr;
  MrHandle region = std::move(regions_.front());
  regions_.clear();
  End(absl::OkStatus());
  return region;
}

// ---- the domain ---------------------------------------------------------------------------------

VerbsDomain::VerbsDomain(ibv_pd* pd, std::shared_ptr<GpuDirect> gpu_direct, int access,
                         PieceSizes sizes)
    : pd_(pd),
      gpu_direct_(std::move(gpu_direct)),
      access_(access),
      sizes_(sizes),
      shared_(std::make_shared<Shared>()) {}

VerbsDomain::~VerbsDomain() {
  std::vector<std::shared_ptr<MemorySteps>> running;
  std::vector<std::vector<MrHandle>> regions;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    for (const auto& [id, weak] : shared_->steps) {
      if (auto steps = weak.lock()) running.push_back(std::move(steps));
    }
    for (const auto& [part, weak] : shared_->parts) {
      if (auto steps = weak.lock()) running.push_back(std::move(steps));
    }
  }
  for (const auto& steps : running) {
    const std::lock_guard<std::mutex> lock(steps->mutex_);  // waits for the piece in progress
    steps->End(absl::UnavailableError("the RDMA device was closed"));
  }
  std::unique_lock<std::mutex> lock(shared_->mutex);
  for (Registration* registration : shared_->live) regions.push_back(registration->TakeRegions());
  shared_->live.clear();
  // Waits for regions that other threads are releasing.
  shared_->closed.wait(lock, [this] { return shared_->open == 0; });
}

const RegisteredMemory* VerbsDomain::Find(const MemoryBlock& block) const {
  const std::shared_ptr<MemoryBlock::Attachment> found = block.root().FindAttachment(this);
  if (found == nullptr) return nullptr;
  const auto* registration = static_cast<Registration*>(found.get());
  // Another domain may have had this one's address before.
  return registration->Of(shared_.get()) ? &registration->memory : nullptr;
}

std::shared_ptr<VerbsDomain::MemorySteps> VerbsDomain::StartRegistration(const MemoryBlock& block) {
  const MemoryBlock& root = block.root();
  std::shared_ptr<MemorySteps> known;  // may be the last reference: not dropped under the lock
  const std::unique_lock<std::mutex> lock(shared_->mutex);
  if (Find(root) != nullptr) return nullptr;
  std::weak_ptr<MemorySteps>& steps = shared_->steps[root.id()];
  known = steps.lock();
  if (known != nullptr && !known->failed()) return known;
  ++shared_->open;
  const PieceSizes sizes =
      root.size() <= sizes_.bytes ? PieceSizes{root.size(), root.size()} : sizes_;
  auto fresh = std::make_shared<MemorySteps>(*this, root, absl::MakeSpan(root.data(), root.size()),
                                             sizes, access_, MemorySteps::For::kBlock);
  steps = fresh;
  return fresh;
}

absl::StatusOr<const RegisteredMemory*> VerbsDomain::Register(const MemoryBlock& block) {
  while (true) {
    if (const RegisteredMemory* memory = Find(block)) return memory;
    const std::shared_ptr<MemorySteps> steps = StartRegistration(block);
    while (steps != nullptr && !steps->complete()) {
      if (absl::Status s = steps->Step(); !s.ok()) return s;
    }
  }
}

bool VerbsDomain::TakesWindows(const MemoryBlock& block) const {
  return block.kind() != MemoryKind::kCuda ||
         gpu_direct_->PathTo(*block.device()).route != DeviceRoute::kDmaBuf;
}

int VerbsDomain::AccessOf(PartUse use) const {
  return use == PartUse::kWindow ? access_
                                 : access_ | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
}

absl::StatusOr<MrHandle> VerbsDomain::RegisterPart(const MemoryBlock& block, std::byte* data,
                                                   size_t bytes, PartUse use) {
  const absl::StatusOr<MemorySource> source = MemorySource::Of(block.root(), gpu_direct_.get());
  if (!source.ok()) return source.status();
  const absl::StatusOr<ibv_mr*> region = source->Register(pd_.get(), data, bytes, AccessOf(use));
  if (!region.ok()) return region.status();
  return MrHandle(*region);
}

std::shared_ptr<VerbsDomain::MemorySteps> VerbsDomain::StartPart(const MemoryBlock& block,
                                                                 std::byte* data, size_t bytes,
                                                                 PartUse use) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  ++shared_->open;
  auto part = std::make_shared<MemorySteps>(*this, block.root(), absl::MakeSpan(data, bytes),
                                            PieceSizes{bytes, bytes}, AccessOf(use),
                                            MemorySteps::For::kConnection);
  shared_->parts[part.get()] = part;
  return part;
}

}  // namespace verbena::rdma
