// Lexical forms shared by everything that writes or reads the text form: numbers, quoted strings and names.
//
// Numbers are the shortest text that reads back to the same bits; a floating-point one always shows a point,
// an exponent, `inf` or `nan`, so it cannot be taken for an integer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tosaic {

void append_number(std::string& out, double value);
void append_number(std::string& out, float value);
void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::uint64_t value);

// "..." with \" \\ \n \t \r and \xNN for other control bytes; the rest, UTF-8 included, as it is.
void append_quoted(std::string& out, std::string_view text);
// The name itself if it consists of [A-Za-z0-9_.] only and is not empty, else quoted.
void append_name(std::string& out, std::string_view name);
[[nodiscard]] bool is_plain_name_character(char c);
// Well-formed UTF-8, as names must be: Python has no other text.
[[nodiscard]] bool is_utf8(std::string_view text);

}  // namespace tosaic
