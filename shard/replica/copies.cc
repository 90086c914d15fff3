#include "shard/replica/copies.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {

// Buffers of incomplete records go back to the pool, like those of tables and the log.
Copies::~Copies() {
  for (uint32_t p = 0; p < copies_.size(); ++p) Forget(p);
}

void Copies::Resize(size_t partitions) {
  copies_.resize(partitions);
  tails_.Resize(partitions);
  core_.copy_reads.Resize(partitions);
}

void Copies::CountSenders(const v1::ClusterView& view) {
  absl::flat_hash_set<std::tuple<uint64_t, uint32_t, uint32_t>> distinct;
  for (const v1::Partition& p : view.partitions()) {
    for (const auto* replicas : {&p.followers(), &p.learners()}) {
      for (const v1::Replica& r : *replicas) {
        if (r.server() == core_.options.server) distinct.emplace(p.primary(), p.shard(), r.shard());
      }
    }
  }
  senders_ = distinct.size();
  for (const v1::Server& s : view.servers()) {
    if (s.incarnation() == core_.options.server) server_shards_ = std::max(s.shards(), 1u);
  }
  core_.pool.SetFor(OwnMemory());
}

bool Copies::MayLearn(const ReplicaHeader& begin) const {
  const uint64_t bytes = core_.pool.RoomForRows();
  if (bytes == UINT64_MAX) return true;
  // The room is that of all the server's shards.
  uint64_t wanted = uint64_t{begin.learner_kib} << 10;
  for (const CopyState& copy : copies_) wanted += copy.expected;
  return wanted <= bytes / server_shards_;
}

CopyRoom Copies::Room() const {
  const uint64_t room = core_.pool.RoomForRows();
  if (room == UINT64_MAX) return {};
  return {room / std::max<uint64_t>(senders_, 1), core_.pool.limit_bytes()};
}

void Copies::Forget(uint32_t partition) {
  core_.pool.ReturnScratch(copies_[partition].parts);
  copies_[partition] = {};
  tails_.Forget(partition);
  core_.copy_reads.Forget(partition);
}

void Copies::Keep(uint32_t partition) {
  CopyState& copy = copies_[partition];
  core_.pool.ReturnScratch(std::exchange(copy.parts, {}));
  copy.parts_bytes = 0;
  copy.kept = copy.begun || copy.kept;
  copy.begun = false;
  core_.copy_reads.Forget(partition);
}

// A primary's records come in one order to all of its replicas: at the same record of the same
// primary they are equal. Records of one number may be of different primaries.
ReplyStatus Copies::Resume(const Copied& begin) {
  const CopyState& copy = copies_[begin.partition];
  const auto equal = [&] {
    return copy.sequence == begin.header.version && copy.record_epoch == begin.header.applies;
  };
  if (copy.kept && VERBENA_FAILPOINT(shard, resume_unequal)) return ReplyStatus::kOk;
  if (!copy.kept || copy.learning) return ReplyStatus::kOutOfRange;
  if (equal()) return ReplyStatus::kOk;
  if (begin.data.empty() || copy.sequence > begin.header.version) return ReplyStatus::kOutOfRange;
  // Checked as a whole first, so that only a record's own refusal leaves a part applied.
  TailBase base;
  uint64_t sequence = 0, epoch = 0;
  bool found = false;
  const auto is_last = [&] { return copy.sequence == sequence && copy.record_epoch == epoch; };
  const ReplyStatus status = CopyTails::Decode(
      begin.data, begin.partition, &base,
      [&](const TailRecord& record, absl::Span<const std::byte>) {
        if (sequence == 0) std::tie(sequence, epoch) = std::tie(base.sequence, base.epoch);
        found |= is_last();
        const ReplicaKind kind = record.header.kind;
        if (record.group.sequence != sequence + 1 || kind == ReplicaKind::kBegin ||
            kind == ReplicaKind::kComplete) {
          return ReplyStatus::kMalformed;
        }
        std::tie(sequence, epoch) = std::tie(record.group.sequence, record.group.epoch);
        return ReplyStatus::kOk;
      });
  if (status != ReplyStatus::kOk) return status;
  if (!found || sequence != begin.header.version || epoch != begin.header.applies) {
    return ReplyStatus::kOutOfRange;
  }
  // After the last one here. An attempt that had no memory continues where it ended.
  return CopyTails::Decode(begin.data, begin.partition, &base,
                           [&](const TailRecord& record, absl::Span<const std::byte> data) {
                             if (record.group.sequence <= copy.sequence) return ReplyStatus::kOk;
                             return ApplyOfTail(record, data);
                           });
}

ReplyStatus Copies::ApplyOfTail(const TailRecord& record, absl::Span<const std::byte> data) {
  Copied c;
  c.partition = record.group.partition;
  c.group = record.group;
  c.header = record.header;
  c.data = data;
  const ReplyStatus status =
      VERBENA_FAILPOINT(shard, skip_tail) ? ReplyStatus::kOk : Apply(record.table, &c);
  if (status != ReplyStatus::kOk) return status;
  copies_[c.partition].sequence = c.group.sequence;
  copies_[c.partition].record_epoch = c.group.epoch;
  tails_.Begin(c.partition, c.group);
  return ReplyStatus::kOk;
}

ReplyStatus Copies::Apply(uint32_t table, Copied* c) {
  if (c->header.kind == ReplicaKind::kNothing) return ReplyStatus::kOk;
  const ReplyStatus status = FindCopied(table, c);
  return status != ReplyStatus::kOk || c->state == nullptr ? status : records_.Apply(*c);
}

void Copies::ForgetTables(absl::FunctionRef<bool(uint32_t)> which) {
  for (CopyState& copy : copies_) absl::erase_if(copy.announced, which);
  core_.copy_reads.ForgetTables(which);
}

void Copies::ForgetRetired(TableState* state) {
  if (VERBENA_FAILPOINT(shard, keep_retired)) return;
  for (auto& [partition, marks] : state->marks) {
    std::erase_if(marks.workers,
                  [&](const auto& mark) { return core_.jobs.Retired(*state->job, mark.first); });
  }
}

ReplyStatus Copies::CheckSender(const CopyId& from, const Copied& c) const {
  if (c.partition >= core_.partitions.size()) {
    return core_.partitions.empty() ? ReplyStatus::kNotReady : ReplyStatus::kOutOfRange;
  }
  const PartitionInfo& info = core_.partitions[c.partition];
  if (c.group.epoch > info.epoch) return ReplyStatus::kNotReady;
  if (c.group.epoch < info.epoch || info.primary != from) return ReplyStatus::kWrongEpoch;
  // One view of the two is older. If it is ours: later.
  if (!info.copy || c.header.since > info.since) return ReplyStatus::kNotReady;
  return c.header.since < info.since ? ReplyStatus::kWrongEpoch : ReplyStatus::kOk;
}

ReplyStatus Copies::Assemble(CopyState* copy, const ReplicaHeader& header,
                             absl::Span<const std::byte>* data, bool* whole) {
  *whole = true;
  if (header.part_offset == 0 && data->size() == header.total_bytes) return ReplyStatus::kOk;
  if (header.part_offset == 0) {
    core_.pool.ReturnScratch(copy->parts);
    copy->parts = core_.pool.TakeScratch(header.total_bytes);
    copy->parts_bytes = 0;
    if (copy->parts.data == nullptr) return ReplyStatus::kResourceExhausted;
  }
  if (header.part_offset != copy->parts_bytes || copy->parts.bytes < header.total_bytes) {
    return ReplyStatus::kSequenceGap;
  }
  std::memcpy(copy->parts.data + header.part_offset, data->data(), data->size());
  copy->parts_bytes += static_cast<uint32_t>(data->size());
  *whole = copy->parts_bytes == header.total_bytes;
  *data = {copy->parts.data, copy->parts_bytes};
  return ReplyStatus::kOk;
}

// Makes the partition new, whatever its content was.
ReplyStatus Copies::Begin(uint32_t partition) {
  copies_[partition].announced.clear();
  for (auto& [id, state] : core_.tables) {
    if (state.table == nullptr) continue;
    const ReplyStatus status = MakeFresh(partition, &state);
    if (status != ReplyStatus::kOk) return status;
  }
  return ReplyStatus::kOk;
}

ReplyStatus Copies::MakeFresh(uint32_t partition, TableState* state) {
  const uint32_t slice = state->table->slice_of(partition);
  if (slice != PartitionedTable::kNone) {
    core_.LeaveLocalPartition(state, slice, ReplyStatus::kWrongEpoch);
    state->table->Forget(slice);
  }
  state->marks.erase(partition);
  state->unserved = state->table->Acquire(state->placement);
  state->starved = !state->unserved.ok();
  state->consistency->Resize();
  return state->starved || state->table->LacksCopies() ? ReplyStatus::kMemoryLimit
                                                       : ReplyStatus::kOk;
}

Answer Copies::Replicate(const CopyId& from, const Record& record,
                         absl::Span<const std::byte> payload) {
  const Group& group = record.groups[0];
  Copied c;
  c.partition = group.partition;
  c.group = group;
  Answer answer;
  if (!CopyReplicaHeader(record, payload, &c.header, &c.data).ok()) {
    answer.status = ReplyStatus::kMalformed;
    return answer;
  }
  answer.status = CheckSender(from, c);
  if (answer.status != ReplyStatus::kOk) return answer;
  CopyState& copy = copies_[group.partition];
  answer.version = copy.sequence;
  if (VERBENA_FAILPOINT(shard, refuse_replicas)) {
    answer.status = ReplyStatus::kResourceExhausted;
    return answer;
  }
  const bool begin = c.header.kind == ReplicaKind::kBegin;
  if (!begin && !copy.begun) answer.status = ReplyStatus::kSequenceGap;
  if (copy.begun && group.sequence <= copy.sequence) answer.status = ReplyStatus::kDuplicate;
  if (!begin && group.sequence > copy.sequence + 1) answer.status = ReplyStatus::kSequenceGap;
  if (answer.status != ReplyStatus::kOk) return answer;
  bool whole = false;
  answer.status = Assemble(&copy, c.header, &c.data, &whole);
  if (answer.status != ReplyStatus::kOk || !whole) return answer;
  const bool learner = (c.header.flags & kReplicaLearner) != 0;
  core_.pool.SetFor(learner || copy.learning ? MemoryFor::kLearner : MemoryFor::kFollower);
  if (begin && learner && !MayLearn(c.header)) {
    answer.status = ReplyStatus::kMemoryLimit;
  } else if (begin && (c.header.flags & kReplicaResume) != 0) {
    answer.status = Resume(c);
    if (answer.status == ReplyStatus::kOk) copy.begun = true;
  } else if (begin) {
    answer.status = Begin(group.partition);
    if (answer.status == ReplyStatus::kOk) copy.begun = true;
    copy.learning = learner;
    copy.expected = learner ? uint64_t{c.header.learner_kib} << 10 : 0;
  } else if (c.header.kind == ReplicaKind::kComplete) {
    copy.learning = false;
    copy.expected = 0;
  } else {
    answer.status = Apply(record.header.table, &c);
  }
  if (answer.status == ReplyStatus::kOk) {
    if (copy.beside_others && !begin && !copy.learning && c.header.kind != ReplicaKind::kComplete) {
      tails_.Add(group.partition, record.header.table, group, c.header, c.data);
    } else {
      tails_.Begin(group.partition, group);
    }
  }
  core_.pool.SetFor(OwnMemory());
  core_.pool.ReturnScratch(std::exchange(copy.parts, {}));
  copy.parts_bytes = 0;
  if (answer.status == ReplyStatus::kMemoryLimit) {
    ++core_.sink.counters.memory_refusals;
    tails_.Trim();
    core_.pool.Trim();  // idle buffers may be in the way of the next attempt
  }
  if (answer.status == ReplyStatus::kOk) {
    answer.version = copy.sequence = group.sequence;
    copy.record_epoch = group.epoch;
    core_.copy_reads.Applied(group, record.header.table, c.header);
  }
  return answer;
}

// kOk without a state: the table was dropped, or is new and not in the view here yet.
ReplyStatus Copies::FindCopied(uint32_t table, Copied* c) {
  const auto it = core_.tables.find(table);
  absl::flat_hash_set<uint32_t>& announced = copies_[c->partition].announced;
  const bool fresh = c->header.kind == ReplicaKind::kFresh;
  if (it == core_.tables.end()) {
    if (table <= core_.highest_table) return ReplyStatus::kOk;
    if (!fresh) return ReplyStatus::kNotReady;
    // The view that will name it makes it new.
    announced.insert(table);
    return ReplyStatus::kOk;
  }
  // Its primary serves it, so a server that cannot is no replica.
  if (it->second.lacks_cold_store || it->second.table == nullptr) return ReplyStatus::kNotReady;
  c->slice = it->second.table->slice_of(c->partition);
  // Lost in the view here, or there is no memory.
  if (c->slice == PartitionedTable::kNone || !it->second.table->ready(c->slice)) {
    const bool no_memory = it->second.starved || it->second.table->LacksCopies();
    return no_memory ? ReplyStatus::kMemoryLimit : ReplyStatus::kNotReady;
  }
  if (fresh ||
      (c->header.kind == ReplicaKind::kBeginPartition && (c->header.flags & kReplicaToCome) != 0)) {
    // One that was not announced before is as the view made it: new.
    if (!announced.insert(table).second) {
      const ReplyStatus status = MakeFresh(c->partition, &it->second);
      if (status != ReplyStatus::kOk) return status;
      c->slice = it->second.table->slice_of(c->partition);
    }
  } else if (!announced.contains(table)) {
    // An end of a step that waited on the primary: kBeginPartition will have it.
    return c->header.kind == ReplicaKind::kSettle ? ReplyStatus::kOk : ReplyStatus::kDataLoss;
  }
  c->state = &it->second;
  c->marks = &it->second.marks[c->partition];
  return ReplyStatus::kOk;
}

}  // namespace verbena::shard
