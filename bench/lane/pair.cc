#include "bench/lane/pair.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/lane/shard_side.h"
#include "bench/lane/waiter.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/transport.h"

namespace verbena::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kBatch = 32;
constexpr Seconds kPatience(30);  // without any answer: the lane is stuck
constexpr Seconds kWarmUp(0.2);   // before the measurement

}  // namespace

rdma::LaneConfig ConfigFor(uint32_t bytes, uint32_t depth) {
  rdma::LaneConfig config;
  config.small_slots = depth;
  config.operations = depth;
  config.large_slots = 0;
  if (PayloadOffset(1) + bytes > config.small_slot_bytes) {
    config.large_slots = depth;
    // Whole pages, so that every payload lies as the first does.
    config.large_slot_bytes = 4096 + (bytes + 4095) / 4096 * 4096;
  }
  return config;
}

struct Pair::Impl {
  PairOptions options;
  std::unique_ptr<rdma::Endpoint> endpoint;
  std::shared_ptr<rdma::MemoryBlock> source;  // a payload for each record in flight
  std::shared_ptr<rdma::MemoryBlock> target;  // the same for pulls
  std::unique_ptr<ShardSide> shard;
  std::unique_ptr<rdma::WorkerLane> lane;
  std::unique_ptr<Waiter> waiter;
  rdma::RemoteMemory exposed;
  std::vector<uint32_t> free_areas;
  std::vector<rdma::WorkerLane::Answer> answers;
  uint64_t answered = 0;
  bool events = true;
  bool stalled = false;  // slept, and nothing has come since `stalled_since`
  Clock::time_point stalled_since;

  absl::Status Open(const PairOptions& wanted);
  absl::Status OpenLane();
  absl::Status Verify();
  absl::Status Post(RecordType type, uint32_t area);
  absl::Status PostAll(RecordType type);
  bool Look();
  absl::Status Turn();
  absl::Status Drain();
  absl::Status Run(RecordType type, Seconds lasts, Clock::time_point* end);
};

absl::Status Pair::Impl::Open(const PairOptions& wanted) {
  options = wanted;
  if (options.placed) PinToCpu(0);
  auto made = NewEndpoint(options, true);
  if (!made.ok()) return made.status();
  endpoint = *std::move(made);
  for (auto* block : {&source, &target}) {
    auto allocated = endpoint->Allocate(size_t{options.bytes} * options.depth, "bench-payloads");
    if (!allocated.ok()) return allocated.status();
    *block = *std::move(allocated);
    if (absl::Status status = endpoint->Register(*block); !status.ok()) return status;
  }
  for (uint32_t i = 0; i < options.depth; ++i) {
    FillPayload(source->data() + size_t{i} * options.bytes, options.bytes, kPushSeed);
    free_areas.push_back(i);
  }
  waiter = std::make_unique<Waiter>(endpoint.get(), options.spin_us);
  if (absl::Status status = OpenLane(); !status.ok()) return status;
  return Verify();
}

absl::Status Pair::Impl::OpenLane() {
  rdma::LaneTicket ticket;
  ticket.lane = 1;
  ticket.generation = 1;
  ticket.incarnation = 1;
  ticket.config = ConfigFor(options.bytes, options.depth);
  if (absl::Status status = ticket.config.Validate(); !status.ok()) return status;
  auto started = ShardSide::Start(options, &ticket);
  if (!started.ok()) return started.status();
  shard = *std::move(started);
  auto opened = rdma::WorkerLane::Open(endpoint.get(), ticket);
  if (!opened.ok()) return opened.status();
  lane = *std::move(opened);
  while (lane->state() != rdma::WorkerLane::State::kOpen) {
    if (absl::Status status = Turn(); !status.ok()) return status;
  }
  const auto remote = lane->Expose(target);
  if (!remote.ok()) return remote.status();
  exposed = *remote;
  return absl::OkStatus();
}

// A benchmark that moves nothing would be fast: every slot and every area, once each way.
absl::Status Pair::Impl::Verify() {
  shard->Expect(true);
  for (const RecordType type : {RecordType::kPush, RecordType::kPull}) {
    if (absl::Status status = PostAll(type); !status.ok()) return status;
    if (absl::Status status = Drain(); !status.ok()) return status;
  }
  shard->Expect(false);
  uint64_t wrong = shard->Mismatches();
  for (uint32_t i = 0; i < options.depth; ++i) {
    const std::byte* const area = target->data() + size_t{i} * options.bytes;
    if (!IsPayload(area, options.bytes, kPullSeed)) ++wrong;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(wrong, " of ", 2 * options.depth, " payloads arrived changed"));
}

absl::Status Pair::Impl::Post(RecordType type, uint32_t area) {
  const size_t offset = size_t{area} * options.bytes;
  Group group = {};
  rdma::WorkerLane::Request request;
  request.header.type = type;
  request.header.dtype = ElementType::kF32;
  request.cookie = area;
  if (type == RecordType::kPush) {
    group.count = options.bytes / sizeof(float);
    request.payload = {source->data() + offset, options.bytes, source.get()};
  } else {
    request.header.destination = exposed.address + offset;
    request.header.destination_key = exposed.key;
  }
  request.groups = absl::MakeConstSpan(&group, 1);
  return lane->Post(request);
}

// As many as the lane takes: there are no more areas than operations.
absl::Status Pair::Impl::PostAll(RecordType type) {
  const size_t payload = type == RecordType::kPush ? options.bytes : 0;
  while (!free_areas.empty() && lane->CanPost(1, payload)) {
    if (absl::Status status = Post(type, free_areas.back()); !status.ok()) return status;
    free_areas.pop_back();
  }
  return absl::OkStatus();
}

// Whether there was anything to do.
bool Pair::Impl::Look() {
  bool worked = false;
  if (events) {
    rdma::ConnectionEvent found[kBatch];
    const size_t count = endpoint->PollEvents(absl::MakeSpan(found));
    for (size_t i = 0; i < count; ++i) lane->OnEvent(found[i]);
    worked = count > 0;
  }
  rdma::Completion completions[kBatch];
  const size_t count = endpoint->Poll(absl::MakeSpan(completions));
  answers.clear();
  for (size_t i = 0; i < count; ++i) lane->OnCompletion(completions[i], &answers);
  for (const auto& answer : answers) free_areas.push_back(static_cast<uint32_t>(answer.cookie));
  answered += answers.size();
  events = !worked && count == 0;
  return !events;
}

// Looks once, or waits; fails when nothing is to be hoped for.
absl::Status Pair::Impl::Turn() {
  if (Look()) {
    waiter->Worked();
    stalled = false;
    if (!answers.empty() && answers.front().reply.status != ReplyStatus::kOk) {
      return absl::InternalError("a record was refused");
    }
    return absl::OkStatus();
  }
  const bool slept = waiter->Idle();
  lane->RunOnce();
  if (lane->state() >= rdma::WorkerLane::State::kClosing) return lane->error();
  if (slept && !stalled) {
    stalled = true;
    stalled_since = Clock::now();
  } else if (slept && Clock::now() - stalled_since > kPatience) {
    return absl::DeadlineExceededError(absl::StrCat("nothing has come for ", kPatience.count(),
                                                    " s; unanswered: ", lane->unanswered_count()));
  }
  return shard->Failure();
}

absl::Status Pair::Impl::Drain() {
  while (lane->unanswered_count() > 0) {
    if (absl::Status status = Turn(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Keeps the lane full for so long.
absl::Status Pair::Impl::Run(RecordType type, Seconds lasts, Clock::time_point* end) {
  const auto start = Clock::now();
  do {
    if (absl::Status status = PostAll(type); !status.ok()) return status;
    // The clock costs as much as a small record where the kernel has to be asked for it.
    for (int turn = 0; turn < 8; ++turn) {
      if (absl::Status status = Turn(); !status.ok()) return status;
      if (!answers.empty()) break;
    }
    *end = Clock::now();
  } while (*end - start < lasts);
  return absl::OkStatus();
}

Pair::Pair(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Pair::~Pair() {
  // The worker's end goes first, so that the shard sees a peer that leaves, not one that is lost.
  impl_->lane.reset();
  impl_->shard.reset();
}

absl::StatusOr<std::unique_ptr<Pair>> Pair::Open(const PairOptions& options) {
  std::unique_ptr<Pair> pair(new Pair(std::make_unique<Impl>()));
  if (absl::Status status = pair->impl_->Open(options); !status.ok()) return status;
  return pair;
}

std::string Pair::device() const { return impl_->endpoint->device(); }

absl::StatusOr<double> Pair::Megabytes(RecordType type, double seconds) {
  Clock::time_point begin;
  Clock::time_point end;
  if (absl::Status status = impl_->Run(type, kWarmUp, &begin); !status.ok()) return status;
  const uint64_t before = impl_->answered;
  if (absl::Status status = impl_->Run(type, Seconds(seconds), &end); !status.ok()) return status;
  const double bytes = static_cast<double>(impl_->answered - before) * impl_->options.bytes;
  if (absl::Status status = impl_->Drain(); !status.ok()) return status;
  return bytes / Seconds(end - begin).count() / 1e6;
}

absl::StatusOr<PushTimes> Pair::PushLatency(double seconds) {
  std::vector<float> micros;
  micros.reserve(1 << 20);
  const auto start = Clock::now();
  auto posted = start;
  // One reading of the clock a round: an answer's is the next post's.
  while (posted - start < kWarmUp + Seconds(seconds) && micros.size() < micros.capacity()) {
    const uint32_t area = impl_->free_areas.back();
    impl_->free_areas.pop_back();
    // The answer can overtake the write's completion, which frees the slot: there are others.
    if (absl::Status status = impl_->Post(RecordType::kPush, area); !status.ok()) return status;
    if (absl::Status status = impl_->Drain(); !status.ok()) return status;
    const auto now = Clock::now();
    if (now - start >= kWarmUp) {
      micros.push_back(std::chrono::duration<float, std::micro>(now - posted).count());
    }
    posted = now;
  }
  if (micros.empty()) return absl::DeadlineExceededError("no answer within the time measured");
  std::sort(micros.begin(), micros.end());
  return PushTimes{micros[micros.size() / 2], micros[micros.size() * 99 / 100],
                   static_cast<int>(micros.size())};
}

}  // namespace verbena::bench
