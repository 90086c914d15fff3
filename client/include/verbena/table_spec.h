// The specification of a new table, in C. verbena.h includes this file. Each field:
// docs/reference/table-options.md.
//
// **Thread safety**: plain data.
#ifndef VERBENA_TABLE_SPEC_H_
#define VERBENA_TABLE_SPEC_H_

#include <stddef.h>
#include <stdint.h>

#include "verbena/export.h"
#include "verbena/table_enums.h"

#ifdef __cplusplus
extern "C" {
#endif

// A parameter of an optimizer.
typedef struct verbena_parameter {
  const char* name;  // "momentum", "beta1"
  double value;      // finite
} verbena_parameter;

// The specification of a new table, initialized by verbena_table_spec_init(). `name` is required,
// and either a shape (a dense table) or `dim` (an embedding table).
typedef struct verbena_table_spec {
  size_t struct_size;         // sizeof(verbena_table_spec)
  const char* name;           // 1 to 128 characters of [A-Za-z0-9_./-]
  const char* job;            // the job whose workers push to it; default: the client's
  const uint64_t* shape;      // `dimensions` of them, each 1 or more; NULL with `dim`
  size_t dimensions;          // 1 to 8, at most 2^40 elements in all; 0 with `dim`
  int32_t dtype;              // a verbena_dtype: of parameters as pulled; with `dim` f32
  int32_t consistency;        // a verbena_consistency
  int32_t reduction;          // a verbena_reduction
  int32_t non_finite;         // a verbena_non_finite
  int32_t initializer;        // a verbena_initializer
  uint32_t chunk_bytes;       // a multiple of 64 in 256 to 8 MiB, a row at least; 0: 256 KiB
  double initializer_a;       // see verbena_initializer
  double initializer_b;       // see verbena_initializer
  uint64_t initializer_seed;  // of uniform and normal
  const char* optimizer;      // "sgd" (default), "momentum", "adam", ...
  double rate;                // learning rate, 0 or more; default 0
  const verbena_parameter* parameters;  // of the optimizer; parameters that are not named have
                                        // their defaults
  size_t parameter_count;               // of `parameters`; default 0
  uint32_t staleness;                   // ssp: steps a worker may read ahead of the slowest
  uint32_t dim;                         // numbers in a row, 1 to 1024; 0 (default): a dense table
  int32_t gradient_dtype;               // as pushed: f32 (default) or bf16; with `dim` f32
  int32_t push_codec;                   // a verbena_codec; 0 is none; with `dim` not sign, top_k
  int32_t admission;                    // a verbena_admission; always without `dim`
  uint32_t admission_min_count;         // 2 to 255; 0 (default) with another admission
  double admission_probability;         // between 0 and 1; 0 (default) with another admission
  uint64_t admission_sketch_bytes;      // of min_count: 4 KiB to 64 GiB; 0: 16 MiB
  uint64_t admission_seed;              // of probability
  int32_t eviction;                     // a verbena_eviction; never without `dim`
  uint64_t eviction_ttl;                // 1 to 2^30; 0 (default) with another eviction
  uint64_t eviction_max_rows;           // of lru and lfu; 0 (default): eviction_max_bytes
  uint64_t eviction_max_bytes;          // of parameters and optimizer state
  int32_t row_dtype;                    // how rows lie in the servers' memory: f32 (default), bf16
                                        // or f16; 0 without `dim`
  int32_t stochastic_rounding;          // not 0: rows of 16 bits are rounded up or down by chance
  int32_t pull_codec;                   // a verbena_codec to fp8_e5m2; 0 is none
  uint64_t hot_bytes;                   // memory for rows over all servers, the others are on their
                                        // disks: 64 KiB and more; 0 (default): all in memory
  double clip_value;                    // limit of each number of a gradient; 0 (default): none
  double clip_chunk_norm;               // limit of the L2 norm of a chunk's or row's gradient
  double clip_global_norm;              // limit of a step's L2 norm over all tables of the job with
                                        // this field; dense sync tables
  int32_t schedule;                     // a verbena_schedule: of the rate
  uint64_t schedule_warmup_steps;       // applies over which the rate rises; default 0
  uint64_t schedule_period;             // of step and cosine, in applies: 1 and more
  double schedule_factor;               // of step: more than 0, at most 1
  double schedule_floor;                // of cosine: 0 to rate
  const uint64_t* schedule_boundaries;  // of piecewise: ascending numbers of applies
  size_t schedule_boundary_count;       // 1 to 1024; 0 (default) with another schedule
  const double* schedule_rates;         // of piecewise: from each boundary on
  size_t schedule_rate_count;           // as many as boundaries
  const char* description;              // text for people, at most 512 bytes of UTF-8 without
                                        // control characters; default: none
} verbena_table_spec;

// Sets every field to its default. `struct_size` is sizeof(verbena_table_spec). No effect if `spec`
// is NULL.
VERBENA_EXPORT void verbena_table_spec_init(verbena_table_spec* spec, size_t struct_size);

// The description of an option of a new table. Texts are valid as long as the library is loaded.
typedef struct verbena_table_option {
  size_t struct_size;         // as the library knows it
  const char* name;           // "optimizer.rate"
  const char* member;         // of verbena_table_spec: "rate"
  const char* type;           // "word", "list of uint64", "double", ...
  const char* unit;           // of a number: "bytes", "rows"; "": none
  const char* allowed;        // allowed values: "f32, bf16, f16"
  const char* default_value;  // or "required"
  const char* applies_to;     // kinds of tables: "embedding tables"; "": all
  const char* meaning;        // sentences in Markdown
} verbena_table_option;

// Called for each option, with the `user` of the call.
typedef void (*verbena_table_option_function)(const verbena_table_option* option, void* user);
// The value of an option as text, as in `verbena-train --table-option`: a word, a number, "true" or
// "false", a text; lists "1,2"; optimizer.parameters "beta1=0.9,beta2=0.99".
typedef struct verbena_setting {
  const char* name;   // of a verbena_table_option: "optimizer.rate"
  const char* value;  // "0.1"
} verbena_setting;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_TABLE_SPEC_H_
