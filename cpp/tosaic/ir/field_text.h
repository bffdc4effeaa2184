// FieldText: formats one attribute field by its type. Lists are "[1,2]", absent optionals "none".
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "tosaic/ir/attributes.h"
#include "tosaic/ir/lexical.h"

namespace tosaic {

class FieldText {
 public:
  explicit FieldText(std::string& out) : out_(out) {}

  void append(bool value) { out_ += value ? "true" : "false"; }
  void append(std::int64_t value) { append_number(out_, value); }
  void append(double value) { append_number(out_, value); }
  void append(DType value) { out_ += to_string(value); }
  void append(const Dims& value) { append_list(value); }
  void append(const Groups& value) { append_list(Dims{value.axis, value.size}); }
  void append(const std::string& value) { append_quoted(out_, value); }
  void append(const Scalar& value) {
    std::visit([this](auto number) { append(number); }, value);
  }
  template <class T>
  void append(const std::vector<T>& value) {
    append_list(value);
  }
  template <class T>
  void append(const std::optional<T>& value) {
    if (value)
      append(*value);
    else
      out_ += "none";
  }
  template <class E>
    requires std::is_enum_v<E>
  void append(E value) {
    out_ += kEnumNames<E>[static_cast<std::size_t>(value)];
  }

 private:
  template <class List>
  void append_list(const List& list) {
    out_ += '[';
    bool first = true;
    for (const auto& item : list) {
      if (!first) out_ += ',';
      first = false;
      append(item);
    }
    out_ += ']';
  }

  std::string& out_;
};

}  // namespace tosaic
