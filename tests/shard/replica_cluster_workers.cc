// The workers of a ReplicaCluster: their pushes, the order of these, and the handling of answers.
#include <algorithm>

#include "proto/spec/optimizer_values.h"
#include "proto/wire/routing.h"
#include "tests/shard/replica_cluster.h"

namespace verbena::shard {
namespace {

constexpr float kScribble = 1e6f;

}  // namespace

ReplicaCluster::Op ReplicaCluster::MakePush(uint32_t worker, uint32_t index, uint64_t step) const {
  std::mt19937 random(plan_.seed * 7919 + worker * 131 + index * 17 + static_cast<uint32_t>(step));
  Op op;
  op.index = index;
  op.step = step;
  uint32_t numbers = kElements;
  if (plan_.rows) {
    const uint32_t partition = index % plan_.partitions;
    for (uint64_t key = random() % 8; op.keys.size() < 3; key += 1 + random() % 8) {
      if (PartitionOfKey(kTable, key, plan_.partitions) == partition) op.keys.push_back(key);
    }
    numbers = static_cast<uint32_t>(op.keys.size()) * kDim;
  }
  op.assigns = plan_.assigns && random() % 4 == 0;
  // Integers: their sum is the same in any order.
  for (uint32_t i = 0; i < numbers; ++i) {
    op.values.push_back(static_cast<float>(static_cast<int>(random() % 17) - 8));
  }
  if (op.assigns && !plan_.rows && plan_.optimizer == "adagrad" && random() % 2 == 0) {
    op.array = 1;
    op.applies = random() % 100;
    for (float& value : op.values) value = std::abs(value);
  }
  // Assignments and pushes of several workers have an order only in steps. Elsewhere all but one
  // worker push zeros.
  const uint32_t owner = (plan_.rows ? index % plan_.partitions : index) % plan_.workers;
  if (plan_.assigns && !sync() && owner != worker) {
    op.assigns = false;
    std::fill(op.values.begin(), op.values.end(), 0.0f);
  }
  return op;
}

// Powers of two: products with integers are exact.
double ReplicaCluster::RateOf(uint32_t worker, uint64_t step) const {
  std::mt19937 random(plan_.seed * 104729 + worker * 31 + static_cast<uint32_t>(step));
  if (!plan_.changes || random() % 3 != 0) return 0;
  return 1 << random() % 3;
}

void ReplicaCluster::MakeOps() {
  streams_.assign(plan_.workers, std::vector<Stream>(plan_.partitions));
  for (uint32_t w = 0; w < plan_.workers; ++w) {
    for (uint32_t p = 0; p < plan_.partitions; ++p) {
      Stream& stream = streams_[w][p];
      stream.epoch = 1;
      uint64_t sequence = 0;
      for (uint64_t step = 0; step < plan_.steps; ++step) {
        if (RateOf(w, step) != 0) {
          Op change;
          change.rate = RateOf(w, step);
          change.step = step;
          change.index = static_cast<uint32_t>(step) + 1;
          change.sequence = sync() ? step : ++sequence;
          stream.ops.push_back(change);
        }
        uint32_t count = 0;
        for (uint32_t c = 0; c < kChunks; ++c) {
          const uint32_t of =
              plan_.rows ? c % plan_.partitions : PartitionOfChunk(kTable, c, plan_.partitions);
          if (of != p) continue;
          stream.ops.push_back(MakePush(w, c, step));
          stream.ops.back().sequence = sync() ? step : ++sequence;
          ++count;
        }
        Op end;
        end.end = true;
        end.step = step;
        end.count = count;
        end.sequence = sync() ? step : ++sequence;
        stream.ops.push_back(end);
      }
    }
  }
}

void ReplicaCluster::PostOp(uint32_t worker, uint32_t partition, size_t index) {
  Op& op = streams_[worker][partition].ops[index];
  Node* node = Find(PartitionAt(partition)->primary());
  const uint32_t operation = next_operation_++;
  const Token token = {worker, operation, 0};
  // The send buffer is overwritten as soon as the engine releases it.
  payloads_.push_back(std::make_shared<std::vector<float>>(op.values));
  std::vector<float>& values = *payloads_.back();
  const Asked asked = {node->server,    worker, partition, index, PartitionAt(partition)->epoch(),
                       payloads_.back()};
  const auto count =
      op.end ? op.count : static_cast<uint32_t>(plan_.rows ? op.keys.size() : op.values.size());
  const Group group = {partition, op.index, asked.epoch, op.sequence, count, 0};
  const absl::Span<const std::byte> payload = {reinterpret_cast<const std::byte*>(values.data()),
                                               values.size() * sizeof(float)};
  op.out = true;
  asked_[operation] = asked;
  bool later = false, held = false;
  ReplyStatus status;
  if (op.rate != 0) {
    const NamedValue value = MakeNamedValue("rate", op.rate);
    const GroupsOutcome out = node->engine->SetOptimizer(
        {token, kFirstWorker + worker, kTable, {&group, 1}}, {&value, 1});
    later = out.replicating;
    status = out.answer.status;
  } else if (op.end) {
    const GroupsOutcome out = node->engine->EndStep(
        {token, kFirstWorker + worker, kTable, {&group, 1}, op.step + 1, false});
    later = out.replicating;
    status = out.answer.status;
  } else if (plan_.rows) {
    const GroupsOutcome out = node->engine->PushRows({token,
                                                      kFirstWorker + worker,
                                                      kTable,
                                                      {&group, 1},
                                                      op.keys,
                                                      payload,
                                                      ElementType::kF32,
                                                      op.assigns});
    later = out.replicating;
    status = out.answer.status;
  } else {
    const PushOutcome out =
        node->engine->Push({token, kFirstWorker + worker, kTable, group, ElementType::kF32, payload,
                            op.assigns, op.array, op.applies});
    held = out.held;
    later = out.held || out.replicating;
    status = out.answer.status;
  }
  if (!held) std::fill(values.begin(), values.end(), kScribble);
  if (later) return;
  asked_.erase(operation);
  Answered(asked, status);
}

void ReplicaCluster::Answered(const Asked& asked, ReplyStatus status) {
  Op& op = streams_[asked.worker][asked.partition].ops[asked.op];
  op.out = false;
  if (Good(status)) {
    // For a sync step, only its commit guarantees that the push will not be lost.
    if (!sync() || asked.epoch == streams_[asked.worker][asked.partition].epoch) op.acked = true;
    return;
  }
  switch (status) {
    case ReplyStatus::kWrongEpoch:
    case ReplyStatus::kNotReady:
    case ReplyStatus::kSequenceGap:
    case ReplyStatus::kWrongStep:
    case ReplyStatus::kTooEarly:
    case ReplyStatus::kResourceExhausted:
      return;
    default:
      error = "a worker is answered " + std::string(ReplyStatusName(status));
  }
}

// The first that may go. In async order matters; a few may be out at once.
void ReplicaCluster::Post(uint32_t worker, uint32_t partition) {
  Stream& stream = streams_[worker][partition];
  v1::Partition* info = PartitionAt(partition);
  if (!Alive(info->primary())) return;
  if (stream.epoch != info->epoch()) {
    stream.epoch = info->epoch();
    // Its lane to the previous primary is closed; pushes of a sync step sent there are sent again.
    for (auto it = asked_.begin(); it != asked_.end();) {
      if (it->second.worker == worker && it->second.partition == partition) {
        stream.ops[it->second.op].out = false;
        it = asked_.erase(it);
      } else {
        ++it;
      }
    }
    if (sync()) {
      for (size_t i = stream.step_begin; i < stream.ops.size(); ++i) {
        // Replicas have a change that is acknowledged.
        if (stream.ops[i].rate == 0) stream.ops[i].acked = false;
      }
    }
  }
  size_t at = stream.step_begin;
  uint32_t ahead = 0;
  for (; at < stream.ops.size() && ahead < 3; ++at) {
    const Op& op = stream.ops[at];
    if (sync() && op.step != stream.ops[stream.step_begin].step) break;
    if (op.acked) continue;
    if (op.out) {
      if (op.rate != 0 && sync()) break;  // the step's pushes come behind it
      ++ahead;
      continue;
    }
    if (op.end && sync() && ahead > 0) break;
    return PostOp(worker, partition, at);
  }
}

void ReplicaCluster::LearnCommit(uint32_t worker, uint32_t partition) {
  Stream& stream = streams_[worker][partition];
  if (!sync()) {
    while (stream.step_begin < stream.ops.size() && stream.ops[stream.step_begin].acked) {
      ++stream.step_begin;
    }
    return;
  }
  if (stream.step_begin == stream.ops.size()) return;
  Node* node = Find(PartitionAt(partition)->primary());
  if (node == nullptr) return;
  const uint64_t step = stream.ops[stream.step_begin].step;
  const Group group = {partition, 0, PartitionAt(partition)->epoch(), 0, 0, 0};
  const GroupsOutcome out = node->engine->Await(
      {{worker, 0, 0}, kFirstWorker + worker, kTable, {&group, 1}, step + 1, false});
  if (out.answer.status != ReplyStatus::kOk) return;
  while (stream.step_begin < stream.ops.size() && stream.ops[stream.step_begin].step == step) {
    ++stream.step_begin;
  }
}

void ReplicaCluster::TakeEvents(Node* node) {
  std::vector<Event> events;
  node->engine->TakeEvents(&events);
  for (const Event& event : events) {
    CheckDeferred(event);
    const auto it = asked_.find(event.token.operation);
    if (it == asked_.end()) continue;  // its worker has closed the lane
    const Asked asked = it->second;
    asked_.erase(it);
    std::fill(asked.payload->begin(), asked.payload->end(), kScribble);
    Answered(asked, event.answer.status);
  }
}

bool ReplicaCluster::Done() const {
  for (const std::vector<Stream>& worker : streams_) {
    for (const Stream& stream : worker) {
      if (stream.step_begin < stream.ops.size()) return false;
    }
  }
  return true;
}

}  // namespace verbena::shard
