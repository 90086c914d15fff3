// Text for a string of a message, which has to be UTF-8: a parser refuses a whole message for one
// byte that is not.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BASE_UTF8_TEXT_H_
#define VERBENA_PROTO_BASE_UTF8_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace verbena {

// Bytes that are not UTF-8 become U+FFFD. Text beyond `most` bytes is cut off, between characters.
std::string Utf8Text(std::string_view text, size_t most);

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_UTF8_TEXT_H_
