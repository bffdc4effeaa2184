// tensor_list: the tensors of a block that is being planned, with their names.
//
// A value of the graph is a tensor of the same name. It is added at its first use, so constants that nothing
// uses are not written. Other tensors get names that no value has.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tosaic/tosa/writer/file_plan.h"

namespace tosaic::tosa {

// Throws unless TOSA has the dtype and the extents of the value, and its constant has the right size.
void check_value(const Value& value);

class TensorList {
 public:
  // The list adds to the tensors and constants of `block`, which is a plan of `graph`.
  TensorList(const Graph& graph, BlockPlan& block);

  // The functions below return an index into the block's tensors.
  std::uint32_t add(TensorPlan tensor);
  std::uint32_t of_value(ValueId id);
  // A constant of one axis. Calls with the same dtype and values return the same tensor. `name` is the name
  // of a new tensor.
  std::uint32_t of_elements(DType dtype, std::span<const double> values, const std::string& name);
  // A shape value. Calls with the same extents return the same shape value.
  std::uint32_t of_extents(const std::vector<std::int64_t>& extents);

  // Returns the wanted name, or the wanted name with a suffix if it is taken. Later calls do not return the
  // same name again.
  std::string fresh_name(const std::string& wanted);

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  const Graph& graph_;
  BlockPlan& block_;
  std::vector<std::uint32_t> of_value_;  // by value: the index of its tensor, or kNone
  std::unordered_set<std::string> taken_;
  std::map<std::pair<DType, std::vector<std::byte>>, std::uint32_t> of_elements_;
  std::map<std::vector<std::int64_t>, std::uint32_t> of_extents_;
};

}  // namespace tosaic::tosa
