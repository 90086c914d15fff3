// The sim transport: in-process, seeded, adversarial, on virtual time.
//
// Payload is copied from the sender's memory late and in pieces of any order, so it is visible in
// part, or not at all, until its receive completion; the sender's completion may come long before
// or after. A write with an immediate is acknowledged only with a receive of the peer's: without
// one it fails, although its payload may have landed already, in part or whole. Connections fail
// and are lost as the seed says; the two sides learn of a loss at different times, and what was
// under way may or may not still land until then.
//
// **Thread safety**: one thread owns the network and all its endpoints.
//
// Invariants:
//  1. Everything happens in Advance(), in an order that the seed and the calls made determine.
//  2. Local memory is read until the send completion is due, and never after; a block freed before
//     that is not touched: the connection fails.
//  3. After Close() of a side returned, nothing is read from its memory; once it is dead, nothing
//     lands in it.
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
  int max_pieces = 4;                          // a payload arrives in up to so many pieces
  int64_t connect_timeout_ns = 5'000'000'000;  // a peer that does not answer
  // A side that ends is dead (Endpoint::Dead()) up to so much later, as over shm, where the peer
  // has to confirm. Until then what the peer had under way may still land.
  int64_t max_death_delay_ns = 0;
  // Probability that a side with nothing under way is not told of a loss: it learns so by its next
  // write. What a disconnect request lost in an outage does on soft-RoCE.
  double missed_loss = 0;
  // Probability that Expose() refuses for now on an established connection, as shm does while the
  // peer does not read. Another attempt is worth it up to max_delay_ns later.
  double expose_refusal = 0;
};

// Deliberate faults in the library, switched on by tests to show that they are found.
struct PlantedBugs {
  bool act_on_send_completion = false;      // a sender's completion is taken as arrival
  bool release_buffer_at_deadline = false;  // buffer handed back without closing the lane
  bool reply_before_receive = false;        // a reply or credit goes before the receive is reposted
  bool replay_before_dead = false;          // records go out again while their old lane still lives
  bool never_probe = false;                 // a worker waits on, whether the shard is there or not
  bool trust_writes = false;                // a write that does not end is waited for
  bool heartbeats_need_owner = false;   // no heartbeats while the client's owner is in a long call
  bool refusals_are_final = false;      // memory that a transport refuses now ends its call
  bool clock_stops_in_suspend = false;  // leases by a clock that does not count suspended time
  bool keep_patience = false;  // a sleeping client keeps its promise to wait for the last answer
                               // when another operation starts
  bool trust_late_grants = false;    // a lease counts as granted when its answer is handled
  bool hold_last_buffer = false;     // kept for a record that others stand before in its queue
  bool norm_of_first_table = false;  // a worker tells the norm of the first table as that of all
};
PlantedBugs& planted_bugs();  // all false outside tests

class SimCore;

class SimNetwork {
 public:
  SimNetwork(uint64_t seed, const SimFaults& faults);
  ~SimNetwork();

  // Virtual time; also the clock every state machine of the simulation is given.
  const Clock& clock() const;
  // Moves time to the next due event, at most to `limit_ns`, and does what is due. Returns false
  // when nothing was due before the limit (time is then at the limit).
  bool Advance(int64_t limit_ns);

  // `host` names the process for Cut() and Crash().
  std::unique_ptr<Endpoint> NewEndpoint(const std::string& host);
  void set_faults(const SimFaults& faults);
  // The process is gone: its connections are lost for the peers, nothing it had posted is read, and
  // its endpoints do nothing any more. New ones of the same host work (a restart).
  void Crash(const std::string& host);
  // While cut, every connection of the host is lost and connecting to or from it fails.
  void Cut(const std::string& host, bool cut);
  // Nothing that is posted or asked for from or to the host from now on moves before `until_ns`;
  // what is under way does, and nobody is told anything.
  void Stall(const std::string& host, int64_t until_ns);
  // From now on each of those moves up to `most_ns` later than otherwise; 0: no longer so.
  void Slow(const std::string& host, int64_t most_ns);

  // What the host posts on the connections it has never moves again: neither done nor failed, as
  // by a device that lost track of them. New ones work.
  void Hang(const std::string& host);

  // Called for every byte range a write lands in, before it is written: (host of the owner, block
  // id, address, bytes). Tests assert that nothing lands in a settled buffer.
  using WriteObserver = std::function<void(const std::string&, uint64_t, const std::byte*, size_t)>;
  void set_write_observer(WriteObserver observer);

  // Memory of devices is reached from now on: where the bytes behind an address of one are (null:
  // it was freed).
  using DeviceMemory = std::function<std::byte*(const std::byte*)>;
  void set_device_memory(DeviceMemory bytes_of);

  // Immediates that met no posted receive: each is an accounting bug of a lane.
  uint64_t receiver_not_ready() const;

 private:
  std::shared_ptr<SimCore> core_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SIM_SIM_NETWORK_H_
