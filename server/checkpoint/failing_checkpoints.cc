#include "server/checkpoint/failing_checkpoints.h"

#include <string_view>

#include "proto/base/utf8_text.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

// An error names files; it is no place for a text without end.
constexpr size_t kMostErrorBytes = 1000;
constexpr size_t kMostDirectoryBytes = 4096;  // PATH_MAX
// Limit of jobs in a view's answer.
constexpr int kMostJobs = 100;

}  // namespace

void FailingCheckpoints::Failed(const std::string& job, const std::string& directory,
                                const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Failing& failing = jobs_[job];
  if (failing.failures++ == 0) failing.since_ns = clock_.NowNanos();
  // A path has any bytes, and so has an error that names one.
  failing.directory = Utf8Text(directory, kMostDirectoryBytes);
  const absl::string_view error = status.message();
  failing.error = Utf8Text({error.data(), error.size()}, kMostErrorBytes);
}

void FailingCheckpoints::Saved(const std::string& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.erase(job);
}

void FailingCheckpoints::KeepOnly(const std::set<std::string>& jobs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(jobs_, [&](const auto& entry) { return !jobs.contains(entry.first); });
}

void FailingCheckpoints::AddTo(v1::GetViewResponse* response) const {
  // A save fails, too, because its tables were dropped meanwhile.
  std::set<std::string_view> jobs;
  for (const v1::Table& table : response->view().tables()) {
    if (!table.restoring()) jobs.insert(table.spec().job());
  }
  const int64_t now = clock_.NowNanos();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [job, failing] : jobs_) {
    if (response->failing_checkpoints_size() == kMostJobs) return;
    if (response->has_view() && !jobs.contains(job)) continue;
    v1::FailingCheckpoint* added = response->add_failing_checkpoints();
    added->set_job(job);
    added->set_directory(failing.directory);
    added->set_failures(failing.failures);
    added->set_failing_ms(static_cast<uint64_t>((now - failing.since_ns) / kNanosPerMilli));
    added->set_error(failing.error);
  }
}

}  // namespace verbena::server
