// weights: the tensors that a .pt2 file stores, by name.
//
//   {"config": {"conv.weight": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": {...}}}}
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>

#include "tosaic/pt2/tensor_meta.h"

namespace tosaic::pt2 {

struct Weight {
  std::string_view path;  // of its storage, in the folder of the list
  bool is_pickled = false;
  TensorMeta meta = {};  // not that of a pickled one
};

// A list of weights. An entry is read when it is asked for: a damaged one that nobody needs is no error.
class WeightList {
 public:
  // Throws InvalidGraph, which names the list by `what`. The document must live as long as the list.
  WeightList(Json document, const std::string& what);

  // The weight of this name; nothing if there is none. Throws InvalidGraph if its entry is damaged.
  [[nodiscard]] std::optional<Weight> find(const std::string& name);

 private:
  Texts texts_;
  std::unordered_map<std::string_view, Json> entries_;
};

}  // namespace tosaic::pt2
