#include "tosaic/quant/annotation/spec.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tosaic::quant {
namespace {

// Fields in the order of sharing_key().
constexpr std::array<std::string_view, 8> kFields = {"dtype",  "dynamic", "qmin",  "qmax",
                                                     "scheme", "axis",    "scale", "zero_point"};

class Key {
 public:
  void add(std::string_view field, std::string_view value) {
    text_.append(field).append("=").append(value).append(";");
  }
  [[nodiscard]] std::string text() { return std::move(text_); }

 private:
  std::string text_;
};

template <class Spec>
Key common_key(const Spec& spec) {
  Key key;
  key.add("dtype", spec.dtype);
  key.add("dynamic", field_text(spec.dynamic));
  key.add("qmin", field_text(spec.qmin));
  key.add("qmax", field_text(spec.qmax));
  key.add("scheme", spec.scheme ? *spec.scheme : field_text(std::optional<std::int64_t>()));
  return key;
}

template <class Spec>
std::string observed_key(const Spec& spec) {
  Key key = common_key(spec);
  key.add("axis", field_text(spec.axis));
  return key.text();
}

struct KeyOf {
  std::string operator()(const ObservedSpec& spec) const { return observed_key(spec); }
  std::string operator()(const DerivedSpec& spec) const { return observed_key(spec); }
  std::string operator()(const FixedSpec& spec) const {
    Key key = common_key(spec);
    key.add("scale", field_text(spec.scale));
    key.add("zero_point", field_text(std::optional(spec.zero_point)));
    return key.text();
  }
  std::string operator()(const SharedSpec&) const { return {}; }
  std::string operator()(const FloatSpec&) const { return {}; }
  std::string operator()(const ForeignSpec& spec) const {
    Key key;
    for (const std::string_view field : kFields) {
      const auto has = [&](const auto& pair) { return pair.first == field; };
      const auto found = std::find_if(spec.fields.begin(), spec.fields.end(), has);
      if (found != spec.fields.end()) key.add(field, found->second);
    }
    std::string text = key.text();
    // Two specs without any of the fields compare equal. An empty text would mean that there is no spec.
    return text.empty() ? std::string("no fields") : text;
  }
};

}  // namespace

bool is_shared(const QSpec& spec) { return std::holds_alternative<SharedSpec>(spec); }
bool is_float(const QSpec& spec) { return std::holds_alternative<FloatSpec>(spec); }

std::string sharing_key(const QSpec& spec) { return std::visit(KeyOf{}, spec); }

std::string field_text(std::optional<std::int64_t> value) { return value ? std::to_string(*value) : "none"; }
std::string field_text(bool value) { return value ? "true" : "false"; }
// The bits of the number, so that different numbers have different texts. 0 and -0 are equal.
std::string field_text(double value) {
  return value == 0 ? "0" : std::to_string(std::bit_cast<std::uint64_t>(value));
}

}  // namespace tosaic::quant
