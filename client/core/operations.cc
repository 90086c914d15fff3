#include "client/core/operations.h"

#include <utility>

namespace verbena::client {

Operation* Operations::Start(std::string_view name, TableState* table, int64_t now,
                             int64_t deadline_ns, std::function<void(absl::Status)> done) {
  if (pool_.in_use() >= kMaxOperations) return nullptr;
  Operation* operation = pool_.Get();
  ++operation->generation;
  operation->name = name;
  operation->live = true;
  operation->delivered = false;
  operation->table = table;
  operation->step = operation->version = 0;
  operation->max_staleness_ms = 0;
  operation->ends_step = false;
  operation->started_ns = now;
  operation->range = BeginRange(operation->name.data(), 0);
  operation->deadline_ns = deadline_ns;
  operation->done = std::move(done);
  operation->status = operation->not_now = absl::OkStatus();
  operation->records = operation->commits = operation->buffers = 0;
  operation->landed = false;
  Operation* before = nullptr;
  for (Operation* last = timers_.back(); last != nullptr && last->deadline_ns > deadline_ns;
       last = timers_.Previous(last)) {
    before = last;
  }
  timers_.InsertBefore(before, operation);
  return operation;
}

void Operations::Abandon(Operation* operation) {
  timers_.Remove(operation);
  EndRange(&operation->range);
  operation->live = false;
  operation->delivered = true;
  operation->done = nullptr;
  MaybeFree(operation);
}

void Operations::End(Operation* operation, absl::Status status) {
  if (!operation->live) return;
  operation->live = false;
  EndRange(&operation->range);
  operation->status = std::move(status);
  timers_.Remove(operation);
  finished_.PushBack(operation);
}

void Operations::MaybeFree(Operation* operation) {
  if (operation->live || !operation->delivered || operation->buffers != 0) return;
  if (!operation->entries.empty()) return;
  operation->blocks[0].reset();
  operation->blocks[1].reset();
  operation->marks[0].reset();
  operation->marks[1].reset();
  operation->scan.reset();
  operation->change.reset();
  operation->pulled.reset();
  if (operation->plan != nullptr) plans_.push_back(std::move(operation->plan));
  if (operation->bags != nullptr) bags_.push_back(std::move(operation->bags));
  operation->delivered = false;
  ++operation->generation;  // its old ids are invalid from here on
  pool_.Put(operation);
}

std::unique_ptr<KeyPlan> Operations::NewPlan() {
  if (plans_.empty()) return std::make_unique<KeyPlan>();
  std::unique_ptr<KeyPlan> plan = std::move(plans_.back());
  plans_.pop_back();
  return plan;
}

std::unique_ptr<BagCall> Operations::NewBags() {
  if (bags_.empty()) return std::make_unique<BagCall>();
  std::unique_ptr<BagCall> bags = std::move(bags_.back());
  bags_.pop_back();
  return bags;
}

Operation* Operations::Find(uint64_t id) {
  return const_cast<Operation*>(std::as_const(*this).Find(id));
}

const Operation* Operations::Find(uint64_t id) const {
  const Operation* operation = pool_.At(static_cast<uint32_t>(id));
  if (operation == nullptr || operation->generation != id >> 32) return nullptr;
  return operation;
}

bool Operations::Deliver() {
  bool worked = false;
  // Callbacks may end more operations, which are delivered here too.
  while (Operation* operation = finished_.front()) {
    finished_.Remove(operation);
    auto done = std::move(operation->done);
    operation->done = nullptr;
    absl::Status status = std::move(operation->status);
    operation->delivered = true;
    MaybeFree(operation);
    if (done) done(std::move(status));
    worked = true;
  }
  return worked;
}

}  // namespace verbena::client
