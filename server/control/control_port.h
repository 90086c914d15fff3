// The control plane's port: listens, accepts, and bounds the connections that gRPC has at a time.
//
// gRPC 1.51 bounds neither the connections of a peer nor all of them, without a free descriptor its
// listener may stop for good, and it compares the size of a message once it has all of it, however
// large. So connections are accepted here and handed to gRPC. A duplicate of each descriptor stays
// here: it shows how much has come and when gRPC has closed a connection, and ends one that has to
// give way.
//
// **Thread safety**: every function from any thread; a thread of its own accepts.
//
// Invariants:
//  1. There are at most most() connections. A new one ends another: one without an admitted call if
//     there is one, the oldest of the host that has most of these.
//  2. It accepts again as soon as there are descriptors.
//  3. A host's connections without an admitted call receive at most strange_bytes at once, and an
//     eighth of that a second; those of a caller with admitted calls, caller_bytes. One that
//     receives more is ended. The first bytes of each connection count for nothing: a handshake and
//     a small call come through whatever others of the host have sent.
#ifndef VERBENA_SERVER_CONTROL_CONTROL_PORT_H_
#define VERBENA_SERVER_CONTROL_CONTROL_PORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"
#include "server/access/budget.h"
#include "server/access/peer_log.h"

namespace verbena::server {

inline constexpr size_t kMostControlConnections = 16'384;
// Connections take at most one in this many of the process's descriptors, with two for each
// connection.
inline constexpr size_t kDescriptorsPerConnection = 4;

struct ControlPortOptions {
  size_t most = 0;  // connections; 0: from the limit of descriptors
  uint64_t strange_bytes = uint64_t{8} << 20;
  uint64_t caller_bytes = uint64_t{16} << 20;
};

class ControlPort {
 public:
  // Takes the connection over, with the listener that it came by.
  using Take = std::function<void(int listener, int connection)>;

  // UNAVAILABLE: "cannot listen on HOST:PORT: address already in use".
  static absl::StatusOr<std::unique_ptr<ControlPort>> Listen(
      const std::string& address, const ControlPortOptions& options = {});
  ~ControlPort();
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;

  // Accepts from now on. RESOURCE_EXHAUSTED: no thread.
  absl::Status Serve(Take take);
  // Accepts no more.
  void Stop();
  // A call of that peer ("ipv4:10.0.0.7:51234", as gRPC has it) was admitted; `caller`: a token's
  // id, or a host.
  void Admitted(const std::string& peer, const std::string& caller);

  uint16_t port() const { return port_; }
  size_t most() const { return most_; }
  size_t connections() const;

 private:
  struct Connection {
    rdma::UniqueFd duplicate;
    std::string peer, host;
    bool admitted = false;
    std::string payer;      // whose bytes it receives: a host's, or an admitted caller's
    uint64_t received = 0;  // bytes that were charged
    std::list<uint64_t>::iterator in_host;
  };
  // Ids of a host's connections, the oldest first: without an admitted call, and with one.
  struct Host {
    std::list<uint64_t> strange, admitted;
  };

  ControlPort();
  absl::Status Bind(const std::string& host, uint16_t port);
  void Run();
  void Accept(int listener);
  void Add(int listener, int fd, const std::string& peer);
  // Under the lock.
  void EndOne();
  void Forget(uint64_t id);
  void End(uint64_t id, Budget budget);
  // Charges the bytes received since the last call. False: over the budget.
  bool Charge(Connection* connection);
  // Connections that have received something are looked at again.
  void Rearm();

  std::vector<rdma::UniqueFd> listeners_;
  rdma::UniqueFd epoll_, wake_;
  uint16_t port_ = 0;
  size_t most_ = 0;
  ControlPortOptions options_;
  Take take_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  PeerLog exhausted_log_;

  // The thread's.
  std::vector<uint64_t> active_;  // received something since Rearm()
  int64_t looked_ns_ = 0;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::unordered_map<uint64_t, Connection> connections_;  // by id
  std::unordered_map<std::string, uint64_t> by_peer_;
  std::unordered_map<std::string, Host> hosts_;  // none is empty
  uint64_t next_id_;
  struct Bytes {
    double left = 0;
    int64_t at_ns = 0;
  };
  std::unordered_map<std::string, Bytes> bytes_;  // by payer
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CONTROL_PORT_H_
