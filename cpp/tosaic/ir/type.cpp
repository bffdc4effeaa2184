#include "tosaic/ir/type.h"

#include <array>
#include <charconv>

#include "tosaic/base/error.h"

namespace tosaic {
namespace {

std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

template <class List, class Show>
std::string joined(const List& list, Show show) {
  std::string text;
  for (const auto& item : list) {
    if (!text.empty()) text += ",";
    text += show(item);
  }
  return text;
}

}  // namespace

DimOrder::DimOrder(const Dims& order) {
  if (!is_permutation_of_axes(order, order.size()))
    throw InvalidGraph(
        {.where = "dim order", .what = "not a permutation of the axes", .got = to_string(order)});
  if (is_identity_permutation(order)) return;
  rank_ = static_cast<std::uint32_t>(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) axes_ |= static_cast<std::uint32_t>(order[i]) << (kBits * i);
}

Dims DimOrder::axes(std::size_t rank) const {
  Dims axes = Dims::iota(rank_ == 0 ? rank : rank_);
  for (std::size_t i = 0; i < rank_; ++i) axes[i] = static_cast<std::int64_t>(axis(i));
  return axes;
}

DimOrder DimOrder::channels_last(std::size_t rank) {
  if (rank < 3) return {};
  Dims order{0};
  for (std::size_t i = 2; i < rank; ++i) order.push_back(static_cast<std::int64_t>(i));
  order.push_back(1);
  return DimOrder(order);
}

bool TensorType::operator==(const TensorType& other) const {
  if (dtype != other.dtype || !(shape == other.shape) || !(order == other.order)) return false;
  if (qparams == other.qparams) return true;
  return qparams && other.qparams && *qparams == *other.qparams;
}

std::string to_string(const QParams& q) {
  std::string text =
      "q(" + std::string(to_string(q.storage)) + " " + std::to_string(q.qmin) + ".." + std::to_string(q.qmax);
  if (q.axis) text += " axis " + std::to_string(*q.axis);
  if (q.groups) text += " group " + std::to_string(q.groups->size) + " on " + std::to_string(q.groups->axis);
  text += " scale " + joined(q.scales, shortest);
  return text + " zp " + joined(q.zero_points, [](auto v) { return std::to_string(v); }) + ")";
}

std::string to_string(const TensorType& type) {
  std::string text = std::string(to_string(type.dtype)) + to_string(type.shape);
  if (!type.order.is_identity())
    text += " order(" + joined(type.order.axes(type.rank()), [](auto v) { return std::to_string(v); }) + ")";
  if (type.qparams) text += " " + to_string(*type.qparams);
  return text;
}

}  // namespace tosaic
