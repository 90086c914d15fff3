#include "worker/train/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "proto/base/unread_output.h"

namespace verbena::worker {
namespace {

constexpr double kTerminalSeconds = 0.2;
constexpr double kPlainSeconds = 2;
// For a line that is not repeated.
constexpr absl::Duration kNotePatience = absl::Milliseconds(100);

size_t Columns(std::FILE* out) {
  winsize size = {};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string ProgressLine(const Totals& now, const Totals& rate_from, uint64_t steps) {
  const uint64_t made = now.steps - std::min(now.steps, now.steps_before);
  if (made == 0 && now.steps >= steps && steps > 0) {
    return absl::StrFormat("step %d/%d  nothing was left to train", now.steps, steps);
  }
  const double seconds = now.seconds - rate_from.seconds;
  const auto per_second = [seconds](uint64_t a, uint64_t b) {
    return seconds > 0 && a >= b ? static_cast<double>(a - b) / seconds : 0.0;
  };
  std::string line =
      absl::StrFormat("step %d/%d  %.0f samples/s  loss %.4f  push %.1f MB/s  pull %.1f MB/s",
                      now.steps, steps, per_second(now.samples, rate_from.samples), now.loss,
                      per_second(now.bytes_pushed, rate_from.bytes_pushed) / 1e6,
                      per_second(now.bytes_pulled, rate_from.bytes_pulled) / 1e6);
  if (made > 0 && now.steps < steps && now.seconds > 0) {
    const double left =
        now.seconds / static_cast<double>(made) * static_cast<double>(steps - now.steps);
    absl::StrAppendFormat(&line, "  ETA %.0f s", std::ceil(left));
  }
  return line;
}

Progress::Progress(std::FILE* out, bool terminal, uint64_t steps)
    : out_(out), terminal_(terminal), steps_(steps) {}

Progress::~Progress() {
  if (live_) Write("\n");
}

void Progress::Write(std::string_view text) { WriteUnlessFull(fileno(out_), text, kNotePatience); }

void Progress::Print(const Totals& totals) {
  std::string line = ProgressLine(totals, printed_, steps_);
  if (terminal_) {
    // A line that wraps could not be overwritten.
    line.resize(std::min(line.size(), Columns(out_) - 1));
    line = absl::StrFormat("\r%s\033[K", line);
    live_ = true;
  } else {
    line += '\n';
  }
  WriteUnlessFull(fileno(out_), line);
  printed_ = totals;
}

void Progress::Update(const Totals& totals) {
  const double due = terminal_ ? kTerminalSeconds : kPlainSeconds;
  if (totals.seconds - printed_.seconds >= due) Print(totals);
}

void Progress::Note(std::string_view line) {
  Write(absl::StrFormat("%s%s\n", live_ ? "\r\033[K" : "", line));
  live_ = false;
}

void Progress::Finish(const Totals& totals) {
  printed_ = Totals();  // the last line is about the whole run
  Print(totals);
  if (live_) Write("\n");
  live_ = false;
}

}  // namespace verbena::worker
