#include "server/access/peer_log.h"

#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"

namespace verbena::server {
namespace {

std::atomic<uint64_t> lines_left_out{0};

}  // namespace

void PeerLog::Write(const std::string& line, absl::Time now) {
  std::optional<uint64_t> before;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    before = limit_.Take(now);
  }
  if (!before.has_value()) {
    lines_left_out.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::string text = line;
  if (text.size() > kMostBytes) {
    text = absl::StrCat(line.substr(0, kMostBytes), "... (", line.size(), " bytes)");
  }
  if (*before > 0) absl::StrAppend(&text, " (", *before, " lines before it were left out)");
  sink_(text);
}

uint64_t PeerLog::left_out() { return lines_left_out.load(std::memory_order_relaxed); }

}  // namespace verbena::server
