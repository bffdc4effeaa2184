#include "tosaic/base/near_names.h"

#include <algorithm>

namespace tosaic {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  std::size_t least = name.size() / 3 + 1;
  std::vector<std::string_view> near;
  for (const std::string& candidate : known) {
    const std::size_t found = edit_distance(name, candidate);
    if (found > least) continue;
    if (found < least) near.clear();
    least = found;
    near.push_back(candidate);
  }
  if (near.empty() || near.size() > 3) return {};
  std::string text = "Did you mean ";
  for (const std::string_view each : near)
    text.append(each.data() == near.front().data() ? "'" : ", '").append(each).append("'");
  return text;
}

}  // namespace tosaic
