#include "tosaic/ir/parse.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <unordered_map>

#include "tosaic/base/error_text.h"
#include "tosaic/ir/lexical.h"
#include "tosaic/ir/print.h"
#include "tosaic/ir/verify.h"

namespace tosaic {
namespace {

constexpr std::size_t kMaxRegionDepth = 32;
constexpr std::size_t kMaxExcerpt = 24;
constexpr std::size_t kMaxGot = 80;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Scans the text. Every error names its line and column.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(std::size_t at, std::string what, std::string expected, std::string got = {},
                         std::string hint = {}) const {
    if (got.size() > kMaxGot) got = got.substr(0, kMaxGot) + "...";
    throw InvalidGraph({.where = "parse",
                        .what = std::move(what),
                        .expected = std::move(expected),
                        .got = std::move(got),
                        .source = place(at),
                        .hint = std::move(hint)});
  }
  [[noreturn]] void fail_here(std::string expected) {
    skip();
    fail(at_, "malformed text", std::move(expected), excerpt());
  }

  [[nodiscard]] std::string place(std::size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t start = before.rfind('\n');
    const std::size_t column = start == std::string_view::npos ? at + 1 : at - start;
    return "line " + std::to_string(line) + ", column " + std::to_string(column);
  }

  // The word or character at a position, quoted, for messages.
  [[nodiscard]] std::string excerpt() const { return excerpt(at_); }
  [[nodiscard]] std::string excerpt(std::size_t at) const {
    if (at == text_.size()) return "the end of the text";
    std::size_t end = at + 1;
    if (is_plain_name_character(text_[at]))
      while (end < text_.size() && end - at < kMaxExcerpt && is_plain_name_character(text_[end])) ++end;
    std::string out;
    append_quoted(out, text_.substr(at, end - at));
    return out;
  }

  void skip() {
    for (; at_ < text_.size(); ++at_) {
      if (is_blank(text_[at_])) continue;
      if (text_.substr(at_, 2) != "//") return;
      at_ = std::min(text_.find('\n', at_), text_.size());
      if (at_ == text_.size()) return;
    }
  }
  // The position of the next token.
  [[nodiscard]] std::size_t here() {
    skip();
    return at_;
  }
  [[nodiscard]] bool at_end() { return here() == text_.size(); }
  [[nodiscard]] char peek() { return at_end() ? '\0' : text_[at_]; }

  bool accept(std::string_view symbol) {
    skip();
    if (!text_.substr(at_).starts_with(symbol)) return false;
    at_ += symbol.size();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!accept(symbol)) fail_here(quoted(symbol));
  }
  // Accepts `word` as a whole word, not as the start of a longer one.
  bool accept_word(std::string_view word) {
    skip();
    const std::size_t end = at_ + word.size();
    if (!text_.substr(at_).starts_with(word)) return false;
    if (end < text_.size() && is_plain_name_character(text_[end])) return false;
    at_ = end;
    return true;
  }
  // `word=`
  bool accept_key(std::string_view word) {
    const std::size_t start = here();
    if (accept_word(word) && accept("=")) return true;
    at_ = start;
    return false;
  }
  // `word(`
  bool accept_call(std::string_view word) {
    const std::size_t start = here();
    if (accept_word(word) && accept("(")) return true;
    at_ = start;
    return false;
  }
  void expect_word(std::string_view word) {
    if (!accept_word(word)) fail_here(quoted(word));
  }
  std::string_view word(std::string_view what) {
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size() && is_plain_name_character(text_[at_])) ++at_;
    if (at_ == start) fail_here(std::string(what));
    return text_.substr(start, at_ - start);
  }

  std::int64_t integer() { return number<std::int64_t>("an integer"); }
  std::uint64_t count() {
    if (!is_digit(peek())) fail_here("a count");
    return number<std::uint64_t>("a count");
  }
  double real() { return number<double>("a number"); }
  float real_f32() { return number<float>("a number"); }
  // `true`, `false` or a number. The number is an integer if it consists of digits, possibly after a minus
  // sign. All other numbers are floats.
  Scalar scalar() {
    if (accept_word("true")) return true;
    if (accept_word("false")) return false;
    std::size_t end = here();
    if (end < text_.size() && text_[end] == '-') ++end;
    const std::size_t digits = end;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    if (end > digits && (end == text_.size() || !is_plain_name_character(text_[end]))) return integer();
    return real();
  }
  // The hexadecimal digits after "0x".
  std::uint64_t bits() {
    std::uint64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value, 16);
    if (error != std::errc()) fail_here("hexadecimal digits of at most 64 bits");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::string quoted_string() {
    expect("\"");
    const std::size_t start = at_;
    std::string out;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      out += c == '\\' ? escape() : c;
    }
    fail(start - 1, "a string does not end", "'\"'", "the end of the text");
  }

  // A quoted string of valid UTF-8, as Python requires.
  std::string text() {
    const std::size_t start = at_;
    std::string read = quoted_string();
    if (!is_utf8(read)) fail(start, "a name is not UTF-8", "text", excerpt(start));
    return read;
  }

  std::string name() {
    if (peek() != '"') return std::string(word("a name"));
    const std::size_t start = at_;
    std::string text = this->text();
    if (text.empty()) fail(start, "malformed text", "a name", "\"\"");
    return text;
  }

 private:
  template <class T>
  T number(std::string_view what) {
    skip();
    T value{};
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range)
      fail(at_, "a number is out of range", std::string(what) + " of 64 bits",
           std::string(begin, std::min(end, begin + kMaxExcerpt)));
    if (error != std::errc()) fail_here(std::string(what));
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  // Called at a backslash. Afterwards the position is the last character of the escape.
  char escape() {
    const std::size_t start = at_++;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    switch (c) {
      case '"':
      case '\\':
        return c;
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'x': {
        unsigned value = 0;
        const std::string_view digits = text_.substr(at_ + 1, 2);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        if (error == std::errc() && digits.size() == 2 && end == digits.data() + 2) {
          at_ += 2;
          return static_cast<char>(static_cast<unsigned char>(value));
        }
        break;
      }
      default:
        break;
    }
    at_ = start;
    fail(start, "unknown escape in a string", R"(\", \\, \n, \t, \r or \xNN)");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Runs `body`. If an object that it builds throws an error (a list is too long, an order is not a
// permutation), adds the position in the text.
template <class Body>
auto located_at(const Scanner& scanner, std::size_t at, Body body) {
  try {
    return body();
  } catch (const InvalidGraph& error) {
    ErrorParts parts = error.parts();
    if (parts.where == "parse") throw;
    parts.where = "parse";
    parts.source = scanner.place(at);
    throw InvalidGraph(parts);
  }
}

// Reads an attribute value according to the type of its field.
class FieldReader {
 public:
  explicit FieldReader(Scanner& scanner) : scanner_(scanner) {}

  void read(bool& value) {
    value = scanner_.accept_word("true");
    if (!value && !scanner_.accept_word("false")) scanner_.fail_here("true or false");
  }
  void read(std::int64_t& value) { value = scanner_.integer(); }
  void read(double& value) { value = scanner_.real(); }
  void read(Scalar& value) { value = scanner_.scalar(); }
  void read(std::string& value) { value = scanner_.quoted_string(); }
  void read(DType& value) {
    const std::size_t at = scanner_.here();
    const std::string_view word = scanner_.word("a dtype");
    const std::optional<DType> dtype = parse_dtype(word);
    if (!dtype) scanner_.fail(at, "unknown dtype", "bool, i8, i32, f16, f32 ...", std::string(word));
    value = *dtype;
  }
  void read(Groups& value) {
    const std::size_t at = scanner_.here();
    std::vector<std::int64_t> list;
    read(list);
    if (list.size() != 2) scanner_.fail(at, "no groups", "[axis,size]");
    value = {list[0], list[1]};
  }
  void read(Dims& value) {
    const std::size_t at = scanner_.here();
    std::vector<std::int64_t> list;
    read(list);
    value = located_at(scanner_, at, [&list] { return Dims(std::span<const std::int64_t>(list)); });
  }
  template <class T>
  void read(std::vector<T>& list) {
    list.clear();
    scanner_.expect("[");
    if (scanner_.accept("]")) return;
    do {
      T item{};
      read(item);
      list.push_back(item);
    } while (scanner_.accept(","));
    scanner_.expect("]");
  }
  template <class T>
  void read(std::optional<T>& value) {
    value.reset();
    if (scanner_.accept_word("none")) return;
    T item{};
    read(item);
    value = std::move(item);
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(E& value) {
    const std::size_t at = scanner_.here();
    const std::string_view word = scanner_.word("a mode");
    std::string names;
    std::size_t index = 0;
    for (const char* name : kEnumNames<E>) {
      if (word == name) {
        value = static_cast<E>(index);
        return;
      }
      names += (index++ == 0 ? "" : " or ") + std::string(name);
    }
    scanner_.fail(at, "unknown mode", names, std::string(word));
  }

 private:
  Scanner& scanner_;
};

// Visits all fields of an attribute struct and reads the value of the one named `wanted`.
class FieldFinder {
 public:
  FieldFinder(Scanner& scanner, std::string_view wanted) : scanner_(scanner), wanted_(wanted) {}
  template <class T>
  void operator()(const char* name, T& value) {
    if (wanted_ == name) {
      found_ = index_;
      FieldReader(scanner_).read(value);
    }
    known_ += (index_++ == 0 ? "" : ", ") + std::string(name);
  }
  [[nodiscard]] std::optional<std::size_t> found() const { return found_; }
  [[nodiscard]] const std::string& known() const { return known_; }

 private:
  Scanner& scanner_;
  std::string_view wanted_;
  std::size_t index_ = 0;
  std::optional<std::size_t> found_;
  std::string known_;
};

// An origin. Nodes may refer to it before the table defines it, so the object is created at the first use and
// filled in when its definition is read.
struct OriginSlot {
  std::shared_ptr<Origin> origin = std::make_shared<Origin>();
  std::size_t first_use = 0;
  bool defined = false;
};

}  // namespace

// Reads one text. Builds each graph front to back. It sets names and types on the values directly, because
// the builder functions of Graph would add suffixes to names.
class TextReader {
 public:
  TextReader(std::string_view text, const ConstantSource& constants)
      : scanner_(text), constants_(constants) {}

  Graph read() {
    version();
    Graph graph = this->graph(0);
    if (scanner_.accept_word("origins")) origin_table();
    if (!scanner_.at_end()) scanner_.fail_here("the end of the text");
    for (const auto& [number, slot] : origins_)
      if (!slot.defined)
        scanner_.fail(slot.first_use, "origin #" + std::to_string(number) + " is not in the table of origins",
                      "a line '#" + std::to_string(number) + " = ...'");
    return graph;
  }

 private:
  // A graph that is being read, and its names.
  struct Scope {
    Graph graph;
    std::unordered_map<std::string, ValueId, StringHash, std::equal_to<>> names;
    std::vector<const std::string*> by_value;  // the name of each value, owned by `names`
  };
  struct Declaration {
    std::string name;
    std::size_t at = 0;
    TensorType type;
  };

  void version();
  Graph graph(std::size_t depth);
  bool statement(Scope& scope, std::size_t depth);
  void input(Scope& scope, InputKind kind);
  void constant(Scope& scope);
  void node(Scope& scope, std::size_t depth);
  void result(Scope& scope);
  Attrs attributes(Op op);
  std::vector<std::shared_ptr<const Graph>> regions(std::size_t depth);
  void origin_table();
  void origin(OriginSlot& slot);
  OriginSlot& origin_slot();
  OriginRef location();

  Declaration declaration();
  ValueId reference(const Scope& scope);
  void define(Scope& scope, ValueId id, Declaration declared);
  BoundaryFormat boundary();
  TensorType type();
  DType dtype();
  Dims list(std::string_view open, std::string_view close);
  DimOrder order();
  QParamsRef qparams();
  ConstantKind kind();
  ConstantRef data(Constant wanted);
  Storage inline_data(const Constant& wanted, std::size_t count);
  void element(DType dtype, std::vector<std::byte>& bytes);

  Scanner scanner_;
  const ConstantSource& constants_;
  std::unordered_map<std::uint64_t, OriginSlot> origins_;
  QParamsRef last_qparams_;  // reused if the next ones are equal, which is frequent
};

void TextReader::version() {
  const std::size_t at = scanner_.here();
  if (!scanner_.accept_word("tosaic"))
    scanner_.fail(at, "not the text form of a graph",
                  "a first line 'tosaic " + std::to_string(kTextVersion) + "'", scanner_.excerpt());
  const std::string_view number = scanner_.word("a version number");
  if (number != std::to_string(kTextVersion))
    scanner_.fail(at, "unknown version of the text form", "tosaic " + std::to_string(kTextVersion),
                  "tosaic " + std::string(number.substr(0, kMaxExcerpt)),
                  "It was written by another version of tosaic");
}

Graph TextReader::graph(std::size_t depth) {
  const std::size_t at = scanner_.here();
  scanner_.expect_word("graph");
  if (depth > kMaxRegionDepth)
    scanner_.fail(at, "regions are nested too deeply", "at most " + std::to_string(kMaxRegionDepth));
  Scope scope;
  scanner_.expect("@");
  scope.graph.name = scanner_.name();
  if (!scanner_.accept_key("stage")) scanner_.fail_here("'stage='");
  const std::size_t stage_at = scanner_.here();
  const std::string_view stage_name = scanner_.word("a stage");
  const std::optional<Stage> stage = parse_stage(stage_name);
  if (!stage)
    scanner_.fail(stage_at, "unknown stage", "exported, quantized, integer or tosa",
                  std::string(stage_name.substr(0, kMaxExcerpt)));
  scope.graph.stage = *stage;
  scanner_.expect("{");
  while (statement(scope, depth)) {
  }
  while (scanner_.accept_word("return")) result(scope);
  scanner_.expect("}");
  scope.graph.names_.clear();
  for (std::size_t i = 0; i < scope.by_value.size(); ++i) {
    scope.graph.values_[i].name = *scope.by_value[i];
    scope.graph.names_.emplace(*scope.by_value[i], 1u);
  }
  return std::move(scope.graph);
}

bool TextReader::statement(Scope& scope, std::size_t depth) {
  if (scanner_.accept_word("input"))
    input(scope, InputKind::kUser);
  else if (scanner_.accept_word("state"))
    input(scope, InputKind::kState);
  else if (scanner_.accept_word("const"))
    constant(scope);
  else if (scanner_.peek() == '%' || scanner_.peek() == '(')
    node(scope, depth);
  else
    return false;
  return true;
}

void TextReader::input(Scope& scope, InputKind kind) {
  Declaration declared = declaration();
  std::string path;
  if (scanner_.accept_key("path")) path = scanner_.text();
  ConstantRef initial;
  if (scanner_.accept_key("initial")) {
    scanner_.expect("(");
    Constant wanted;
    wanted.kind = this->kind();
    if (scanner_.accept_key("name")) wanted.name = scanner_.text();
    wanted.dtype = dtype();
    wanted.shape = list("[", "]");
    initial = data(std::move(wanted));
    scanner_.expect(")");
  }
  const ValueId id =
      scope.graph.add_input(kind, {}, declared.type, std::move(path), boundary(), std::move(initial));
  define(scope, id, std::move(declared));
}

void TextReader::constant(Scope& scope) {
  Declaration declared = declaration();
  scanner_.expect("=");
  Constant wanted;
  wanted.kind = kind();
  wanted.name = scanner_.accept_key("name") ? scanner_.text() : declared.name;
  wanted.dtype = declared.type.dtype;
  wanted.shape = declared.type.shape;
  ConstantRef found = data(std::move(wanted));
  // Every line is a value of its own, even if the source returns the same constant for two lines.
  if (scope.graph.constants_.contains(found.get())) found = std::make_shared<const Constant>(*found);
  define(scope, scope.graph.add_constant(std::move(found)), std::move(declared));
}

void TextReader::node(Scope& scope, std::size_t depth) {
  std::vector<Declaration> declared;
  if (scanner_.accept("(")) {
    scanner_.expect(")");
  } else {
    do declared.push_back(declaration());
    while (scanner_.accept(","));
  }
  scanner_.expect("=");
  const std::size_t at = scanner_.here();
  const std::string_view op_name = scanner_.word("an operator");
  const std::optional<Op> op = parse_op(op_name);
  if (!op) scanner_.fail(at, "unknown operator", "a name of the operator table", std::string(op_name));
  std::vector<ValueId> operands;
  scanner_.expect("(");
  if (!scanner_.accept(")")) {
    do operands.push_back(scanner_.accept_word("none") ? ValueId() : reference(scope));
    while (scanner_.accept(","));
    scanner_.expect(")");
  }
  AttrsRef attrs = share(attributes(*op));
  OriginRef origin = location();
  std::vector<std::shared_ptr<const Graph>> inner = regions(depth);
  std::vector<TensorType> types;
  types.reserve(declared.size());
  for (const Declaration& one : declared) types.push_back(one.type);
  const NodeId id =
      scope.graph.add_node(*op, std::move(attrs), operands, types, std::move(origin), {}, std::move(inner));
  const std::uint32_t first = scope.graph.node(id).first_result;
  for (std::uint32_t i = 0; i < declared.size(); ++i)
    define(scope, ValueId(first + i), std::move(declared[i]));
}

void TextReader::result(Scope& scope) {
  Output output;
  output.value = reference(scope);
  if (scanner_.accept_key("path")) output.path = scanner_.text();
  if (scanner_.accept_key("mutates")) {
    const std::size_t at = scanner_.here();
    const Value& target = scope.graph.value(reference(scope));
    if (target.kind != ValueKind::kInput)
      scanner_.fail(at, "only an input can be updated", "the name of an input");
    output.kind = OutputKind::kMutation;
    output.mutated_input = target.result_index;
  }
  output.boundary = boundary();
  scope.graph.add_output(std::move(output));
}

Attrs TextReader::attributes(Op op) {
  Attrs attrs = default_attrs(op);
  if (!scanner_.accept("{")) return attrs;
  if (scanner_.accept("}")) return attrs;
  std::uint64_t seen = 0;
  do {
    const std::size_t at = scanner_.here();
    const std::string_view key = scanner_.word("an attribute");
    scanner_.expect("=");
    FieldFinder finder(scanner_, key);
    visit([&finder](auto& fields) { fields.fields(fields, finder); }, attrs);
    const std::string key_text(key.substr(0, kMaxExcerpt));
    if (!finder.found())
      scanner_.fail(at, std::string(info(op).name) + " has no such attribute",
                    finder.known().empty() ? "none" : finder.known(), key_text);
    const std::uint64_t bit = std::uint64_t{1} << *finder.found();
    if ((seen & bit) != 0) scanner_.fail(at, "an attribute is given twice", {}, key_text);
    seen |= bit;
  } while (scanner_.accept(","));
  scanner_.expect("}");
  return attrs;
}

std::vector<std::shared_ptr<const Graph>> TextReader::regions(std::size_t depth) {
  std::vector<std::shared_ptr<const Graph>> out;
  if (!scanner_.accept_word("regions")) return out;
  scanner_.expect("{");
  while (!scanner_.accept("}")) out.push_back(std::make_shared<const Graph>(graph(depth + 1)));
  return out;
}

OriginSlot& TextReader::origin_slot() {
  const std::size_t at = scanner_.here();
  scanner_.expect("#");
  const auto [it, fresh] = origins_.try_emplace(scanner_.count());
  if (fresh) it->second.first_use = at;
  return it->second;
}

OriginRef TextReader::location() {
  if (!scanner_.accept_call("loc")) return nullptr;
  OriginRef origin = origin_slot().origin;
  scanner_.expect(")");
  return origin;
}

void TextReader::origin_table() {
  scanner_.expect("{");
  while (!scanner_.accept("}")) {
    const std::size_t at = scanner_.here();
    OriginSlot& slot = origin_slot();
    if (slot.defined) scanner_.fail(at, "an origin is defined twice", {}, scanner_.excerpt());
    scanner_.expect("=");
    origin(slot);
    slot.defined = true;
  }
}

// Parents must be leaves and defined before their union, so there are no cycles.
void TextReader::origin(OriginSlot& slot) {
  Origin& origin = *slot.origin;
  if (scanner_.accept_call("union")) {
    do {
      const std::size_t at = scanner_.here();
      const OriginSlot& parent = origin_slot();
      if (!parent.defined || !parent.origin->parents.empty())
        scanner_.fail(at, "the parent of an origin must be a leaf that stands before it", "a leaf");
      if (std::find(origin.parents.begin(), origin.parents.end(), parent.origin) == origin.parents.end())
        origin.parents.push_back(parent.origin);
    } while (scanner_.accept(","));
    scanner_.expect(")");
    return;
  }
  origin.fx_name = scanner_.text();
  if (scanner_.accept_key("target")) origin.target = scanner_.text();
  if (scanner_.accept_key("module")) origin.module_path = scanner_.text();
  if (scanner_.accept_key("file")) origin.file = scanner_.text();
  if (!scanner_.accept_key("line")) return;
  const std::size_t at = scanner_.here();
  const std::int64_t line = scanner_.integer();
  if (line < INT32_MIN || line > INT32_MAX) scanner_.fail(at, "a number is out of range", "a line number");
  origin.line = static_cast<std::int32_t>(line);
}

TextReader::Declaration TextReader::declaration() {
  Declaration declared;
  scanner_.expect("%");
  declared.at = scanner_.here();
  declared.name = scanner_.name();
  scanner_.expect(":");
  declared.type = type();
  return declared;
}

ValueId TextReader::reference(const Scope& scope) {
  scanner_.expect("%");
  const std::size_t at = scanner_.here();
  const auto it = scope.names.find(scanner_.name());
  if (it == scope.names.end())
    scanner_.fail(at, "unknown value", "a name defined above", scanner_.excerpt(at));
  return it->second;
}

void TextReader::define(Scope& scope, ValueId id, Declaration declared) {
  const auto [it, fresh] = scope.names.try_emplace(std::move(declared.name), id);
  if (!fresh) scanner_.fail(declared.at, "a name is defined twice", "a name of its own", it->first);
  scope.by_value.push_back(&it->first);
  scope.graph.values_[id.index()].type = std::move(declared.type);
}

BoundaryFormat TextReader::boundary() {
  BoundaryFormat boundary;
  if (!scanner_.accept_call("boundary")) return boundary;
  if (scanner_.accept_key("source")) boundary.source_dtype = dtype();
  if (scanner_.accept_key("range")) {
    boundary.range_min = scanner_.integer();
    scanner_.expect("..");
    boundary.range_max = scanner_.integer();
  }
  boundary.order = order();
  boundary.physical = scanner_.accept_word("physical");
  boundary.qparams = qparams();
  scanner_.expect(")");
  return boundary;
}

DType TextReader::dtype() {
  DType value{};
  FieldReader(scanner_).read(value);
  return value;
}

Dims TextReader::list(std::string_view open, std::string_view close) {
  Dims dims;
  const std::size_t at = scanner_.here();
  scanner_.expect(open);
  if (scanner_.accept(close)) return dims;
  located_at(scanner_, at, [&] {
    do dims.push_back(scanner_.integer());
    while (scanner_.accept(","));
  });
  scanner_.expect(close);
  return dims;
}

DimOrder TextReader::order() {
  const std::size_t at = scanner_.here();
  if (!scanner_.accept_word("order")) return {};
  const Dims axes = list("(", ")");
  return located_at(scanner_, at, [&axes] { return DimOrder(axes); });
}

TensorType TextReader::type() {
  TensorType type;
  type.dtype = dtype();
  const std::size_t at = scanner_.here();
  type.shape = list("[", "]");
  for (const std::int64_t extent : type.shape)
    if (extent < 0 || extent > kMaxExtent)
      scanner_.fail(at, "an extent is out of range", "0 to 2^48", to_string(type.shape));
  type.order = order();
  type.qparams = qparams();
  return type;
}

QParamsRef TextReader::qparams() {
  if (!scanner_.accept_call("q")) return nullptr;
  QParams q;
  q.storage = dtype();
  q.qmin = scanner_.integer();
  scanner_.expect("..");
  q.qmax = scanner_.integer();
  if (scanner_.accept_word("axis")) q.axis = scanner_.integer();
  if (scanner_.accept_word("group")) {
    Groups groups;
    groups.size = scanner_.integer();
    scanner_.expect_word("on");
    groups.axis = scanner_.integer();
    q.groups = groups;
  }
  scanner_.expect_word("scale");
  do q.scales.push_back(scanner_.real());
  while (scanner_.accept(","));
  scanner_.expect_word("zp");
  do q.zero_points.push_back(scanner_.integer());
  while (scanner_.accept(","));
  scanner_.expect(")");
  if (!last_qparams_ || !(*last_qparams_ == q)) last_qparams_ = std::make_shared<const QParams>(std::move(q));
  return last_qparams_;
}

ConstantKind TextReader::kind() {
  for (const ConstantKind kind :
       {ConstantKind::kParameter, ConstantKind::kBuffer, ConstantKind::kLifted, ConstantKind::kFolded})
    if (scanner_.accept_word(to_string(kind))) return kind;
  scanner_.fail_here("parameter, buffer, lifted or folded");
}

ConstantRef TextReader::data(Constant wanted) {
  const std::size_t at = scanner_.here();
  const std::int64_t elements = located_at(scanner_, at, [&wanted] { return num_elements(wanted.shape); });
  std::uint64_t bytes = 0;
  if (elements < 0 ||
      __builtin_mul_overflow(static_cast<std::uint64_t>(elements), byte_size(wanted.dtype), &bytes))
    scanner_.fail(at, "a constant does not fit the address space", {}, to_string(wanted.shape));
  if (!scanner_.accept_call("ref")) {
    wanted.storage = inline_data(wanted, static_cast<std::size_t>(elements));
    return std::make_shared<const Constant>(std::move(wanted));
  }
  const std::uint64_t stated = scanner_.count();
  scanner_.expect(")");
  if (stated != bytes)
    scanner_.fail(at, "a constant has the wrong size", std::to_string(bytes) + " bytes",
                  std::to_string(stated));
  if (constants_) {
    if (ConstantRef found = constants_(wanted)) {
      if (found->dtype != wanted.dtype || !(found->shape == wanted.shape))
        scanner_.fail(at, "constant '" + wanted.name + "' has another type where it is stored",
                      std::string(to_string(wanted.dtype)) + to_string(wanted.shape),
                      std::string(to_string(found->dtype)) + to_string(found->shape));
      return found;
    }
  }
  return std::make_shared<const Constant>(std::move(wanted));
}

// Reads the elements before it allocates memory for the stated shape, so that a huge shape in a short text
// fails.
Storage TextReader::inline_data(const Constant& wanted, std::size_t count) {
  const std::size_t at = scanner_.here();
  std::vector<std::byte> bytes;
  scanner_.expect("[");
  if (!scanner_.accept("]")) {
    do element(wanted.dtype, bytes);
    while (scanner_.accept(","));
    scanner_.expect("]");
  }
  if (bytes.size() != count * byte_size(wanted.dtype))
    scanner_.fail(at, "a constant has the wrong number of elements", std::to_string(count),
                  std::to_string(bytes.size() / byte_size(wanted.dtype)));
  return Storage::of(bytes);
}

void TextReader::element(DType dtype, std::vector<std::byte>& bytes) {
  const std::size_t at = scanner_.here();
  const std::size_t size = byte_size(dtype);
  const auto append = [&bytes](const void* from, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + count);
  };
  static_assert(std::endian::native == std::endian::little);
  if (scanner_.accept("0x")) {
    const std::uint64_t bits = scanner_.bits();
    if (size < 8 && bits >> (8 * size) != 0)
      scanner_.fail(at, "a number is out of range", std::to_string(8 * size) + " bits");
    append(&bits, size);
  } else if (dtype == DType::kBool) {
    bool value = false;
    FieldReader(scanner_).read(value);
    append(&value, 1);
  } else if (is_integer(dtype)) {
    const std::int64_t value = scanner_.integer();
    append(&value, size);
    const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kU16;
    const auto width = static_cast<unsigned>(8 * size);
    const std::int64_t low = is_unsigned ? 0 : -(std::int64_t{1} << std::min(width - 1, 62u));
    const std::int64_t high = (std::int64_t{1} << std::min(is_unsigned ? width : width - 1, 62u)) - 1;
    if (size < 8 && (value < low || value > high))
      scanner_.fail(at, "a number is out of range", std::string(to_string(dtype)), std::to_string(value));
  } else {
    std::byte buffer[8];
    store_element(dtype, buffer,
                  dtype == DType::kF64 ? scanner_.real() : static_cast<double>(scanner_.real_f32()));
    append(buffer, size);
  }
}

Graph parse(std::string_view text, const ConstantSource& constants) {
  Graph graph = TextReader(text, constants).read();
  verify(graph);
  return graph;
}

}  // namespace tosaic
