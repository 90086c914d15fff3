// The conformance suite of rdma/transport.h: the contract of every transport, tested the same way.
//
// A transport joins by adding itself to TransportsUnderTest() (transport_list.cc).
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_TRANSPORT_CONFORMANCE_H_
#define VERBENA_TESTS_RDMA_TRANSPORT_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rdma/transport.h"

namespace verbena::rdma {

// The environment of a transport in a test.
class TransportHarness {
 public:
  virtual ~TransportHarness() = default;
  virtual std::unique_ptr<Endpoint> NewEndpoint(const std::string& host) = 0;
  virtual void Progress() {}  // lets time pass, where it does not by itself
};

struct TransportUnderTest {
  std::string name;
  std::function<std::unique_ptr<TransportHarness>()> make;
};
const std::vector<TransportUnderTest>& TransportsUnderTest();

// A process: an endpoint and everything it has reported.
struct Party {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<Completion> completions;
  std::vector<ConnectionEvent> events;

  void Poll();
  void PollEvents();
  int Count(ConnectionEvent::Kind kind, ConnectionId id) const;
  const ConnectionEvent* Find(ConnectionEvent::Kind kind) const;
  std::vector<Completion> Receives(ConnectionId id) const;
  std::vector<Completion> Sends(ConnectionId id) const;
  std::vector<uint32_t> Immediates(ConnectionId id) const;  // of receives that are ok
};

// Several parties of one transport, moved along together.
class Stage {
 public:
  explicit Stage(const TransportUnderTest& transport) : harness_(transport.make()) {}
  Party& Add(const std::string& host);
  // False when it has not come true for a long time.
  bool Until(const std::function<bool()>& condition);
  // Until nothing more is to be expected.
  void Settle();
  void Step();
  TransportHarness& harness() { return *harness_; }

 private:
  std::unique_ptr<TransportHarness> harness_;
  std::vector<std::unique_ptr<Party>> parties_;
};

std::shared_ptr<MemoryBlock> TestBlock(size_t bytes);

// Two parties with an established connection; each can write to the other's block.
struct Pair {
  struct Options {
    // In two domains, as any two processes have.
    ConnectionLimits client = {64, 64, 1};
    ConnectionLimits server = {64, 64, 2};
    uint32_t client_receives = 0;
    uint32_t server_receives = 0;
    size_t block_bytes = 65536;
  };
  Pair(Stage* on, const Options& options);
  explicit Pair(Stage* on) : Pair(on, Options()) {}

  // Writes `bytes` at `offset` of the client's block to the same offset of the server's.
  absl::Status Push(size_t offset, uint32_t bytes, std::optional<uint32_t> immediate,
                    uint64_t wr_id = 0, bool signaled = true);
  RemoteMemory At(size_t offset) const {
    return {server_memory.address + offset, server_memory.key};
  }

  Stage* stage;
  Party& client;
  Party& server;
  ConnectionId c = ConnectionId::kNone;
  ConnectionId s = ConnectionId::kNone;
  std::shared_ptr<MemoryBlock> client_block;
  std::shared_ptr<MemoryBlock> server_block;
  RemoteMemory client_memory;
  RemoteMemory server_memory;
  bool established = false;
};

void FillPattern(const MemoryBlock& block, size_t offset, size_t bytes, uint8_t seed);
bool HasPattern(const MemoryBlock& block, size_t offset, size_t bytes, uint8_t seed);

// The transport of this run of a test case, in a Catch2 GENERATE.
#define VERBENA_EACH_TRANSPORT()                                                           \
  const size_t transport_index = GENERATE(range(size_t{0}, TransportsUnderTest().size())); \
  const TransportUnderTest& transport = TransportsUnderTest()[transport_index];            \
  INFO("transport " << transport.name)

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_TRANSPORT_CONFORMANCE_H_
