#include "shard/partition/deferred_lookups.h"

#include <algorithm>
#include <utility>

#include "shard/replica/log.h"

namespace verbena::shard {

uint32_t DeferredLookups::FirstUnready(uint64_t worker, uint64_t min_version,
                                       absl::Span<const Group> groups, uint32_t first,
                                       Ready readable) const {
  uint32_t at = first;
  for (; at < groups.size(); ++at) {
    Answer ignored;
    if (!readable(worker, table_->slice_of(groups[at].partition), min_version, &ignored)) break;
  }
  return at;
}

Answer DeferredLookups::Serve(uint64_t worker, uint64_t min_version, absl::Span<const Group> groups,
                              absl::Span<const uint64_t> keys, const Bags& bags, Ready readable,
                              ChunkView* view) {
  for (const Group& group : groups) {
    if (!sink_->log->MayRead(group.partition, table_->id())) return {ReplyStatus::kNotReady, 0, 0};
  }
  Answer answer = {ReplyStatus::kOk, 0, UINT64_MAX};
  for (const Group& group : groups) {
    Answer of_group;
    // Versions and clocks never fall, so it is readable still.
    readable(worker, table_->slice_of(group.partition), min_version, &of_group);
    answer.version = std::min(answer.version, of_group.version);
    answer.detail = std::max(answer.detail, of_group.detail);
  }
  const bool room =
      bags.count == 0 ? table_->Gather(groups, keys, view) : table_->Pool(groups, keys, bags, view);
  if (!room) return {ReplyStatus::kResourceExhausted, 0, 0};
  view->version = answer.version;
  sink_->Pulled(*view, &table_->counters(), by_version_ ? nullptr : &answer.detail);
  return answer;
}

PullOutcome DeferredLookups::Lookup(const LookupRequest& request, Ready readable) {
  const uint32_t unready =
      FirstUnready(request.worker, request.min_version, request.groups, 0, readable);
  const bool ready = unready == request.groups.size();
  const uint64_t rows =
      ready && table_->tiered() ? table_->WantRows(request.groups, request.keys) : 0;
  if (ready && rows == 0) {
    PullOutcome outcome;
    outcome.answer = Serve(request.worker, request.min_version, request.groups, request.keys,
                           request.bags, readable, &outcome.view);
    if (outcome.answer.status == ReplyStatus::kOk) outcome.kind = PullOutcome::Kind::kReady;
    return outcome;
  }
  PullOutcome deferred;
  // Where nothing can be written, it might wait for rows for good.
  if (!request.may_park || (rows != 0 && !table_->hot()->io().health().ok())) {
    if (rows != 0) table_->hot()->Release(rows);
    deferred.answer.status = ReplyStatus::kResourceExhausted;
    return deferred;
  }
  Deferred lookup = DeferredOf(request, unready);
  if (rows != 0) {
    lookup.rows = rows;
    for_rows_.push_back(std::move(lookup));
  } else {
    const uint32_t slice = LocalPartitionOf(lookup);
    if (slice >= deferred_.size()) deferred_.resize(slice + 1);
    deferred_[slice].push_back(std::move(lookup));
  }
  ++count_;
  ++sink_->counters.deferred;
  deferred.kind = PullOutcome::Kind::kDeferred;
  return deferred;
}

DeferredLookups::Deferred DeferredLookups::DeferredOf(const LookupRequest& request,
                                                      uint32_t waits_at) {
  return {request.token,
          request.worker,
          request.min_version,
          request.destination,
          request.destination_key,
          waits_at,
          {request.groups.begin(), request.groups.end()},
          {request.keys.begin(), request.keys.end()},
          request.bags.count,
          {request.bags.uses.begin(), request.bags.uses.end()}};
}

bool DeferredLookups::TryAgain(Deferred* lookup, Ready readable) {
  lookup->waits_at =
      FirstUnready(lookup->worker, lookup->min_version, lookup->groups, lookup->waits_at, readable);
  if (lookup->waits_at < lookup->groups.size()) return false;
  Finish(lookup, readable);
  return true;
}

void DeferredLookups::Finish(Deferred* lookup, Ready readable) {
  if (table_->tiered()) {
    // Pinned until it is known that others need not be waited for.
    const uint64_t before = lookup->rows;
    lookup->rows = table_->WantRows(lookup->groups, lookup->keys);
    if (lookup->rows != 0) {
      if (before != 0) table_->hot()->Release(before);
      for_rows_.push_back(std::move(*lookup));
      return;
    }
    lookup->rows = before;
  }
  ChunkView view;
  const Answer answer = Serve(lookup->worker, lookup->min_version, lookup->groups, lookup->keys,
                              {lookup->bags, lookup->uses}, readable, &view);
  if (lookup->rows != 0) table_->hot()->Release(lookup->rows);
  --count_;
  --sink_->counters.deferred;
  if (answer.status != ReplyStatus::kOk) {
    ReadFailed(lookup->token, answer.status, lookup->destination, lookup->destination_key);
  } else {
    sink_->events.push_back({Event::Kind::kPullReady, lookup->token, answer, view,
                             lookup->destination, lookup->destination_key});
  }
}

void DeferredLookups::RowsCame(Ready readable) {
  if (for_rows_.empty()) return;
  std::vector<Deferred> again = std::exchange(for_rows_, {});
  for (Deferred& lookup : again) {
    if (table_->hot()->ready(lookup.rows)) {
      Finish(&lookup, readable);
    } else {
      for_rows_.push_back(std::move(lookup));
    }
  }
}

void DeferredLookups::Release(uint32_t slice, Ready readable) {
  if (count_ == 0 || slice >= deferred_.size()) return;
  std::vector<Deferred> again = std::exchange(deferred_[slice], {});
  for (Deferred& lookup : again) {
    if (TryAgain(&lookup, readable)) continue;
    const uint32_t to = LocalPartitionOf(lookup);
    if (to >= deferred_.size()) deferred_.resize(to + 1);
    deferred_[to].push_back(std::move(lookup));
  }
}

void DeferredLookups::Advanced(uint32_t slice) {
  const EmbeddingTable::LocalPartition& s = table_->slice(slice);
  if (by_version_) {
    Release(slice, [&](uint64_t, uint32_t other, uint64_t min_version, Answer* answer) {
      answer->version = table_->slice(other).version;
      return min_version <= answer->version;
    });
  }
  LocalPartitionReached(slice, s.version);
}

template <typename Condition>
void DeferredLookups::RemoveIf(Condition condition, const ReplyStatus* why) {
  if (count_ == 0) return;
  const auto remove = [&](const Deferred& lookup) {
    if (!condition(lookup)) return false;
    if (why != nullptr) {
      ReadFailed(lookup.token, *why, lookup.destination, lookup.destination_key);
    }
    if (lookup.rows != 0) table_->hot()->Release(lookup.rows);
    --count_;
    --sink_->counters.deferred;
    return true;
  };
  for (std::vector<Deferred>& lookups : deferred_) {
    lookups.erase(std::remove_if(lookups.begin(), lookups.end(), remove), lookups.end());
  }
  for_rows_.erase(std::remove_if(for_rows_.begin(), for_rows_.end(), remove), for_rows_.end());
}

void DeferredLookups::RemoveReads(Match match, const ReplyStatus* why) {
  RemoveIf([&](const Deferred& lookup) { return match(lookup.token, lookup.worker); }, why);
}

// Also those that wait for another partition: they name this one, too.
void DeferredLookups::RemoveReadsOf(uint32_t slice, ReplyStatus why) {
  const uint32_t partition = table_->life(slice).partition;
  const auto names = [&](const Deferred& lookup) {
    return std::any_of(lookup.groups.begin(), lookup.groups.end(),
                       [&](const Group& group) { return group.partition == partition; });
  };
  RemoveIf(names, &why);
}

}  // namespace verbena::shard
