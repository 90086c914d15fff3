#include "shard/table/cold_io.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "shard/table/hot_rows.h"

namespace verbena::shard {

uint32_t ColdIo::NewLife(HotRows* owner) {
  const uint32_t life = store_->NewLife();
  owners_[life] = owner;
  return life;
}

void ColdIo::EndLife(uint32_t life) {
  owners_.erase(life);
  store_->Forget(life);
}

absl::Status ColdIo::ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to) {
  if (keys.empty()) return absl::OkStatus();
  uint64_t failed = keys[0];
  absl::Status status = store_->ReadNow(keys, bytes, to, &failed);
  if (!status.ok()) {
    Failed(failed, status);
    return status;
  }
  counters.reads += keys.size();
  counters.direct_reads += keys.size();
  counters.read_bytes += keys.size() * bytes;
  return absl::OkStatus();
}

void ColdIo::Poll() {
  if (store_ == nullptr || !store_->TakeDone(&done_)) return;
  std::vector<ColdStore::Done> done = std::exchange(done_, {});
  absl::InlinedVector<HotRows*, 4> owners;
  for (ColdStore::Done& d : done) {
    const auto owner = owners_.find(LifeOfColdKey(d.key));
    if (owner == owners_.end()) continue;  // of an engine that was, or a partition
    if (d.read) {
      owner->second->OnRead(d.key, d.cookie, d.status, d.content);
    } else {
      owner->second->OnWritten(d.key, d.cookie);
    }
    if (std::find(owners.begin(), owners.end(), owner->second) == owners.end()) {
      owners.push_back(owner->second);
    }
  }
  for (HotRows* owner : owners) owner->Advance();
  done.clear();
  done_ = std::move(done);
}

void ColdIo::Failed(uint64_t key, const absl::Status& status) {
  ++counters.failures;
  failures_.push_back({LifeOfColdKey(key), RowOfColdKey(key), status});
}

std::vector<ColdIo::Failure> ColdIo::TakeFailures() { return std::exchange(failures_, {}); }

ColdCounters ColdIo::all_counters() const {
  ColdCounters all = counters;
  if (store_ == nullptr) return all;
  const ColdStoreStatistics statistics = store_->statistics();
  all.write_failures = statistics.write_failures;
  all.stored_bytes = statistics.stored_bytes;
  all.store_memory_bytes = statistics.memory_bytes;
  return all;
}

}  // namespace verbena::shard
