#include "rdma/sim/sim_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

using State = SimSide::State;

absl::Status NoSimConnection(ConnectionId id) {
  return absl::FailedPreconditionError(
      absl::StrCat("sim: no connection ", static_cast<uint32_t>(id)));
}

}  // namespace

SimEndpoint::SimEndpoint(std::shared_ptr<SimCore> core, std::string host)
    : core_(std::move(core)), host_(std::move(host)), number_(core_->AddEndpoint(this)) {}

SimEndpoint::~SimEndpoint() {
  if (!address_.empty()) core_->RemoveListener(address_);
  while (!connections_.empty()) Destroy(connections_.begin()->first);
  core_->RemoveEndpoint(number_);
}

SimEndpoint::Entry* SimEndpoint::Find(ConnectionId connection) {
  const auto it = connections_.find(connection);
  return it == connections_.end() ? nullptr : &it->second;
}

absl::StatusOr<std::string> SimEndpoint::Listen() {
  if (crashed_) return absl::UnavailableError("sim: the process has crashed");
  if (!address_.empty()) return absl::FailedPreconditionError("sim: already listening");
  address_ = absl::StrCat("sim:", host_, "/", number_);
  core_->AddListener(address_, this);
  return address_;
}

absl::StatusOr<ConnectionId> SimEndpoint::Create(const ConnectionLimits& limits) {
  if (crashed_) return absl::UnavailableError("sim: the process has crashed");
  const ConnectionId id{next_id_++};
  auto link = std::make_shared<SimLink>();
  SimSide& side = link->sides[0];
  side.endpoint = this;
  side.host = host_;
  side.id = id;
  side.limits = limits;
  side.prepared = true;
  connections_[id] = Entry{std::move(link), 0};
  return id;
}

void SimEndpoint::AddRequest(std::shared_ptr<SimLink> link, std::string private_data) {
  const ConnectionId id{next_id_++};
  SimSide& side = link->sides[1];
  side.endpoint = this;
  side.host = host_;
  side.id = id;
  side.state = State::kRequested;
  connections_[id] = Entry{std::move(link), 1};
  Push(ConnectionEvent{ConnectionEvent::Kind::kRequest, id, std::move(private_data), {}});
}

absl::StatusOr<RemoteMemory> SimEndpoint::Expose(ConnectionId connection,
                                                 std::shared_ptr<MemoryBlock> block, size_t offset,
                                                 size_t bytes) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  if (entry->mine().closed) {
    return absl::FailedPreconditionError("sim: the connection is closed");
  }
  if (entry->mine().state == State::kEnded) {
    return absl::UnavailableError("sim: the connection has ended");
  }
  if (block == nullptr || bytes == 0 || offset > block->size() || bytes > block->size() - offset) {
    return absl::InvalidArgumentError("sim: the range to expose is not within a block");
  }
  if (entry->mine().state == State::kEstablished && core_->RefusesExpose(number_)) {
    return absl::UnavailableError("sim: memory cannot be exposed to the peer now");
  }
  const uint64_t key = core_->NextKey();
  const uint64_t address = reinterpret_cast<uint64_t>(block->data() + offset);
  entry->mine().exposed[key] = SimExposed{std::move(block), address, bytes};
  return RemoteMemory{address, key};
}

void SimEndpoint::Unexpose(ConnectionId connection, const RemoteMemory& memory) {
  if (Entry* entry = Find(connection)) entry->mine().exposed.erase(memory.key);
}

absl::Status SimEndpoint::Connect(ConnectionId connection, const std::string& address,
                                  std::string_view private_data) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  if (private_data.size() > kMaxPrivateData) {
    return absl::InvalidArgumentError(
        absl::StrCat("private data of ", private_data.size(), " bytes; at most ", kMaxPrivateData));
  }
  if (entry->side != 0 || entry->mine().state != State::kCreated) {
    return absl::FailedPreconditionError("sim: connecting twice");
  }
  entry->mine().state = State::kConnecting;
  core_->Connect(entry->link, address, std::string(private_data));
  return absl::OkStatus();
}

absl::Status SimEndpoint::Prepare(ConnectionId connection, const ConnectionLimits& limits) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  if (entry->mine().state != State::kRequested || entry->mine().prepared) {
    return absl::FailedPreconditionError("sim: there is no request to prepare");
  }
  entry->mine().limits = limits;
  entry->mine().prepared = true;
  return absl::OkStatus();
}

absl::Status SimEndpoint::Accept(ConnectionId connection) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  if (entry->mine().state != State::kRequested || !entry->mine().prepared) {
    return absl::FailedPreconditionError("sim: there is no prepared request to accept");
  }
  core_->Accept(entry->link);
  return absl::OkStatus();
}

void SimEndpoint::Reject(ConnectionId connection, std::string_view reason) {
  Entry* entry = Find(connection);
  if (entry == nullptr || entry->side != 1) return;
  if (entry->mine().state == State::kRequested) core_->Reject(entry->link, std::string(reason));
  Destroy(connection);
}

absl::Status SimEndpoint::PostReceives(ConnectionId connection, uint32_t count) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  SimSide& side = entry->mine();
  if (side.state == State::kEnded || !side.prepared) {
    return absl::FailedPreconditionError("sim: the connection takes no receives");
  }
  if (uint64_t{side.receives} + side.taken + count > side.limits.receive_depth) {
    return absl::ResourceExhaustedError(absl::StrCat("sim: ", side.receives, " receives posted, ",
                                                     count, " more exceed the depth of ",
                                                     side.limits.receive_depth));
  }
  side.receives += count;
  return absl::OkStatus();
}

absl::Status SimEndpoint::CheckSegments(const WriteRequest& request, uint64_t* total) const {
  if (request.segments.size() > kMaxSegments) {
    return absl::InvalidArgumentError("sim: too many segments");
  }
  *total = 0;
  for (const Segment& segment : request.segments) {
    if (segment.bytes == 0) continue;
    if (!WithinBlock(segment)) {
      return absl::InvalidArgumentError("sim: a segment lies outside its block");
    }
    *total += segment.bytes;
  }
  return absl::OkStatus();
}

absl::Status SimEndpoint::PostWrite(ConnectionId connection, const WriteRequest& request) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return NoSimConnection(connection);
  SimSide& side = entry->mine();
  if (side.state != State::kEstablished) {
    return absl::FailedPreconditionError("sim: the connection is not established");
  }
  uint64_t total = 0;
  if (absl::Status status = CheckSegments(request, &total); !status.ok()) return status;
  if (side.sends.size() >= side.limits.send_depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("sim: the send queue of ", side.limits.send_depth, " is full"));
  }
  WriteRequest weighed = request;
  weighed.wakes = Weighed(connection, request.wakes);
  core_->Post(entry->link, entry->side, weighed, total);
  return absl::OkStatus();
}

Wakes SimEndpoint::Weighed(ConnectionId connection, Wakes wakes) const {
  if (wakes != Wakes::kPeerAtLast) return wakes;
  const bool more = std::any_of(completions_.begin(), completions_.end(), [&](const Completion& c) {
    return c.connection == connection && c.kind == Completion::Kind::kReceive;
  });
  return more ? Wakes::kImpatientPeer : wakes;
}

void SimEndpoint::WakePeer(ConnectionId connection, Wakes wakes) {
  Entry* entry = Find(connection);
  if (entry == nullptr || entry->mine().state != State::kEstablished) return;
  core_->WakePeer(entry->link, entry->side, Weighed(connection, wakes));
}

bool SimEndpoint::Arm(SleepUntil until) {
  if (!completions_.empty() || !events_.empty()) return false;
  sleep_ = until;
  woken_ = slept_through_ = false;
  return true;
}

bool SimEndpoint::WakeOnAnything() {
  if (sleep_.has_value()) sleep_ = SleepUntil::kAnything;
  return completions_.empty() && events_.empty();
}

size_t SimEndpoint::Poll(absl::Span<Completion> out) {
  news_ = false;
  size_t count = 0;
  for (auto it = completions_.begin(); it != completions_.end() && count < out.size();) {
    const Entry* entry = Find(it->connection);
    // Held until the owner has seen kEstablished; earlier failures are reported at once.
    const bool held = it->ok && entry != nullptr && !entry->mine().reported &&
                      entry->mine().state == State::kEstablished;
    if (held) {
      ++it;
      continue;
    }
    out[count++] = *it;
    it = completions_.erase(it);
  }
  return count;
}

size_t SimEndpoint::PollEvents(absl::Span<ConnectionEvent> out) {
  size_t count = 0;
  while (count < out.size() && !events_.empty()) {
    out[count] = std::move(events_.front());
    events_.pop_front();
    if (out[count].kind == ConnectionEvent::Kind::kEstablished) {
      if (Entry* entry = Find(out[count].connection)) entry->mine().reported = true;
    }
    ++count;
  }
  return count;
}

void SimEndpoint::Close(ConnectionId connection) {
  if (Entry* entry = Find(connection)) {
    core_->Close(entry->link, entry->side);
    // Drops the events of a connection that its owner has closed.
    events_.erase(
        std::remove_if(events_.begin(), events_.end(),
                       [&](const ConnectionEvent& e) { return e.connection == connection; }),
        events_.end());
  }
}

bool SimEndpoint::Dead(ConnectionId connection) const {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return true;
  const SimSide& side = it->second.mine();
  return side.state == State::kEnded && !side.lingering;
}

void SimEndpoint::Destroy(ConnectionId connection) {
  Entry* entry = Find(connection);
  if (entry == nullptr) return;
  Close(connection);
  if (!entry->mine().lingering) entry->mine().exposed.clear();
  entry->mine().endpoint = nullptr;
  completions_.erase(
      std::remove_if(completions_.begin(), completions_.end(),
                     [&](const Completion& c) { return c.connection == connection; }),
      completions_.end());
  connections_.erase(connection);
}

void SimEndpoint::MarkCrashed() {
  crashed_ = true;
  if (!address_.empty()) core_->RemoveListener(address_);
  completions_.clear();
  events_.clear();
}

}  // namespace verbena::rdma
