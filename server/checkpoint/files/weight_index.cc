#include "server/checkpoint/files/weight_index.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"

namespace verbena::checkpoint {
namespace {

// A file's name on any system: no way out of the directory.
bool IsBeside(const std::string& file) {
  return !file.empty() && file != "." && file != ".." &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// Takes the map as the parser comes by; of the rest only how deep it is.
class IndexHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  IndexHandler(const std::string& path, std::map<std::string, std::string>* files)
      : path_(path), files_(files) {}

  const absl::Status& status() const { return status_; }
  bool has_map() const { return has_map_; }

  bool key(string_t& text) override {
    if (in_map_) {
      tensor_ = text;
      return !files_->contains(text) || Wrong(absl::StrCat("tensor ", Quoted(text), " twice"));
    }
    at_map_ = depth_ == 1 && text == "weight_map";
    return !(at_map_ && has_map_) || Wrong("weight_map twice");
  }
  bool start_object(size_t) override {
    if (in_map_) return NoFile("an object");
    if (at_map_) in_map_ = has_map_ = true;
    at_map_ = false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    in_map_ = false;  // which has no objects inside
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return Wrong("no object, which an index is");
    ++depth_;
    return Value("an array");
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool string(string_t& text) override {
    if (!in_map_) return Value("a text");
    if (!IsBeside(text)) return NoFile(Quoted(text));
    files_->emplace(tensor_, text);
    return true;
  }
  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("a truth value"); }
  bool number_integer(number_integer_t) override { return Value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Value("a number"); }
  bool binary(binary_t&) override { return false; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = absl::DataLossError(
        absl::StrCat(path_, " is not JSON: wrong at byte ", position, " of it"));
    return false;
  }

 private:
  bool Wrong(const std::string& what) {
    status_ = absl::DataLossError(absl::StrCat(path_, " has ", what));
    return false;
  }
  bool NoFile(const std::string& found) {
    return Wrong(absl::StrCat(found, " as the file of tensor ", Quoted(tensor_),
                              "; allowed: the name of a file beside the index"));
  }
  // One that is no object and no file's name.
  bool Value(const char* found) {
    if (in_map_) return NoFile(found);
    if (at_map_) return Wrong(absl::StrCat(found, " as weight_map; allowed: an object"));
    return true;
  }

  const std::string& path_;
  std::map<std::string, std::string>* const files_;
  absl::Status status_;
  int depth_ = 0;
  bool at_map_ = false, in_map_ = false, has_map_ = false;
  std::string tensor_;
};

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(const std::string& path,
                                                                    std::string_view text) {
  std::map<std::string, std::string> files;
  IndexHandler handler(path, &files);
  const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  if (!handler.status().ok()) return handler.status();
  if (!parsed) return absl::DataLossError(absl::StrCat(path, " is not JSON"));
  if (!handler.has_map()) {
    return absl::DataLossError(
        absl::StrCat(path, " has no weight_map, so it is no index of safetensors files"));
  }
  return files;
}

}  // namespace verbena::checkpoint
