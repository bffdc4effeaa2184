#include "tosaic/ir/attributes.h"

#include <cmath>
#include <limits>

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

}  // namespace

double as_double(const Scalar& value) {
  return std::visit([](auto number) { return static_cast<double>(number); }, value);
}

std::int64_t as_int(const Scalar& value) {
  if (const auto* number = std::get_if<double>(&value)) return truncate(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return *number;
  return std::get<bool>(value) ? 1 : 0;
}

Attrs::Attrs() noexcept = default;
Attrs::Attrs(const Attrs& other) = default;
Attrs::Attrs(Attrs&& other) noexcept = default;
Attrs& Attrs::operator=(const Attrs& other) { return *this = Attrs(other); }
Attrs& Attrs::operator=(Attrs&& other) noexcept = default;
Attrs::~Attrs() = default;

template <AttributeStruct A>
Attrs::Attrs(A fields) noexcept : AttrsVariant(std::in_place_type<A>, std::move(fields)) {}

#define TOSAIC_INSTANTIATE(A) template Attrs::Attrs(A) noexcept;
TOSAIC_INSTANTIATE(NoAttrs)
TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_INSTANTIATE)
#undef TOSAIC_INSTANTIATE

bool operator==(const Attrs& a, const Attrs& b) {
  return static_cast<const AttrsVariant&>(a) == static_cast<const AttrsVariant&>(b);
}

AttrsRef share(Attrs attrs) {
  static const AttrsRef kEmpty = std::make_shared<const Attrs>(NoAttrs{});
  if (std::holds_alternative<NoAttrs>(attrs)) return kEmpty;
  return std::make_shared<const Attrs>(std::move(attrs));
}

std::string to_string(const Attrs& attrs) {
  std::string out = "{";
  std::visit([&out](const auto& fields) { fields.fields(fields, FieldPrinter(out)); }, attrs);
  return out + "}";
}

}  // namespace tosaic
