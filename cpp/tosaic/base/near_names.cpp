#include "tosaic/base/near_names.h"

#include <algorithm>
#include <cstddef>

#include "tosaic/base/error_text.h"

namespace tosaic {
namespace {

// The number of letters to insert, remove or exchange so that `a` becomes `b`.
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

std::size_t edit_distance(std::string_view name, const KnownName& known) {
  const std::size_t to_name = edit_distance(name, known.name);
  return known.short_form.empty() ? to_name : std::min(to_name, edit_distance(name, known.short_form));
}

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<KnownName>& known) {
  std::size_t least = name.size() / 3 + 1;
  std::vector<std::string> near;
  for (const KnownName& candidate : known) {
    const std::size_t found = edit_distance(name, candidate);
    if (found > least) continue;
    if (found < least) near.clear();
    least = found;
    near.push_back(quoted(candidate.name));
  }
  return near.empty() || near.size() > 3 ? std::string() : "Did you mean " + joined(near);
}

}  // namespace tosaic
