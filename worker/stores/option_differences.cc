#include "worker/stores/option_differences.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace verbena::worker {
namespace {

constexpr uint64_t kSeedFactor = 1000003;

// Its inverse modulo 2^64, by Newton's iteration: each doubles the number of right bits.
constexpr uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}
static_assert(kSeedFactor * Inverse(kSeedFactor) == 1);

// Options of tables that an option of the trainer gives alone.
constexpr std::pair<absl::string_view, absl::string_view> kOptions[] = {
    {"dtype", "--dtype"},
    {"gradient_dtype", "--gradient-dtype"},
    {"push_codec", "--push-codec"},
    {"pull_codec", "--pull-codec"},
    {"consistency", "--consistency"},
    {"staleness", "--staleness"},
    {"reduction", "the kind of job (--max-workers or not)"},
    {"optimizer.name", "--optimizer"},
    {"optimizer.rate", "--rate"},
    {"optimizer.parameters[\"weight_decay\"]", "--weight-decay"},
    {"optimizer.schedule.kind", "--schedule"},
    {"optimizer.schedule.warmup_steps", "--warmup-steps (in async and ssp times --workers)"},
    {"optimizer.schedule.period", "--steps or --epochs (in async and ssp times --workers)"},
    {"optimizer.clip_global_norm", "--clip-global-norm"},
    {"row_dtype", "--row-dtype"},
    {"admission.min_count", "--min-count"},
    {"eviction.max_rows", "--max-rows"},
    {"cold_tier.hot_bytes", "--hot-bytes"}};

std::vector<absl::string_view> Dimensions(absl::string_view shape) {
  absl::ConsumePrefix(&shape, "[");
  absl::ConsumeSuffix(&shape, "]");
  return absl::StrSplit(shape, absl::ByAnyChar(", "), absl::SkipEmpty());
}

// The only dimension that differs, if an option gives it.
bool ByDimension(const std::vector<std::string>& sizes, OptionDifference* difference) {
  const std::vector<absl::string_view> kept = Dimensions(difference->kept);
  const std::vector<absl::string_view> given = Dimensions(difference->given);
  if (kept.size() != given.size() || kept.size() != sizes.size()) return false;
  size_t differs = sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (kept[i] == given[i]) continue;
    if (differs < sizes.size()) return false;
    differs = i;
  }
  if (differs == sizes.size() || sizes[differs].empty()) return false;
  *difference = {sizes[differs], std::string(kept[differs]), std::string(given[differs])};
  return true;
}

}  // namespace

uint64_t TableSeed(uint64_t seed, size_t index) { return seed * kSeedFactor + index; }

uint64_t SeedOfTable(uint64_t table_seed, size_t index) {
  return (table_seed - index) * Inverse(kSeedFactor);
}

OptionDifference OptionDifferenceOf(absl::string_view message, size_t index,
                                    const std::vector<std::string>& sizes) {
  // `table "NAME": FIELD is KEPT in the existing table and GIVEN in the one asked for`.
  constexpr absl::string_view kName = "\": ", kIs = " is ",
                              kExisting = " in the existing table and ",
                              kAsked = " in the one asked for";
  const size_t name = message.find(kName), existing = message.find(kExisting),
               asked = message.find(kAsked);
  if (name == message.npos || existing == message.npos || asked == message.npos) return {};
  const absl::string_view first =
      message.substr(name + kName.size(), existing - name - kName.size());
  const size_t is = first.find(kIs);
  if (existing < name || asked < existing || is == first.npos) return {};
  const absl::string_view field = first.substr(0, is);
  const size_t given = existing + kExisting.size();
  OptionDifference difference = {std::string(field), std::string(first.substr(is + kIs.size())),
                                 std::string(message.substr(given, asked - given))};
  uint64_t kept_seed = 0, given_seed = 0;
  if (field == "initializer.seed" && absl::SimpleAtoi(difference.kept, &kept_seed) &&
      absl::SimpleAtoi(difference.given, &given_seed)) {
    return {"--seed", absl::StrCat(SeedOfTable(kept_seed, index)),
            absl::StrCat(SeedOfTable(given_seed, index))};
  }
  if (field == "shape" || field == "dim") {
    if (ByDimension(sizes, &difference)) return difference;
    difference.option =
        absl::StrCat(field, ", which follows from --model, its sizes and the features of --data,");
    return difference;
  }
  for (const auto& [of_table, option] : kOptions) {
    if (field == of_table) difference.option = std::string(option);
  }
  return difference;
}

}  // namespace verbena::worker
