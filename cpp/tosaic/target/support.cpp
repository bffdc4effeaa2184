#include "tosaic/target/support.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "tosaic/base/error_text.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/target/type_support.h"

namespace tosaic::target {
namespace {

// The operators that take any rank but 0. An operator of one fixed rank is not listed: its inference checks
// the rank.
constexpr Op kRankOne[] = {Op::kTosaArgmax,    Op::kTosaReduceAll, Op::kTosaReduceAny,     Op::kTosaReduceMax,
                           Op::kTosaReduceMin, Op::kTosaReduceSum, Op::kTosaReduceProduct, Op::kTosaConcat,
                           Op::kTosaPad,       Op::kTosaReverse,   Op::kTosaSlice,         Op::kTosaTile,
                           Op::kTosaTranspose};

// a * b for a, b >= 0. Saturates at the largest int64.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

class Checker {
 public:
  // `depth` is the number of control-flow operators around the graph.
  Checker(const Graph& graph, const TargetSpec& spec, std::span<const SinceRow> newer, std::int64_t depth = 0)
      : graph_(graph), spec_(spec), newer_(newer), limits_(limits(spec.level)), depth_(depth) {}

  std::vector<Violation> check() {
    for (const Value& value : graph_.values())
      if (value.kind != ValueKind::kResult) check_source(value);
    for (const Node& node : graph_.nodes()) check_node(node);
    name_target();
    return std::move(violations_);
  }

 private:
  // If an extension is missing, adds the name of a target that has all features that the graph needs.
  void name_target() {
    Features all = 0;
    for (const Violation& violation : violations_) all |= violation.missing;
    for (Violation& violation : violations_)
      if (extensions_of(violation.missing) != 0)
        violation.parts.hint = "Lower for " + to_string(with_features(spec_, all));
  }

  void add(const char* rule, std::string what, std::string expected = "", std::string got = "",
           std::string hint = "") {
    ErrorParts parts{.where = "target",
                     .what = std::move(what),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .hint = std::move(hint)};
    if (node_ != nullptr) {
      parts = located(std::move(parts), node_->origin, graph_.node_name(*node_));
      violations_.push_back({rule, std::move(parts), graph_.id(*node_), 0});
    } else {
      parts.node = value_name_;
      violations_.push_back({rule, std::move(parts), NodeId(), 0});
    }
  }

  void add_missing(Features missing, std::string what, std::string expected, std::string got) {
    add("profile", std::move(what), std::move(expected), std::move(got));
    violations_.back().missing = missing;
  }

  void limit(const std::string& what, std::int64_t value, const char* name, std::int64_t maximum) {
    if (value > maximum)
      add("level", what + " is beyond level " + std::string(limits_.name),
          "at most " + std::to_string(maximum) + " (" + name + ")", std::to_string(value));
  }

  // ---- values ----

  void check_type(const TensorType& type) {
    limit("the rank", static_cast<std::int64_t>(type.rank()), "MAX_RANK", limits_.max_rank);
    if (!type.order.is_identity())
      add("shape", "a tosa tensor has the identity dim order", "", tosaic::to_string(type));
    std::int64_t count = 1;
    for (const std::int64_t extent : type.shape) {
      if (extent < 1) {
        add("shape", "TOSA has no empty tensors", "extents of at least 1", to_string(type.shape));
        return;
      }
      count = product(count, extent);
    }
    const std::int64_t most = limits_.max_log2_size >= 63 ? std::numeric_limits<std::int64_t>::max()
                                                          : (std::int64_t{1} << limits_.max_log2_size) - 1;
    limit("the number of elements", count, "MAX_LOG2_SIZE", most);
  }

  void check_source(const Value& value) {
    value_name_ = value.name;
    check_type(value.type);
    const Need* need = constant_need(value.type.dtype);
    const std::string dtype(tosaic::to_string(value.type.dtype));
    if (need == nullptr)
      add("dtype", "TOSA has no tensors of this dtype", "", dtype);
    else if (!need->met_by(spec_.features))
      add_missing(missing(*need, spec_.features), "the target has no tensors of this dtype", to_string(*need),
                  dtype + " on " + to_string(spec_));
  }

  // ---- nodes ----

  void check_node(const Node& node) {
    node_ = &node;
    if (!info(node.op).is_tosa) {
      add("operator", "not an operator of TOSA 1.0", "operators of stage tosa only",
          quoted(info(node.op).name), "Lower the graph to stage tosa first");
    } else {
      for (std::size_t i = 0; i < node.result_count; ++i) check_type(graph_.type(graph_.result(node, i)));
      check_version();
      check_dtypes();
      check_rank();
      check_conditions();
      visit([this](const auto& attrs) { check_attributes(attrs); }, *node.attrs);
      check_constants();
      check_lists();
      check_regions();
    }
    node_ = nullptr;
  }

  void check_version() {
    const TosaVersion version = since(graph_, *node_, newer_);
    if (version > spec_.version)
      add("version", op_name() + " with these dtypes is newer than the target", "TOSA " + to_string(version),
          to_string(spec_));
  }

  void check_lists() {
    const Op op = node_->op;
    const bool control = is_cond(op) || is_while_loop(op);
    if (op != Op::kTosaConcat && op != Op::kTosaCustom && !control) return;
    const std::int64_t listed = node_->operand_count - (is_cond(op) && node_->operand_count != 0 ? 1 : 0);
    limit("the number of operands", listed, "MAX_TENSOR_LIST_SIZE", limits_.max_tensor_list_size);
    limit("the number of results", node_->result_count, "MAX_TENSOR_LIST_SIZE", limits_.max_tensor_list_size);
  }

  // A violation inside a region names the node there in its text; its NodeId is the id of the node of this
  // graph that has the region.
  void check_regions() {
    if (node_->regions.empty()) return;
    limit("the nesting of control flow", depth_ + 1, "MAX_NESTING", limits_.max_nesting);
    for (const auto& region : node_->regions)
      for (Violation& violation : Checker(*region, spec_, newer_, depth_ + 1).check()) {
        violation.node = graph_.id(*node_);
        violations_.push_back(std::move(violation));
      }
  }

  [[nodiscard]] std::string op_name() const { return std::string(info(node_->op).name); }

  void check_dtypes() {
    if (const Need* need = untyped_need(node_->op)) {
      if (!need->met_by(spec_.features))
        add_missing(missing(*need, spec_.features), op_name() + " is not in the target", to_string(*need),
                    to_string(spec_));
      return;
    }
    const std::vector<DType> dtypes = node_dtypes(graph_, *node_);
    const std::size_t count = graph_.operands(*node_).size();
    const std::vector<TypeMode> modes = type_modes(node_->op, count);
    const auto mode =
        std::find_if(modes.begin(), modes.end(), [&](const TypeMode& m) { return m.dtypes == dtypes; });
    if (mode == modes.end()) {
      std::string known;
      for (const TypeMode& m : modes) known += (known.empty() ? "" : "; ") + to_string(m.dtypes, count);
      add("dtype", op_name() + " has no such combination of dtypes", "one of " + known,
          to_string(dtypes, count));
    } else if (!mode->need.met_by(spec_.features)) {
      add_missing(missing(mode->need, spec_.features), op_name() + " with these dtypes is not in the target",
                  to_string(mode->need), to_string(dtypes, count) + " on " + to_string(spec_));
    }
  }

  void check_rank() {
    if (std::find(std::begin(kRankOne), std::end(kRankOne), node_->op) == std::end(kRankOne)) return;
    for (const ValueId operand : graph_.operands(*node_))
      if (operand.valid() && graph_.type(operand).rank() == 0)
        add("rank", op_name() + " takes no rank-0 tensor", "rank of at least 1",
            quoted(graph_.value(operand).name));
  }

  // Type inference checks the ERROR_IF conditions. A stored result shape that differs from the inferred one
  // is a violation as well.
  void check_conditions() {
    if (!has_inference(node_->op)) return;
    std::vector<const TensorType*> types;
    for (const ValueId operand : graph_.operands(*node_))
      types.push_back(operand.valid() ? &graph_.type(operand) : nullptr);
    try {
      const std::vector<TensorType> inferred = infer(node_->op, *node_->attrs, types);
      for (std::size_t i = 0; i < inferred.size() && i < node_->result_count; ++i) {
        const TensorType& stored = graph_.type(graph_.result(*node_, i));
        if (!(stored.shape == inferred[i].shape))
          add("error_if", op_name() + " has another result shape", to_string(inferred[i].shape),
              to_string(stored.shape));
      }
    } catch (const InternalError&) {
      throw;
    } catch (const Error& error) {
      const ErrorParts& parts = error.parts();
      add("error_if", op_name() + ": " + parts.what, parts.expected, parts.got, parts.hint);
    }
  }

  // ---- level limits of attributes ----

  void kernels(const char* what, const Dims& dims) {
    for (const std::int64_t value : dims) limit(what, value, "MAX_KERNEL", limits_.max_kernel);
  }
  void strides(const Dims& dims) {
    for (const std::int64_t value : dims) limit("the stride", value, "MAX_STRIDE", limits_.max_stride);
  }

  // The extents of the kernel, from the shape of the weight.
  [[nodiscard]] Dims weight_kernel() const {
    const Shape& weight = graph_.type(graph_.operands(*node_)[1]).shape;
    const std::size_t first = node_->op == Op::kTosaDepthwiseConv2d ? 0 : 1;
    const std::size_t count = node_->op == Op::kTosaConv3d ? 3 : 2;
    Dims kernel;
    for (std::size_t i = first; i < first + count && i < weight.size(); ++i) kernel.push_back(weight[i]);
    return kernel;
  }

  template <class A>
  void check_attributes(const A& /*attrs*/) {}
  void check_attributes(const TosaConvAttrs& a) {
    Dims reach = weight_kernel();
    for (std::size_t i = 0; i < reach.size() && i < a.dilation.size(); ++i)
      reach[i] = product(reach[i], std::max<std::int64_t>(a.dilation[i], 0));
    kernels("dilation times kernel", reach);
    kernels("the padding", a.pad);
    strides(a.stride);
  }
  void check_attributes(const TosaTransposeConvAttrs& a) {
    kernels("the kernel", weight_kernel());
    kernels("the padding", a.out_pad);
    strides(a.stride);
  }
  void check_attributes(const TosaAvgPoolAttrs& a) { check_pool(a.kernel, a.stride, a.pad); }
  void check_attributes(const TosaMaxPoolAttrs& a) { check_pool(a.kernel, a.stride, a.pad); }
  void check_pool(const Dims& kernel, const Dims& stride, const Dims& pad) {
    kernels("the kernel", kernel);
    kernels("the padding", pad);
    strides(stride);
  }
  void check_attributes(const TosaFftAttrs& /*attrs*/) { check_transform(); }
  void check_attributes(const TosaRfftAttrs& /*attrs*/) { check_transform(); }
  void check_transform() {
    const Shape& shape = graph_.type(graph_.operands(*node_)[0]).shape;
    for (std::size_t axis = 1; axis < shape.size(); ++axis)
      limit("the extent", shape[axis], "MAX_KERNEL", limits_.max_kernel);
  }
  void check_attributes(const TosaRescaleAttrs& a) {
    if (a.rounding_mode == RoundingMode::kDoubleRound) rounds_by(Extension::kDoubleRound);
    if (a.rounding_mode == RoundingMode::kInexactRound) rounds_by(Extension::kInexactRound);
  }
  void rounds_by(Extension extension) {
    if (!spec_.has(extension))
      add("profile", op_name() + " rounds in a way that is not in the target",
          std::string(to_string(extension)), to_string(spec_));
  }
  void check_attributes(const TosaResizeAttrs& a) {
    for (std::size_t i = 0; i + 1 < a.scale.size(); i += 2)
      if (a.scale[i + 1] > 0) limit("the scale", a.scale[i] / a.scale[i + 1], "MAX_SCALE", limits_.max_scale);
  }
  void check_attributes(const TosaClampAttrs& a) {
    representable("min_val", a.min_val);
    representable("max_val", a.max_val);
  }
  void check_attributes(const TosaPadAttrs& a) { representable("pad_const", a.value); }

  // Checks an attribute that has to be a number of the operand's integer dtype.
  void representable(const char* name, const Scalar& value) {
    const DType dtype = graph_.type(graph_.operands(*node_)[0]).dtype;
    if (!is_integer(dtype) || dtype == DType::kI64) return;
    const std::size_t bits = dtype == DType::kI4 ? 4 : dtype == DType::kI48 ? 48 : byte_size(dtype) * 8;
    const std::int64_t high = (std::int64_t{1} << (bits - 1)) - 1;
    const double number = as_double(value);
    if (number >= static_cast<double>(-high - 1) && number <= static_cast<double>(high)) return;
    add("constant",
        op_name() + ": " + name + " is not an element of " + std::string(tosaic::to_string(dtype)),
        std::to_string(-high - 1) + " to " + std::to_string(high), std::to_string(as_int(value)));
  }

  // ---- constant operands ----

  [[nodiscard]] const Constant* constant_operand(std::size_t i) const {
    const std::span<const ValueId> operands = graph_.operands(*node_);
    if (i >= operands.size() || !operands[i].valid()) return nullptr;
    const Value& value = graph_.value(operands[i]);
    return value.kind == ValueKind::kConstant && value.constant->storage.bound() ? value.constant.get()
                                                                                 : nullptr;
  }

  // The first element outside [low, high] is a violation.
  void elements_between(std::size_t operand, const char* what, std::int64_t low, std::int64_t high) {
    const Constant* constant = constant_operand(operand);
    if (constant == nullptr) return;
    const Elements elements(*constant);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::int64_t value = elements.as_int(i);
      if (value >= low && value <= high) continue;
      add("constant", op_name() + ": " + what + " " + std::to_string(i) + " is out of range",
          std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
      return;
    }
  }

  void check_constants() {
    if (graph_.operands(*node_).empty()) return;
    const TensorType& first = graph_.type(graph_.operands(*node_)[0]);
    const Op op = node_->op;
    if (op == Op::kTosaArithmeticRightShift || op == Op::kTosaLogicalLeftShift ||
        op == Op::kTosaLogicalRightShift)
      elements_between(1, "shift", 0, static_cast<std::int64_t>(byte_size(first.dtype)) * 8 - 1);
    if ((op == Op::kTosaGather || op == Op::kTosaScatter) && first.rank() == 3)
      elements_between(1, "index", 0, first.shape[1] - 1);
    if (op == Op::kTosaTable) {
      require_constant(1, "the table");
      if (first.dtype == DType::kI16) check_slopes();
    }
    if (op == Op::kTosaScatter) check_scatter_indices();
    if (op == Op::kTosaIntdiv) check_divisors();
  }

  void check_divisors() {
    const Constant* divisor = constant_operand(1);
    if (divisor == nullptr) return;
    const Elements elements(*divisor);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements.as_int(i) != 0) continue;
      add("constant", op_name() + ": divisor " + std::to_string(i) + " is zero", "not 0", "0");
      return;
    }
  }

  // Checks an operand that has to be a constant unless the target has EXT-DYNAMIC.
  void require_constant(std::size_t operand, const char* what) {
    const ValueId value = graph_.operands(*node_)[operand];
    if (graph_.value(value).kind != ValueKind::kConstant && !spec_.has(Extension::kDynamic))
      add_missing(bit(Extension::kDynamic), op_name() + ": " + what + " is computed by the program",
                  "a constant, or " + std::string(to_string(Extension::kDynamic)),
                  quoted(graph_.value(value).name) + " on " + to_string(spec_));
  }

  // TABLE interpolates an i16 table; the difference of neighbouring entries has to fit 16 bits.
  void check_slopes() {
    const Constant* table = constant_operand(1);
    if (table == nullptr) return;
    const Elements entries(*table);
    for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
      const std::int64_t slope = entries.as_int(i + 1) - entries.as_int(i);
      if (slope >= -32768 && slope <= 32767) continue;
      add("constant", op_name() + ": entries " + std::to_string(i) + " and the next are too far apart",
          "a difference of -32768 to 32767", std::to_string(slope));
      return;
    }
  }

  // SCATTER must not write a row twice, so constant indices must differ within a batch.
  void check_scatter_indices() {
    const Constant* indices = constant_operand(1);
    if (indices == nullptr || indices->shape.size() != 2) return;
    const auto batches = static_cast<std::size_t>(indices->shape[0]),
               width = static_cast<std::size_t>(indices->shape[1]);
    const Elements elements(*indices);
    for (std::size_t n = 0; n < batches; ++n) {
      std::unordered_set<std::int64_t> seen;
      for (std::size_t w = 0; w < width; ++w) {
        const std::int64_t index = elements.as_int(n * width + w);
        if (seen.insert(index).second) continue;
        add("constant", op_name() + ": an index occurs twice", "each index once per batch",
            std::to_string(index));
        return;
      }
    }
  }

  const Graph& graph_;
  const TargetSpec& spec_;
  std::span<const SinceRow> newer_;
  const LevelLimits& limits_;
  std::int64_t depth_;
  std::vector<Violation> violations_;
  const Node* node_ = nullptr;  // the node being checked; null while an input or a constant is checked
  std::string value_name_;
};

}  // namespace

std::vector<Violation> check(const Graph& graph, const TargetSpec& spec, std::span<const SinceRow> newer) {
  return Checker(graph, spec, newer).check();
}

}  // namespace tosaic::target
