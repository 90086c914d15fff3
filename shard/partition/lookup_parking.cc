#include "shard/partition/lookup_parking.h"

#include <algorithm>
#include <utility>

#include "shard/replica/log.h"

namespace verbena::shard {

uint32_t LookupParking::FirstUnready(uint64_t worker, uint64_t min_version,
                                     absl::Span<const Group> groups, uint32_t first,
                                     Ready readable) const {
  uint32_t at = first;
  for (; at < groups.size(); ++at) {
    Answer ignored;
    if (!readable(worker, table_->slice_of(groups[at].partition), min_version, &ignored)) break;
  }
  return at;
}

Answer LookupParking::Serve(uint64_t worker, uint64_t min_version, absl::Span<const Group> groups,
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

PullOutcome LookupParking::Lookup(const LookupRequest& request, Ready readable) {
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
  PullOutcome parked;
  // Where nothing can be written, it might wait for rows for good.
  if (!request.may_park || (rows != 0 && !table_->hot()->io().health().ok())) {
    if (rows != 0) table_->hot()->Release(rows);
    parked.answer.status = ReplyStatus::kResourceExhausted;
    return parked;
  }
  Parked lookup = ParkedOf(request, unready);
  if (rows != 0) {
    lookup.rows = rows;
    for_rows_.push_back(std::move(lookup));
  } else {
    const uint32_t slice = SliceOf(lookup);
    if (slice >= parked_.size()) parked_.resize(slice + 1);
    parked_[slice].push_back(std::move(lookup));
  }
  ++count_;
  ++sink_->counters.parked;
  parked.kind = PullOutcome::Kind::kParked;
  return parked;
}

LookupParking::Parked LookupParking::ParkedOf(const LookupRequest& request, uint32_t waits_at) {
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

bool LookupParking::TryAgain(Parked* lookup, Ready readable) {
  lookup->waits_at =
      FirstUnready(lookup->worker, lookup->min_version, lookup->groups, lookup->waits_at, readable);
  if (lookup->waits_at < lookup->groups.size()) return false;
  Finish(lookup, readable);
  return true;
}

void LookupParking::Finish(Parked* lookup, Ready readable) {
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
  --sink_->counters.parked;
  if (answer.status != ReplyStatus::kOk) {
    ReadFailed(lookup->token, answer.status, lookup->destination, lookup->destination_key);
  } else {
    sink_->events.push_back({Event::Kind::kPullReady, lookup->token, answer, view,
                             lookup->destination, lookup->destination_key});
  }
}

void LookupParking::RowsCame(Ready readable) {
  if (for_rows_.empty()) return;
  std::vector<Parked> again = std::exchange(for_rows_, {});
  for (Parked& lookup : again) {
    if (table_->hot()->ready(lookup.rows)) {
      Finish(&lookup, readable);
    } else {
      for_rows_.push_back(std::move(lookup));
    }
  }
}

void LookupParking::Release(uint32_t slice, Ready readable) {
  if (count_ == 0 || slice >= parked_.size()) return;
  std::vector<Parked> again = std::exchange(parked_[slice], {});
  for (Parked& lookup : again) {
    if (TryAgain(&lookup, readable)) continue;
    const uint32_t to = SliceOf(lookup);
    if (to >= parked_.size()) parked_.resize(to + 1);
    parked_[to].push_back(std::move(lookup));
  }
}

void LookupParking::Advanced(uint32_t slice) {
  const EmbeddingTable::Slice& s = table_->slice(slice);
  if (by_version_) {
    Release(slice, [&](uint64_t, uint32_t other, uint64_t min_version, Answer* answer) {
      answer->version = table_->slice(other).version;
      return min_version <= answer->version;
    });
  }
  SliceReached(slice, s.version);
}

template <typename Condition>
void LookupParking::RemoveIf(Condition condition, const ReplyStatus* why) {
  if (count_ == 0) return;
  const auto remove = [&](const Parked& lookup) {
    if (!condition(lookup)) return false;
    if (why != nullptr) {
      ReadFailed(lookup.token, *why, lookup.destination, lookup.destination_key);
    }
    if (lookup.rows != 0) table_->hot()->Release(lookup.rows);
    --count_;
    --sink_->counters.parked;
    return true;
  };
  for (std::vector<Parked>& lookups : parked_) {
    lookups.erase(std::remove_if(lookups.begin(), lookups.end(), remove), lookups.end());
  }
  for_rows_.erase(std::remove_if(for_rows_.begin(), for_rows_.end(), remove), for_rows_.end());
}

void LookupParking::RemoveReads(Match match, const ReplyStatus* why) {
  RemoveIf([&](const Parked& lookup) { return match(lookup.token, lookup.worker); }, why);
}

// Also those that wait for another partition: they name this one, too.
void LookupParking::RemoveReadsOf(uint32_t slice, ReplyStatus why) {
  const uint32_t partition = table_->life(slice).partition;
  const auto names = [&](const Parked& lookup) {
    return std::any_of(lookup.groups.begin(), lookup.groups.end(),
                       [&](const Group& group) { return group.partition == partition; });
  };
  RemoveIf(names, &why);
}

}  // namespace verbena::shard
