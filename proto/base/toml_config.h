// Reads a program's configuration file: a flat TOML file whose keys are the long options.
//
// CLI11's own reader skips lines that it does not understand, so a typing error silently becomes a
// default. This reader accepts the subset of TOML that options need: comments, and key = value with
// strings, integers, floats and booleans. It refuses everything else with file and line. A byte
// order mark of UTF-8 is skipped.
//
// **Thread safety**: one thread.
#ifndef VERBENA_PROTO_BASE_TOML_CONFIG_H_
#define VERBENA_PROTO_BASE_TOML_CONFIG_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace verbena {

class TomlConfig final : public CLI::ConfigTOML {
 public:
  // `app` has the options and the name of the file (the value of its config option).
  explicit TomlConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // Returns an error of CLI11, "--key: ...", with the prefix "FILE:LINE: " if the file sets the
  // key.
  std::string WithPlace(const std::string& error) const;

 private:
  std::string File() const;
  CLI::ConfigItem ParseLine(const std::string& line, const std::string& where) const;

  const CLI::App* app_;
  mutable std::map<std::string, std::string> where_;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_TOML_CONFIG_H_
