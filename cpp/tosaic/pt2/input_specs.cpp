#include "tosaic/pt2/input_specs.h"

#include <algorithm>
#include <iterator>

namespace tosaic::pt2 {
namespace {

struct Row {
  std::string_view kind, field;  // the field that has the name; empty if there is none
};

constexpr Row kRows[] = {{"parameter", "parameter_name"},
                         {"buffer", "buffer_name"},
                         {"tensor_constant", "tensor_constant_name"},
                         {"user_input", ""},
                         {kConstantInput, "name"},
                         {"custom_obj", ""},
                         {"token", ""}};

}  // namespace

std::vector<InputSpec> read_input_specs(Json signature, Texts& texts) {
  std::vector<InputSpec> specs;
  read_part([] { return std::string("the list of inputs"); },
            [&] {
              for_each_item(entry(signature, "input_specs"), [&](Json each) {
                const auto [kind, held] = only_entry(each);
                const auto* const row =
                    std::ranges::find_if(kRows, [&](const Row& known) { return kind.is(known.kind); });
                if (row == std::end(kRows)) throw WrongJson("a kind of input", kind);
                specs.push_back({row->kind, row->field.empty() ? "" : text(entry(held, row->field), texts)});
              });
            });
  return specs;
}

}  // namespace tosaic::pt2
