// ValueMap: what each value of a source graph became in the new graph.
//
//   a value               integers, bools, indices or floats: a value of the new graph with the same elements
//   a ScaledInteger       a float that was not rounded to qparams; dequantized if a reader needs the float
//   a deferred float      a FunctionTable, for which no node exists; if a reader needs the float, the node of
//                         the float is added
//
// Constants are copied when they are first read. Quantized values, in unsigned storage too, are in signed
// form in the new graph. A graph inside the source (the expansion of a composite) has a ValueMap of its own,
// over the same new graph.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// A float value as a function of one variable of 8 or 16 bits, or of two variables of 8 bits. It has a value
// for each of their integers. In a chain of such functions, the float kernels compute each table from the one
// before. Infinities, NaN and large magnitudes in between do no harm.
struct FunctionTable {
  std::vector<ScaledInteger> variables;
  ConstantRef values;  // floats or bools; two variables: at 256 * (first + 128) + second + 128
};

class ValueMap {
 public:
  ValueMap(const Graph& source, NewGraph& made)
      : source_(&source), made_(&made), forms_(source.values().size()) {}
  // The map of the expansion of `composite`, a node of the source of `whole`. `moves` is true if the parts of
  // the expansion only move numbers.
  ValueMap(const Graph& expansion, ValueMap& whole, const Node& composite, bool moves)
      : source_(&expansion),
        made_(whole.made_),
        whole_(&whole),
        composite_(&composite),
        moves_(moves),
        forms_(expansion.values().size()) {}

  [[nodiscard]] const Graph& source() const { return *source_; }
  // True if the source is the expansion of a composite.
  [[nodiscard]] bool is_expansion() const { return whole_ != nullptr; }
  [[nodiscard]] NewGraph& made() const { return *made_; }

  // ---- the form of a value; null or false if it has another form ----
  [[nodiscard]] const ScaledInteger* scaled(ValueId id) const;
  [[nodiscard]] const FunctionTable* deferred_table(ValueId id) const;
  // True if the value has qparams, or is a ScaledInteger.
  [[nodiscard]] bool has_integers(ValueId id) const;

  // The value of the new graph for `id`, invalid if `id` is. `reader` adds the nodes that this needs, except
  // for a deferred float, whose nodes are added on behalf of its own node.
  [[nodiscard]] ValueId value(ValueId id, IntegerBuilder& reader);
  // Does the same as value(), except that a quantized value is dequantized to f32.
  [[nodiscard]] ValueId as_float(ValueId id, IntegerBuilder& reader);

  // ---- the results of a lowered node ----
  void set_value(ValueId id, ValueId made) { forms_[id.index()].value = made; }
  void set_scaled(ValueId id, ScaledInteger scaled) { forms_[id.index()].scaled = std::move(scaled); }
  // Says that the ScaledInteger of a moved value is in a coarser unit than an operand was.
  void set_rounded(ValueId id);
  // `reason` says why no rule lowered the node, and is reported if the node is added over floats.
  void defer(ValueId id, const Node& node, FunctionTable table, std::string reason);

  // The numbers of a node's results that their readers notice. In the expansion of a composite that computes,
  // this is known only for the results of the composite: the other nodes choose units for themselves.
  [[nodiscard]] std::optional<analysis::RelevantNumbers> noticed(const Node& node) const;
  // The least magnitude of the numbers of a value, except 0; 0 if it is not known, as in the expansion of a
  // composite.
  [[nodiscard]] double least_magnitude(ValueId id) const;
  // The range of an integer value that is not cast from numbers. Returns nothing for other values.
  [[nodiscard]] std::optional<ValueRange> range_of_integers(ValueId id) const;
  // The values that were rounded to another unit only to be read as floats, if the target has floats.
  [[nodiscard]] const std::vector<ValueId>& rounded_for_floats() const { return rounded_for_floats_; }
  // True if only outputs, of the composite too, read the results of a node, or views and selections of these
  // results.
  [[nodiscard]] bool is_only_returned(const Node& node) const;

  // The FunctionTable of a value that is not deferred, computed by the first call; null if there is none.
  [[nodiscard]] const FunctionTable* composed_table(
      ValueId id, const std::function<std::optional<FunctionTable>()>& compute);

 private:
  struct Deferred {
    FunctionTable table;
    const Node* node;
    std::string reason;
  };
  struct Form {
    ValueId value;                                  // the value in the new graph
    std::optional<ScaledInteger> scaled = {};       // the integers of a float without qparams
    bool is_rounded = false;                        // set_rounded()
    ValueId dequantized = {};                       // what as_float() returned
    std::unique_ptr<const Deferred> deferred = {};  // stays when `value` has been added
    std::unique_ptr<const FunctionTable> composed = {};
    bool is_composed = false;  // composed_table() has been called
  };

  struct Readers {
    analysis::FloatRanges ranges;
    analysis::Relevance relevance;
    explicit Readers(const Graph& graph) : ranges(graph), relevance(graph, ranges) {}
  };

  [[nodiscard]] const Readers& readers() const;
  [[nodiscard]] bool is_rounded(ValueId id) const;
  [[nodiscard]] ValueId dequantized(const ScaledInteger& x, ValueId id, IntegerBuilder& reader);
  [[nodiscard]] ValueId copied_constant(const Value& value);

  const Graph* source_;
  NewGraph* made_;
  ValueMap* whole_ = nullptr;  // of an expansion: see the constructor
  const Node* composite_ = nullptr;
  bool moves_ = false;
  std::vector<Form> forms_;
  std::vector<ValueId> rounded_for_floats_ = {};
  mutable std::unique_ptr<const Readers> readers_ = {};                   // set by readers()
  mutable std::unique_ptr<const analysis::IntegerRanges> integers_ = {};  // set by range_of_integers()
};

}  // namespace tosaic::passes
