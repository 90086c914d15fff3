#include "tests/server/http2_peer.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace verbena::test {
namespace {

// RFC 9113.
enum : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kWindow = 8 };
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
constexpr uint16_t kInitialWindow = 4;
constexpr int64_t kFrame = 16384;

std::string Number(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

uint32_t NumberAt(const std::string& text, size_t at, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
  return value;
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& body) {
  return Number(static_cast<uint32_t>(body.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + Number(stream, 4) + body;
}

// A header of fewer than 127 bytes each; literal, without indexing (RFC 7541).
std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

}  // namespace

Http2Peer::Http2Peer(const std::string& address, bool speaks)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
  // A server that takes nothing must not hold this up for ever.
  const timeval longest = {2, 0};
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest));
  closed_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0;
  if (speaks) Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
}

Http2Peer::~Http2Peer() { close(fd_); }

void Http2Peer::Send(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size() && !closed_;) {
    const ssize_t wrote = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) closed_ = true;
    if (wrote > 0) at += static_cast<size_t>(wrote);
  }
}

std::string Http2Peer::HeadersOf(const std::string& method, const std::string& token) {
  std::string headers = Header(":method", "POST") + Header(":scheme", "http") +
                        Header(":path", method) + Header(":authority", "x") +
                        Header("content-type", "application/grpc") + Header("te", "trailers");
  if (!token.empty()) headers += Header("authorization", "Bearer " + token);
  return headers;
}

void Http2Peer::CallWhole(const std::string& method, const std::string& token) {
  Send(Frame(kHeaders, kEndHeaders, next_stream_, HeadersOf(method, token)) +
       Frame(kData, kEndStream, next_stream_, std::string(5, '\0')));
  streams_[next_stream_] = {initial_window_ - 5, 0};
  window_ -= 5;
  next_stream_ += 2;
}

void Http2Peer::Call(const std::string& method, uint32_t bytes, const std::string& token) {
  const std::string message = std::string(1, '\0') + Number(bytes, 4);
  Send(Frame(kHeaders, kEndHeaders, next_stream_, HeadersOf(method, token)) +
       Frame(kData, 0, next_stream_, message));
  streams_[next_stream_] = {initial_window_ - 5, bytes - 1};
  window_ -= 5;
  next_stream_ += 2;
}

void Http2Peer::Take(uint8_t type, uint8_t flags, uint32_t stream, const std::string& body) {
  if (type == kWindow && stream == 0) {
    window_ += NumberAt(body, 0, 4);
  } else if (type == kWindow && streams_.contains(stream)) {
    streams_[stream].window += NumberAt(body, 0, 4);
  } else if (type == kSettings && (flags & kAck) == 0) {
    for (size_t at = 0; at + 6 <= body.size(); at += 6) {
      if (NumberAt(body, at, 2) != kInitialWindow) continue;
      const int64_t value = NumberAt(body, at + 2, 4);
      for (auto& [id, open] : streams_) open.window += value - initial_window_;
      initial_window_ = value;
    }
    Send(Frame(kSettings, kAck, 0, ""));
  } else if (type == kPing && (flags & kAck) == 0) {
    Send(Frame(kPing, kAck, 0, body));
  } else if (type == kReset || (type == kHeaders && (flags & kEndStream) != 0)) {
    streams_.erase(stream);
  }
}

bool Http2Peer::Pump() {
  char part[65536];
  const ssize_t got = recv(fd_, part, sizeof(part), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) closed_ = true;
  if (got <= 0) return false;
  received_.append(part, static_cast<size_t>(got));
  while (received_.size() >= 9) {
    const size_t length = NumberAt(received_, 0, 3);
    if (received_.size() < 9 + length) break;
    const std::string body = received_.substr(9, length);
    const uint32_t stream = NumberAt(received_, 5, 4) & 0x7fffffff;
    const uint8_t type = static_cast<uint8_t>(received_[3]);
    const uint8_t flags = static_cast<uint8_t>(received_[4]);
    received_.erase(0, 9 + length);
    Take(type, flags, stream, body);
  }
  return true;
}

void Http2Peer::Flood(std::chrono::milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (!closed_ && std::chrono::steady_clock::now() < end) {
    bool worked = Pump();
    bool any_left = false;
    for (auto& [id, stream] : streams_) {
      any_left |= stream.left > 0;
      const int64_t bytes =
          std::min({kFrame, static_cast<int64_t>(stream.left), stream.window, window_});
      if (bytes <= 0) continue;
      Send(Frame(kData, 0, id, std::string(static_cast<size_t>(bytes), '\0')));
      stream.left -= static_cast<uint64_t>(bytes);
      stream.window -= bytes;
      window_ -= bytes;
      sent_ += static_cast<uint64_t>(bytes);
      worked = true;
    }
    if (!any_left) return;
    pollfd readable{fd_, POLLIN, 0};
    if (!worked) poll(&readable, 1, 20);
  }
}

void Http2Peer::Listen(std::chrono::milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (!closed_ && std::chrono::steady_clock::now() < end) {
    pollfd readable{fd_, POLLIN, 0};
    if (poll(&readable, 1, 20) > 0) Pump();
  }
}

}  // namespace verbena::test
