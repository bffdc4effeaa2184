// tensors: the tensors and shape values of a block by name, with the types that the file declares.
#pragma once

#include <tosa_generated.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/tosa/reader/place.h"

namespace tosaic::tosa {

// A tensor or shape value of a block. The reader fills in the second group of fields step by step.
struct TensorEntry {
  static constexpr std::uint32_t kNone = 0xffffffffu;

  const schema::TosaTensor* tensor = nullptr;  // either this or `shape` is set
  const schema::TosaShape* shape = nullptr;
  TensorType type;  // the type of a tensor; unused for a shape value
  bool is_variable = false;

  std::uint32_t producer = kNone;  // index of the operator that produces it
  bool is_input = false;
  ValueId value;                    // invalid until the tensor is in the graph
  std::optional<Storage> constant;  // the elements, after their first use

  [[nodiscard]] std::string_view name() const;
};

class TensorTable {
 public:
  // Throws for two tensors of one name, names that are not UTF-8, dtypes and ranks that a graph cannot have.
  explicit TensorTable(const schema::TosaBasicBlock& block);

  // Throws if there is no tensor of that name.
  [[nodiscard]] const TensorEntry& find(const Place& place, std::string_view name) const {
    return entries_[index_of(place, name)];
  }
  [[nodiscard]] TensorEntry& find(const Place& place, std::string_view name) {
    return entries_[index_of(place, name)];
  }
  [[nodiscard]] std::span<const TensorEntry> entries() const { return entries_; }

 private:
  [[nodiscard]] std::uint32_t index_of(const Place& place, std::string_view name) const;
  void add(TensorEntry entry);

  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string_view, std::uint32_t> index_;  // into entries_
};

// The type that the file declares for a tensor, valid or not: "f32[2,3]".
[[nodiscard]] std::string declared_type(const schema::TosaTensor& tensor);
// Throws unless the extents of the tensor are positive and it has at most 2^60 elements.
void check_extents(const Place& place, const TensorEntry& entry);

}  // namespace tosaic::tosa
