#include "proto/spec/optimizer_values.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

std::string Range(const v1::OptimizerValue& v) {
  return absl::StrCat(v.above_least() ? "(" : "[", Number(v.least()), ", ", Number(v.greatest()),
                      v.below_greatest() ? ") in f32" : "]");
}

bool Allowed(const v1::OptimizerValue& v, double value) {
  const auto rounded = static_cast<double>(static_cast<float>(value));
  return (v.above_least() ? value > v.least() : value >= v.least()) &&
         (v.below_greatest() ? rounded < v.greatest() : value <= v.greatest());  // false for NaN
}

}  // namespace

NamedValue MakeNamedValue(std::string_view name, double value) {
  NamedValue named = {};
  std::memcpy(named.name, name.data(), std::min(name.size(), sizeof(named.name)));
  named.value = value;
  return named;
}

absl::Status CheckOptimizerValues(absl::Span<const v1::OptimizerValue* const> allowed,
                                  absl::Span<const NamedValue> values) {
  if (values.empty() || values.size() > kMaxNamedValues) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values are given; allowed: 1..", kMaxNamedValues));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string name(NameOf(values[i]));
    const auto it = std::find_if(allowed.begin(), allowed.end(),
                                 [&](const v1::OptimizerValue* v) { return v->name() == name; });
    if (it == allowed.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no value ", Quoted(name), " to change; allowed: ",
                       absl::StrJoin(allowed, ", ", [](std::string* out, const auto* v) {
                         absl::StrAppend(out, Quoted(v->name()), " ", Range(*v));
                       })));
    }
    if (!Allowed(**it, values[i].value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", Quoted(name), " is ", Number(values[i].value), "; allowed: ", Range(**it)));
    }
    for (size_t j = 0; j < i; ++j) {
      if (NameOf(values[j]) != name) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("value ", Quoted(name), " is given twice; allowed: once"));
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena
