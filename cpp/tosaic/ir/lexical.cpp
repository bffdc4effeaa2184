#include "tosaic/ir/lexical.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tosaic {
namespace {

template <class T>
void append_chars(std::string& out, T value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  out.append(buffer.data(), end);
}

template <class T>
void append_float(std::string& out, T value) {
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  const std::size_t begin = out.size();
  append_chars(out, value);
  if (std::isfinite(value) && out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

// The length of the well-formed UTF-8 sequence of two to four bytes at the start of `text`, or 0 if there is
// none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool surrogate = byte(0) == 0xed && byte(1) > 0x9f;
  const bool beyond = byte(0) == 0xf4 && byte(1) > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

// True for a sequence that acts on a terminal: a control character of two bytes, a line or paragraph
// separator, a character that changes the direction of text, or an invisible one.
bool acts_on_terminal(std::string_view sequence) {
  const auto byte = [sequence](std::size_t i) { return static_cast<unsigned char>(sequence[i]); };
  if (sequence.size() == 2)
    return (byte(0) == 0xc2 && byte(1) < 0xa0) || (byte(0) == 0xd8 && byte(1) == 0x9c);
  if (sequence.size() != 3) return false;
  if (byte(0) == 0xef)
    return (byte(1) == 0xbb && byte(2) == 0xbf) || (byte(1) == 0xbf && byte(2) >= 0xb9 && byte(2) <= 0xbb);
  if (byte(0) != 0xe2) return false;
  if (byte(1) == 0x80)
    return byte(2) == 0x8b || byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae);
  return byte(1) == 0x81 && byte(2) >= 0xa0 && byte(2) <= 0xa9;
}

}  // namespace

void append_number(std::string& out, double value) { append_float(out, value); }
void append_number(std::string& out, float value) { append_float(out, value); }
void append_number(std::string& out, std::int64_t value) { append_chars(out, value); }
void append_number(std::string& out, std::uint64_t value) { append_chars(out, value); }

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t length = shown_length(text.substr(i));
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (length != 0) {
      out += text.substr(i, length);
      i += length - 1;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  out += '"';
}

std::size_t shown_length(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  if (byte < 0x80) return byte >= 0x20 && byte != 0x7f ? 1 : 0;
  const std::size_t length = sequence_length(text);
  return length != 0 && acts_on_terminal(text.substr(0, length)) ? 0 : length;
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) < 0x80) continue;
    const std::size_t sequence = sequence_length(text.substr(i));
    if (sequence == 0) return false;
    i += sequence - 1;
  }
  return true;
}

bool is_plain_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

void append_name(std::string& out, std::string_view name) {
  if (!name.empty() && std::all_of(name.begin(), name.end(), is_plain_name_character))
    out += name;
  else
    append_quoted(out, name);
}

}  // namespace tosaic
