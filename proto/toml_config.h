// Reads a program's configuration file: a flat TOML file whose keys are the long options.
//
// CLI11's own reader skips over lines it does not understand, so that a typing error silently
// becomes a default. This one takes the part of TOML that options need (comments, key = value with
// strings, integers, floats and booleans) and refuses everything else with file and line.
//
// **Thread safety**: one thread.
#ifndef VERBENA_PROTO_TOML_CONFIG_H_
#define VERBENA_PROTO_TOML_CONFIG_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace verbena {

class TomlConfig final : public CLI::ConfigTOML {
 public:
  // `app` has the options and the name of the file (its config option).
  explicit TomlConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // An error of CLI11, "--key: ...", preceded by "FILE:LINE: " where the file has set the key.
  std::string WithPlace(const std::string& error) const;

 private:
  std::string File() const;
  CLI::ConfigItem ParseLine(const std::string& line, const std::string& where) const;

  const CLI::App* app_;
  mutable std::map<std::string, std::string> where_;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_TOML_CONFIG_H_
