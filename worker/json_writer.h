// Writes one flat JSON object (RFC 8259).
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_JSON_WRITER_H_
#define VERBENA_WORKER_JSON_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::worker {

class JsonWriter {
 public:
  void Add(std::string_view key, std::string_view value);
  void Add(std::string_view key, const char* value) { Add(key, std::string_view(value)); }
  void Add(std::string_view key, uint64_t value);
  // The shortest text that reads back as the same number; null when it is not finite.
  void Add(std::string_view key, double value);
  // Left out when it has no value.
  void Add(std::string_view key, std::optional<double> value) {
    if (value) Add(key, *value);
  }

  std::string ToString() const { return "{" + members_ + "}"; }

 private:
  void Key(std::string_view key);
  std::string members_;
};

// With quotes. Bytes that are not UTF-8 become U+FFFD, so the result is always valid JSON.
std::string JsonString(std::string_view text);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_JSON_WRITER_H_
