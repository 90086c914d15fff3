// Writes log lines to a descriptor without ever blocking on its reader.
//
// A daemon's stderr may be a pipe without a reader. A thread that blocks in write() holds the
// logger's lock, and soon every thread that logs is blocked. So a line is written only when the
// descriptor has room for it. Otherwise it is dropped and counted, and the next written line is
// preceded by the count.
//
// A terminal, or a pipe with other writers, may have less room than poll(2) promises. So they are
// reopened in non-blocking mode: the flags of the descriptor itself are shared with other
// processes. If they cannot be reopened (another user's), only poll(2) is used.
//
// **Thread safety**: base_sink serializes; dropped() from any thread.
#ifndef VERBENA_SERVER_LOG_LINE_SINK_H_
#define VERBENA_SERVER_LOG_LINE_SINK_H_

#include <spdlog/sinks/base_sink.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "rdma/base/unique_fd.h"

namespace verbena::server {

class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `fd` outlives the sink. A regular file always has room; a pipe or socket has room when poll(2)
  // reports it: then at least 4096 bytes (PIPE_BUF), and longer lines are written in pieces of that
  // size.
  explicit LineSink(int fd);

  // Lines dropped so far.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }  // a statistic

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  // False: there was no room for the first piece. A line that ends in the middle gets a newline
  // with the next one.
  bool Write(std::string_view line);
  ssize_t WriteOnce(std::string_view bytes) const;

  rdma::UniqueFd own_;  // of a terminal or pipe
  int fd_;              // own_, or the caller's
  bool socket_ = false;
  bool broken_line_ = false;  // the last line was cut off
  uint64_t reported_ = 0;     // of dropped_: reported in the log
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_LOG_LINE_SINK_H_
