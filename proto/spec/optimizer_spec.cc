#include "proto/spec/optimizer_spec.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

// Bounds the size of a table's specification, and of the values that errors print.
constexpr int kMaxBoundaries = 1024;

absl::Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, "; allowed: ", allowed));
}

v1::Schedule::Kind KindOf(const v1::Schedule& schedule) {
  return schedule.kind() == v1::Schedule::KIND_UNSPECIFIED ? v1::Schedule::CONSTANT
                                                           : schedule.kind();
}

std::string KindName(const v1::Schedule& schedule) {
  return absl::AsciiStrToLower(v1::Schedule::Kind_Name(KindOf(schedule)));
}

std::string Boundaries(const v1::Schedule& schedule) {
  return absl::StrCat("[", absl::StrJoin(schedule.boundaries(), ", "), "]");
}

// The text of a list in an error: its length is bounded, whatever a peer sent.
std::string Counted(int size) { return absl::StrCat("a list of ", size); }

// Ignoring a field would give a schedule that its author did not intend.
absl::Status CheckUnused(const v1::Schedule& schedule) {
  const v1::Schedule::Kind kind = KindOf(schedule);
  const auto unused = [&schedule](const char* field, const std::string& value, const char* zero) {
    return Bad(absl::StrCat("schedule.", field), value,
               absl::StrCat(zero, " for kind ", KindName(schedule), ", which does not use it"));
  };
  const bool periodic = kind == v1::Schedule::STEP || kind == v1::Schedule::COSINE;
  if (!periodic && schedule.period() != 0) {
    return unused("period", absl::StrCat(schedule.period()), "0");
  }
  if (kind != v1::Schedule::STEP && schedule.factor() != 0) {
    return unused("factor", Number(schedule.factor()), "0");
  }
  if (kind != v1::Schedule::COSINE && schedule.floor() != 0) {
    return unused("floor", Number(schedule.floor()), "0");
  }
  if (kind != v1::Schedule::PIECEWISE && schedule.boundaries_size() != 0) {
    return unused("boundaries", Counted(schedule.boundaries_size()), "none");
  }
  if (kind != v1::Schedule::PIECEWISE && schedule.rates_size() != 0) {
    return unused("rates", Counted(schedule.rates_size()), "none");
  }
  return absl::OkStatus();
}

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
  for (int i = 0; i < count; ++i) {
    if (!FiniteAsF32(schedule.rates(i)) || schedule.rates(i) < 0) {
      return Bad(absl::StrCat("schedule.rates[", i, "]"), Number(schedule.rates(i)),
                 "a finite number >= 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const v1::Schedule& schedule, double rate) {
  if (!v1::Schedule::Kind_IsValid(schedule.kind())) {
    return Bad("schedule.kind", absl::StrCat(static_cast<int>(schedule.kind())),
               "1 (constant), 2 (step), 3 (cosine), 4 (piecewise)");
  }
  if (const absl::Status status = CheckUnused(schedule); !status.ok()) return status;
  const bool step = schedule.kind() == v1::Schedule::STEP;
  const bool cosine = schedule.kind() == v1::Schedule::COSINE;
  if ((step || cosine) && schedule.period() == 0) {
    return Bad("schedule.period", "0",
               absl::StrCat("at least 1 step for kind ", KindName(schedule)));
  }
  if (step && !(schedule.factor() > 0 && schedule.factor() <= 1)) {
    return Bad("schedule.factor", Number(schedule.factor()), "more than 0, at most 1");
  }
  if (cosine && !(schedule.floor() >= 0 && schedule.floor() <= rate)) {
    return Bad("schedule.floor", Number(schedule.floor()),
               absl::StrCat("0 to optimizer.rate, which is ", Number(rate)));
  }
  if (schedule.kind() == v1::Schedule::PIECEWISE) return CheckPiecewise(schedule);
  return absl::OkStatus();
}

absl::Status CheckClip(const char* field, double value) {
  if (value == 0 || (FiniteAsF32(value) && value >= kLeastClip)) return absl::OkStatus();
  return Bad(field, Number(value),
             absl::StrCat("0 for no clipping, or a finite number >= ", Number(kLeastClip)));
}

// Checks that at most one kind of clipping is set.
absl::Status CheckClips(const v1::Optimizer& optimizer) {
  const std::pair<const char*, double> clips[] = {
      {"clip_value", optimizer.clip_value()},
      {"clip_chunk_norm", optimizer.clip_chunk_norm()},
      {"clip_global_norm", optimizer.clip_global_norm()}};
  const std::pair<const char*, double>* set = nullptr;
  for (const auto& clip : clips) {
    if (absl::Status status = CheckClip(clip.first, clip.second); !status.ok()) return status;
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

// The fields in the order in which differences are reported.
std::vector<std::pair<std::string, std::string>> Fields(const v1::Optimizer& optimizer) {
  const v1::Schedule& schedule = optimizer.schedule();
  std::vector<std::string> rates;
  for (const double rate : schedule.rates()) rates.push_back(Number(rate));
  return {{"name", Quoted(optimizer.name())},
          {"rate", Number(optimizer.rate())},
          {"schedule.kind", KindName(schedule)},
          {"schedule.warmup_steps", absl::StrCat(schedule.warmup_steps())},
          {"schedule.period", absl::StrCat(schedule.period())},
          {"schedule.factor", Number(schedule.factor())},
          {"schedule.floor", Number(schedule.floor())},
          {"schedule.boundaries", Boundaries(schedule)},
          {"schedule.rates", absl::StrCat("[", absl::StrJoin(rates, ", "), "]")},
          {"clip_value", Number(optimizer.clip_value())},
          {"clip_chunk_norm", Number(optimizer.clip_chunk_norm())},
          {"clip_global_norm", Number(optimizer.clip_global_norm())}};
}

std::string ParameterOf(const v1::Optimizer& optimizer, const std::string& name) {
  const auto it = optimizer.parameters().find(name);
  return it == optimizer.parameters().end() ? "not set" : Number(it->second);
}

// Without the values that SetOptimizer may change.
v1::Optimizer WithoutValues(v1::Optimizer optimizer) {
  optimizer.clear_changed();
  optimizer.clear_parameters();
  if (optimizer.schedule().kind() != v1::Schedule::PIECEWISE) optimizer.clear_rate();
  if (optimizer.clip_value() > 0) optimizer.set_clip_value(1);
  if (optimizer.clip_chunk_norm() > 0) optimizer.set_clip_chunk_norm(1);
  return optimizer;
}

}  // namespace

absl::Status NormalizeOptimizer(v1::Optimizer* optimizer) {
  if (optimizer->name().empty()) optimizer->set_name("sgd");
  if (!FiniteAsF32(optimizer->rate()) || optimizer->rate() < 0) {
    return Bad("rate", Number(optimizer->rate()), "a finite number >= 0");
  }
  for (const auto& [name, value] : optimizer->parameters()) {
    if (!FiniteAsF32(value)) {
      return Bad(absl::StrCat("parameters[", Quoted(name), "]"), Number(value), "a finite number");
    }
  }
  absl::Status status = CheckClips(*optimizer);
  if (!status.ok()) return status;
  if (!optimizer->has_schedule()) return absl::OkStatus();
  v1::Schedule* schedule = optimizer->mutable_schedule();
  status = CheckSchedule(*schedule, optimizer->rate());
  if (!status.ok()) return status;
  schedule->set_kind(KindOf(*schedule));
  if (schedule->kind() == v1::Schedule::CONSTANT && schedule->warmup_steps() == 0) {
    optimizer->clear_schedule();
  }
  return absl::OkStatus();
}

bool NeedsTrustRatio(const v1::Optimizer& optimizer) { return optimizer.name() == "lamb"; }

bool NeedsStepNorms(const v1::Optimizer& optimizer) {
  return optimizer.clip_global_norm() > 0 || NeedsTrustRatio(optimizer);
}

std::optional<FieldDifference> FirstDifference(const v1::Optimizer& first,
                                               const v1::Optimizer& second) {
  // The other one has the values from before.
  if (first.changed() || second.changed()) {
    return FirstDifference(WithoutValues(first), WithoutValues(second));
  }
  const auto left = Fields(first);
  const auto right = Fields(second);
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].second == right[i].second) continue;
    return FieldDifference{absl::StrCat("optimizer.", left[i].first), left[i].second,
                           right[i].second};
  }
  for (const auto* parameters : {&first.parameters(), &second.parameters()}) {
    for (const auto& [name, value] : *parameters) {
      const std::string a = ParameterOf(first, name);
      const std::string b = ParameterOf(second, name);
      if (a == b) continue;
      return FieldDifference{absl::StrCat("optimizer.parameters[", Quoted(name), "]"), a, b};
    }
  }
  return std::nullopt;
}

}  // namespace verbena
