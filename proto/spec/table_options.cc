#include "proto/spec/table_options.h"

#include <cfloat>

#include "proto/spec/spec_text.h"
#include "proto/wire/record.h"
#include "proto/wire/routing.h"
#include "verbena/v1/table.pb.h"

namespace verbena {
namespace {

using v1::Admission;
using v1::Eviction;
using v1::Initializer;
using v1::Schedule;

constexpr double kAnyNumber = -FLT_MAX;
// A lower limit is near the smallest f32: a mistake rather than an intention.
constexpr double kLeastClip = 1e-30;
// A lane's large slot holds a chunk and its header, and a ring has several of them.
constexpr double kMaxChunkBytes = 8 << 20;
constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr double kGiB = 1024 * kMiB;
// Less than the value at which stamps of rows restart (shard/table/eviction.h).
constexpr double kMaxTtl = 1 << 30;

// Codecs that encode every number: for parameters, and for gradients of rows.
constexpr uint32_t kCodecsOfEach = Values(v1::CODEC_NONE, v1::CODEC_BF16, v1::CODEC_F16,
                                          v1::CODEC_INT8, v1::CODEC_FP8_E4M3, v1::CODEC_FP8_E5M2);
constexpr uint32_t kLimits = Values(Eviction::LRU, Eviction::LFU);

constexpr TableOptionGroup kGroups[] = {
    {"", "", false},
    {"initializer", "First value of every element: a function of the seed and the element's place.",
     false},
    {"optimizer", "Rule by which the servers apply gradients.", false},
    {"optimizer.schedule",
     "Learning rate as a function of s, the number of applies before this one. In dense tables "
     "these "
     "are applies to the chunk, in embedding tables to the partition.",
     true},
    {"admission",
     "Keys of an embedding table that get a row. A push to another key is "
     "dropped with OK.",
     true},
    {"eviction", "Rows of an embedding table that are dropped again.", true},
    {"cold_tier", "Rows of an embedding table on the servers' disks.", true},
};

constexpr TableOption kOptions[] = {
    {.name = "name",
     .doc = "Name of the table, unique in the cluster.",
     .text = TextRule::kName,
     .max_bytes = kMaxNameBytes},
    {.name = "job",
     .doc = "Job whose workers push to the table. Clients fill in their own job.",
     .text = TextRule::kLabel,
     .max_bytes = kMaxNameBytes},
    {.name = "description",
     .doc =
         "Free text for people, shown by `verbena tables` and in checkpoints. It cannot be changed "
         "later.",
     .text = TextRule::kText,
     .max_bytes = 512},
    {.name = "shape",
     .doc = "Dimensions of a dense table: 1 to 8, with at most 2^40 elements in all. Empty with "
            "`dim`.",
     .kind = TableKind::kDense,
     .min = 1},
    {.name = "dim",
     .doc = "Numbers in a row of an embedding table, which has a row for each uint64 key that was "
            "pushed.",
     .unit = "numbers",
     .min = 1,
     .max = kMaxRowElements,
     .zero = "a dense table"},
    {.name = "dtype",
     .doc = "Type of pulled parameters. A 16-bit type has f32 master copies on the servers.",
     .default_value = v1::DTYPE_F32,
     .embedding_values = Values(v1::DTYPE_F32)},
    {.name = "gradient_dtype",
     .doc = "Type of pushed gradients. Servers sum in f32.",
     .default_value = v1::DTYPE_F32,
     .dense_values = Values(v1::DTYPE_F32, v1::DTYPE_BF16),
     .embedding_values = Values(v1::DTYPE_F32)},
    {.name = "push_codec",
     .doc = "Encoding of pushed f32 gradients. The client adds the encoding error of "
            "a dense gradient to the next push.",
     .default_value = v1::CODEC_NONE,
     .embedding_values = kCodecsOfEach,
     .reason = "other codecs need memory for the rounding error of each row"},
    {.name = "pull_codec",
     .doc = "Encoding of pulled f32 parameters and looked-up rows. The error affects "
            "only the puller.",
     .default_value = v1::CODEC_NONE,
     .dense_values = kCodecsOfEach,
     .embedding_values = kCodecsOfEach,
     .reason = "other codecs encode only some of the numbers"},
    {.name = "row_dtype",
     .doc = "Type of rows in the servers' memory, without f32 copies. Rows are sent, summed and "
            "checkpointed as f32.",
     .kind = TableKind::kEmbedding,
     .default_value = v1::DTYPE_F32},
    {.name = "stochastic_rounding",
     .doc =
         "Applies round each number of a row up or down at random, in proportion to the distance, "
         "so that small changes are not lost on average.",
     .kind = TableKind::kEmbedding,
     .when = "row_dtype",
     .when_values = Values(v1::DTYPE_BF16, v1::DTYPE_F16)},
    {.name = "consistency",
     .doc =
         "`sync`: a step commits with every rank's contribution. `async`: a push is applied when "
         "it arrives. `ssp`: like `async`, but reads are bounded by `staleness`.",
     .default_value = v1::CONSISTENCY_SYNC},
    {.name = "staleness",
     .doc = "A pull by a worker that has ended c steps waits until every worker has ended c - "
            "staleness.",
     .unit = "steps",
     .when = "consistency",
     .when_values = Values(v1::CONSISTENCY_SSP),
     .max = kMaxStaleness},
    {.name = "reduction",
     .doc = "Sum of the workers' gradients, or their mean: the sum divided by the workers of the "
            "step, in async and ssp by the expected workers.",
     .default_value = v1::REDUCTION_MEAN},
    {.name = "non_finite",
     .doc = "A push with NaN or infinity is refused (`reject`), counted as zero without an error "
            "(`skip`), or applied. Metrics count the first two.",
     .default_value = v1::NON_FINITE_REJECT},
    {.name = "initializer.kind",
     .doc = "`constant`: a. `uniform`: in [a, b). `normal`: mean a, standard deviation b.",
     .default_value = Initializer::ZEROS},
    {.name = "initializer.a",
     .doc = "Constant, lower end or mean.",
     .when = "initializer.kind",
     .when_values = Values(Initializer::CONSTANT, Initializer::UNIFORM, Initializer::NORMAL),
     .ignored_elsewhere = true,
     .min = kAnyNumber},
    {.name = "initializer.b",
     .doc = "Upper end, more than a; or standard deviation, 0 or more.",
     .when = "initializer.kind",
     .when_values = Values(Initializer::UNIFORM, Initializer::NORMAL),
     .ignored_elsewhere = true,
     .min = kAnyNumber},
    {.name = "initializer.seed",
     .doc = "Seed of the random numbers.",
     .when = "initializer.kind",
     .when_values = Values(Initializer::UNIFORM, Initializer::NORMAL),
     .ignored_elsewhere = true},
    {.name = "optimizer.name", .doc = "Name of an optimizer.", .default_text = "sgd"},
    {.name = "optimizer.rate", .doc = "Learning rate, before the schedule."},
    {.name = "optimizer.parameters",
     .doc = "Named parameters of the optimizer, such as `momentum`. Others have the optimizer's "
            "defaults.",
     .min = kAnyNumber},
    {.name = "optimizer.schedule.kind",
     .doc =
         "`constant`: rate. `step`: rate * factor^floor(s / period). `cosine`: floor + (rate - "
         "floor) * (1 + cos(pi * min(s / period, 1))) / 2. `piecewise`: rate, and rates[i] from s "
         "= boundaries[i] on.",
     .default_value = Schedule::CONSTANT},
    {.name = "optimizer.schedule.warmup_steps",
     .doc = "While s < warmup_steps the rate is multiplied by (s + 1) / warmup_steps.",
     .unit = "applies"},
    {.name = "optimizer.schedule.period",
     .doc = "Length of a step, or of the half cosine.",
     .unit = "applies",
     .when = "optimizer.schedule.kind",
     .when_values = Values(Schedule::STEP, Schedule::COSINE),
     .min = 1},
    {.name = "optimizer.schedule.factor",
     .doc = "Factor of the rate at each step.",
     .when = "optimizer.schedule.kind",
     .when_values = Values(Schedule::STEP),
     .max = 1,
     .above_min = true},
    {.name = "optimizer.schedule.floor",
     .doc = "Final rate, at most optimizer.rate.",
     .when = "optimizer.schedule.kind",
     .when_values = Values(Schedule::COSINE)},
    {.name = "optimizer.schedule.boundaries",
     .doc = "Applies at which the rate changes: 1 to 1024, ascending.",
     .unit = "applies",
     .when = "optimizer.schedule.kind",
     .when_values = Values(Schedule::PIECEWISE)},
    {.name = "optimizer.schedule.rates",
     .doc = "Rates from the boundaries on, one for each.",
     .when = "optimizer.schedule.kind",
     .when_values = Values(Schedule::PIECEWISE)},
    {.name = "optimizer.clip_value",
     .doc =
         "Each number of the gradient is limited to [-clip_value, clip_value]. At most one of the "
         "three clips is set.",
     .min = kLeastClip,
     .zero = "no clipping"},
    {.name = "optimizer.clip_chunk_norm",
     .doc = "L2 norm to which a greater gradient of a chunk, or of a row of an embedding table, is "
            "scaled down.",
     .min = kLeastClip,
     .zero = "no clipping"},
    {.name = "optimizer.clip_global_norm",
     .doc =
         "L2 norm to which the gradients of a step are scaled down, over all tables of the job "
         "with this option. Dense sync tables; all have the same value and are created before the "
         "first step.",
     .min = kLeastClip,
     .zero = "no clipping"},
    {.name = "admission.kind",
     .doc = "`always`: with the first push. `min_count`: with push number min_count, by a counting "
            "sketch. `probability`: each push admits with this probability.",
     .kind = TableKind::kEmbedding,
     .default_value = Admission::ALWAYS},
    {.name = "admission.min_count",
     .doc = "Number of the push that admits a key.",
     .unit = "pushes",
     .kind = TableKind::kEmbedding,
     .when = "admission.kind",
     .when_values = Values(Admission::MIN_COUNT),
     .min = 2,
     .max = 255},
    {.name = "admission.probability",
     .doc = "Probability that a push admits its key.",
     .kind = TableKind::kEmbedding,
     .when = "admission.kind",
     .when_values = Values(Admission::PROBABILITY),
     .max = 1,
     .above_min = true,
     .below_max = true},
    {.name = "admission.sketch_bytes",
     .doc =
         "Size of the counting sketch over all partitions. A partition allocates its share when it "
         "first refuses a key.",
     .unit = "bytes",
     .kind = TableKind::kEmbedding,
     .when = "admission.kind",
     .when_values = Values(Admission::MIN_COUNT),
     .default_value = 16 * kMiB,
     .min = 4 * kKiB,
     .max = 64 * kGiB},
    {.name = "admission.seed",
     .doc = "Seed of the random decision.",
     .kind = TableKind::kEmbedding,
     .when = "admission.kind",
     .when_values = Values(Admission::PROBABILITY)},
    {.name = "eviction.kind",
     .doc =
         "`ttl_steps`: rows without a push for ttl applies to their partition. `ttl_seconds`: for "
         "ttl seconds. `lru`, `lfu`: above the limit, rows pushed least recently or with the "
         "fewest recent pushes.",
     .kind = TableKind::kEmbedding,
     .default_value = Eviction::NEVER},
    {.name = "eviction.ttl",
     .doc = "Time without a push after which a row is dropped.",
     .unit = "applies or seconds",
     .kind = TableKind::kEmbedding,
     .when = "eviction.kind",
     .when_values = Values(Eviction::TTL_STEPS, Eviction::TTL_SECONDS),
     .min = 1,
     .max = kMaxTtl},
    {.name = "eviction.max_rows",
     .doc = "Limit of the whole table; each partition has its share. Exactly one of max_rows and "
            "max_bytes is set.",
     .unit = "rows",
     .kind = TableKind::kEmbedding,
     .when = "eviction.kind",
     .when_values = kLimits},
    {.name = "eviction.max_bytes",
     .doc =
         "Limit of the whole table's parameters and optimizer state; each partition has its share.",
     .unit = "bytes",
     .kind = TableKind::kEmbedding,
     .when = "eviction.kind",
     .when_values = kLimits},
    {.name = "cold_tier.hot_bytes",
     .doc = "Memory for parameters and optimizer state of rows over all servers. Other rows are on "
            "the servers' disks.",
     .unit = "bytes",
     .kind = TableKind::kEmbedding,
     .min = 64 * kKiB,
     .zero = "all rows in memory"},
    {.name = "chunk_bytes",
     .doc =
         "Size of a chunk's parameters or gradients, the larger of the two. Embedding tables: most "
         "bytes of rows in one request; at least one row.",
     .unit = "bytes",
     .default_value = kDefaultChunkBytes,
     .min = 256,
     .max = kMaxChunkBytes,
     .multiple_of = 64},
};

}  // namespace

absl::Span<const TableOption> TableOptions() { return kOptions; }
absl::Span<const TableOptionGroup> TableOptionGroups() { return kGroups; }

const TableOption* FindTableOption(std::string_view name) {
  for (const TableOption& option : kOptions) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

std::string_view GroupOf(const TableOption& option) {
  const std::string_view name = option.name;
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

}  // namespace verbena
