// Accepts the control plane's connections and hands them over.
//
// gRPC 1.51's own listener ends for good at the first accept(2) that fails, such as for want of a
// descriptor: the port never answers again while the process looks healthy. This one waits until
// there is room, and leaves some descriptors to everything else: a connection whose descriptor
// would be among the last ones of the limit is refused (closed at once).
//
// **Thread safety**: address(), health() and refused() from any thread; the others for one owner
// thread.
//
// Invariants:
//  1. The thread accepts until Stop(), whatever accept(2) returns.
//  2. health() fails from the first connection that was refused until a new one has room.
#ifndef VERBENA_SERVER_CONTROL_CONNECTION_LISTENER_H_
#define VERBENA_SERVER_CONTROL_CONNECTION_LISTENER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"
#include "server/access/peer_log.h"

namespace verbena::server {

class ConnectionListener {
 public:
  // Owns `fd`, a connection accepted by `listener`. Runs on the listener's thread.
  using Handler = std::function<void(int listener, rdma::UniqueFd fd)>;

  // Listens on every address of `listen` (HOST:PORT; port 0: any free one, the same for all), or
  // on all of IPv6 and IPv4 where the host is a wildcard. UNAVAILABLE: "cannot listen on
  // 127.0.0.1:7000: address already in use".
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Open(const std::string& listen);
  ~ConnectionListener();

  const std::string& address() const { return address_; }  // HOST:PORT, with the port taken
  // Starts the thread.
  absl::Status Start(Handler handler);
  // Ends the thread; what waits in the backlog is not accepted any more.
  void Stop();

  // UNAVAILABLE: descriptors are used up; names the limit and the option that raises it.
  absl::Status health() const;
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }  // a statistic

 private:
  ConnectionListener() = default;
  void Run();
  void Accept(int listener);
  void Exhausted(uint64_t limit);
  void LookForRoom();
  bool stopping() const { return stop_.load(std::memory_order_acquire); }

  std::string address_;
  std::vector<rdma::UniqueFd> listeners_;
  rdma::UniqueFd wake_;
  Handler handler_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> exhausted_limit_{0};  // 0: there is room
  std::atomic<uint64_t> refused_{0};
  std::unique_ptr<PeerLog> log_;
  std::thread thread_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CONNECTION_LISTENER_H_
