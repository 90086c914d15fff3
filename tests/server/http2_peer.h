// A peer that speaks HTTP/2 to a gRPC server and uses all that it is granted: many streams with
// messages that it announces and never completes.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_SERVER_HTTP2_PEER_H_
#define VERBENA_TESTS_SERVER_HTTP2_PEER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace verbena::test {

class Http2Peer {
 public:
  // "127.0.0.1:PORT". Its preface and settings are sent; `speaks` false: nothing is.
  explicit Http2Peer(const std::string& address, bool speaks = true);
  ~Http2Peer();
  Http2Peer(const Http2Peer&) = delete;
  Http2Peer& operator=(const Http2Peer&) = delete;

  // A call whose message has `bytes`. `token`: empty: none.
  void Call(const std::string& method, uint32_t bytes, const std::string& token = {});
  // A call with an empty request, which is complete.
  void CallWhole(const std::string& method, const std::string& token = {});
  // Sends all but the last byte of each message, as far as the server's windows allow, until all
  // is sent, the server has ended every call, or the time is over.
  void Flood(std::chrono::milliseconds at_most);
  // Answers the server's frames meanwhile.
  void Listen(std::chrono::milliseconds at_most);

  uint64_t sent() const { return sent_; }
  size_t open_calls() const { return streams_.size(); }
  bool closed() const { return closed_; }  // by the server

 private:
  struct Stream {
    int64_t window;
    uint64_t left;
  };
  void Send(const std::string& bytes);
  static std::string HeadersOf(const std::string& method, const std::string& token);
  bool Pump();  // whether anything came
  void Take(uint8_t type, uint8_t flags, uint32_t stream, const std::string& body);

  int fd_;
  std::string received_;
  std::map<uint32_t, Stream> streams_;
  uint32_t next_stream_ = 1;
  int64_t window_ = 65535, initial_window_ = 65535;
  uint64_t sent_ = 0;
  bool closed_ = false;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_HTTP2_PEER_H_
