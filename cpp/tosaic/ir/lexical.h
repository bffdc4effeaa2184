// lexical: numbers, quoted strings and names, as all writers and readers of the text form spell them.
//
// A number is the shortest text that reads back to the same bits, except that every NaN is `nan`. A float
// always has a point or an exponent, or is `inf`, `-inf` or `nan`, so it cannot be read as an integer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tosaic {

void append_number(std::string& out, double value);
void append_number(std::string& out, float value);
void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::uint64_t value);

// Appends the text in double quotes. Quotes and backslashes get a backslash. Newlines, tabs and carriage
// returns become \n \t \r. Other characters that should not be shown (see shown_length()) become \xNN, byte
// by byte. The rest, UTF-8 included, is unchanged.
void append_quoted(std::string& out, std::string_view text);
// Appends the name, in quotes unless it is not empty and consists of [A-Za-z0-9_.] only.
void append_name(std::string& out, std::string_view name);
[[nodiscard]] bool is_plain_name_character(char c);
// Returns the number of bytes of the first character of `text`, or 0 if it should not be shown as it is: a
// control character, a character that changes the direction of text, an invisible one, or a byte that is not
// UTF-8. `text` must not be empty.
[[nodiscard]] std::size_t shown_length(std::string_view text);
// True for well-formed UTF-8. Names must be well-formed, because Python strings hold nothing else.
[[nodiscard]] bool is_utf8(std::string_view text);

}  // namespace tosaic
