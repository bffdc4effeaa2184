#include "tosaic/ir/attributes.h"

#include <cmath>
#include <limits>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/ir/field_text.h"

namespace tosaic {
namespace {

std::int64_t truncate(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return 0;
  if (value >= kLimit) return std::numeric_limits<std::int64_t>::max();
  if (value < -kLimit) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(value);
}

// Appends "name=value" for each field it visits.
class FieldPrinter {
 public:
  explicit FieldPrinter(std::string& out) : out_(out) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, std::optional<Groups>>)
      if (!value) return;
    if (!first_) out_ += ", ";
    first_ = false;
    out_ += name;
    out_ += '=';
    FieldText(out_).append(value);
  }

 private:
  std::string& out_;
  bool first_ = true;
};

// The functions that the type-erased Attrs needs for one struct. `to` is raw memory.
struct Row {
  void (*copy)(std::byte* to, const std::byte* from);
  void (*move)(std::byte* to, std::byte* from) noexcept;
  void (*destroy)(std::byte* fields) noexcept;
  bool (*equal)(const std::byte* a, const std::byte* b);
};

template <class A>
A& in(std::byte* fields) {
  return *std::launder(reinterpret_cast<A*>(fields));
}
template <class A>
const A& in(const std::byte* fields) {
  return *std::launder(reinterpret_cast<const A*>(fields));
}

template <class A>
constexpr Row kRow = {
    [](std::byte* to, const std::byte* from) { new (to) A(in<A>(from)); },
    [](std::byte* to, std::byte* from) noexcept { new (to) A(std::move(in<A>(from))); },
    [](std::byte* fields) noexcept { in<A>(fields).~A(); },
    [](const std::byte* a, const std::byte* b) { return in<A>(a) == in<A>(b); },
};

#define TOSAIC_NEXT_ROW(A) , kRow<A>
constexpr Row kRows[] = {kRow<NoAttrs> TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_NEXT_ROW)};
#undef TOSAIC_NEXT_ROW

#define TOSAIC_NEXT_NAME(A) , #A
constexpr const char* kNames[] = {"NoAttrs" TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_NEXT_NAME)};
#undef TOSAIC_NEXT_NAME

}  // namespace

double as_double(const Scalar& value) {
  return std::visit([](auto number) { return static_cast<double>(number); }, value);
}

std::int64_t as_int(const Scalar& value) {
  if (const auto* number = std::get_if<double>(&value)) return truncate(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return *number;
  return std::get<bool>(value) ? 1 : 0;
}

Attrs::Attrs() noexcept : Attrs(NoAttrs{}) {}

template <AttributeStruct A>
Attrs::Attrs(A fields) noexcept : index_(kAttrsIndex<A>) {
  new (fields_) A(std::move(fields));
}
#define TOSAIC_INSTANTIATE(A) template Attrs::Attrs(A) noexcept;
TOSAIC_INSTANTIATE(NoAttrs)
TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_INSTANTIATE)
#undef TOSAIC_INSTANTIATE

Attrs::Attrs(const Attrs& other) : index_(other.index_) { kRows[index_].copy(fields_, other.fields_); }

Attrs::Attrs(Attrs&& other) noexcept : index_(other.index_) { kRows[index_].move(fields_, other.fields_); }

Attrs& Attrs::operator=(const Attrs& other) { return *this = Attrs(other); }

Attrs& Attrs::operator=(Attrs&& other) noexcept {
  if (this == &other) return *this;
  kRows[index_].destroy(fields_);
  index_ = other.index_;
  kRows[index_].move(fields_, other.fields_);
  return *this;
}

Attrs::~Attrs() { kRows[index_].destroy(fields_); }

bool operator==(const Attrs& a, const Attrs& b) {
  return a.index_ == b.index_ && kRows[a.index_].equal(a.fields_, b.fields_);
}

std::string_view struct_name(std::size_t index) { return kNames[index]; }

void throw_other_attributes(std::size_t expected, std::size_t found) {
  throw InternalError({.where = "attributes",
                       .what = "an operator has the attributes of another",
                       .expected = kNames[expected],
                       .got = kNames[found],
                       .hint = "ir/ops.def names the struct of each operator"});
}

AttrsRef share(Attrs attrs) {
  static const AttrsRef kEmpty = std::make_shared<const Attrs>(NoAttrs{});
  if (holds<NoAttrs>(attrs)) return kEmpty;
  return std::make_shared<const Attrs>(std::move(attrs));
}

std::string to_string(const Attrs& attrs) {
  std::string out = "{";
  visit([&out](const auto& fields) { fields.fields(fields, FieldPrinter(out)); }, attrs);
  return out + "}";
}

}  // namespace tosaic
