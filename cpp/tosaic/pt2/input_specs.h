// input_specs: what the inputs of a program are.
//
//   {"input_specs": [{"parameter": {"arg": {"name": "p_weight"}, "parameter_name": "weight"}}, ...]}
//     ->   (parameter, "weight"), ...
#pragma once

#include <string_view>
#include <vector>

#include "tosaic/pt2/fields.h"

namespace tosaic::pt2 {

inline constexpr std::string_view kConstantInput = "constant_input";

struct InputSpec {
  std::string_view
      kind;  // parameter, buffer, tensor_constant, user_input, constant_input, custom_obj or token
  std::string_view name;  // of a weight or of a constant input, else empty
};

// Reads the inputs of a signature. Throws InvalidGraph if they are damaged.
[[nodiscard]] std::vector<InputSpec> read_input_specs(Json signature, Texts& texts);

}  // namespace tosaic::pt2
