#include "proto/spec/optimizer_spec.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/option_check.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

// Bounds the size of a table's specification, and of the values that errors print.
constexpr int kMaxBoundaries = 1024;

absl::Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, "; allowed: ", allowed));
}

// The text of a list in an error: its length is bounded, whatever a peer sent.
std::string Counted(int size) { return absl::StrCat("a list of ", size); }

absl::Status CheckPiecewise(const v1::Schedule& schedule) {
  const int count = schedule.boundaries_size();
  if (count < 1 || count > kMaxBoundaries) {
    return Bad("schedule.boundaries", Counted(count),
               absl::StrCat("1..", kMaxBoundaries, " growing steps"));
  }
  uint64_t last = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t boundary = schedule.boundaries(i);
    if (boundary <= last) {
      return Bad(absl::StrCat("schedule.boundaries[", i, "]"), absl::StrCat(boundary),
                 absl::StrCat("more than ", last, ": boundaries grow"));
    }
    last = boundary;
  }
  if (schedule.rates_size() != count) {
    return Bad("schedule.rates", Counted(schedule.rates_size()),
               absl::StrCat("as many as boundaries, which are ", count,
                            "; before the first, optimizer.rate holds"));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const v1::Schedule& schedule, double rate) {
  if (schedule.kind() == v1::Schedule::COSINE && schedule.floor() > rate) {
    return Bad("schedule.floor", Number(schedule.floor()),
               absl::StrCat("0 to optimizer.rate, which is ", Number(rate)));
  }
  if (schedule.kind() == v1::Schedule::PIECEWISE) return CheckPiecewise(schedule);
  return absl::OkStatus();
}

// Checks that at most one kind of clipping is set.
absl::Status CheckClips(const v1::Optimizer& optimizer) {
  const std::pair<const char*, double> clips[] = {
      {"clip_value", optimizer.clip_value()},
      {"clip_chunk_norm", optimizer.clip_chunk_norm()},
      {"clip_global_norm", optimizer.clip_global_norm()}};
  const std::pair<const char*, double>* set = nullptr;
  for (const auto& clip : clips) {
    if (clip.second == 0) continue;
    if (set != nullptr) {
      return Bad(clip.first, Number(clip.second),
                 absl::StrCat("0 beside optimizer.", set->first, ", which is ", Number(set->second),
                              ": one of the three"));
    }
    set = &clip;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptimizerRules(const v1::Optimizer& optimizer) {
  if (absl::Status status = CheckClips(optimizer); !status.ok()) return status;
  return CheckSchedule(optimizer.schedule(), optimizer.rate());
}

absl::Status NormalizeOptimizer(v1::Optimizer* optimizer) {
  v1::TableSpec spec;
  *spec.mutable_optimizer() = *optimizer;
  if (absl::Status status = NormalizeOptions("optimizer.", &spec); !status.ok()) return status;
  *optimizer = spec.optimizer();
  return CheckOptimizerRules(*optimizer);
}

bool NeedsTrustRatio(const v1::Optimizer& optimizer) { return optimizer.name() == "lamb"; }

bool NeedsStepNorms(const v1::Optimizer& optimizer) {
  return optimizer.clip_global_norm() > 0 || NeedsTrustRatio(optimizer);
}

}  // namespace verbena
