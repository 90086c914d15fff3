#include "proto/base/utf8_text.h"

#include <algorithm>

#include "proto/base/json.h"

namespace verbena {

std::string Utf8Text(std::string_view text, size_t most) {
  constexpr std::string_view kReplacement = "\ufffd";
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    const std::string_view next = length == 0 ? kReplacement : text.substr(i, length);
    if (out.size() + next.size() > most) break;
    out += next;
    i += std::max<size_t>(length, 1);
  }
  return out;
}

}  // namespace verbena
