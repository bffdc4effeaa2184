#include "tosaic/pt2/weights.h"

#include "tosaic/base/error_text.h"

namespace tosaic::pt2 {

WeightList::WeightList(Json document, const std::string& what) {
  read_part([&] { return "the entry " + quoted(what); },
            [&] {
              for_each_entry(entry(document, "config"), [&](Json key, Json value) {
                entries_.insert_or_assign(text(key, texts_), value);
              });
            });
}

std::optional<Weight> WeightList::find(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  Weight weight;
  read_part([&] { return "the entry of " + quoted(name); },
            [&] {
              weight.path = text(entry(found->second, "path_name"), texts_);
              weight.is_pickled = boolean(entry(found->second, "use_pickle"));
              if (!weight.is_pickled) weight.meta = read_tensor(entry(found->second, "tensor_meta"), texts_);
            });
  return weight;
}

}  // namespace tosaic::pt2
