// ids: typed 32-bit indices. An id is an index into one array of one graph, never a pointer.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tosaic {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t index) : index_(index) {}
  [[nodiscard]] constexpr bool valid() const { return index_ != kInvalid; }
  [[nodiscard]] constexpr std::uint32_t index() const { return index_; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  static constexpr std::uint32_t kInvalid = 0xffffffffu;
  std::uint32_t index_ = kInvalid;
};

using NodeId = Id<struct NodeTag>;
using ValueId = Id<struct ValueTag>;

}  // namespace tosaic

template <class Tag>
struct std::hash<tosaic::Id<Tag>> {
  std::size_t operator()(tosaic::Id<Tag> id) const noexcept { return id.index(); }
};
