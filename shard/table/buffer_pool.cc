#include "shard/table/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::shard {
namespace {

// Four sizes per doubling, so that requests of any size meet again and a fifth is lost at most.
size_t RoundScratch(size_t bytes) {
  const size_t step = std::max<size_t>(64, std::bit_floor(bytes) / 4);
  return (bytes + step - 1) / step * step;
}

}  // namespace

BufferPool::BufferPool(Allocator* allocator, uint32_t spare_limit, uint64_t* resident_bytes)
    : allocator_(allocator), spare_limit_(spare_limit), resident_bytes_(resident_bytes) {}

BufferPool::~BufferPool() {
  for (const Entry& e : entries_) {
    if (e.state == State::kUnused) continue;
    const bool scratch = e.state == State::kScratch || e.state == State::kKept;
    Release(e.buffer, scratch ? MemoryUse::kScratch : MemoryUse::kTables);
  }
  for (const Buffer& b : idle_accumulators_) Free(b);
  for (const Buffer& b : idle_scratch_) Free(b);
}

bool BufferPool::Charge(Buffer* buffer, JobAccount* account, MemoryUse use) {
  if (ForCopies() && use == MemoryUse::kTables && account != nullptr) {
    account->Count(buffer->bytes, use);
    refused_by_job_ = false;
  } else {
    refused_by_job_ = account != nullptr && !account->Take(buffer->bytes, use);
  }
  if (!refused_by_job_) buffer->account = account;
  return !refused_by_job_;
}

Buffer BufferPool::Discharge(const Buffer& buffer, MemoryUse use) {
  if (buffer.account != nullptr) buffer.account->Give(buffer.bytes, use);
  Buffer nobodys = buffer;
  nobodys.account = nullptr;
  return nobodys;
}

Buffer BufferPool::Taken(const Buffer& charged, const Buffer& made, MemoryUse use) {
  if (made.data == nullptr) {
    Discharge(charged, use);
    return {};
  }
  Buffer buffer = made;
  buffer.account = charged.account;
  if (buffer.account != nullptr) buffer.account->Give(charged.bytes - buffer.bytes, use);
  *resident_bytes_ += buffer.bytes;
  return buffer;
}

Buffer BufferPool::Take(size_t bytes, JobAccount* account, MemoryUse use) {
  // Before the allocator, which would take a slab from the system in vain.
  Buffer wanted = {nullptr, bytes};
  if (!Charge(&wanted, account, use)) return {};
  const auto ask = [&] {
    return use == MemoryUse::kTables ? allocator_->Allocate(bytes)
                                     : allocator_->AllocateScratch(bytes);
  };
  Buffer made = ask();
  while (made.data == nullptr && GiveWay()) made = ask();
  return Taken(wanted, made, use);
}

bool BufferPool::GiveWay() {
  if (FreeIdle()) return true;
  if (oldest_kept_ == kNone) return false;
  DropOldestKept();
  return true;
}

Buffer BufferPool::AllocateRows(size_t bytes, size_t unit, JobAccount* account) {
  Buffer wanted = {nullptr, bytes};
  if (!Charge(&wanted, account, MemoryUse::kTables)) return {};
  Buffer made = allocator_->AllocateRows(bytes, unit);
  // A server at its limit is asked for new rows all the time, and would free rows that its
  // lookups take again at once. A copy's rows have to be made.
  while (made.data == nullptr && ForCopies() && GiveWay()) {
    made = allocator_->AllocateRows(bytes, unit);
  }
  return Taken(wanted, made, MemoryUse::kTables);
}

void BufferPool::Release(const Buffer& buffer, MemoryUse use) {
  if (buffer.data == nullptr) return;
  *resident_bytes_ -= buffer.bytes;
  allocator_->Free(Discharge(buffer, use));
}

uint32_t BufferPool::NewEntry(const Buffer& buffer, State state) {
  uint32_t id = 0;
  if (unused_.empty()) {
    id = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Entry& e = entries_[id];
  e.buffer = buffer;
  e.pins = 0;
  e.state = state;
  e.keep = false;
  ++e.generation;
  return id;
}

void BufferPool::FreeEntry(uint32_t id) {
  Free(entries_[id].buffer);
  Unuse(id);
}

void BufferPool::Unuse(uint32_t id) {
  entries_[id].buffer = {};
  entries_[id].state = State::kUnused;
  entries_[id].keep = false;
  unused_.push_back(id);
}

BufferPool::Entry* BufferPool::Find(uint64_t pin) {
  const auto id = static_cast<uint32_t>(pin);
  if (id >= entries_.size() || entries_[id].generation != pin >> 32) return nullptr;
  return &entries_[id];
}

bool BufferPool::MayFit(uint64_t bytes, JobAccount* account) {
  refused_by_job_ = account != nullptr && !account->job().MayTake(bytes, MemoryUse::kTables);
  return !refused_by_job_ && allocator_->MayFit(bytes);
}

uint32_t BufferPool::NewParameters(size_t bytes, JobAccount* account) {
  const Buffer buffer = Allocate(bytes, account);
  return buffer.data == nullptr ? kNone : NewEntry(buffer, State::kCurrent);
}

void BufferPool::DropParameters(uint32_t id) {
  if (entries_[id].pins > 0) {
    entries_[id].state = State::kOrphan;
  } else {
    FreeEntry(id);
  }
}

uint64_t BufferPool::Pin(uint32_t id) {
  ++entries_[id].pins;
  return uint64_t{entries_[id].generation} << 32 | id;
}

bool BufferPool::Unpin(uint64_t pin) {
  const auto id = static_cast<uint32_t>(pin);
  Entry* const found = Find(pin);
  if (found == nullptr || found->pins == 0) return false;
  Entry& e = *found;
  if (--e.pins > 0) return false;
  if (e.state == State::kOrphan) {
    FreeEntry(id);
    return false;
  }
  if (e.state == State::kScratch) {
    if (e.keep && MakeRoom(e.buffer.bytes)) {
      LinkKept(id);
      return false;
    }
    ReturnScratch(e.buffer);
    Unuse(id);
    return false;
  }
  if (e.state == State::kRetired) {
    e.state = State::kIdleSpare;
    idle_spares_.push_back(id);
  }
  return true;
}

uint32_t BufferPool::WritableFor(uint32_t id, bool force, bool retried) {
  if (entries_[id].pins == 0) return id;
  const size_t bytes = entries_[id].buffer.bytes;
  for (size_t i = 0; i < idle_spares_.size(); ++i) {
    const uint32_t spare = idle_spares_[i];
    if (entries_[spare].buffer.bytes != bytes) continue;
    idle_spares_[i] = idle_spares_.back();
    idle_spares_.pop_back();
    ++entries_[spare].generation;
    return spare;
  }
  if (spares_ >= spare_limit_ && !(force && idle_spares_.empty())) {
    if (idle_spares_.empty()) return kNone;
    // Room for a spare of this size instead of one that no apply wants now.
    FreeEntry(idle_spares_.back());
    idle_spares_.pop_back();
    --spares_;
  }
  const Buffer buffer = Allocate(bytes);
  if (buffer.data == nullptr) return force && !retried ? id : kNone;
  ++spares_;
  return NewEntry(buffer, State::kIdleSpare);
}

uint32_t BufferPool::Lend(uint32_t id) {
  const Buffer buffer = Allocate(entries_[id].buffer.bytes);
  return buffer.data == nullptr ? kNone : NewEntry(buffer, State::kLent);
}

void BufferPool::Swap(uint32_t id, uint32_t spare) {
  std::swap(entries_[spare].buffer.account, entries_[id].buffer.account);  // sizes are the same
  const bool lent = entries_[spare].state == State::kLent;
  entries_[spare].state = State::kCurrent;
  if (lent) {
    DropParameters(id);
  } else {
    entries_[id].state = State::kRetired;
  }
}

Buffer BufferPool::TakeAccumulator(size_t bytes, JobAccount* account) {
  for (size_t i = idle_accumulators_.size(); i-- > 0;) {
    // An allocator may round up.
    if (idle_accumulators_[i].bytes < bytes || idle_accumulators_[i].bytes > 2 * bytes) continue;
    Buffer buffer = idle_accumulators_[i];
    if (!Charge(&buffer, account, MemoryUse::kSums)) return {};
    idle_accumulators_[i] = idle_accumulators_.back();
    idle_accumulators_.pop_back();
    return buffer;
  }
  return Take(bytes, account, MemoryUse::kSums);
}

void BufferPool::ReturnAccumulator(const Buffer& buffer) {
  idle_accumulators_.push_back(Discharge(buffer, MemoryUse::kSums));
}

Buffer BufferPool::TakeScratch(size_t bytes, JobAccount* account) {
  const size_t rounded = RoundScratch(bytes);
  for (size_t i = idle_scratch_.size(); i-- > 0;) {
    if (idle_scratch_[i].bytes < rounded || idle_scratch_[i].bytes > 2 * rounded) continue;
    Buffer buffer = idle_scratch_[i];
    if (!Charge(&buffer, account, MemoryUse::kScratch)) return {};
    idle_scratch_[i] = idle_scratch_.back();
    idle_scratch_.pop_back();
    idle_scratch_bytes_ -= buffer.bytes;
    return buffer;
  }
  return Take(rounded, account, MemoryUse::kScratch);
}

void BufferPool::ReturnScratch(const Buffer& buffer) {
  if (buffer.data == nullptr) return;
  if (!MakeRoom(buffer.bytes)) return Release(buffer, MemoryUse::kScratch);
  idle_scratch_bytes_ += buffer.bytes;
  idle_scratch_.push_back(Discharge(buffer, MemoryUse::kScratch));
}

uint64_t BufferPool::PinScratch(const Buffer& buffer) {
  return Pin(NewEntry(buffer, State::kScratch));
}

// ---- kept scratch -------------------------------------------------------------------------------

Buffer BufferPool::TakeToKeep(size_t bytes, JobAccount* account) {
  // Kept buffers are often all of one size, so the buffer freed here is the one taken next.
  if (oldest_kept_ != kNone && idle_scratch_bytes_ + RoundScratch(bytes) > kIdleScratchBytes) {
    Forget(uint64_t{entries_[oldest_kept_].generation} << 32 | oldest_kept_);
  }
  return TakeScratch(bytes, account);
}

uint64_t BufferPool::PinToKeep(const Buffer& buffer) {
  const uint32_t id = NewEntry(buffer, State::kScratch);
  entries_[id].keep = true;
  return Pin(id);
}

bool BufferPool::PinAgain(uint64_t pin, JobAccount* account) {
  Entry* const e = Find(pin);
  if (e == nullptr || !e->keep) return false;
  if (e->state == State::kKept) {
    if (!Charge(&e->buffer, account, MemoryUse::kScratch)) return false;
    UnlinkKept(static_cast<uint32_t>(pin));
    e->state = State::kScratch;
  }
  ++e->pins;
  return true;
}

void BufferPool::Forget(uint64_t pin) {
  Entry* const e = Find(pin);
  if (e == nullptr || !e->keep) return;
  e->keep = false;
  if (e->state != State::kKept) return;  // the last Unpin() returns it
  const auto id = static_cast<uint32_t>(pin);
  UnlinkKept(id);
  ReturnScratch(e->buffer);
  Unuse(id);
}

void BufferPool::LinkKept(uint32_t id) {
  Entry& e = entries_[id];
  e.buffer = Discharge(e.buffer, MemoryUse::kScratch);
  idle_scratch_bytes_ += e.buffer.bytes;
  e.state = State::kKept;
  e.older_kept = newest_kept_;
  e.newer_kept = kNone;
  (newest_kept_ == kNone ? oldest_kept_ : entries_[newest_kept_].newer_kept) = id;
  newest_kept_ = id;
}

void BufferPool::UnlinkKept(uint32_t id) {
  Entry& e = entries_[id];
  idle_scratch_bytes_ -= e.buffer.bytes;
  (e.older_kept == kNone ? oldest_kept_ : entries_[e.older_kept].newer_kept) = e.newer_kept;
  (e.newer_kept == kNone ? newest_kept_ : entries_[e.newer_kept].older_kept) = e.older_kept;
}

bool BufferPool::MakeRoom(size_t bytes) {
  while (oldest_kept_ != kNone && idle_scratch_bytes_ + bytes > kIdleScratchBytes) DropOldestKept();
  return idle_scratch_bytes_ + bytes <= kIdleScratchBytes;
}

void BufferPool::DropOldestKept() {
  const uint32_t id = oldest_kept_;
  UnlinkKept(id);
  Release(entries_[id].buffer, MemoryUse::kScratch);
  Unuse(id);
}

void BufferPool::Trim() {
  while (oldest_kept_ != kNone) DropOldestKept();
  for (const uint32_t id : idle_spares_) {
    FreeEntry(id);
    --spares_;
  }
  idle_spares_.clear();
  FreeIdle();
}

bool BufferPool::FreeIdle() {
  if (idle_accumulators_.empty() && idle_scratch_.empty()) return false;
  for (const Buffer& b : idle_accumulators_) Release(b, MemoryUse::kSums);
  idle_accumulators_.clear();
  for (const Buffer& b : idle_scratch_) {
    idle_scratch_bytes_ -= b.bytes;
    Release(b, MemoryUse::kScratch);
  }
  idle_scratch_.clear();
  return true;
}

}  // namespace verbena::shard
