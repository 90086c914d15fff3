// Values of fields of verbena_table_spec. table_spec.h includes this file.
//
// **Thread safety**: constants.
#ifndef VERBENA_TABLE_ENUMS_H_
#define VERBENA_TABLE_ENUMS_H_

// Types of elements.
typedef enum verbena_dtype {
  VERBENA_DTYPE_DEFAULT = 0,  // f32
  VERBENA_DTYPE_F32 = 1,      // IEEE 754 binary32, 4 bytes
  VERBENA_DTYPE_BF16 = 2,     // bfloat16, the upper half of an f32: 2 bytes
  VERBENA_DTYPE_F16 = 3       // IEEE 754 binary16, 2 bytes
} verbena_dtype;

// Encodings of f32 gradients and parameters in transfers: docs/codecs.md.
typedef enum verbena_codec {
  VERBENA_CODEC_DEFAULT = 0,   // none
  VERBENA_CODEC_NONE = 1,      // as they are
  VERBENA_CODEC_BF16 = 2,      // bfloat16
  VERBENA_CODEC_F16 = 3,       // IEEE 754 binary16
  VERBENA_CODEC_INT8 = 4,      // 8 bits, with a scale for each 128 numbers, as the next three
  VERBENA_CODEC_FP8_E4M3 = 5,  // OCP 8-bit floating point
  VERBENA_CODEC_FP8_E5M2 = 6,  // the same, with a wider range
  VERBENA_CODEC_SIGN = 7,      // 1 bit
  VERBENA_CODEC_TOP_K = 8      // the 20 numbers of greatest magnitude of each 2048
} verbena_codec;

// When a push takes effect.
typedef enum verbena_consistency {
  VERBENA_CONSISTENCY_DEFAULT = 0,  // sync
  VERBENA_CONSISTENCY_SYNC = 1,     // a step commits with every rank's contribution
  VERBENA_CONSISTENCY_ASYNC = 2,    // every push is applied when it arrives
  VERBENA_CONSISTENCY_SSP = 3       // as async, but no worker reads more than `staleness` ahead
} verbena_consistency;

// How the workers' contributions to a step are combined.
typedef enum verbena_reduction {
  VERBENA_REDUCTION_DEFAULT = 0,  // mean
  VERBENA_REDUCTION_SUM = 1,      // added
  VERBENA_REDUCTION_MEAN = 2      // divided by the workers of the step (async: expected_workers)
} verbena_reduction;

// Handling of a push with a NaN or infinity.
typedef enum verbena_non_finite {
  VERBENA_NON_FINITE_DEFAULT = 0,  // reject
  VERBENA_NON_FINITE_REJECT = 1,   // it is refused, and contributes zero
  VERBENA_NON_FINITE_APPLY = 2,    // it is applied; gradients are not checked
  VERBENA_NON_FINITE_SKIP = 3      // it contributes zero, and the push is OK
} verbena_non_finite;

// The first value of every element.
typedef enum verbena_initializer {
  VERBENA_INITIALIZER_DEFAULT = 0,   // zeros
  VERBENA_INITIALIZER_ZEROS = 1,     // 0
  VERBENA_INITIALIZER_CONSTANT = 2,  // a
  VERBENA_INITIALIZER_UNIFORM = 3,   // in [a, b)
  VERBENA_INITIALIZER_NORMAL = 4     // mean a, standard deviation b
} verbena_initializer;

// When a key of an embedding table gets a row.
typedef enum verbena_admission {
  VERBENA_ADMISSION_DEFAULT = 0,     // always
  VERBENA_ADMISSION_ALWAYS = 1,      // with the first push
  VERBENA_ADMISSION_MIN_COUNT = 2,   // with push number admission_min_count, counted by a sketch
  VERBENA_ADMISSION_PROBABILITY = 3  // at random, with each push
} verbena_admission;

// Which rows of an embedding table are evicted.
typedef enum verbena_eviction {
  VERBENA_EVICTION_DEFAULT = 0,      // never
  VERBENA_EVICTION_NEVER = 1,        // rows stay
  VERBENA_EVICTION_TTL_STEPS = 2,    // not pushed for eviction_ttl applies to their partition
  VERBENA_EVICTION_TTL_SECONDS = 3,  // not pushed for eviction_ttl seconds
  VERBENA_EVICTION_LRU = 4,          // over the limit: the least recently pushed
  VERBENA_EVICTION_LFU = 5           // over the limit: the least frequently pushed of late
} verbena_eviction;

// The learning rate by the number of applies s; docs/reference/table-options.md has the formulas.
typedef enum verbena_schedule {
  VERBENA_SCHEDULE_DEFAULT = 0,   // constant
  VERBENA_SCHEDULE_CONSTANT = 1,  // rate
  VERBENA_SCHEDULE_STEP = 2,      // multiplied by schedule_factor after each schedule_period
  VERBENA_SCHEDULE_COSINE = 3,    // half a cosine over schedule_period, down to schedule_floor
  VERBENA_SCHEDULE_PIECEWISE = 4  // schedule_rates from schedule_boundaries on
} verbena_schedule;

#endif  // VERBENA_TABLE_ENUMS_H_
