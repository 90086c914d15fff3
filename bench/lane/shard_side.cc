#include "bench/lane/shard_side.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/lane/waiter.h"
#include "proto/wire/record_check.h"
#include "rdma/ofi/ofi_endpoint.h"
#include "rdma/shm/shm_endpoint.h"
#include "rdma/verbs/verbs_endpoint.h"

namespace verbena::bench {
namespace {

constexpr size_t kBatch = 32;

// Different in every word, cheap to check.
uint32_t Word(size_t index, uint32_t seed) {
  return (static_cast<uint32_t>(index) + seed) * 2654435761u;
}

}  // namespace

absl::StatusOr<std::unique_ptr<rdma::Endpoint>> NewEndpoint(const PairOptions& options,
                                                            bool tells) {
  if (options.transport == "shm") return rdma::NewShmEndpoint();
  if (options.transport == "verbs") {
    rdma::VerbsOptions verbs;
    verbs.device = options.device;
    if (tells) {
      verbs.log = [](const std::string& line) { std::fprintf(stderr, "lane: %s\n", line.c_str()); };
    }
    return rdma::NewVerbsEndpoint(verbs);
  }
  if (options.transport == "ofi") {
    rdma::OfiOptions ofi;
    ofi.provider = options.provider;
    ofi.address = "127.0.0.1";
    return rdma::NewOfiEndpoint(ofi);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--transport is ", options.transport, "; allowed: shm, verbs, ofi"));
}

void FillPayload(std::byte* to, size_t bytes, uint32_t seed) {
  for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
    const uint32_t word = Word(at, seed);
    std::memcpy(to + at, &word, sizeof word);
  }
}

bool IsPayload(const std::byte* data, size_t bytes, uint32_t seed) {
  for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
    const uint32_t word = Word(at, seed);
    if (std::memcmp(data + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<ShardSide>> ShardSide::Start(const PairOptions& options,
                                                            rdma::LaneTicket* ticket) {
  std::unique_ptr<ShardSide> side(new ShardSide(options, *ticket));
  std::promise<absl::StatusOr<std::string>> promise;
  auto address = promise.get_future();
  side->thread_ =
      std::thread([raw = side.get(), p = std::move(promise)]() mutable { raw->Run(std::move(p)); });
  auto listening = address.get();
  if (!listening.ok()) return listening.status();
  ticket->address = *listening;
  return side;
}

ShardSide::ShardSide(const PairOptions& options, const rdma::LaneTicket& ticket)
    : options_(options), ticket_(ticket) {}

ShardSide::~ShardSide() {
  stop_.store(true, std::memory_order_release);
  if (thread_.joinable()) thread_.join();
}

absl::Status ShardSide::Failure() const {
  return failed_.load(std::memory_order_acquire) ? failure_ : absl::OkStatus();
}

void ShardSide::Fail(const absl::Status& status) {
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = absl::Status(status.code(), absl::StrCat("shard's side: ", status.message()));
  failed_.store(true, std::memory_order_release);
}

absl::StatusOr<std::string> ShardSide::Prepare() {
  if (options_.placed) PinToCpu(1);
  auto endpoint = NewEndpoint(options_, false);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = *std::move(endpoint);
  const size_t bytes = size_t{options_.bytes} * options_.depth;
  auto block = endpoint_->Allocate(bytes, "bench-source");
  if (!block.ok()) return block.status();
  source_ = *std::move(block);
  if (absl::Status status = endpoint_->Register(source_); !status.ok()) return status;
  for (uint32_t i = 0; i < options_.depth; ++i) {
    FillPayload(source_->data() + size_t{i} * options_.bytes, options_.bytes, kPullSeed);
  }
  return endpoint_->Listen();
}

void ShardSide::Run(std::promise<absl::StatusOr<std::string>> address) {
  auto listening = Prepare();
  const bool ok = listening.ok();
  address.set_value(std::move(listening));
  Waiter waiter(endpoint_.get(), options_.spin_us);
  bool events = true;
  while (ok && !stop_.load(std::memory_order_relaxed)) {
    if (Look(events)) {
      waiter.Worked();
      events = false;
    } else {
      waiter.Idle();
      events = true;
    }
  }
  // In the thread that they belong to.
  lane_.reset();
  source_.reset();
  endpoint_.reset();
}

// Whether there was anything to do.
bool ShardSide::Look(bool events) {
  bool worked = false;
  if (events) {
    rdma::ConnectionEvent found[kBatch];
    const size_t count = endpoint_->PollEvents(absl::MakeSpan(found));
    for (size_t i = 0; i < count; ++i) OnEvent(found[i]);
    worked = count > 0;
  }
  rdma::Completion completions[kBatch];
  const size_t count = endpoint_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < count && lane_ != nullptr; ++i) {
    written_.clear();
    if (lane_->OnCompletion(completions[i], &arrival_, &written_)) OnArrival(arrival_);
  }
  if (lane_ != nullptr) {
    lane_->RunOnce();
    if (lane_->state() >= rdma::ShardLane::State::kClosing) Fail(lane_->error());
  }
  return worked || count > 0;
}

void ShardSide::OnEvent(const rdma::ConnectionEvent& event) {
  if (event.kind != rdma::ConnectionEvent::Kind::kRequest) {
    if (lane_ != nullptr && lane_->connection() == event.connection) lane_->OnEvent(event);
    return;
  }
  const auto hello = ParseHello(event.private_data);
  if (!hello.ok() || lane_ != nullptr) {
    return endpoint_->Reject(event.connection, "not the lane that is measured");
  }
  auto lane = rdma::ShardLane::Accept(endpoint_.get(), event.connection, *hello,
                                      {.lane = ticket_.lane,
                                       .generation = ticket_.generation,
                                       .incarnation = ticket_.incarnation,
                                       .config = ticket_.config});
  if (!lane.ok()) return Fail(lane.status());
  lane_ = *std::move(lane);
}

void ShardSide::OnArrival(const rdma::ShardLane::Arrival& arrival) {
  rdma::ShardLane::Answer answer;
  answer.operation = arrival.record.header.operation;
  answer.return_slot = true;
  answer.slot = arrival.slot;
  answer.version = arrival.record.header.min_version;
  if (arrival.record.header.type == RecordType::kPush) {
    if (expecting_.load(std::memory_order_acquire) &&
        (arrival.payload.size() != options_.bytes ||
         !IsPayload(arrival.payload.data(), arrival.payload.size(), kPushSeed))) {
      mismatches_.fetch_add(1, std::memory_order_release);
    }
    return lane_->SendReply(answer);
  }
  const std::byte* const data = source_->data() + size_t{next_area_} * options_.bytes;
  next_area_ = (next_area_ + 1) % options_.depth;
  lane_->WriteAndReply({data, options_.bytes, source_.get()},
                       {arrival.record.header.destination, arrival.record.header.destination_key},
                       0, answer);
}

}  // namespace verbena::bench
