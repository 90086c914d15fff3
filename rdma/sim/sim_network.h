// The sim transport for tests: in-process, seeded and adversarial, on virtual time.
//
// Payload is copied from the sender's memory late and in pieces of any order. So it is visible in
// part, or not at all, until its receive completion; the sender's completion may come long before
// or after. A write with an immediate is acknowledged only with a receive of the peer. Without one
// it fails, although its payload may have landed in part or in full. The seed determines which
// connections fail and are lost. The two sides detect a loss at different times, and writes in
// flight may or may not land until then.
//
// **Thread safety**: one thread owns the network and all its endpoints.
//
// Invariants:
//  1. Everything happens in Advance(), in an order determined by the seed and the calls.
//  2. Local memory is read until the send completion is due, and never later. A block that was
//     freed before is not touched: the connection fails.
//  3. After Close() of a side returned, its memory is not read. When it is dead, no data lands in
//     its memory.
#ifndef VERBENA_RDMA_SIM_SIM_NETWORK_H_
#define VERBENA_RDMA_SIM_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rdma/base/clock.h"
#include "rdma/transport.h"

namespace verbena::rdma {

struct SimFaults {
  double connect_failure = 0;    // probability per Connect()
  double connection_loss = 0;    // probability per write
  int64_t min_delay_ns = 1'000;  // of each write and each event
  int64_t max_delay_ns = 200'000;
  int max_pieces = 4;                          // maximum number of pieces of a payload
  int64_t connect_timeout_ns = 5'000'000'000;  // for a peer that does not answer
  // A side that ends becomes dead (Endpoint::Dead()) at most this much later, like in shm, where
  // the peer must confirm. Until then, the peer's writes in flight may still land.
  int64_t max_death_delay_ns = 0;
  // Probability that a side without work in flight does not detect a loss until its next write.
  // This models a disconnect request lost in an outage on soft-RoCE.
  double missed_loss = 0;
  // Probability that Expose() refuses temporarily on an established connection, as shm does while
  // the peer does not read. A retry may succeed at most max_delay_ns later.
  double expose_refusal = 0;
};

class SimCore;

class SimNetwork {
 public:
  SimNetwork(uint64_t seed, const SimFaults& faults);
  ~SimNetwork();

  // Virtual time: the clock of every state machine of the simulation.
  const Clock& clock() const;
  // Moves time to the next due event, at most to `limit_ns`, and executes due events. False:
  // nothing was due before the limit; time is then at the limit.
  bool Advance(int64_t limit_ns);

  // `host` identifies the process for Cut() and Crash().
  std::unique_ptr<Endpoint> NewEndpoint(const std::string& host);
  void set_faults(const SimFaults& faults);
  // Ends the process: its peers lose their connections, its posted memory is not read, and its
  // endpoints do nothing any more. New endpoints of the same host work (a restart).
  void Crash(const std::string& host);
  // While cut, every connection of the host is lost and connecting to or from it fails.
  void Cut(const std::string& host, bool cut);
  // Operations that are posted or requested from or to the host from now on do not move before
  // `until_ns`. Operations in flight continue, and nothing is reported.
  void Stall(const std::string& host, int64_t until_ns);
  // From now on each such operation moves up to `most_ns` later than otherwise; 0 ends this.
  void Slow(const std::string& host, int64_t most_ns);

  // Writes that the host posts on existing connections never move again: they neither complete nor
  // fail, like on a device that lost track of them. New connections work.
  void Hang(const std::string& host);

  // Called for every byte range of a write before it lands: (host of the owner, block id, address,
  // bytes). Tests assert that no data lands in a settled buffer.
  using WriteObserver = std::function<void(const std::string&, uint64_t, const std::byte*, size_t)>;
  void set_write_observer(WriteObserver observer);

  // Enables access to device memory: `bytes_of` returns the bytes of a device address (null:
  // freed).
  using DeviceMemory = std::function<std::byte*(const std::byte*)>;
  void set_device_memory(DeviceMemory bytes_of);

  // Number of immediates without a posted receive: each is an accounting bug of a lane.
  uint64_t receiver_not_ready() const;

  // Grows with all that an owner of an endpoint has to see. While it does not, no endpoint that had
  // nothing for its owner has anything (SimEndpoint::pending()).
  uint64_t news() const;

 private:
  std::shared_ptr<SimCore> core_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SIM_SIM_NETWORK_H_
