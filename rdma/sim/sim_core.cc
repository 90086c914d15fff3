#include "rdma/sim/sim_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/failpoints.h"
#include "rdma/sim/sim_endpoint.h"

namespace verbena::rdma {
namespace {

using State = SimSide::State;

absl::Status Lost(std::string_view why) {
  return absl::UnavailableError(absl::StrCat("sim: connection lost: ", std::string(why)));
}

}  // namespace

bool SimWrite::AllRead() const {
  return std::all_of(pieces.begin(), pieces.end(), [](const SimPiece& p) { return p.read; });
}

bool SimWrite::AllLanded() const {
  return std::all_of(pieces.begin(), pieces.end(), [](const SimPiece& p) { return p.landed; });
}

bool SimWrite::Overlaps(const SimWrite& other) const {
  return remote.address < other.remote.address + other.total &&
         other.remote.address < remote.address + total;
}

// ---- time and chance ----------------------------------------------------------------------------

uint64_t SimCore::Random() {  // SplitMix64 (Steele, Lea, Flood 2014): the same on every platform
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

int64_t SimCore::Between(int64_t low, int64_t high) {
  if (high <= low) return low;
  return low + static_cast<int64_t>(Random() % static_cast<uint64_t>(high - low + 1));
}

bool SimCore::Chance(double probability) {
  if (probability <= 0) return false;
  return static_cast<double>(Random() >> 11) * 0x1.0p-53 < probability;
}

void SimCore::At(int64_t time, std::function<void()> what) {
  Event event;
  event.call = std::move(what);
  At(time, std::move(event));
}

void SimCore::At(int64_t time, Event event) {
  size_t place = events_.size();
  if (free_places_.empty()) {
    events_.push_back(std::move(event));
  } else {
    place = free_places_.back();
    free_places_.pop_back();
    events_[place] = std::move(event);
  }
  due_.push({std::max(time, now()), next_event_++, place});
}

void SimCore::Run(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kCall:
      return event.call();
    case Event::Kind::kRead:
      return Read(event.link, event.side, event.write, event.piece);
    case Event::Kind::kLand:
      return Land(event.link, event.side, event.write, event.piece);
    case Event::Kind::kReceive:
      return ReportReceive(event.link, event.side, event.write);
    case Event::Kind::kEffect:
      return TakeEffect(event.link, event.side, event.write);
    case Event::Kind::kSent:
      return CompleteSend(event.link, event.side, event.write);
  }
}

bool SimCore::Advance(int64_t limit_ns) {
  if (due_.empty() || due_.top().time > limit_ns) {
    clock_.Set(std::max(now(), limit_ns));
    return false;
  }
  clock_.Set(due_.top().time);
  while (!due_.empty() && due_.top().time <= now()) {
    const size_t place = due_.top().place;
    due_.pop();
    // Its place may be taken, or move, while it runs.
    const Event event = std::move(events_[place]);
    free_places_.push_back(place);
    Run(event);
  }
  return true;
}

// ---- hosts --------------------------------------------------------------------------------------
uint32_t SimCore::AddEndpoint(SimEndpoint* endpoint) {
  endpoints_[next_endpoint_] = endpoint;
  return next_endpoint_++;
}

void SimCore::Crash(const std::string& host) {
  for (const auto& [number, endpoint] : endpoints_) {
    if (endpoint->host() != host || endpoint->crashed()) continue;
    for (const auto& [id, entry] : endpoint->connections()) {
      SimSide& mine = entry.mine();
      mine.state = State::kEnded;
      mine.receives = mine.taken = 0;
      mine.lingering = false;
      mine.sends.clear();
      mine.exposed.clear();
      Break(entry.link, Lost("the peer is gone"));
    }
    endpoint->MarkCrashed();
  }
}

void SimCore::Cut(const std::string& host, bool cut) {
  if (!cut) {
    cut_.erase(host);
    return;
  }
  cut_.insert(host);
  for (const auto& [number, endpoint] : endpoints_) {
    if (endpoint->host() != host) continue;
    for (const auto& [id, entry] : endpoint->connections()) {
      if (entry.mine().state != State::kCreated) Break(entry.link, Lost("network cut"));
    }
  }
}

int64_t SimCore::Moves(const std::string& host) {
  const auto stalled = stalled_.find(host);
  const auto slow = slow_.find(host);
  return (stalled == stalled_.end() ? now() : std::max(now(), stalled->second)) +
         (slow == slow_.end() ? 0 : Between(0, slow->second));
}

void SimCore::Hang(const std::string& host) {
  for (const auto& [number, endpoint] : endpoints_) {
    if (endpoint->host() != host) continue;
    for (const auto& [id, entry] : endpoint->connections()) entry.mine().hung = true;
  }
}

// ---- connecting ---------------------------------------------------------------------------------

void SimCore::Connect(const LinkPtr& link, const std::string& address, std::string private_data) {
  At(now() + faults_.connect_timeout_ns, [this, link] {
    if (link->sides[0].state == State::kConnecting) {
      Break(link, absl::DeadlineExceededError("sim: the peer did not answer"));
    }
  });
  if (Chance(faults_.connect_failure)) {
    // Half of the failures come after the peer has accepted: the peer then has a connection that is
    // lost.
    link->fail_after_accept = Chance(0.5);
    if (!link->fail_after_accept) {
      Break(link, absl::UnavailableError(absl::StrCat("sim: cannot reach ", address)));
      return;
    }
  }
  int64_t leaves = Moves(link->sides[0].host);
  if (const auto it = listeners_.find(address); it != listeners_.end()) {
    leaves = std::max(leaves, Moves(it->second->host()));
  }
  At(leaves + Delay(), [this, link, address, data = std::move(private_data)]() mutable {
    ArriveRequest(link, address, std::move(data));
  });
}

void SimCore::ArriveRequest(const LinkPtr& link, const std::string& address,
                            std::string private_data) {
  if (link->broken || link->sides[0].state != State::kConnecting) return;
  const auto it = listeners_.find(address);
  if (it == listeners_.end()) {
    Break(link, absl::UnavailableError(absl::StrCat("sim: nothing listens at ", address)));
  } else if (cut_.count(it->second->host()) > 0 || cut_.count(link->sides[0].host) > 0) {
    Break(link, absl::UnavailableError(absl::StrCat("sim: cannot reach ", address)));
  } else {
    it->second->AddRequest(link, std::move(private_data));
  }
}

void SimCore::Accept(const LinkPtr& link) {
  link->sides[1].state = State::kAccepting;
  for (int side : {0, 1}) {
    const int64_t at = now() + Delay();
    link->sides[side].established_at = at;
    if (side == 0 && link->fail_after_accept) {
      At(at, [this, link] { Break(link, Lost("connecting failed late")); });
    } else {
      At(at, [this, link, side] { Establish(link, side); });
    }
  }
}

void SimCore::Establish(const LinkPtr& link, int index) {
  SimSide& side = link->sides[index];
  const State expected = index == 0 ? State::kConnecting : State::kAccepting;
  if (link->broken || side.state != expected) return;
  side.state = State::kEstablished;
  side.endpoint->Push(ConnectionEvent{ConnectionEvent::Kind::kEstablished, side.id, {}, {}});
}

void SimCore::Reject(const LinkPtr& link, const std::string& reason) {
  End(link, 1);
  Break(link, absl::FailedPreconditionError(absl::StrCat("the peer refused: ", reason)));
}

// ---- writing ------------------------------------------------------------------------------------
void SimCore::Post(const LinkPtr& link, int side, const WriteRequest& request, uint64_t total) {
  auto write = std::make_shared<SimWrite>();
  write->wr_id = request.wr_id;
  write->signaled = request.signaled;
  write->immediate = request.immediate;
  write->wakes = request.wakes;
  write->remote = request.remote;
  write->total = total;
  for (const Segment& segment : request.segments) {
    if (segment.bytes == 0) continue;
    write->sources.push_back({segment.block->weak_from_this(), segment.data, segment.bytes});
  }
  CutIntoPieces(write.get());
  Schedule(link, side, write);
  if (!link->sides[side].missed.ok()) {
    At(now() + Delay(), [this, link, side] { Learn(link, side, link->sides[side].missed); });
  }
  if (Chance(faults_.connection_loss)) {
    At(Between(now(), write->effect_at), [this, link] { Break(link, Lost("injected")); });
  }
}

void SimCore::CutIntoPieces(SimWrite* write) {
  if (write->total == 0) return;
  write->payload = std::make_unique_for_overwrite<std::byte[]>(write->total);
  absl::InlinedVector<uint64_t, 8> cuts = {0};
  const int64_t count = Between(1, std::max(1, faults_.max_pieces));
  for (int64_t i = 1; i < count; ++i) {
    cuts.push_back(static_cast<uint64_t>(Between(0, static_cast<int64_t>(write->total) - 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i < cuts.size(); ++i) {
    SimPiece piece;
    piece.offset = cuts[i];
    piece.bytes = (i + 1 < cuts.size() ? cuts[i + 1] : write->total) - cuts[i];
    write->pieces.push_back(piece);
  }
}

void SimCore::Schedule(const LinkPtr& link, int side, const WritePtr& write) {
  SimSide& source = link->sides[side];
  const SimSide& target = link->sides[1 - side];
  int64_t start = std::max({target.established_at, Moves(source.host), Moves(target.host)});
  // Different writes land interleaved, except where they touch the same bytes.
  for (const WritePtr& earlier : source.inflight) {
    if (write->Overlaps(*earlier)) start = std::max(start, earlier->effect_at);
  }
  write->effect_at = std::max(source.last_effect_at, start + Delay());
  source.last_effect_at = write->effect_at;
  source.sends.push_back(write);
  source.inflight.push_back(write);
  if (source.hung) return;

  // In half of the cases all data is read and reported as sent long before it arrives, as a NIC
  // does with a payload that fits its buffers.
  const bool early = Chance(0.5);
  const int64_t read_by = early ? start + (write->effect_at - start) / 8 : write->effect_at;
  int64_t last_read = start;
  for (size_t i = 0; i < write->pieces.size(); ++i) {
    const int64_t read_at = Between(start, read_by);
    const int64_t land_at = Between(read_at, write->effect_at);
    last_read = std::max(last_read, read_at);
    At(read_at, {Event::Kind::kRead, side, i, link, write, {}});
    At(land_at, {Event::Kind::kLand, side, i, link, write, {}});
  }
  const int64_t sent_at = std::max(
      source.last_sent_at,
      Between(last_read, last_read + (early ? faults_.max_delay_ns / 8 : faults_.max_delay_ns)));
  source.last_sent_at = sent_at;
  if (write->immediate.has_value() && VERBENA_FAILPOINT(rdma, act_on_send_completion)) {
    At(std::min(sent_at, write->effect_at), {Event::Kind::kReceive, side, 0, link, write, {}});
  }
  At(write->effect_at, {Event::Kind::kEffect, side, 0, link, write, {}});
  At(sent_at, {Event::Kind::kSent, side, 0, link, write, {}});
}

void SimCore::Read(const LinkPtr& link, int side, const WritePtr& write, size_t index) {
  if (link->sides[side].state != State::kEstablished) return;
  SimPiece& piece = write->pieces[index];
  uint64_t position = 0;  // of the source in the payload
  size_t done = 0;
  for (const SimWrite::Source& source : write->sources) {
    const uint64_t from = std::max(position, piece.offset);
    const uint64_t to = std::min<uint64_t>(position + source.bytes, piece.offset + piece.bytes);
    if (from < to) {
      const std::shared_ptr<const MemoryBlock> block = source.block.lock();
      const std::byte* bytes =
          block == nullptr ? nullptr : BytesAt(*block, source.data + (from - position));
      if (bytes == nullptr) {
        FailWrite(link, side, write, absl::InternalError("sim: local memory was freed too early"));
        return;
      }
      std::memcpy(write->payload.get() + piece.offset + done, bytes, to - from);
      done += to - from;
    }
    position += source.bytes;
  }
  piece.read = true;
}

std::byte* SimCore::BytesAt(const MemoryBlock& block, const std::byte* address) const {
  if (block.kind() == MemoryKind::kCuda) return device_memory_(address);
  return const_cast<std::byte*>(address);
}

const SimExposed* SimCore::Lookup(const SimSide& target, const SimWrite& write) const {
  const auto it = target.exposed.find(write.remote.key);
  if (it == target.exposed.end()) return nullptr;
  const SimExposed& range = it->second;
  const uint64_t offset = write.remote.address - range.address;
  const bool inside = write.remote.address >= range.address && offset <= range.bytes &&
                      write.total <= range.bytes - offset;
  return inside ? &range : nullptr;
}

void SimCore::Land(const LinkPtr& link, int side, const WritePtr& write, size_t index) {
  SimSide& target = link->sides[1 - side];
  SimPiece& piece = write->pieces[index];
  if (target.state != State::kEstablished && !target.lingering) return;
  if (!piece.read || piece.landed || write->failed) return;
  if (link->broken && now() > target.effect_cutoff && Chance(0.5)) return;
  if (target.lingering && !piece.deferred) {
    piece.deferred = true;
    At(Between(now(), target.dead_at - 1), {Event::Kind::kLand, side, index, link, write, {}});
    return;
  }
  const SimExposed* range = Lookup(target, *write);
  if (range == nullptr) {
    if (target.lingering) return;
    FailWrite(link, side, write,
              absl::InternalError("sim: a write outside the memory the peer exposed"));
    return;
  }
  std::byte* to = range->block->data() + (write->remote.address + piece.offset -
                                          reinterpret_cast<uint64_t>(range->block->data()));
  if (observer_) observer_(target.host, range->block->id(), to, piece.bytes);
  std::byte* const bytes = BytesAt(*range->block, to);
  if (bytes == nullptr) {
    FailWrite(link, side, write, absl::InternalError("sim: the peer's memory was freed too early"));
    return;
  }
  std::memcpy(bytes, write->payload.get() + piece.offset, piece.bytes);
  piece.landed = true;
}

void SimCore::TakeEffect(const LinkPtr& link, int side, const WritePtr& write) {
  SimSide& source = link->sides[side];
  const SimSide& target = link->sides[1 - side];
  if (target.state != State::kEstablished || write->failed) return;
  if (link->broken && now() > target.effect_cutoff) return;
  // In order: a write that has not arrived in full blocks all later ones permanently.
  if (source.inflight.front() != write || !write->AllLanded()) return;
  source.inflight.pop_front();
  if (write->immediate.has_value()) ReportReceive(link, side, write);
}

void SimCore::ReportReceive(const LinkPtr& link, int side, const WritePtr& write) {
  SimSide& target = link->sides[1 - side];
  if (write->receive_reported || target.state != State::kEstablished || write->failed) return;
  if (!TakeReceive(link, side, write)) return;
  write->receive_reported = true;
  --target.taken;
  Completion completion;
  completion.connection = target.id;
  completion.kind = Completion::Kind::kReceive;
  completion.immediate = *write->immediate;
  target.endpoint->Push(completion, write->wakes);
}

void SimCore::WakePeer(const LinkPtr& link, int side, Wakes wakes) {
  SimSide& source = link->sides[side];
  const SimSide& target = link->sides[1 - side];
  if (!source.inflight.empty()) {
    source.inflight.back()->wakes = wakes;
  } else if (target.endpoint != nullptr) {
    target.endpoint->Wake(wakes);
  }
}

bool SimCore::TakeReceive(const LinkPtr& link, int side, const WritePtr& write) {
  if (write->receive_taken) return true;
  SimSide& target = link->sides[1 - side];
  if (target.receives == 0) {
    ++receiver_not_ready_;
    FailWrite(link, side, write,
              absl::InternalError("sim: the receiver has no receive posted (receiver not ready)"));
    return false;
  }
  write->receive_taken = true;
  --target.receives;
  ++target.taken;
  return true;
}

void SimCore::CompleteSend(const LinkPtr& link, int side, const WritePtr& write) {
  SimSide& source = link->sides[side];
  if (source.state != State::kEstablished || write->failed) return;
  if (link->broken && now() > source.send_cutoff) return;
  if (source.sends.empty()) return;
  // Acknowledged means that the peer's device has matched the write with a receive; in order.
  const SimSide& target = link->sides[1 - side];
  const WritePtr first = source.sends.front();
  const bool unmatched = write->immediate.has_value() && !write->receive_taken &&
                         target.state == State::kEstablished && target.receives == 0;
  if (first != write || unmatched) {
    if (now() >= first->effect_at) return;
    At(first->effect_at, {Event::Kind::kSent, side, 0, link, write, {}});
    return;
  }
  if (!write->AllRead()) return;
  // A write with a key that the peer never exposed is never acknowledged, even if it is refused
  // soon.
  if (write->total > 0 && !write->AllLanded() && Lookup(link->sides[1 - side], *write) == nullptr) {
    return;
  }
  if (write->immediate.has_value() && target.state == State::kEstablished &&
      !TakeReceive(link, side, write)) {
    return;
  }
  source.sends.pop_front();
  if (!write->signaled) return;
  Completion completion;
  completion.connection = source.id;
  completion.wr_id = write->wr_id;
  source.endpoint->Push(completion);
}

// ---- ending -------------------------------------------------------------------------------------

void SimCore::FailWrite(const LinkPtr& link, int side, const WritePtr& write,
                        const absl::Status& status) {
  const SimSide& source = link->sides[side];
  write->failed = std::find(source.sends.begin(), source.sends.end(), write) != source.sends.end();
  Break(link, status);
}

void SimCore::Break(const LinkPtr& link, const absl::Status& status) {
  if (link->broken) return;
  link->broken = true;
  for (int i : {0, 1}) {
    SimSide& side = link->sides[i];
    if (side.state == State::kEnded || side.endpoint == nullptr) continue;
    const int64_t learn_at = now() + Delay();
    side.effect_cutoff = Between(now(), learn_at);
    side.send_cutoff = Between(now(), learn_at);
    if (side.state == State::kEstablished && side.sends.empty() && Chance(faults_.missed_loss)) {
      side.missed = status;
      continue;
    }
    At(learn_at, [this, link, i, status] { Learn(link, i, status); });
  }
}

void SimCore::Learn(const LinkPtr& link, int index, const absl::Status& status) {
  SimSide& side = link->sides[index];
  if (side.state == State::kEnded || side.endpoint == nullptr) return;
  const bool established = side.state == State::kEstablished;
  const bool known = std::any_of(side.sends.begin(), side.sends.end(),
                                 [](const WritePtr& w) { return w->failed; });
  if (!known && !side.sends.empty()) side.sends.front()->failed = true;
  End(link, index);
  side.endpoint->Push(
      ConnectionEvent{established ? ConnectionEvent::Kind::kLost : ConnectionEvent::Kind::kFailed,
                      side.id,
                      {},
                      status});
}

void SimCore::End(const LinkPtr& link, int index) {
  SimSide* const side = &link->sides[index];
  if (side->state == State::kEstablished && faults_.max_death_delay_ns > 0) {
    side->lingering = true;
    side->dead_at = now() + Between(1, faults_.max_death_delay_ns);
    At(side->dead_at, [link, side] {
      side->lingering = false;
      if (side->endpoint == nullptr) return side->exposed.clear();
      side->endpoint->Notify();
    });
  }
  Completion completion;
  completion.connection = side->id;
  completion.ok = false;
  for (const WritePtr& write : side->sends) {
    completion.wr_id = write->wr_id;
    completion.flushed = !write->failed;
    side->endpoint->Push(completion);
  }
  side->sends.clear();
  completion.kind = Completion::Kind::kReceive;
  completion.flushed = true;
  completion.wr_id = 0;
  for (side->receives += std::exchange(side->taken, 0); side->receives > 0; --side->receives) {
    side->endpoint->Push(completion);
  }
  side->state = State::kEnded;
}

bool SimCore::RefusesExpose(uint32_t endpoint) {
  if (!Chance(faults_.expose_refusal)) return false;
  At(now() + Delay(), [this, endpoint] {
    const auto it = endpoints_.find(endpoint);
    if (it != endpoints_.end()) it->second->Notify();
  });
  return true;
}

void SimCore::Close(const LinkPtr& link, int index) {
  SimSide& side = link->sides[index];
  side.closed = true;
  if (side.state == State::kEnded) return;
  End(link, index);
  Break(link, Lost("the peer closed it"));
}

}  // namespace verbena::rdma
