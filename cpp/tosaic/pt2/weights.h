// weights: the tensors that a .pt2 file stores, by name.
//
//   {"config": {"conv.weight": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": {...}}}}
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/pt2/tensor_meta.h"

namespace tosaic::pt2 {

struct Weight {
  std::string_view path;  // of its storage, in the folder of the list
  bool is_pickled = false;
  TensorMeta meta = {};  // not filled in for a pickled weight
};

// A list of weights. An entry is read when it is asked for: a damaged one that nobody needs is not an error.
class WeightList {
 public:
  // Throws InvalidGraph, which names the list by `what`. The document must live as long as the list.
  WeightList(Json document, const std::string& what);

  // The weight of this name; nothing if there is none. Throws InvalidGraph if its entry is damaged.
  [[nodiscard]] std::optional<Weight> find(std::string_view name);

 private:
  Texts texts_;
  std::unordered_map<std::string_view, Json> entries_;
};

// Makes constants over the mapped file, without a copy. Tied tensors share one constant.
class WeightViews {
 public:
  // The file stays mapped as long as `owner`. `changed` returns a message if the file was written since it
  // was opened, else "".
  WeightViews(std::shared_ptr<const void> owner, std::function<std::string()> changed)
      : owner_(std::move(owner)), changed_(std::move(changed)) {}

  // The constant of a tensor in a storage. Returns nothing for one that has to be copied or refused: empty,
  // symbolic, sparse, complex, not on the CPU, not dense in row-major order, not aligned, or not inside of
  // the storage.
  [[nodiscard]] ConstantRef view(std::string_view name, ConstantKind kind, const TensorMeta& meta,
                                 std::span<const std::byte> storage);

 private:
  using Key = std::tuple<const std::byte*, DType, std::vector<std::int64_t>>;  // sizes, then strides

  std::shared_ptr<const void> owner_;
  std::function<std::string()> changed_;
  std::map<Key, ConstantRef> known_;
};

}  // namespace tosaic::pt2
