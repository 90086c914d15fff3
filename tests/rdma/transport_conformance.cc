#include "tests/rdma/transport_conformance.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace verbena::rdma {

void Party::Poll() {
  Completion batch[7];  // small and odd: batches end in the middle of things
  size_t count;
  do {
    count = endpoint->Poll(absl::MakeSpan(batch));
    completions.insert(completions.end(), batch, batch + count);
  } while (count == 7);
}

void Party::PollEvents() {
  ConnectionEvent batch[3];
  size_t count;
  do {
    count = endpoint->PollEvents(absl::MakeSpan(batch));
    for (size_t i = 0; i < count; ++i) events.push_back(std::move(batch[i]));
  } while (count == 3);
}

int Party::Count(ConnectionEvent::Kind kind, ConnectionId id) const {
  return static_cast<int>(std::count_if(
      events.begin(), events.end(),
      [&](const ConnectionEvent& e) { return e.kind == kind && e.connection == id; }));
}

const ConnectionEvent* Party::Find(ConnectionEvent::Kind kind) const {
  for (const ConnectionEvent& e : events) {
    if (e.kind == kind) return &e;
  }
  return nullptr;
}

std::vector<Completion> Party::Receives(ConnectionId id) const {
  std::vector<Completion> found;
  for (const Completion& c : completions) {
    if (c.connection == id && c.kind == Completion::Kind::kReceive) found.push_back(c);
  }
  return found;
}

std::vector<Completion> Party::Sends(ConnectionId id) const {
  std::vector<Completion> found;
  for (const Completion& c : completions) {
    if (c.connection == id && c.kind == Completion::Kind::kSend) found.push_back(c);
  }
  return found;
}

std::vector<uint32_t> Party::Immediates(ConnectionId id) const {
  std::vector<uint32_t> found;
  for (const Completion& c : Receives(id)) {
    if (c.ok) found.push_back(c.immediate);
  }
  return found;
}

Party& Stage::Add(const std::string& host) {
  parties_.push_back(std::make_unique<Party>());
  parties_.back()->endpoint = harness_->NewEndpoint(host);
  return *parties_.back();
}

void Stage::Step() {
  harness_->Progress();
  for (const auto& party : parties_) {
    if (party->endpoint == nullptr) continue;
    party->PollEvents();
    party->Poll();
  }
}

bool Stage::Until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    Step();
  }
  return true;
}

void Stage::Settle() {
  for (int i = 0; i < 400; ++i) Step();
}

std::shared_ptr<MemoryBlock> TestBlock(size_t bytes) {
  auto block = MemoryBlock::Allocate(bytes, "test");
  return block.ok() ? *std::move(block) : nullptr;
}

Pair::Pair(Stage* on, const Options& options)
    : stage(on),
      client(on->Add("client")),
      server(on->Add("server")),
      client_block(TestBlock(options.block_bytes)),
      server_block(TestBlock(options.block_bytes)) {
  const auto address = server.endpoint->Listen();
  const auto created = client.endpoint->Create(options.client);
  if (!address.ok() || !created.ok()) return;
  c = *created;
  const auto mine = client.endpoint->Expose(c, client_block, 0, options.block_bytes);
  if (!mine.ok()) return;
  client_memory = *mine;
  if (options.client_receives > 0 &&
      !client.endpoint->PostReceives(c, options.client_receives).ok()) {
    return;
  }
  if (!client.endpoint->Connect(c, *address, "hello").ok()) return;
  if (!stage->Until([&] { return server.Find(ConnectionEvent::Kind::kRequest) != nullptr; })) {
    return;
  }
  s = server.Find(ConnectionEvent::Kind::kRequest)->connection;
  if (!server.endpoint->Prepare(s, options.server).ok()) return;
  const auto theirs = server.endpoint->Expose(s, server_block, 0, options.block_bytes);
  if (!theirs.ok()) return;
  server_memory = *theirs;
  if (options.server_receives > 0 &&
      !server.endpoint->PostReceives(s, options.server_receives).ok()) {
    return;
  }
  if (!server.endpoint->Accept(s).ok()) return;
  established = stage->Until([&] {
    return client.Count(ConnectionEvent::Kind::kEstablished, c) == 1 &&
           server.Count(ConnectionEvent::Kind::kEstablished, s) == 1;
  });
}

absl::Status Pair::Push(size_t offset, uint32_t bytes, std::optional<uint32_t> immediate,
                        uint64_t wr_id, bool signaled) {
  const Segment segment = {client_block->data() + offset, bytes, client_block.get()};
  WriteRequest request;
  request.wr_id = wr_id;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = At(offset);
  request.immediate = immediate;
  request.signaled = signaled;
  return client.endpoint->PostWrite(c, request);
}

void FillPattern(const MemoryBlock& block, size_t offset, size_t bytes, uint8_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    block.data()[offset + i] = static_cast<std::byte>(seed + 31 * i);
  }
}

bool HasPattern(const MemoryBlock& block, size_t offset, size_t bytes, uint8_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (block.data()[offset + i] != static_cast<std::byte>(seed + 31 * i)) return false;
  }
  return true;
}

}  // namespace verbena::rdma
