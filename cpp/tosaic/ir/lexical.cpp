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

}  // namespace

void append_number(std::string& out, double value) { append_float(out, value); }
void append_number(std::string& out, float value) { append_float(out, value); }
void append_number(std::string& out, std::int64_t value) { append_chars(out, value); }
void append_number(std::string& out, std::uint64_t value) { append_chars(out, value); }

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
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
