#include "shard/partition/deferred_pulls.h"

#include <algorithm>

#include "shard/replica/log.h"

namespace verbena::shard {

void DeferredPulls::DeferPull(uint32_t chunk, const PullRequest& request) {
  if (pulls_.size() < table_->chunks()) pulls_.resize(table_->chunks());
  pulls_[chunk].push_back({request.token, request.worker, request.min_version, request.destination,
                           request.destination_key, request.array});
  ++deferred_pulls_;
  ++sink_->counters.deferred;
}

void DeferredPulls::ReleaseChunk(uint32_t chunk, Ready ready) {
  if (chunk >= pulls_.size() || pulls_[chunk].empty()) return;
  std::vector<Pull>& pulls = pulls_[chunk];
  const auto answer = [&](const Pull& p) {
    Answer reply;
    if (!ready(p.worker, chunk, p.min_version, &reply)) return false;
    --sink_->counters.deferred;
    --deferred_pulls_;
    const DenseTable::Chunk& c = table_->chunk(chunk);
    if (!sink_->log->MayRead(table_->life(c.slice).partition, table_->id())) {
      ReadFailed(p.token, ReplyStatus::kNotReady, p.destination, p.destination_key);
      return true;
    }
    ChunkView view;
    if (p.array != 0) reply.applies = c.applies;
    if (!table_->PinToPull(chunk, p.array, &view)) {
      ReadFailed(p.token, ReplyStatus::kResourceExhausted, p.destination, p.destination_key);
      return true;
    }
    sink_->events.push_back(
        {Event::Kind::kPullReady, p.token, reply, view, p.destination, p.destination_key});
    sink_->Pulled(view, &table_->counters(), by_version_ ? nullptr : &reply.detail);
    return true;
  };
  pulls.erase(std::remove_if(pulls.begin(), pulls.end(), answer), pulls.end());
}

void DeferredPulls::Release(uint32_t slice, Ready ready) {
  if (deferred_pulls_ == 0) return;
  for (const uint32_t chunk : table_->slice(slice).chunks) ReleaseChunk(chunk, ready);
}

void DeferredPulls::Advanced(uint32_t chunk) {
  const DenseTable::Chunk& c = table_->chunk(chunk);
  if (by_version_ && deferred_pulls_ > 0) {
    ReleaseChunk(chunk, [&](uint64_t, uint32_t, uint64_t min_version, Answer* answer) {
      answer->version = c.version;
      return min_version <= c.version;
    });
  }
  LocalPartitionReached(c.slice, table_->slice(c.slice).min_version);
}

void DeferredPulls::RemovePulls(uint32_t chunk, Match match, const ReplyStatus* why) {
  std::vector<Pull>& pulls = pulls_[chunk];
  const auto remove = [&](const Pull& p) {
    if (!match(p.token, p.worker)) return false;
    if (why != nullptr) ReadFailed(p.token, *why, p.destination, p.destination_key);
    --sink_->counters.deferred;
    --deferred_pulls_;
    return true;
  };
  pulls.erase(std::remove_if(pulls.begin(), pulls.end(), remove), pulls.end());
}

void DeferredPulls::RemoveReads(Match match, const ReplyStatus* why) {
  if (deferred_pulls_ == 0) return;
  for (uint32_t chunk = 0; chunk < pulls_.size(); ++chunk) RemovePulls(chunk, match, why);
}

void DeferredPulls::RemoveReadsOf(uint32_t slice, ReplyStatus why) {
  if (deferred_pulls_ == 0) return;
  for (uint32_t chunk = 0; chunk < pulls_.size(); ++chunk) {
    if (table_->chunk(chunk).slice != slice) continue;
    RemovePulls(
        chunk, [](const Token&, uint64_t) { return true; }, &why);
  }
}

}  // namespace verbena::shard
