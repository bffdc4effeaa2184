#include "tosaic/ir/json_object.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

// Reads JSON from front to back. Each function returns false at the first character that is wrong.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  // Appends the keys to `keys`, if it is not null.
  bool object(std::vector<std::string>* keys) {
    if (!opens('{')) return false;
    if (take('}')) return closes();
    do {
      skip_space();
      const std::string_view before = rest_;
      if (!string()) return false;
      if (keys != nullptr) keys->emplace_back(before.substr(1, before.size() - rest_.size() - 2));
      if (!take(':') || !value()) return false;
    } while (take(','));
    return take('}') && closes();
  }

  // True if only white space is left.
  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  bool array() {
    if (!opens('[')) return false;
    if (take(']')) return closes();
    do {
      if (!value()) return false;
    } while (take(','));
    return take(']') && closes();
  }

  bool value() {
    skip_space();
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '{':
        return object(nullptr);
      case '[':
        return array();
      case '"':
        return string();
      default:
        return word("true") || word("false") || word("null") || number();
    }
  }

  bool string() {
    if (!next('"')) return false;
    while (!rest_.empty() && rest_.front() != '"') {
      if (static_cast<unsigned char>(rest_.front()) < 0x20) return false;
      const bool escapes = rest_.front() == '\\';
      rest_.remove_prefix(1);
      if (escapes && !escape()) return false;
    }
    return next('"');
  }

  bool escape() {
    if (rest_.empty()) return false;
    const char kind = rest_.front();
    rest_.remove_prefix(1);
    if (kind != 'u') return std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos;
    if (rest_.substr(0, 4).find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      return false;
    if (rest_.size() < 4) return false;
    rest_.remove_prefix(4);
    return true;
  }

  bool number() {
    static_cast<void>(next('-'));
    if (!next('0') && !digits()) return false;
    if (next('.') && !digits()) return false;
    if (!next('e') && !next('E')) return true;
    if (!next('+')) static_cast<void>(next('-'));
    return digits();
  }

  // One digit or more.
  bool digits() {
    const std::size_t count = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(count);
    return count != 0;
  }

  bool word(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool opens(char bracket) { return ++depth_ <= kMaxJsonDepth && take(bracket); }
  bool closes() {
    --depth_;
    return true;
  }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpace), rest_.size())); }
  bool next(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take(char c) {
    skip_space();
    return next(c);
  }

  std::string_view rest_;
  int depth_ = 0;
};

}  // namespace

std::optional<std::vector<std::string>> json_keys(std::string_view text) {
  std::vector<std::string> keys;
  Scanner scanner(text);
  if (!scanner.object(&keys) || !scanner.at_end()) return std::nullopt;
  return keys;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(kSpace) == std::string_view::npos; }

std::string with_entry(std::string_view object, std::string_view key, std::string_view value) {
  const std::optional<std::vector<std::string>> keys = json_keys(is_blank(object) ? "{}" : object);
  if (!keys)
    throw InternalError(
        {.where = "json", .what = "an entry is added to text that is no JSON object", .got = quoted(object)});
  std::string out(keys->empty() ? "{" : object.substr(0, object.rfind('}')));
  if (!keys->empty()) out += ',';
  return out.append("\"").append(key).append("\":").append(value).append("}");
}

}  // namespace tosaic
