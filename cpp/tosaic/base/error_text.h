// error_text: parts of which error messages are made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tosaic {

// "'relu'"
[[nodiscard]] inline std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// "a, b, c"
[[nodiscard]] inline std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + text;
  return out;
}

}  // namespace tosaic
