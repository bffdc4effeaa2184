#include "tosaic/pt2/read_arguments.h"

#include "tosaic/base/error_text.h"
#include "tosaic/pt2/scalar_types.h"

namespace tosaic::pt2 {
namespace {

template <class Function>
Argument list_of(Json list, Function&& read) {
  Items items;
  items.reserve(listed(list).size());
  for_each_item(list, [&](Json each) { items.push_back(Argument(read(each))); });
  return {std::move(items)};
}

Argument integers(Json list) { return list_of(list, integer); }
Argument numbers(Json list) { return list_of(list, number); }

std::int64_t numbered(Json value, std::int64_t count, const char* expected) {
  const std::int64_t found = integer(value);
  if (found < 1 || found > count) throw WrongJson(expected, value);
  return found;
}

Argument read_device(Json value, Texts& texts) {
  Device device{text(entry(value, "type"), texts), {}};
  const std::optional<Json> index = find_entry(value, "index");
  if (index && index->kind() != JsonKind::kNull) device.index = integer(*index);
  return {device};
}

// Reads an argument that does not refer to the graph; nothing for other tags.
std::optional<Argument> read_plain(Json tag, Json value, Texts& texts) {
  const auto string = [&](Json each) { return text(each, texts); };
  if (tag.is("as_int")) return Argument{integer(value)};
  if (tag.is("as_ints")) return integers(value);
  if (tag.is("as_none")) return static_cast<void>(boolean(value)), Argument{};
  if (tag.is("as_float")) return Argument{number(value)};
  if (tag.is("as_bool")) return Argument{boolean(value)};
  if (tag.is("as_scalar_type")) {
    if (find_scalar_type(integer(value)) == nullptr) throw WrongJson("a dtype", value);
    return Argument{DtypeNumber{integer(value)}};
  }
  if (tag.is("as_string")) return Argument{string(value)};
  if (tag.is("as_floats")) return numbers(value);
  if (tag.is("as_bools")) return list_of(value, boolean);
  if (tag.is("as_strings")) return list_of(value, string);
  if (tag.is("as_complex"))
    return Argument{std::complex<double>(number(entry(value, "real")), number(entry(value, "imag")))};
  if (tag.is("as_memory_format"))
    return Argument{MemoryFormatNumber{numbered(value, kMemoryFormats, "a memory format")}};
  if (tag.is("as_layout")) return Argument{LayoutNumber{numbered(value, kLayouts, "a layout")}};
  if (tag.is("as_device")) return read_device(value, texts);
  if (tag.is("as_int_lists")) return list_of(value, [](Json each) { return integers(each).value; });
  if (tag.is("as_float_lists")) return list_of(value, [](Json each) { return numbers(each).value; });
  if (tag.is("as_operator")) return Argument{OperatorName{string(value)}};
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(const ArgumentScope& scope) : scope_(scope) {}

  Argument read(Json tagged) const {
    const auto [tag, value] = only_entry(tagged);
    if (tag.is("as_tensor") || tag.is("as_custom_obj")) return {named(entry(value, "name"))};
    if (std::optional<Argument> plain = read_plain(tag, value, scope_.texts)) return std::move(*plain);
    if (tag.is("as_tensors")) return tensors(value);
    if (tag.is("as_sym_int") || tag.is("as_sym_bool") || tag.is("as_sym_float")) return numeric(value);
    if (tag.is("as_sym_ints") || tag.is("as_sym_bools") || tag.is("as_sym_floats"))
      return list_of(value, [&](Json each) { return numeric(each).value; });
    if (tag.is("as_optional_tensors")) return list_of(value, [&](Json each) { return optional(each).value; });
    if (tag.is("as_optional_tensor")) return optional(value);
    if (tag.is("as_nested_tensors")) return list_of(value, [&](Json each) { return tensors(each).value; });
    if (tag.is("as_string_to_argument")) {
      Keyed keyed;
      for_each_entry(value,
                     [&](Json key, Json each) { keyed.push_back({text(key, scope_.texts), read(each)}); });
      return {std::move(keyed)};
    }
    if (tag.is("as_graph")) return scope_.read_graph(value);
    throw WrongJson("an argument", tag);
  }

 private:
  NodeRef named(Json name) const {
    const auto found = scope_.nodes.find(text(name, scope_.texts));
    if (found == scope_.nodes.end()) throw WrongJson("the name of an earlier value", name);
    return {found->second};
  }

  Argument tensors(Json list) const {
    return list_of(list, [&](Json each) { return named(entry(each, "name")); });
  }

  Argument optional(Json tagged) const {
    const auto [tag, value] = only_entry(tagged);
    return tag.is("as_none") ? Argument{} : Argument{named(entry(value, "name"))};
  }

  Argument numeric(Json tagged) const {
    const auto [tag, value] = only_entry(tagged);
    if (tag.is("as_name")) return {named(value)};
    std::optional<Argument> plain = read_plain(tag, value, scope_.texts);
    if (!plain) throw WrongJson("an argument", tag);
    return std::move(*plain);
  }

  const ArgumentScope& scope_;
};

}  // namespace

Argument read_argument(Json tagged, const ArgumentScope& scope) { return Reader(scope).read(tagged); }

Argument read_constant(Json tagged, Texts& texts) {
  const auto [tag, value] = only_entry(tagged);
  std::optional<Argument> found = read_plain(tag, value, texts);
  if (!found) throw WrongJson("an argument", tag);
  return std::move(*found);
}

std::optional<Argument> read_symbol(Json tag, Json name, Json graph, Texts& texts) {
  struct Row {
    std::string_view tag, values, own;
    NumberKind kind;
  };
  static constexpr Row kRows[] = {{"as_sym_int", "sym_int_values", "as_int", NumberKind::kInt},
                                  {"as_sym_bool", "sym_bool_values", "as_bool", NumberKind::kBool},
                                  {"as_sym_float", "sym_float_values", "as_float", NumberKind::kFloat}};
  for (const Row& row : kRows) {
    if (!tag.is(row.tag)) continue;
    const auto [found, held] = only_entry(entry(entry(graph, row.values), text(name, texts)));
    if (found.is("as_expr")) return Argument{Symbolic{text(entry(held, "expr_str"), texts), row.kind}};
    if (!found.is(row.own)) throw WrongJson(std::string(row.own) + " or as_expr", found);
    if (row.kind == NumberKind::kInt) return Argument{integer(held)};
    if (row.kind == NumberKind::kBool) return Argument{boolean(held)};
    return Argument{number(held)};
  }
  return std::nullopt;
}

}  // namespace tosaic::pt2
