#include "tosaic/ir/op.h"

#include <unordered_map>

namespace tosaic {
namespace {

constexpr std::uint8_t count_operands(std::string_view names, bool minimum) {
  std::uint8_t count = 0;
  std::size_t i = 0;
  while (i < names.size()) {
    const std::size_t end = std::min(names.find(' ', i), names.size());
    const char last = names[end - 1];
    if (last == '*') return minimum ? count : std::uint8_t{255};
    count = static_cast<std::uint8_t>(count + (minimum && last == '?' ? 0 : 1));
    i = end + 1;
  }
  return count;
}

// An absent optional operand still has a place in the operand list if a required one follows it. So the
// minimum is the position of the last required operand.
constexpr std::uint8_t min_operands(std::string_view names) {
  std::uint8_t count = 0, required = 0;
  std::size_t i = 0;
  while (i < names.size()) {
    const std::size_t end = std::min(names.find(' ', i), names.size());
    const char last = names[end - 1];
    ++count;
    if (last != '?' && last != '*') required = count;
    i = end + 1;
  }
  return required;
}

constexpr OpInfo make(Op op, std::string_view name, std::string_view operands, int results, int traits,
                      bool is_tosa, std::size_t attrs_index, int int16, std::string_view kernel) {
  return {op,
          name,
          operands,
          static_cast<std::int8_t>(results),
          static_cast<std::uint16_t>(traits),
          is_tosa,
          kernel != "kNoKernel",
          static_cast<std::uint8_t>(attrs_index),
          min_operands(operands),
          count_operands(operands, false),
          static_cast<std::int8_t>(int16)};
}

// Reads the column `kernel` as text, since the functions that it names belong to a layer above.
constexpr OpInfo kOps[] = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, ...) \
  make(Op::Name, text, operands, results, traits, false, kAttrsIndex<AttrsT>, int16, #kernel),
#define TOSAIC_TOSA_OP(Name, text, AttrsT, operands, results, traits, inference, error, kernel) \
  make(Op::Name, text, operands, results, traits, true, kAttrsIndex<AttrsT>, kNoInt16, #kernel),
#include "tosaic/ir/ops.def"
};

std::string_view nth_operand(std::string_view names, std::size_t n) {
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = std::min(names.find(' ', begin), names.size());
    if (n == 0 || names[end - 1] == '*' || end == names.size()) return names.substr(begin, end - begin);
    begin = end + 1;
    --n;
  }
}

}  // namespace

std::string_view OpInfo::operand_name(std::size_t i) const {
  std::string_view name_and_mark = nth_operand(operands, i);
  if (!name_and_mark.empty() && (name_and_mark.back() == '?' || name_and_mark.back() == '*'))
    name_and_mark.remove_suffix(1);
  return name_and_mark;
}

bool OpInfo::operand_optional(std::size_t i) const {
  const std::string_view mark = nth_operand(operands, i);
  return !mark.empty() &&
         (mark.back() == '?' || (mark.back() == '*' && (op == Op::kIndex || op == Op::kIndexPut)));
}

const OpInfo& info(Op op) { return kOps[static_cast<std::size_t>(op)]; }

std::span<const OpInfo> all_ops() { return kOps; }

std::optional<Op> parse_op(std::string_view name) {
  static const auto* const by_name = [] {
    auto* map = new std::unordered_map<std::string_view, Op>;
    for (const OpInfo& row : kOps) map->emplace(row.name, row.op);
    return map;
  }();
  const auto it = by_name->find(name);
  if (it == by_name->end()) return std::nullopt;
  return it->second;
}

Attrs default_attrs(Op op) {
  switch (op) {
#define TOSAIC_OP(Name, text, AttrsT, ...) \
  case Op::Name:                           \
    return AttrsT{};
#include "tosaic/ir/ops.def"
  }
  return NoAttrs{};
}

}  // namespace tosaic
