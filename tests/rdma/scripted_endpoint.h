// An endpoint with no peer: it records the calls of a lane, and the test plays the other side.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_SCRIPTED_ENDPOINT_H_
#define VERBENA_TESTS_RDMA_SCRIPTED_ENDPOINT_H_

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/transport.h"

namespace verbena::rdma {

class ScriptedEndpoint final : public Endpoint {
 public:
  static constexpr ConnectionId kConnection{7};

  struct Write {
    uint64_t wr_id = 0;
    std::vector<size_t> segment_bytes;
    std::vector<std::byte> bytes;  // of all segments, as they were when posted
    RemoteMemory remote;
    bool has_immediate = false;
    uint32_t immediate = 0;
    bool signaled = true;
    bool more = false;
    Wakes wakes = Wakes::kPeer;
  };

  // ---- calls of the lane ----
  std::vector<Write> writes;
  std::vector<Wakes> woken;                           // by WakePeer()
  std::vector<std::shared_ptr<MemoryBlock>> exposed;  // in order
  std::vector<std::pair<size_t, size_t>> ranges;      // of these: offset, bytes
  size_t unexposed = 0;
  std::string private_data;
  uint32_t receives = 0;  // posted and not consumed by Receive()
  bool closed = false;
  bool rejected = false;
  bool destroyed = false;
  // ---- set by the test ----
  bool dead_after_close = true;
  absl::Status next_write;  // returned by the next PostWrite() unless OK
  ExposurePieces pieces;    // SIZE_MAX: by most_exposed
  size_t most_exposed = SIZE_MAX;

  // Consumes a receive, as a peer's write with immediate does.
  Completion Receive(uint32_t immediate) {
    --receives;
    Completion completion;
    completion.connection = kConnection;
    completion.kind = Completion::Kind::kReceive;
    completion.immediate = immediate;
    return completion;
  }
  static Completion Sent(const Write& write, bool ok = true) {
    Completion completion;
    completion.connection = kConnection;
    completion.ok = ok;
    completion.flushed = !ok;
    completion.wr_id = write.wr_id;
    return completion;
  }
  static ConnectionEvent Event(ConnectionEvent::Kind kind, absl::Status status = {}) {
    return {kind, kConnection, "", std::move(status)};
  }

  std::string_view transport() const override { return "scripted"; }
  absl::StatusOr<std::string> Listen() override { return "scripted"; }
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits&) override { return kConnection; }
  absl::StatusOr<RemoteMemory> Expose(ConnectionId, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override {
    ranges.emplace_back(offset, bytes);
    const uint64_t address = reinterpret_cast<uint64_t>(block->data()) + offset;
    exposed.push_back(std::move(block));
    return RemoteMemory{address, exposed.size()};
  }
  void Unexpose(ConnectionId, const RemoteMemory&) override { ++unexposed; }
  size_t max_exposure() const override { return most_exposed; }
  ExposurePieces exposure_pieces() const override {
    return pieces.bytes == SIZE_MAX ? Endpoint::exposure_pieces() : pieces;
  }
  absl::Status Connect(ConnectionId, const std::string&, std::string_view data) override {
    private_data = data;
    return absl::OkStatus();
  }
  absl::Status Prepare(ConnectionId, const ConnectionLimits&) override { return absl::OkStatus(); }
  absl::Status Accept(ConnectionId) override { return absl::OkStatus(); }
  void Reject(ConnectionId, std::string_view) override { rejected = true; }
  absl::Status PostReceives(ConnectionId, uint32_t count) override {
    receives += count;
    return absl::OkStatus();
  }
  absl::Status PostWrite(ConnectionId, const WriteRequest& request) override {
    if (!next_write.ok()) return std::exchange(next_write, absl::OkStatus());
    if (closed) return absl::FailedPreconditionError("closed");
    Write write;
    write.wr_id = request.wr_id;
    for (const Segment& segment : request.segments) {
      write.segment_bytes.push_back(segment.bytes);
      write.bytes.insert(write.bytes.end(), segment.data, segment.data + segment.bytes);
    }
    write.remote = request.remote;
    write.has_immediate = request.immediate.has_value();
    write.immediate = request.immediate.value_or(0);
    write.signaled = request.signaled;
    write.more = request.more;
    write.wakes = request.wakes;
    writes.push_back(std::move(write));
    return absl::OkStatus();
  }
  size_t Poll(absl::Span<Completion>) override { return 0; }
  size_t PollEvents(absl::Span<ConnectionEvent>) override { return 0; }
  void Close(ConnectionId) override { closed = true; }
  bool Dead(ConnectionId) const override { return closed && dead_after_close; }
  void Destroy(ConnectionId) override { destroyed = true; }
  void AppendDescriptors(std::vector<int>*) const override {}
  bool Arm(SleepUntil) override { return true; }
  void WakePeer(ConnectionId, Wakes wakes) override { woken.push_back(wakes); }
  void Disarm() override {}
};

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_SCRIPTED_ENDPOINT_H_
