// near_names: the known names that a user may have meant by an unknown name, for the hint of an error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tosaic {

struct KnownName {
  std::string name;             // the hint shows this
  std::string short_form = {};  // the user may write this in place of `name`; empty if there is no such form
};

// "Did you mean 'relu', 'selu'": the names that differ least from `name`. A difference is a letter to insert,
// remove or exchange. Returns "" if every name differs in more than a third of the letters of `name`, or if
// more than three names differ equally little.
[[nodiscard]] std::string did_you_mean(std::string_view name, const std::vector<KnownName>& known);

}  // namespace tosaic
