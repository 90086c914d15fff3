#include "tests/faults/random_faults_calls.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;

// A deadline is met by a timer; one that comes this early is not early.
constexpr double kEarlySeconds = 0.05;
// A thread of a busy machine may have to wait for a processor. Wide: this is no measurement.
constexpr double kLateSeconds = 15;

}  // namespace

CallCheck::CallCheck(Ledger* ledger, int client, std::string name, absl::Duration timeout)
    : ledger_(ledger), client_(client), name_(std::move(name)), timeout_(timeout) {}

CallCheck::Call CallCheck::Begin(const char* name, const std::string& object) const {
  const std::string text = absl::StrCat(name, " ", object);
  const int place = ledger_->BeginCall(absl::StrCat(name_, ": ", text));
  return {text, Clock::now(), timeout_, false, place};
}

CallCheck::Call CallCheck::BeginShort(const char* name, const std::string& object,
                                      absl::Duration timeout) const {
  Call call = Begin(name, object);
  call.timeout = timeout;
  call.may_expire = true;
  return call;
}

void CallCheck::Count(const Call& call, double seconds, bool expired) {
  ledger_->EndCall(call.place);
  ClientLedger& client = ledger_->client(client_);
  client.calls.fetch_add(1);
  if (expired) client.expired.fetch_add(1);
  const auto ms = static_cast<uint64_t>(seconds * 1000);
  uint64_t longest = client.longest_ms.load();
  while (ms > longest && !client.longest_ms.compare_exchange_weak(longest, ms)) {
  }
}

bool CallCheck::End(const Call& call, const absl::Status& status) {
  const double seconds = std::chrono::duration<double>(Clock::now() - call.start).count();
  const double limit = absl::ToDoubleSeconds(call.timeout);
  Count(call, seconds, !status.ok());
  const std::string how = absl::StrCat(call.name, " with a deadline of ", limit, " s ended after ",
                                       seconds, " s with ", status.ok() ? "OK" : status.ToString());
  if (seconds > limit + kLateSeconds) {
    Fail(absl::StrCat(how, ": late"));
  } else if (!status.ok() && seconds < limit - kEarlySeconds) {
    Fail(absl::StrCat(how, ": before its deadline"));
  } else if (!status.ok() && !call.may_expire) {
    Fail(absl::StrCat(how, ": not done though all faults were over"));
  }
  return status.ok();
}

void CallCheck::EndCancelled(const Call& call, const absl::Status& status) {
  const double seconds = std::chrono::duration<double>(Clock::now() - call.start).count();
  Count(call, seconds, !status.ok());
  if (status.ok() || absl::IsCancelled(status)) return;
  Fail(absl::StrCat(call.name, ", cancelled, ended with ", status.ToString()));
}

void CallCheck::Fail(const std::string& problem) {
  // When the run ends, calls fail for that reason alone.
  if (!ledger_->aborted()) ledger_->Fail(absl::StrCat(name_, ": ", problem));
}

Reading::Reading(const TablePlan& table, TableLedger* ledger, std::vector<uint64_t> units)
    : table_(table), ledger_(ledger), units_(std::move(units)) {
  least_.reserve(units_.size());
  for (const uint64_t unit : units_) least_.push_back(ledger_->acked[unit].load());
}

// Checks one sum of the units from `begin` on, up to `end`.
std::string Reading::CheckSum(const float* values, size_t begin, size_t end) const {
  uint64_t least = 0, most = 0;
  for (size_t i = begin; i < end; ++i) {
    least += least_[i];
    most += ledger_->attempted[units_[i]].load();
  }
  const double first = -static_cast<double>(values[0]);  // sgd goes against the gradient
  for (uint32_t i = 0; i < table_.width; ++i) {
    const double value = -static_cast<double>(values[i]);
    if (value == first && std::floor(value) == value && value >= static_cast<double>(least) &&
        value <= static_cast<double>(most)) {
      continue;
    }
    return absl::StrCat(table_.name, " unit ", units_[begin],
                        end - begin > 1 ? absl::StrCat(" and ", end - begin - 1, " more") : "",
                        ": number ", i, " is ", value, " (number 0: ", first,
                        ") where acknowledged pushes are ", least, " and attempted ones ", most);
  }
  return "";
}

std::string Reading::Check(const float* values) const {
  for (size_t i = 0; i < units_.size(); ++i) {
    std::string problem = CheckSum(values + i * table_.width, i, i + 1);
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string Reading::CheckBags(const float* values, size_t size) const {
  for (size_t begin = 0; begin < units_.size(); begin += size, values += table_.width) {
    std::string problem = CheckSum(values, begin, std::min(begin + size, units_.size()));
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace verbena::test
