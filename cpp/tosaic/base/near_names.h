// near_names: which known names an unknown name may stand for, for the hint of an error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tosaic {

// The number of letters to insert, remove or exchange so that `a` becomes `b`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// "Did you mean 'relu', 'selu'": the names that differ least from `name`, at most three; empty if all differ in
// more than a third of its letters.
[[nodiscard]] std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace tosaic
