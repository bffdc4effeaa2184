#include "tosaic/exec/row_group.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "tosaic/kernels/families.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/memory/plan.h"

namespace tosaic::exec {

using std::int64_t;

// ---- running ----

namespace {

constexpr std::size_t kMostOperands = 4;

// `row` is a row of the group, and row `first` of its block.
const std::byte* address(const RowOperand& operand, const Step& step, std::span<const std::byte* const> table,
                         const Dims& at, int64_t row, int64_t first, std::byte* memory) {
  switch (operand.kind) {
    case RowOperand::Kind::kAbsent:
      return nullptr;
    case RowOperand::Kind::kBuffer:
      return memory + operand.offset + first * operand.row_bytes;
    case RowOperand::Kind::kTable:
      break;
  }
  const std::byte* from = table[step.first_operand + operand.operand] + row * operand.row_bytes;
  for (std::size_t i = 0; i < at.size(); ++i) from += at[i] * operand.outer[i];
  return from;
}

Dims indices_of(const Dims& extents, int64_t index) {
  Dims at = Dims::filled(extents.size(), 0);
  for (std::size_t axis = at.size(); axis-- > 0; index /= extents[axis]) at[axis] = index % extents[axis];
  return at;
}

}  // namespace

void RowGroup::run(std::span<const Step> all, std::span<const std::byte* const> table, std::byte* result,
                   std::byte* scratch, Team* team) const {
  const int64_t each = blocks();
  const kernels::Loop loop{.count = num_elements(outer) * each, .unit_cost = block_cost};
  kernels::parallel_for(team, loop, [&](int64_t begin, int64_t end, kernels::Worker worker) {
    std::byte* const memory = scratch + worker * worker_bytes;
    Dims at;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit % each;
      if (unit == begin || block == 0) {
        at = indices_of(outer, unit / each);
        pack(all, table, at, memory);
      }
      run_block(all, table, at, block, result + (unit / each * rows + block * block_rows) * result_row_bytes,
                memory);
    }
  });
}

void RowGroup::pack(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
                    std::byte* memory) const {
  for (const RowStep& step : steps)
    if (step.product)
      step.product->pack(address(step.operands[1], all[step.step], table, at, 0, 0, memory),
                         memory + step.scratch);
}

void RowGroup::run_block(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
                         int64_t block, std::byte* result, std::byte* memory) const {
  const int64_t row = block * block_rows;
  const int64_t count = std::min(block_rows, rows - row);
  for (const RowSegment& segment : segments)
    for (int64_t first = 0; first < count; first += segment.rows)
      run_tile(all, table, at, segment, row + first, first, std::min(segment.rows, count - first), result,
               memory);
}

// Computes `count` rows of the block, from its row `first` on. That is row `row` of the group.
void RowGroup::run_tile(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
                        const RowSegment& segment, int64_t row, int64_t first, int64_t count,
                        std::byte* result, std::byte* memory) const {
  for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
    const RowStep& step = steps[i];
    std::array<const std::byte*, kMostOperands> operands{};
    for (std::size_t k = 0; k < step.operands.size(); ++k)
      operands.at(k) = address(step.operands[k], all[step.step], table, at, row, first, memory);
    std::byte* to = step.is_last ? result + first * result_row_bytes
                                 : memory + step.result + first * step.result_row_bytes;
    std::byte* const scratch = memory + step.scratch;
    if (step.product)
      step.product->multiply(operands[0], count, to, scratch);
    else
      (count == segment.rows ? step.whole : step.rest)(
          {std::span(operands).first(step.operands.size()), std::span(&to, 1), scratch, nullptr});
  }
}

// ---- finding ----

namespace {

// The limits of the search for a group.
constexpr std::size_t kMostSteps = 128;
constexpr std::uint32_t kMostSpan = 256;
// The most bytes of a block, in all values of the group: what a second-level cache holds.
constexpr int64_t kBlockBytes = 393216;
// The most bytes of a block in groups without products, whose steps take about as long as reading their
// operands from the second-level cache.
constexpr int64_t kLightBlockBytes = 98304;
// The most bytes of a tile in all values that are live at once: a part of a first-level cache, which also
// holds the operands from outside.
constexpr int64_t kTileBytes = 24576;
// A tile has at least this many elements of the widest value, or one row: calls of kernels for fewer elements
// take longer than their loops.
constexpr int64_t kLeastTileElements = 2048;
// A row with at most this share of the elements of the widest row is narrow.
constexpr int64_t kNarrowShare = 16;
// A product of fewer rows than this reads its right operand too often.
constexpr int64_t kLeastProductRows = 28;
constexpr std::uint32_t kNobody = 0xffffffffU;

// The extents of all axes of a shape but the last one; extents of 1 are left out.
Dims row_axes(const Shape& shape) {
  Dims axes;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i)
    if (shape[i] != 1) axes.push_back(shape[i]);
  return axes;
}

// How the steps of an operator's family compute rows.
enum class RowKind : std::uint8_t { kNone, kElementwise, kLookup, kReduction, kProduct };

// True if the node reduces, or normalizes, the last axis only, and does not change the rank.
bool works_along_rows(const Graph& graph, const Node& node) {
  const Shape& operand = graph.type(graph.operands(node)[0]).shape;
  const std::size_t rank = operand.size();
  if (!node.attrs || graph.type(graph.result(node)).shape.size() != rank) return false;
  const auto is_last = [rank](std::int64_t axis) { return normalize_axis(axis, rank) + 1 == rank; };
  const Attrs* attrs = node.attrs.get();
  if (const auto* axes = get_if<ReduceAttrs>(attrs)) return axes->axes.size() == 1 && is_last(axes->axes[0]);
  if (const auto* axis = get_if<AxisAttrs>(attrs)) return is_last(axis->axis);
  if (const auto* axis = get_if<TosaAxisNanAttrs>(attrs)) return is_last(axis->axis);
  if (const auto* axis = get_if<AxisDtypeAttrs>(attrs)) return is_last(axis->axis);
  return false;
}

// True for a GATHER of elements of one table: of values [1, entries, 1].
bool is_element_gather(const Graph& graph, const Node& node) {
  if (node.op != Op::kTosaGather) return false;
  const Shape& table = graph.type(graph.operands(node)[0]).shape;
  return table[0] == 1 && table[2] == 1;
}

// True if the operand of a step of this kind is a table, which all rows read.
bool is_table(RowKind kind, const Node& node, std::size_t operand) {
  return kind == RowKind::kLookup && (node.op == Op::kTosaGather ? operand == 0 : operand > 0);
}

RowKind row_kind(const Graph& graph, const Node& node) {
  const kernels::Prepare family = kernels::family_of(node.op);
  const Shape& shape = graph.type(graph.result(node)).shape;
  if (is_element_gather(graph, node)) return RowKind::kLookup;
  if (family == kernels::prepare_table || family == kernels::prepare_tosa_rescale) return RowKind::kLookup;
  if (family == kernels::prepare_elementwise)
    return node.op == Op::kPrelu ? RowKind::kNone : RowKind::kElementwise;
  if (node.operand_count == 0 || !graph.operands(node)[0].valid()) return RowKind::kNone;
  const Shape& operand = graph.type(graph.operands(node)[0]).shape;
  if (family == kernels::prepare_normalize || family == kernels::prepare_reduce)
    return works_along_rows(graph, node) ? RowKind::kReduction : RowKind::kNone;
  const bool is_product = node.op == Op::kMatmul || node.op == Op::kTosaMatmul;
  if (!is_product || operand.size() != shape.size() || shape[shape.size() - 2] == 1) return RowKind::kNone;
  const ValueId right = graph.operands(node)[1];
  return graph.type(right).shape.size() == shape.size() && !graph.value(right).constant ? RowKind::kProduct
                                                                                        : RowKind::kNone;
}

// Which row axes of the result an operand of a row step has.
struct Follows {
  bool by_row = false;                  // along the last row axis
  bool by_all = false, by_any = false;  // along all or some of the row axes
  Dims strides;                         // in elements, by row axis
  int64_t width = 1;                    // elements of a row
};

// `matrix_axes` is 2 for an operand that is one matrix for all rows along the last row axis, else 1. Returns
// nothing if the operand does not broadcast to the result.
std::optional<Follows> follow(const Shape& operand, const Shape& result, std::size_t matrix_axes) {
  Follows out;
  const std::size_t rank = result.size();
  if (operand.size() > rank) return std::nullopt;
  const std::size_t lacking = rank - operand.size();
  int64_t stride = 1;
  std::vector<int64_t> strides;
  out.by_all = true;
  for (std::size_t i = rank; i-- > 0;) {
    const int64_t extent = i < lacking ? 1 : operand[i - lacking];
    if (i + 1 == rank) {
      out.width = extent;
    } else if (result[i] != 1) {
      const bool is_row_of_matrix = matrix_axes == 2 && i + 2 == rank;
      const bool follows = extent == result[i] && !is_row_of_matrix;
      if (!follows && extent != 1 && !is_row_of_matrix) return std::nullopt;
      if (strides.empty()) out.by_row = follows;
      out.by_all = out.by_all && follows;
      out.by_any = out.by_any || follows;
      strides.push_back(follows ? stride : 0);
    } else if (extent != 1 && !(matrix_axes == 2 && i + 2 == rank)) {
      return std::nullopt;
    }
    stride *= extent;
  }
  for (std::size_t i = strides.size(); i-- > 0;) out.strides.push_back(strides[i]);
  return out;
}

class Finder {
 public:
  Finder(const Graph& graph, std::vector<Step>& steps, std::vector<memory::NodeNeeds>& needs,
         const kernels::Options& options, std::size_t least_bytes)
      : graph_(graph),
        steps_(steps),
        needs_(needs),
        options_(options),
        least_bytes_(least_bytes),
        last_reader_(graph.values().size(), 0),
        producer_(graph.values().size(), kNobody),
        is_output_(graph.values().size(), false),
        in_group_(steps.size(), false),
        state_(graph.values().size(), State::kOutside) {
    options_.threads.count = 1;
    readers_.resize(graph.values().size());
    for (std::uint32_t i = 0; i < steps.size(); ++i) {
      for (const ValueId operand : graph.operands(graph.nodes()[i]))
        if (operand.valid()) {
          last_reader_[operand.index()] = i;
          readers_[operand.index()].push_back(i);
        }
      if (!steps[i].is_fused && steps[i].kind == StepKind::kKernel) producer_[result_of(i)] = i;
    }
    for (const Output& output : graph.outputs()) is_output_[output.value.index()] = true;
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) viewed_.push_back(i);
    for (std::uint32_t i = 0; i < steps.size(); ++i) {
      const Node& view = graph.nodes()[i];
      if (steps[i].kind != StepKind::kView || !memory::view_offsets(graph, view)) continue;
      for (std::uint32_t r = 0; r < view.result_count; ++r)
        viewed_[view.first_result + r] = viewed_[graph.operands(view)[0].index()];
    }
  }

  void find(std::uint32_t threads) {
    for (std::uint32_t first = 0; first < steps_.size(); ++first) {
      if (!may_begin(first)) continue;
      grow(first);
      cut();
      if (is_worthwhile()) make_group(threads);
      for (const std::uint32_t value : touched_) state_[value] = State::kOutside;
      touched_.clear();
    }
  }

 private:
  enum class State : std::uint8_t { kOutside, kInside, kAfter };  // kAfter: computed from values inside

  // A step that may belong to the group, or a view of a value inside.
  struct Member {
    std::uint32_t step = 0;
    RowKind kind = RowKind::kNone;  // kNone: a view
    std::uint32_t value = 0;        // the result of the step or of the last one that is fused with it
    bool is_taken = false;          // by take_producers()
    // Set if the group computes nothing for the member: the value that is viewed, or the result of an equal
    // step.
    std::optional<std::uint32_t> same_as = std::nullopt;
  };

  // How often the kernel of a step is called for a block: for each tile, or once for all rows of the block.
  enum class Pace : std::uint8_t { kTiles, kBlock, kProduct };

  // A step of the group in the order in which it is computed.
  struct Placed {
    std::size_t member = 0;
    std::uint32_t segment = 0;
  };

  [[nodiscard]] const Node& node(std::uint32_t step) const { return graph_.nodes()[step]; }
  [[nodiscard]] const TensorType& type(std::uint32_t value) const { return graph_.values()[value].type; }

  [[nodiscard]] std::uint32_t result_of(std::uint32_t step) const {
    const std::vector<std::uint32_t>& followers = steps_[step].fusion.followers;
    return node(followers.empty() ? step : followers.back()).first_result;
  }

  [[nodiscard]] RowKind kind_of(std::uint32_t step) const {
    const Step& at = steps_[step];
    if (at.kind != StepKind::kKernel || at.is_fused || in_group_[step] || node(step).result_count != 1 ||
        node(step).operand_count == 0 || node(step).operand_count > kMostOperands)
      return RowKind::kNone;
    if (type(result_of(step)).shape != type(node(step).first_result).shape) return RowKind::kNone;
    return row_kind(graph_, node(step));
  }

  [[nodiscard]] bool may_begin(std::uint32_t step) const {
    constexpr std::size_t share = 16;
    return kind_of(step) != RowKind::kNone && node(step).op != Op::kTosaGather &&
           type(result_of(step)).bytes() >= least_bytes_ / share &&
           !row_axes(type(result_of(step)).shape).empty();
  }

  // The shape of a value in the rows of the group. Inside, a value may have another shape with the same
  // elements in the same order, for example [rows * width].
  [[nodiscard]] const Shape& shape_of(std::uint32_t value) const {
    const auto found = row_shapes_.find(value);
    return found == row_shapes_.end() ? type(value).shape : found->second;
  }

  // True if the value has the rows of the group, of this width.
  [[nodiscard]] bool has_rows(std::uint32_t value, int64_t width) const {
    const Shape& shape = type(value).shape;
    return row_axes(shape) == axes_ && shape.back() == width;
  }

  void set(std::uint32_t value, State state) {
    state_[value] = state;
    touched_.push_back(value);
  }

  void grow(std::uint32_t first) {
    members_.clear();
    row_operands_.clear();
    row_shapes_.clear();
    axes_ = row_axes(type(result_of(first)).shape);
    std::uint32_t last = first;  // the last step that may belong to the group
    for (std::uint32_t step = first; step <= last && step < first + kMostSpan && members_.size() < kMostSteps;
         ++step) {
      if (steps_[step].is_fused) continue;
      const std::optional<Joining> joining = joins(step, step == first);
      if (!joining) {
        if (reads(step, State::kInside) || reads(step, State::kAfter)) mark_after(step);
        continue;
      }
      take_producers(step, joining->kind);
      const std::uint32_t value = result_of(step);
      members_.push_back({step, joining->kind, value});
      set(value, State::kInside);
      if (!has_rows(value, joining->rows.back())) row_shapes_.emplace(value, joining->rows);
      last = std::max(last, last_reader_[value]);
      note_operands(step);
    }
  }

  void note_operands(std::uint32_t step) {
    for (const ValueId operand : graph_.operands(node(step)))
      if (operand.valid() && state_[operand.index()] == State::kOutside && !graph_.value(operand).constant)
        row_operands_.push_back(operand.index());
  }

  // Adds the steps to the group that only compute operands of this step and whose rows are the group's rows:
  // the other branch of a sum, for example.
  void take_producers(std::uint32_t step, RowKind kind) {
    if (kind != RowKind::kElementwise && kind != RowKind::kLookup) return;
    for (const ValueId operand : graph_.operands(node(step))) {
      if (!operand.valid() || state_[operand.index()] != State::kOutside || is_output_[operand.index()] ||
          readers_[operand.index()].size() != 1 || producer_[operand.index()] == kNobody)
        continue;
      const std::uint32_t producer = producer_[operand.index()];
      const std::optional<Joining> its = joins(producer, true);
      if (!its || (its->kind != RowKind::kElementwise && its->kind != RowKind::kLookup)) continue;
      take_producers(producer, its->kind);
      const auto place = std::find_if(members_.begin(), members_.end(),
                                      [&](const Member& member) { return member.step > producer; });
      members_.insert(place, {producer, its->kind, operand.index(), true});
      set(operand.index(), State::kInside);
      note_operands(producer);
    }
  }

  [[nodiscard]] bool reads(std::uint32_t step, State state) const {
    for (const ValueId operand : graph_.operands(node(step)))
      if (operand.valid() && state_[operand.index()] == state) return true;
    return false;
  }

  void mark_after(std::uint32_t step) {
    const auto mark = [&](const Node& made) {
      for (std::uint32_t i = 0; i < made.result_count; ++i) set(made.first_result + i, State::kAfter);
    };
    mark(node(step));
    for (const std::uint32_t follower : steps_[step].fusion.followers) mark(node(follower));
  }

  // How a step belongs to the group.
  struct Joining {
    RowKind kind = RowKind::kNone;  // kNone: a view
    Shape rows;                     // shape_of() of its result
  };

  [[nodiscard]] std::optional<Joining> joins(std::uint32_t step, bool is_first) const {
    if (reads(step, State::kAfter)) return std::nullopt;
    if (is_view_inside(step)) return Joining{RowKind::kNone, rows_of_view(step)};
    const RowKind kind = kind_of(step);
    if (kind == RowKind::kNone) return std::nullopt;
    const Shape& result = type(result_of(step)).shape;
    if (node(step).op == Op::kTosaGather || row_axes(result) != axes_ || reads_reshaped(step))
      return joins_reshaped(step, kind);
    const std::span<const ValueId> operands = graph_.operands(node(step));
    bool shares = is_first;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid()) continue;
      const std::uint32_t value = operands[i].index();
      const bool is_inside = state_[value] == State::kInside;
      if (is_inside && (row_axes(type(value).shape) != axes_ || (kind == RowKind::kProduct && i == 1)))
        return std::nullopt;
      if (is_table(kind, node(step), i)) {
        if (is_inside) return std::nullopt;
        continue;
      }
      if (!follow(type(value).shape, result, kind == RowKind::kProduct && i == 1 ? 2 : 1))
        return std::nullopt;
      shares = shares || is_inside ||
               std::find(row_operands_.begin(), row_operands_.end(), value) != row_operands_.end();
    }
    return shares ? std::optional(Joining{kind, result}) : std::nullopt;
  }

  // A step whose result does not have the shape of the group's rows may belong to the group if it computes
  // each element from the same element of values inside, and from values of one element.
  [[nodiscard]] std::optional<Joining> joins_reshaped(std::uint32_t step, RowKind kind) const {
    if (kind != RowKind::kElementwise && kind != RowKind::kLookup) return std::nullopt;
    const int64_t count = num_elements(type(result_of(step)).shape);
    const Shape* rows = nullptr;
    const std::span<const ValueId> operands = graph_.operands(node(step));
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid()) continue;
      const std::uint32_t value = operands[i].index();
      const bool is_inside = state_[value] == State::kInside;
      const int64_t elements = num_elements(type(value).shape);
      if (is_table(kind, node(step), i)) {
        if (is_inside) return std::nullopt;
      } else if (is_inside) {
        if (elements != count || (rows != nullptr && rows->back() != shape_of(value).back()))
          return std::nullopt;
        rows = &shape_of(value);
      } else if (elements != 1) {
        return std::nullopt;
      }
    }
    return rows != nullptr ? std::optional(Joining{kind, *rows}) : std::nullopt;
  }

  // True if the step reads a value inside whose shape does not show the group's rows.
  [[nodiscard]] bool reads_reshaped(std::uint32_t step) const {
    for (const ValueId operand : graph_.operands(node(step)))
      if (operand.valid() && row_shapes_.contains(operand.index())) return true;
    return false;
  }

  // True for a view of all elements of a value inside.
  [[nodiscard]] bool is_view_inside(std::uint32_t step) const {
    const Node& view = node(step);
    if (steps_[step].kind != StepKind::kView || view.result_count != 1 || view.operand_count == 0 ||
        !graph_.operands(view)[0].valid() || state_[graph_.operands(view)[0].index()] != State::kInside)
      return false;
    return num_elements(type(view.first_result).shape) ==
           num_elements(graph_.type(graph_.operands(view)[0]).shape);
  }

  [[nodiscard]] Shape rows_of_view(std::uint32_t step) const {
    const Node& view = node(step);
    const Shape& from = shape_of(graph_.operands(view)[0].index());
    return has_rows(view.first_result, from.back()) ? type(view.first_result).shape : from;
  }

  // Removes the last steps, and producers taken for them, until only the last value has readers outside.
  void cut() {
    for (; !members_.empty(); members_.pop_back()) {
      if (members_.back().kind == RowKind::kNone || members_.back().is_taken) continue;
      const std::vector<Member> before = members_;
      std::erase_if(members_, [&](const Member& member) {
        return member.is_taken && std::none_of(before.begin(), before.end(), [&](const Member& other) {
                 return other.step == readers_[member.value].front();
               });
      });
      const std::uint32_t last = members_.back().step;
      const bool is_closed = std::all_of(members_.begin(), members_.end() - 1, [&](const Member& member) {
        return !is_output_[member.value] &&
               std::all_of(readers_[member.value].begin(), readers_[member.value].end(),
                           [&](std::uint32_t reader) { return reader <= last && has_member(reader); });
      });
      if (is_closed) return;
    }
  }

  [[nodiscard]] bool has_member(std::uint32_t step) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& m) { return m.step == step; });
  }

  [[nodiscard]] bool is_worthwhile() const {
    std::size_t bytes = 0, count = 0;
    for (const Member& member : members_) {
      if (member.kind == RowKind::kNone) continue;
      ++count;
      if (member.value != members_.back().value) bytes += type(member.value).bytes();
    }
    return count > 1 && bytes >= least_bytes_;
  }

  void find_repeated();
  [[nodiscard]] bool are_equal(const Member& a, const Member& b) const;
  [[nodiscard]] std::uint32_t computed(std::uint32_t value) const;
  [[nodiscard]] std::uint32_t last_use(std::uint32_t value) const;
  void order_steps(RowGroup& group);
  [[nodiscard]] Pace pace_of(const Member& member, int64_t widest) const;
  [[nodiscard]] std::vector<std::vector<bool>> ancestors() const;
  [[nodiscard]] std::uint32_t last_place(std::uint32_t value) const;
  [[nodiscard]] bool is_local(std::size_t place) const;
  void make_group(std::uint32_t threads);
  bool set_rows(RowGroup& group, std::uint32_t threads);
  bool prepare_steps(RowGroup& group);
  [[nodiscard]] int64_t live_row_bytes() const;
  [[nodiscard]] Follows follows_rows(const Member& member, ValueId operand, std::size_t matrix_axes) const;
  [[nodiscard]] kernels::Kernel prepare_rows(const Member& member, int64_t rows) const;
  [[nodiscard]] RowOperand row_operand(const Member& member, std::size_t index) const;
  [[nodiscard]] std::size_t place_buffers(RowGroup& group);
  [[nodiscard]] bool may_overwrite(const RowGroup& group, ValueId operand) const;

  const Graph& graph_;
  std::vector<Step>& steps_;
  std::vector<memory::NodeNeeds>& needs_;
  kernels::Options options_;
  std::size_t least_bytes_;
  std::vector<std::uint32_t> last_reader_;  // per value
  std::vector<std::uint32_t> producer_;     // per value: the step that computes it, or kNobody
  std::vector<std::vector<std::uint32_t>> readers_;
  std::vector<bool> is_output_;
  std::vector<std::uint32_t> viewed_;  // per value: the value of which it is a view, or itself
  std::vector<bool> in_group_;         // per step
  std::vector<State> state_;           // per value
  std::vector<std::uint32_t> touched_;
  std::unordered_map<std::uint32_t, Shape> row_shapes_;  // values inside whose shape has other rows
  std::vector<Member> members_;
  std::vector<std::uint32_t> row_operands_;  // values outside that members read by row
  std::vector<Placed> order_;
  Dims axes_;            // the row axes of the group
  bool merges_ = false;  // all row axes are one: no operand follows some of them only
};

// The value that the group computes for this one.
std::uint32_t Finder::computed(std::uint32_t value) const {
  for (const Member& member : members_)
    if (member.value == value) return member.same_as ? computed(*member.same_as) : value;
  return value;
}

// True if both steps compute the same array.
bool Finder::are_equal(const Member& a, const Member& b) const {
  const Node &first = node(a.step), &second = node(b.step);
  if (first.op != second.op || first.operand_count != second.operand_count ||
      type(a.value).dtype != type(b.value).dtype || shape_of(a.value) != shape_of(b.value))
    return false;
  if ((first.attrs == nullptr) != (second.attrs == nullptr) ||
      (first.attrs && !(*first.attrs == *second.attrs)))
    return false;
  const std::span<const ValueId> left = graph_.operands(first), right = graph_.operands(second);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].valid() != right[i].valid()) return false;
    if (left[i].valid() && computed(left[i].index()) != computed(right[i].index())) return false;
  }
  return true;
}

// Programs for NPUs repeat steps, for example the operands of each TABLE. A group computes equal steps once.
void Finder::find_repeated() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.kind == RowKind::kNone) {
      member.same_as = graph_.operands(node(member.step))[0].index();
      continue;
    }
    if (member.kind == RowKind::kProduct || i + 1 == members_.size()) continue;
    for (std::size_t j = 0; j < i && !member.same_as; ++j)
      if (members_[j].kind == member.kind && !members_[j].same_as && are_equal(members_[j], member))
        member.same_as = members_[j].value;
  }
}

// The last step that reads the value, or a member that is the same.
std::uint32_t Finder::last_use(std::uint32_t value) const {
  std::uint32_t last = last_reader_[value];
  for (const Member& member : members_)
    if (member.same_as == value) last = std::max(last, last_use(member.value));
  return last;
}

// The bytes of a row of all values inside that are live at the same time, at most.
int64_t Finder::live_row_bytes() const {
  std::vector<std::pair<std::uint32_t, int64_t>> live;  // last use, bytes
  int64_t most = 0;
  for (const Member& member : members_) {
    if (member.same_as) continue;
    live.emplace_back(last_use(member.value), shape_of(member.value).back() *
                                                  static_cast<int64_t>(byte_size(type(member.value).dtype)));
    int64_t sum = 0;
    for (const auto& [last, bytes] : live)
      if (last >= member.step) sum += bytes;
    most = std::max(most, sum);
  }
  return most;
}

// How an operand that is no table follows the rows of the group. A value inside has all of them, even if its
// shape has other axes of one element than the result. A value outside broadcasts to the result, or has one
// element and any number of axes.
Follows Finder::follows_rows(const Member& member, ValueId operand, std::size_t matrix_axes) const {
  const Shape& shape = shape_of(operand.index());
  const Shape& result = shape_of(member.value);
  if (state_[operand.index()] == State::kInside) {
    Follows inside;
    inside.by_row = inside.by_all = inside.by_any = true;
    inside.width = shape.back();
    return inside;
  }
  const bool is_scalar = shape.size() > result.size() && num_elements(shape) == 1;
  return follow(is_scalar ? Shape{1} : shape, result, matrix_axes).value();
}

// The pace at which a step is best computed.
Finder::Pace Finder::pace_of(const Member& member, int64_t widest) const {
  if (member.kind == RowKind::kProduct) return Pace::kProduct;
  int64_t width = shape_of(member.value).back();
  const Node& head = node(member.step);
  for (std::size_t i = 0; i < head.operand_count; ++i) {
    const ValueId operand = graph_.operands(head)[i];
    if (operand.valid() && state_[operand.index()] == State::kInside)
      width = std::max(width, shape_of(operand.index()).back());
  }
  return width <= widest / kNarrowShare ? Pace::kBlock : Pace::kTiles;
}

// Per member: the members that have to be computed before it.
std::vector<std::vector<bool>> Finder::ancestors() const {
  std::vector<std::vector<bool>> all(members_.size(), std::vector<bool>(members_.size()));
  for (std::size_t i = 0; i < members_.size(); ++i)
    for (const ValueId operand : graph_.operands(node(members_[i].step))) {
      if (!operand.valid() || state_[operand.index()] != State::kInside) continue;
      const std::uint32_t value = computed(operand.index());
      for (std::size_t j = 0; j < i; ++j) {
        if (members_[j].value != value) continue;
        all[i][j] = true;
        for (std::size_t k = 0; k < j; ++k) all[i][k] = all[i][k] || all[j][k];
      }
    }
  return all;
}

// Orders the steps such that there are few segments. Tiles of all steps on which narrow ones depend come
// first, then the narrow ones, and a product only if nothing else is left to compute before it.
void Finder::order_steps(RowGroup& group) {
  int64_t widest = 1;
  for (const Member& member : members_) widest = std::max(widest, shape_of(member.value).back());
  const std::vector<std::vector<bool>> before = ancestors();
  std::vector<std::size_t> left;  // members to compute, without the last one
  std::vector<Pace> paces;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    paces.push_back(members_[i].same_as ? Pace::kTiles : pace_of(members_[i], widest));
    if (!members_[i].same_as && i + 1 < members_.size()) left.push_back(i);
  }
  order_.clear();
  std::uint32_t segments = 0;
  std::optional<Pace> pace;  // of the segment
  const auto place = [&](std::size_t i) {
    if (pace != paces[i] || pace == Pace::kProduct) ++segments;
    pace = paces[i];
    order_.push_back({i, segments - 1});
  };
  // Places the members of this pace that depend on no member of another pace that is left, and that `wants`
  // wants.
  const auto place_all = [&](Pace wanted, auto&& wants) {
    const std::vector<std::size_t> were_left = left;
    std::erase_if(left, [&](std::size_t i) {
      if (paces[i] != wanted || !wants(i)) return false;
      for (const std::size_t j : were_left)
        if (before[i][j] && (paces[j] != wanted || !wants(j))) return false;
      place(i);
      return true;
    });
    return left.size() != were_left.size();
  };
  const auto always = [](std::size_t) { return true; };
  while (!left.empty()) {
    const std::vector<std::size_t> now = left;
    const auto has_narrow = [&](auto&& accepts) {
      return std::any_of(now.begin(), now.end(),
                         [&](std::size_t j) { return paces[j] == Pace::kBlock && accepts(j); });
    };
    const bool all = !has_narrow(always);
    const auto wants = [&](std::size_t i) {
      return all || has_narrow([&](std::size_t j) { return before[j][i]; });
    };
    const bool tiles = place_all(Pace::kTiles, wants), narrow = place_all(Pace::kBlock, always);
    if (tiles || narrow) continue;
    // What is left depends on a product. The first one may need tiles that no narrow step needs.
    const auto product =
        std::find_if(left.begin(), left.end(), [&](std::size_t i) { return paces[i] == Pace::kProduct; });
    const std::size_t next = product == left.end() ? left.front() : *product;
    std::erase_if(left, [&](std::size_t i) {
      if (i != next && !before[next][i]) return false;
      place(i);
      return true;
    });
  }
  place(members_.size() - 1);
  int64_t tile = group.block_rows;
  const int64_t most = std::max<int64_t>(
      {1, kTileBytes / std::max<int64_t>(live_row_bytes(), 1), kLeastTileElements / widest});
  if (most < group.block_rows) {
    const int64_t tiles = (group.block_rows + most - 1) / most;
    tile = (group.block_rows + tiles - 1) / tiles;
    group.block_rows = tile * std::min(tiles, (group.rows + tile - 1) / tile);
  }
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const bool in_tiles = paces[order_[i].member] == Pace::kTiles;
    if (i == 0 || order_[i].segment != order_[i - 1].segment)
      group.segments.push_back({i, i, in_tiles ? tile : group.block_rows});
    ++group.segments.back().end;
  }
}

// The last place in the order at which the value, or one that is the same, is read.
std::uint32_t Finder::last_place(std::uint32_t value) const {
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < order_.size(); ++i)
    for (const ValueId operand : graph_.operands(node(members_[order_[i].member].step)))
      if (operand.valid() && state_[operand.index()] == State::kInside && computed(operand.index()) == value)
        last = i;
  return last;
}

// True if no other segment reads the result of the step at this place.
bool Finder::is_local(std::size_t place) const {
  const std::uint32_t last = last_place(members_[order_[place].member].value);
  return last > place && order_[last].segment == order_[place].segment;
}

// Decides on the outer axes and the rows of a block.
bool Finder::set_rows(RowGroup& group, std::uint32_t threads) {
  merges_ = true;
  bool has_product = false;
  double cost = 0;
  for (const Member& member : members_) {
    if (member.same_as) continue;
    const Shape& result = shape_of(member.value);
    cost += static_cast<double>(result.back()) * kernels::cost::kFunction / 2;
    const std::span<const ValueId> operands = graph_.operands(node(member.step));
    if (member.kind == RowKind::kProduct) {
      has_product = true;
      merges_ = false;
      cost += static_cast<double>(result.back() * graph_.type(operands[0]).shape.back()) *
              kernels::cost::kMultiplyAdd / 2;
    }
    if (member.kind == RowKind::kLookup) continue;
    for (const ValueId operand : operands) {
      if (!operand.valid() || state_[operand.index()] == State::kInside || member.kind == RowKind::kProduct)
        continue;
      const Follows follows = follows_rows(member, operand, 1);
      merges_ = merges_ && follows.by_all == follows.by_any;
    }
  }
  group.outer = axes_;
  group.rows = 1;
  if (merges_) {
    for (const int64_t extent : axes_) group.rows *= extent;
    group.outer = Dims();
  } else {
    group.rows = axes_.back();
    group.outer = Dims(axes_.span().first(axes_.size() - 1));
  }
  if (group.rows == 0) return false;
  const int64_t least = has_product ? kLeastProductRows : 1;
  const int64_t most_bytes = has_product ? kBlockBytes : kLightBlockBytes;
  const int64_t most = std::max(least, most_bytes / std::max<int64_t>(live_row_bytes(), 1));
  int64_t blocks = (group.rows + most - 1) / most;
  if (threads > 1) {
    const int64_t wanted =
        int64_t{threads} * kernels::kPartsPerThread / std::max<int64_t>(1, num_elements(group.outer));
    blocks = std::max(blocks, std::min(wanted, group.rows / least));
  }
  blocks = std::max<int64_t>(blocks, 1);
  group.block_rows = (group.rows + blocks - 1) / blocks;
  order_steps(group);
  group.block_cost = cost * static_cast<double>(group.block_rows);
  return true;
}

// The shape [1, ..., 1, rows, width] of this rank.
Shape block_shape(std::size_t rank, int64_t rows, int64_t width) {
  Shape shape = Shape::filled(rank, 1);
  shape[rank - 1] = width;
  if (rank > 1) shape[rank - 2] = rows;
  return shape;
}

kernels::Kernel Finder::prepare_rows(const Member& member, int64_t rows) const {
  const Node& head = node(member.step);
  const Shape& whole = shape_of(member.value);
  std::vector<kernels::Operand> operands;
  const std::span<const ValueId> values = graph_.operands(head);
  for (std::size_t i = 0; i < values.size(); ++i) {
    kernels::Operand operand = kernel_operand(graph_, values[i], true);
    if (operand.present && !is_table(member.kind, head, i) && !operand.shape.empty()) {
      if (member.kind == RowKind::kProduct && i == 1) {
        operand.shape =
            block_shape(whole.size(), operand.shape[operand.shape.size() - 2], operand.shape.back());
      } else {
        const Follows follows = follows_rows(member, values[i], 1);
        const bool by_row = merges_ ? follows.by_any : follows.by_row;
        operand.shape = block_shape(whole.size(), by_row ? rows : 1, follows.width);
        // Each block reads another part of the operand, so the kernel must not treat it as a constant.
        if (follows.by_any) operand.constant = nullptr;
      }
    }
    operands.push_back(std::move(operand));
  }
  kernels::Operand result = kernel_operand(graph_, graph_.result(head), false);
  result.shape = block_shape(whole.size(), rows, whole.back());
  if (head.op == Op::kTosaGather) {
    operands[1].shape = {1, rows * whole.back()};
    result.shape = {1, rows * whole.back(), 1};
  }
  std::vector<kernels::Follower> followers;
  for (const std::uint32_t follower : steps_[member.step].fusion.followers)
    followers.push_back({node(follower).op, node(follower).attrs.get()});
  const kernels::Request request{head.op,
                                 head.attrs.get(),
                                 operands,
                                 std::span(&result, 1),
                                 options_,
                                 followers,
                                 member.kind == RowKind::kProduct};
  return followers.empty() ? kernels::prepare(request) : kernels::prepare_fused(request);
}

RowOperand Finder::row_operand(const Member& member, std::size_t index) const {
  const ValueId value = graph_.operands(node(member.step))[index];
  RowOperand out;
  if (!value.valid()) return out;
  out.operand = static_cast<std::uint32_t>(index);
  out.outer = Dims::filled(merges_ ? 0 : axes_.size() - 1, 0);
  if (state_[value.index()] == State::kInside) {
    out.kind = RowOperand::Kind::kBuffer;
    return out;
  }
  out.kind = RowOperand::Kind::kTable;
  if (is_table(member.kind, node(member.step), index)) return out;
  const TensorType& operand = graph_.type(value);
  const bool is_matrix = member.kind == RowKind::kProduct && index == 1;
  const Follows follows = follows_rows(member, value, is_matrix ? 2 : 1);
  const auto bytes = static_cast<int64_t>(byte_size(operand.dtype));
  if (merges_) {
    if (follows.by_any) out.row_bytes = follows.width * bytes;
    return out;
  }
  for (std::size_t i = 0; i + 1 < axes_.size(); ++i) out.outer[i] = follows.strides[i] * bytes;
  out.row_bytes = follows.strides.back() * bytes;
  return out;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + memory::kAlignment - 1) / memory::kAlignment * memory::kAlignment;
}

// Assigns a buffer to each value inside of the group. Later values reuse buffers. Returns the total bytes.
std::size_t Finder::place_buffers(RowGroup& group) {
  struct Buffer {
    std::size_t offset = 0, bytes = 0;
    int64_t row_bytes = 0;
    std::uint32_t busy_until = 0;  // the last place that reads it
  };
  std::vector<Buffer> buffers;
  std::size_t top = 0;
  std::vector<std::pair<std::uint32_t, std::size_t>> placed;  // value, buffer
  const auto buffer_of = [&](ValueId operand) -> Buffer& {
    const std::uint32_t value = computed(operand.index());
    for (const auto& [of, buffer] : placed)
      if (of == value) return buffers[buffer];
    return buffers.front();
  };
  for (std::uint32_t place = 0; place < order_.size(); ++place) {
    const Member& member = members_[order_[place].member];
    const std::span<const ValueId> operands = graph_.operands(node(member.step));
    RowStep& step = group.steps[place];
    for (RowOperand& operand : step.operands) {
      if (operand.kind != RowOperand::Kind::kBuffer) continue;
      const Buffer& buffer = buffer_of(operands[operand.operand]);
      operand.offset = buffer.offset;
      operand.row_bytes = buffer.row_bytes;
    }
    if (step.is_last) break;
    const int64_t row_bytes =
        shape_of(member.value).back() * static_cast<int64_t>(byte_size(type(member.value).dtype));
    const bool local = is_local(place);
    Buffer wanted;
    wanted.row_bytes = local ? 0 : row_bytes;
    wanted.bytes = static_cast<std::size_t>(
        (local ? group.segments[order_[place].segment].rows : group.block_rows) * row_bytes);
    // Two values in the same memory have the same rows at the same places, so that a tile of the later one
    // does not overwrite rows of the earlier one which the next tile reads.
    const auto fits = [&](const Buffer& buffer) {
      return buffer.bytes == wanted.bytes && buffer.row_bytes == wanted.row_bytes;
    };
    auto free = std::find_if(buffers.begin(), buffers.end(),
                             [&](const Buffer& buffer) { return buffer.busy_until < place && fits(buffer); });
    // Computes in place of an operand that is not read later.
    for (const RowOperand& operand : step.operands) {
      if (operand.kind != RowOperand::Kind::kBuffer || (step.in_place >> operand.operand & 1u) == 0) continue;
      Buffer& buffer = buffer_of(operands[operand.operand]);
      if (buffer.busy_until == place && fits(buffer))
        free = buffers.begin() + static_cast<std::ptrdiff_t>(&buffer - buffers.data());
    }
    if (free == buffers.end()) {
      wanted.offset = top;
      top += aligned(wanted.bytes);
      buffers.push_back(wanted);
      free = buffers.end() - 1;
    }
    free->busy_until = std::max(place, last_place(member.value));
    step.result = free->offset;
    step.result_row_bytes = free->row_bytes;
    placed.emplace_back(member.value, static_cast<std::size_t>(free - buffers.begin()));
  }
  return top;
}

bool Finder::prepare_steps(RowGroup& group) {
  std::size_t shared = 0;
  std::vector<std::size_t> own;  // scratch of products, which is kept from block to block
  for (const Placed& placed : order_) {
    const Member& member = members_[placed.member];
    const int64_t rows = group.segments[placed.segment].rows;
    const int64_t rest = group.rows % group.block_rows % rows;
    RowStep step;
    step.step = member.step;
    step.is_last = member.value == members_.back().value;
    for (std::size_t i = 0; i < node(member.step).operand_count; ++i)
      step.operands.push_back(row_operand(member, i));
    kernels::Kernel whole = prepare_rows(member, rows);
    if (member.kind == RowKind::kProduct) {
      if (!whole.rows) return false;
      step.product = std::move(whole.rows);
      own.push_back(whole.scratch_bytes);
    } else {
      if (!whole.run) return false;
      step.whole = std::move(whole.run);
      shared = std::max(shared, whole.scratch_bytes);
      if (rest != 0) {
        kernels::Kernel shorter = prepare_rows(member, rest);
        step.rest = std::move(shorter.run);
        shared = std::max(shared, shorter.scratch_bytes);
      }
    }
    step.in_place = whole.in_place;
    if (!group.factors) group.factors = whole.factors;
    group.steps.push_back(std::move(step));
  }
  std::size_t top = place_buffers(group);
  const auto reserve = [&top](std::size_t bytes) {
    const std::size_t at = top;
    top += aligned(bytes);
    return at;
  };
  const std::size_t shared_at = reserve(shared);
  std::size_t product = 0;
  for (RowStep& step : group.steps) step.scratch = step.product ? reserve(own[product++]) : shared_at;
  group.worker_bytes = top;
  return true;
}

// True if the group may compute its result in the memory of this value: if each block reads only those rows
// of it that the block writes. Other blocks may run earlier, or at the same time.
bool Finder::may_overwrite(const RowGroup& group, ValueId operand) const {
  const auto shares_memory = [&](ValueId value) {
    return value.valid() && viewed_[value.index()] == viewed_[operand.index()];
  };
  for (const RowStep& step : group.steps) {
    const std::span<const ValueId> operands = graph_.operands(node(step.step));
    for (const RowOperand& read : step.operands) {
      if (read.kind != RowOperand::Kind::kTable || !shares_memory(operands[read.operand])) continue;
      const bool follows_rows = read.row_bytes != 0 && std::all_of(read.outer.begin(), read.outer.end(),
                                                                   [](int64_t bytes) { return bytes != 0; });
      if (!follows_rows || graph_.type(operands[read.operand]).bytes() != graph_.type(operand).bytes())
        return false;
    }
    for (const std::uint32_t follower : steps_[step.step].fusion.followers)
      if (std::any_of(graph_.operands(node(follower)).begin(), graph_.operands(node(follower)).end(),
                      shares_memory))
        return false;
  }
  return true;
}

void Finder::make_group(std::uint32_t threads) {
  find_repeated();
  auto group = std::make_shared<RowGroup>();
  if (!set_rows(*group, threads) || !prepare_steps(*group)) return;
  const std::uint32_t result = members_.back().value;
  group->result_row_bytes = shape_of(result).back() * static_cast<int64_t>(byte_size(type(result).dtype));
  group->workers = threads;
  group->kernel = "rows." + std::string(to_string(options_.isa));
  const std::uint32_t last = members_.back().step;
  for (const Member& member : members_) {
    if (member.kind == RowKind::kNone) {
      needs_[member.step].is_hidden = true;
      group->members.push_back(member.step);
      continue;
    }
    in_group_[member.step] = true;
    group->members.push_back(member.step);
    for (const std::uint32_t follower : steps_[member.step].fusion.followers)
      group->members.push_back(follower);
    if (member.step == last) continue;
    steps_[member.step].is_fused = true;
    memory::NodeNeeds& needs = needs_[member.step];
    needs.reader = last;
    needs.is_hidden = true;
    for (const std::uint32_t follower : steps_[member.step].fusion.followers)
      needs_[follower].is_hidden = true;
    const std::span<const ValueId> operands = graph_.operands(node(member.step));
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid() && state_[operands[i].index()] == State::kOutside) needs.read_later |= 1u << i;
  }
  const std::span<const ValueId> operands = graph_.operands(node(last));
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (operands[i].valid() && state_[operands[i].index()] == State::kOutside &&
        !may_overwrite(*group, operands[i]))
      needs_[last].in_place &= ~(1u << i);
  Step& runs = steps_[last];
  runs.scratch_bytes = std::max(runs.scratch_bytes, group->scratch_bytes());
  needs_[last].scratch_bytes = runs.scratch_bytes;
  runs.group = std::move(group);
}

}  // namespace

void group_rows(const Graph& graph, std::vector<Step>& steps, std::vector<memory::NodeNeeds>& needs,
                const kernels::Options& options, std::size_t least_bytes) {
  Finder(graph, steps, needs, options, least_bytes).find(options.threads.count);
}

}  // namespace tosaic::exec
