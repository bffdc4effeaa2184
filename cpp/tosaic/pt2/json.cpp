#include "tosaic/pt2/json.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/ir/lexical.h"

namespace tosaic::pt2 {
namespace {

constexpr std::size_t kMostDigits = 1024;  // of a number
constexpr std::size_t kMostShown = 120;

// What a byte of a string means.
enum class Byte : std::uint8_t { kPlain, kQuote, kEscape, kControl, kWide };

constexpr std::array<Byte, 256> kBytes = [] {
  std::array<Byte, 256> kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i)
    kinds[i] = i < 0x20 ? Byte::kControl : i < 0x80 ? Byte::kPlain : Byte::kWide;
  kinds['"'] = Byte::kQuote;
  kinds['\\'] = Byte::kEscape;
  return kinds;
}();

[[nodiscard]] Byte kind_of(char letter) { return kBytes[static_cast<unsigned char>(letter)]; }
[[nodiscard]] bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// True if all of eight bytes are plain: none is a quote, a backslash, a control character or beyond ASCII.
[[nodiscard]] bool are_plain(const char* at) {
  constexpr std::uint64_t each = 0x0101010101010101u;
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, at, sizeof bytes);
  const std::uint64_t quote = bytes ^ (each * '"'), escape = bytes ^ (each * '\\');
  // Subtracting sets the upper bit of a byte that is too small. Its borrow may change later bytes, but the
  // result is false then anyway.
  return ((bytes | (bytes - each * 0x20) | (quote - each) | (escape - each)) & (each * 0x80)) == 0;
}

// The letter that an escape of two characters means; 0 if it means none.
[[nodiscard]] char escaped(char letter) {
  switch (letter) {
    case '"':
    case '\\':
    case '/':
      return letter;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return 0;
  }
}

// The number that four hexadecimal digits write; nothing if a character is not such a digit.
[[nodiscard]] std::optional<unsigned> hexadecimal(const char* at, const char* end) {
  if (end - at < 4) return std::nullopt;
  unsigned value = 0;
  const auto [stop, error] = std::from_chars(at, at + 4, value, 16);
  return error == std::errc() && stop == at + 4 ? std::optional(value) : std::nullopt;
}

// The character of an escape at `at`, just after its "\u", with its second half if it is written in two;
// moves after it. Returns nothing for a lone half and for wrong digits.
[[nodiscard]] std::optional<unsigned> read_unicode(const char*& at, const char* end) {
  const std::optional<unsigned> first = hexadecimal(at, end);
  if (!first) return std::nullopt;
  at += 4;
  if (*first < 0xd800 || *first > 0xdfff) return first;
  if (*first > 0xdbff || end - at < 6 || at[0] != '\\' || at[1] != 'u') return std::nullopt;
  const std::optional<unsigned> second = hexadecimal(at + 2, end);
  if (!second || *second < 0xdc00 || *second > 0xdfff) return std::nullopt;
  at += 6;
  return 0x10000 + ((*first - 0xd800) << 10) + (*second - 0xdc00);
}

void append_utf8(std::string& to, unsigned code) {
  const auto add = [&](unsigned byte) { to += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    add(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  add((more == 1 ? 0xc0u : more == 2 ? 0xe0u : 0xf0u) | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) add(0x80u | ((code >> (6 * i)) & 0x3fu));
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& what, std::vector<JsonEntry>& entries)
      : begin_(text.data()), at_(begin_), end_(begin_ + text.size()), what_(what), entries_(entries) {}

  void parse() {
    if (static_cast<std::uint64_t>(end_ - begin_) >= std::numeric_limits<std::uint32_t>::max())
      fail("less than 4 GiB", std::to_string(end_ - begin_) + " bytes");
    for (;;) {
      if (read_value()) continue;  // its first member is next
      for (;;) {                   // a value ends here
        skip_space();
        if (open_.empty()) {
          if (at_ != end_) refuse("the end");
          return;
        }
        JsonEntry& outer = entries_[open_.back()];
        const bool is_object = outer.kind == JsonKind::kObject;
        if (take(',')) {
          if (is_object) read_key();
          ++outer_size();
          break;
        }
        if (!take(is_object ? '}' : ']')) refuse(is_object ? "',' or '}'" : "',' or ']'");
        close();
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw InvalidGraph({.where = "pt2",
                        .what = "the JSON of " + what_ + " cannot be read",
                        .expected = expected,
                        .got = got});
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    std::string got = "the end of the text";
    if (at_ != end_) {
      const auto byte = static_cast<unsigned char>(*at_);
      got = byte > 0x20 && byte < 0x7f ? quoted(std::string_view(at_, 1)) : "byte " + std::to_string(byte);
    }
    fail(expected, got + " at " + std::to_string(at_ - begin_));
  }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  [[nodiscard]] bool take(char letter) {
    if (at_ == end_ || *at_ != letter) return false;
    ++at_;
    return true;
  }

  // Reads a value. Returns true if it is an array or object whose first member is next.
  [[nodiscard]] bool read_value() {
    skip_space();
    if (at_ == end_) refuse("a value");
    switch (*at_) {
      case '{':
      case '[':
        return open();
      case '"':
        read_string();
        return false;
      case 't':
        return read_word("true", JsonKind::kBool, true);
      case 'f':
        return read_word("false", JsonKind::kBool, false);
      case 'n':
        return read_word("null", JsonKind::kNull, false);
      default:
        read_number();
        return false;
    }
  }

  [[nodiscard]] bool open() {
    const bool is_object = *at_++ == '{';
    if (open_.size() == kDeepestJson)
      fail("at most " + std::to_string(kDeepestJson) + " levels", "more at " + std::to_string(at_ - begin_));
    open_.push_back(static_cast<std::uint32_t>(entries_.size()));
    add(is_object ? JsonKind::kObject : JsonKind::kArray);
    skip_space();
    if (take(is_object ? '}' : ']')) {
      close();
      return false;
    }
    if (is_object) read_key();
    ++outer_size();
    return true;
  }

  void close() {
    entries_[open_.back()].skip = entries_.size() - open_.back();
    open_.pop_back();
  }

  [[nodiscard]] std::uint32_t& outer_size() { return entries_[open_.back()].size; }

  void read_key() {
    skip_space();
    if (at_ == end_ || *at_ != '"') refuse("a key");
    read_string();
    skip_space();
    if (!take(':')) refuse("':'");
  }

  [[nodiscard]] bool read_word(std::string_view word, JsonKind kind, bool truth) {
    if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).substr(0, word.size()) != word)
      refuse("a value");
    at_ += word.size();
    add(kind).flag = truth;
    return false;
  }

  void read_string() {
    const char* const begin = ++at_;
    bool has_escapes = false, is_ascii = true;
    for (;;) {
      while (end_ - at_ >= 8 && are_plain(at_)) at_ += 8;
      while (at_ != end_ && kind_of(*at_) == Byte::kPlain) ++at_;
      if (at_ == end_) refuse("the end of a string");
      const Byte kind = kind_of(*at_);
      if (kind == Byte::kQuote) break;
      if (kind == Byte::kControl) refuse("a character");
      if (kind == Byte::kEscape) {
        has_escapes = true;
        skip_escape();
      } else {
        is_ascii = false;
        ++at_;
      }
    }
    const std::string_view text(begin, static_cast<std::size_t>(at_ - begin));
    if (!is_ascii && !is_utf8(text)) {
      at_ = begin;
      refuse("a string of UTF-8");
    }
    JsonEntry& made = add(JsonKind::kString);
    made.flag = has_escapes;
    made.size = static_cast<std::uint32_t>(text.size());
    made.text = text.data();
    ++at_;
  }

  void skip_escape() {
    const std::ptrdiff_t left = end_ - at_;
    const bool is_unicode = left >= 2 && at_[1] == 'u';
    if (left < (is_unicode ? 6 : 2)) {  // the text ends in the escape
      at_ = end_;
      refuse("an escape");
    }
    if (escaped(at_[1]) != 0) {
      at_ += 2;
      return;
    }
    const char* behind = at_ + 2;
    if (!is_unicode || !read_unicode(behind, end_)) refuse("an escape of a character");
    at_ = behind;
  }

  void skip_digits() {
    if (at_ == end_ || !is_digit(*at_)) refuse("a digit");
    while (at_ != end_ && is_digit(*at_)) ++at_;
  }

  void read_number() {
    const char* const begin = at_;
    const bool is_negative = take('-');
    if (!is_negative && !is_digit(*at_)) refuse("a value");
    if (!take('0')) skip_digits();
    bool is_float = take('.');
    if (is_float) skip_digits();
    if (take('e') || take('E')) {
      is_float = true;
      if (!take('+')) static_cast<void>(take('-'));
      skip_digits();
    }
    const auto size = static_cast<std::size_t>(at_ - begin);
    if (size > kMostDigits)
      fail("numbers of at most " + std::to_string(kMostDigits) + " characters", std::to_string(size));
    if (is_float) {
      double& number = add(JsonKind::kFloat).number;
      if (std::from_chars(begin, at_, number).ec != std::errc())
        fail("numbers of 64 bits", std::string(begin, at_));
      return;
    }
    JsonEntry& made = add(JsonKind::kInteger);
    if (std::from_chars(begin, at_, made.integer).ec == std::errc()) return;
    made.kind = JsonKind::kLongInteger;
    made.size = static_cast<std::uint32_t>(size);
    made.text = begin;
  }

  JsonEntry& add(JsonKind kind) {
    JsonEntry& made = entries_.emplace_back();
    made.kind = kind;
    return made;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  const std::string& what_;
  std::vector<JsonEntry>& entries_;
  std::vector<std::uint32_t> open_;  // the arrays and objects around the current place, outermost first
};

}  // namespace

std::string Json::decoded() const {
  const std::string_view text = raw();
  if (!has_escapes()) return std::string(text);
  std::string made;
  made.reserve(text.size());
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const char* const begin = at;
    const auto* const escape =
        static_cast<const char*>(std::memchr(at, '\\', static_cast<std::size_t>(end - at)));
    at = escape == nullptr ? end : escape;
    made.append(begin, at);
    if (end - at < 2) break;  // a file that was written since: the parser found a whole escape here
    if (at[1] == 'u') {
      at += 2;
      if (const std::optional<unsigned> code = read_unicode(at, end)) append_utf8(made, *code);
    } else {
      made += escaped(at[1]);
      at += 2;
    }
  }
  return made;
}

std::optional<Json> Json::find(std::string_view key) const {
  std::optional<Json> found;
  Json each = first();
  for (std::size_t i = 0; i < size(); ++i) {
    const Json value = each.next();
    if (each.is(key)) found = value;
    each = value.next();
  }
  return found;
}

JsonDocument::JsonDocument(std::string_view text, const std::string& what) {
  entries_.reserve(text.size() / 16 + 1);
  Parser(text, what, entries_).parse();
}

std::string shown(Json value) {
  std::string text;
  switch (value.kind()) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return value.truth() ? "true" : "false";
    case JsonKind::kInteger:
      return std::to_string(value.integer());
    case JsonKind::kFloat:
      return std::to_string(value.number());
    case JsonKind::kArray:
      return "a list of " + std::to_string(value.size());
    case JsonKind::kObject: {
      text = "an object with " + std::to_string(value.size()) + " entries";
      if (value.size() != 0) text += ", first " + shown(value.first());
      return text;
    }
    case JsonKind::kLongInteger:
      text = value.raw();
      break;
    case JsonKind::kString:
      text = quoted(value.raw());
      break;
  }
  if (text.size() > kMostShown) text.replace(kMostShown, std::string::npos, "...");
  return text;
}

}  // namespace tosaic::pt2
