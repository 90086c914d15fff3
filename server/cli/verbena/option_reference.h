// The reference of table options, from their descriptors: `verbena table options`, and the page
// docs/reference/table-options.md.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_OPTION_REFERENCE_H_
#define VERBENA_SERVER_CLI_VERBENA_OPTION_REFERENCE_H_

#include <string>

namespace verbena::cli {

std::string OptionReferenceText();
std::string OptionReferenceJson();
// The whole page.
std::string OptionReferenceMarkdown();

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_OPTION_REFERENCE_H_
