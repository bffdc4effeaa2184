// spec: how one tensor of a graph shall be quantized, and the place in the graph to which this applies.
//
//   conv -> relu        slots:  output(conv), edge(conv -> relu), output(relu)
//
// A slot has one spec at most. Two slots of the same tensor, such as output(conv) and edge(conv -> relu), may
// have different specs: the tensor is then quantized twice, once after the other.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tosaic/base/ids.h"

namespace tosaic::quant {

// A node of a CallGraph, by its position.
using NodeIndex = Id<struct CallNodeTag>;
// An object that only the owner of the plan knows: a constructor of observers, a function that derives
// qparams, a spec of an unknown kind. An invalid id means that there is none.
using ObjectId = Id<struct SpecObjectTag>;

// The output of a node, or the edge from a producer to a user. A user that reads a producer twice has one
// edge.
struct Slot {
  NodeIndex node;      // the node itself, or the user
  NodeIndex producer;  // valid for edges only

  [[nodiscard]] static Slot output(NodeIndex node) { return {node, {}}; }
  [[nodiscard]] static Slot edge(NodeIndex producer, NodeIndex user) { return {user, producer}; }
  [[nodiscard]] bool is_edge() const { return producer.valid(); }
  // The node that computes the tensor.
  [[nodiscard]] NodeIndex tensor() const { return is_edge() ? producer : node; }
  auto operator<=>(const Slot&) const = default;
};

// Dtypes are named as in graphs ("i8", "u8", "i16", "i32", "i4"), or torch's name of any other dtype. Schemes
// are torch's names: "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine",
// "per_channel_symmetric", or any other name.

// Scale and zero point are computed from the numbers that an observer sees.
struct ObservedSpec {
  std::string dtype = "i8";
  std::optional<std::int64_t> qmin = {}, qmax = {};
  std::optional<std::string> scheme = "per_tensor_affine";
  std::optional<std::int64_t> axis = {};
  bool dynamic = false;
  ObjectId observer = {};
  // With an axis of 0 or 1: groups of this many positions of the other one of these two axes have a scale
  // each. Specs of torch have no such field, so implicit sharing does not compare it.
  std::optional<std::int64_t> group_size = {};
  bool operator==(const ObservedSpec&) const = default;
};

// Scale and zero point are known.
struct FixedSpec {
  std::string dtype = "i8";
  double scale = 1;
  std::int64_t zero_point = 0;
  std::optional<std::int64_t> qmin = {}, qmax = {};
  std::optional<std::string> scheme = "per_tensor_affine";
  bool dynamic = false;
  bool operator==(const FixedSpec&) const = default;
};

// The same qparams as another slot.
struct SharedSpec {
  Slot with;
  bool operator==(const SharedSpec&) const = default;
};

// A function computes the qparams from the qparams of other slots: the scale of a bias is the product of two
// scales.
struct DerivedSpec {
  std::vector<Slot> from = {};
  ObjectId function = {};
  std::string dtype = "i32";
  std::optional<std::int64_t> qmin = {}, qmax = {};
  std::optional<std::string> scheme = "per_tensor_symmetric";
  std::optional<std::int64_t> axis = {};
  bool dynamic = false;
  bool operator==(const DerivedSpec&) const = default;
};

// The tensor stays float. Without any spec it stays float, too; this spec says that somebody asked for it.
struct FloatSpec {
  bool operator==(const FloatSpec&) const = default;
};

// A spec of a kind that we do not know. `fields` has those fields of sharing_key() that the spec has: their
// names, and the texts of their values.
struct ForeignSpec {
  ObjectId object = {};
  std::vector<std::pair<std::string, std::string>> fields = {};
  bool operator==(const ForeignSpec&) const = default;
};

using QSpec = std::variant<ObservedSpec, FixedSpec, SharedSpec, DerivedSpec, FloatSpec, ForeignSpec>;

[[nodiscard]] bool is_shared(const QSpec& spec);
[[nodiscard]] bool is_float(const QSpec& spec);

// The fields of a spec that implicit sharing compares, with their values, as one text: dtype, dynamic, qmin,
// qmax, scheme, axis, scale, zero_point. A field that the kind of spec does not have is absent, so a fixed
// and an observed spec never have equal texts. Observers and functions are not compared. The text of a shared
// or float spec is empty.
[[nodiscard]] std::string sharing_key(const QSpec& spec);

// The values of fields in ForeignSpec::fields.
[[nodiscard]] std::string field_text(std::optional<std::int64_t> value);
[[nodiscard]] std::string field_text(double value);
[[nodiscard]] std::string field_text(bool value);

}  // namespace tosaic::quant

template <>
struct std::hash<tosaic::quant::Slot> {
  std::size_t operator()(const tosaic::quant::Slot& slot) const noexcept {
    const auto producer = slot.producer.valid() ? slot.producer.index() + std::uint64_t{1} : 0;
    return std::hash<std::uint64_t>()((producer << 32) ^ slot.node.index());
  }
};
