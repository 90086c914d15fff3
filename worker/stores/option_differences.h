// Refusals of tables that exist with another specification, by the options of the trainer from
// which that follows.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_STORES_OPTION_DIFFERENCES_H_
#define VERBENA_WORKER_STORES_OPTION_DIFFERENCES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace verbena::worker {

// Initializers of a run's tables have this seed: tables of one shape do not begin equal. `index`
// counts the tables of the job.
uint64_t TableSeed(uint64_t seed, size_t index);
// The seed of the run that has made it so.
uint64_t SeedOfTable(uint64_t table_seed, size_t index);

struct OptionDifference {
  std::string option;       // "--seed", or several and how they differ
  std::string kept, given;  // of the existing table, and of the one that is wanted
};

// By the coordinator's message (CheckSameSpec()). `sizes`: the options that give the dimensions of
// a dense table, or the rows of an embedding table; "": none does. The option is the table's own,
// as 'verbena table options' has it, where no option of the trainer gives it; empty if the message
// is about something else.
OptionDifference OptionDifferenceOf(absl::string_view message, size_t index,
                                    const std::vector<std::string>& sizes);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_OPTION_DIFFERENCES_H_
