#include "tosaic/exec/runner.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "tosaic/exec/override.h"
#include "tosaic/exec/row_group.h"

namespace tosaic::exec {

Memory::Memory(std::size_t bytes)
    : bytes_(bytes < kLargePage / 2 ? std::max<std::size_t>(bytes, 1)
                                    : (bytes + kLargePage - 1) / kLargePage * kLargePage),
      size_(bytes) {}

Frame::Frame(const Prepared& prepared, std::byte* arena) : prepared_(prepared), arena_(arena) {
  const Prepared::Data& data = prepared.data();
  for (const ValueId value : data.operand_values)
    operand_table_.push_back(value.valid() ? address(data.memory.values[value.index()]) : nullptr);
  for (const ValueId value : data.result_values)
    // A view of a constant has the constant's address. No step writes to it.
    result_table_.push_back(const_cast<std::byte*>(address(data.memory.values[value.index()])));
  regions_.resize(data.steps.size());
  for (std::size_t i = 0; i < data.steps.size(); ++i) {
    const Step& step = data.steps[i];
    for (std::size_t r = 0; r < step.regions.size(); ++r)
      regions_[i].emplace_back(step.regions[r], arena + step.scratch_offset + step.region_offsets[r]);
  }
}

// The addresses of inputs and outputs are known only after the start of a run.
const std::byte* Frame::address(const memory::Location& location) const {
  switch (location.area) {
    case memory::Area::kNone:
      return nullptr;
    case memory::Area::kArena:
      return arena_ + location.offset;
    case memory::Area::kConstant:
      return prepared_.graph().values()[location.slot].constant->storage.bytes().data() + location.offset;
    case memory::Area::kInput:
      return inputs_.empty() ? nullptr : inputs_[location.slot] + location.offset;
    case memory::Area::kOutput:
      return outputs_.empty() ? nullptr : outputs_[location.slot] + location.offset;
  }
  return nullptr;
}

std::span<const std::byte* const> Frame::operands(const Step& step) const {
  return {operand_table_.data() + step.first_operand, step.operand_count};
}

std::span<std::byte* const> Frame::results(const Step& step) const {
  return {result_table_.data() + step.first_result, step.result_count};
}

void Frame::run(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                std::span<const VariablePlace> variables, const RunOptions& options, RunResult* result,
                Team* team) {
  inputs_ = inputs;
  team_ = team;
  outputs_ = outputs;
  variables_ = variables;
  fuses_ = (!options.observer || options.watched != nullptr) &&
           (result == nullptr || !(options.trace.all || !options.trace.nodes.empty()));
  alone_.clear();
  if (options.watched != nullptr) find_alone(*options.watched);
  const Prepared::Data& data = prepared_.data();
  for (const Patch& patch : data.operand_patches) operand_table_[patch.place] = address(patch.location);
  for (const Patch& patch : data.result_patches)
    result_table_[patch.place] = const_cast<std::byte*>(address(patch.location));
  for (std::uint32_t i = 0; i < data.steps.size(); ++i) {
    if (options.between_steps) options.between_steps();
    run_step(data.steps[i], i, options, result);
  }
  for (const std::uint32_t i : data.copied_outputs) {
    const ValueId value = data.graph->outputs()[i].value;
    const std::size_t bytes = data.graph->type(value).bytes();
    if (bytes != 0) std::memcpy(outputs[i], address(data.memory.values[value.index()]), bytes);
  }
}

bool Frame::is_watched(const Step& step, const std::vector<bool>& watched) const {
  const Node& node = prepared_.graph().node(step.node);
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    if (watched[prepared_.graph().result(node, i).index()]) return true;
  return false;
}

// Marks the steps of each chain and group whose kernels would not compute a watched value.
void Frame::find_alone(const std::vector<bool>& watched) {
  const std::span<const Step> steps = prepared_.steps();
  alone_.assign(steps.size(), false);
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].group) continue;
    const std::vector<std::uint32_t>& members = steps[i].group->members;
    const bool hides = std::any_of(members.begin(), members.end() - 1,
                                   [&](std::uint32_t member) { return is_watched(steps[member], watched); });
    for (const std::uint32_t member : members) alone_[member] = alone_[member] || hides;
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    const std::vector<std::uint32_t>& followers = steps[i].fusion.followers;
    if (!steps[i].fusion.run) continue;
    bool hides = is_watched(steps[i], watched);
    for (std::size_t f = 0; f + 1 < followers.size(); ++f)
      hides = hides || is_watched(steps[followers[f]], watched);
    if (!hides) continue;
    alone_[i] = true;
    for (const std::uint32_t follower : followers) alone_[follower] = true;
  }
}

void Frame::run_step(const Step& step, std::uint32_t index, const RunOptions& options, RunResult* result) {
  if (options.times != nullptr) {
    const std::int64_t begin = options.times->last();
    run_work(step, index, options);
    if (has_work(step, fuses_ && !is_alone(index))) options.times->add(step, begin);
  } else {
    run_work(step, index, options);
  }
  if (options.observer && (options.watched == nullptr || is_watched(step, *options.watched)))
    call(step, options.observer);
  if (result != nullptr) record(step, options.trace, *result);
}

// If the kernel of a chain throws, the steps run one by one, so the error names the step that causes it.
void Frame::run_fused(const Step& step, std::uint32_t index, const RunOptions& options) {
  const std::span<const Step> steps = prepared_.steps();
  const Step& last = steps[step.fusion.followers.back()];
  try {
    step.fusion.run({operands(step), results(last), arena_ + step.scratch_offset, team_});
  } catch (const Error&) {
    run_alone(step, index, options);
    for (const std::uint32_t follower : step.fusion.followers) run_alone(steps[follower], follower, options);
  }
}

void Frame::run_group(const Step& step) {
  const std::span<const Step> steps = prepared_.steps();
  const Step& last = steps[step.group->members.back()];
  try {
    step.group->run(steps, operand_table_, results(last)[0], arena_ + step.scratch_offset, team_);
  } catch (const Error&) {
    run_group_alone(step);
  }
}

// Runs the steps of a group one by one after an error, so that the error names the step that causes it. It
// allocates memory for their values, which have none in the memory plan.
void Frame::run_group_alone(const Step& step) {
  const Graph& graph = prepared_.graph();
  const std::span<const Step> steps = prepared_.steps();
  std::map<std::uint32_t, std::byte*> made;  // by value
  std::vector<Memory> memory;
  const auto allocate = [&memory](std::size_t bytes) { return memory.emplace_back(bytes).data(); };
  for (const std::uint32_t member : step.group->members) {
    const Step& each = steps[member];
    const Node& node = graph.node(each.node);
    std::vector<const std::byte*> from(operands(each).begin(), operands(each).end());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const ValueId value = graph.operands(node)[i];
      if (const auto at = value.valid() ? made.find(value.index()) : made.end(); at != made.end())
        from[i] = at->second;
    }
    const ValueId value = graph.result(node);
    if (each.kind == StepKind::kView) {
      made[value.index()] = const_cast<std::byte*>(from[0]);
      continue;
    }
    std::byte* to =
        member == step.group->members.back() ? results(each)[0] : allocate(graph.type(value).bytes());
    made[value.index()] = to;
    with_node_location(node, each.name,
                       [&] { each.run({from, std::span(&to, 1), allocate(each.scratch_bytes), team_}); });
  }
}

void Frame::run_work(const Step& step, std::uint32_t index, const RunOptions& options) {
  const bool fuses = fuses_ && !is_alone(index);
  if (fuses && step.is_fused) return;
  if (fuses && step.group) return run_group(step);
  if (fuses && step.fusion.run) return run_fused(step, index, options);
  run_alone(step, index, options);
}

void Frame::run_alone(const Step& step, std::uint32_t index, const RunOptions& options) {
  if (step.kind == StepKind::kView) return;
  const auto work = [&] {
    switch (step.kind) {
      case StepKind::kKernel:
        return step.run({operands(step), results(step), arena_ + step.scratch_offset, team_});
      case StepKind::kView:
        return;
      case StepKind::kOverride:
        return call(step, [&step](const NodeCall& made) { call_override(step.override, made); });
      case StepKind::kCond:
        return run_cond(step, index, options);
      case StepKind::kWhileLoop:
        return run_loop(step, index, options);
      case StepKind::kReadVariable:
        return read_variable(step);
      case StepKind::kWriteVariable:
        return write_variable(step);
    }
  };
  try {
    work();
  } catch (const Error&) {
    const auto failure = std::current_exception();
    with_node_location(prepared_.graph().node(step.node), step.name,
                       [&] { std::rethrow_exception(failure); });
  }
}

// `watched` has flags for values of the outer graph, so regions then have no observer.
static RunOptions region_options(const RunOptions& options) {
  RunOptions made;
  made.between_steps = options.between_steps;
  made.times = options.times;
  if (options.watched == nullptr) made.observer = options.observer;
  return made;
}

void Frame::run_cond(const Step& step, std::uint32_t index, const RunOptions& options) {
  const ValueId predicate = prepared_.graph().operands(prepared_.graph().node(step.node))[0];
  const bool taken = load_element(prepared_.graph().type(predicate).dtype, operands(step)[0]) != 0;
  regions_[index][taken ? 0 : 1].run(operands(step).subspan(1), results(step), variables_,
                                     region_options(options), nullptr, team_);
}

// The first round reads the operands. Later rounds read the values that the round before has carried: two
// sets of memory alternate. Operands beyond the number of results are the same in every round.
void Frame::run_loop(const Step& step, std::uint32_t index, const RunOptions& options) {
  const std::size_t carried = step.result_count;
  std::byte* const scratch = arena_ + step.scratch_offset;
  std::byte* const flag = scratch + step.carried_offsets.back();
  region_inputs_.assign(operands(step).begin(), operands(step).end());
  std::vector<std::byte*> fresh(carried);
  const RunOptions inner = region_options(options);
  for (std::size_t round = 0;; ++round) {
    regions_[index][0].run(region_inputs_, std::span(&flag, 1), variables_, inner, nullptr, team_);
    if (*flag == std::byte{0}) break;
    for (std::size_t i = 0; i < carried; ++i)
      fresh[i] = scratch + step.carried_offsets[round % 2 * carried + i];
    regions_[index][1].run(region_inputs_, fresh, variables_, inner, nullptr, team_);
    std::copy(fresh.begin(), fresh.end(), region_inputs_.begin());
    if (options.between_steps) options.between_steps();
  }
  const Node& node = prepared_.graph().node(step.node);
  for (std::uint32_t i = 0; i < carried; ++i)
    if (const std::size_t bytes = prepared_.graph().type(prepared_.graph().result(node, i)).bytes();
        bytes != 0)
      std::memcpy(results(step)[i], region_inputs_[i], bytes);
}

void Frame::read_variable(const Step& step) const {
  const Node& node = prepared_.graph().node(step.node);
  const VariablePlace& variable = variables_[step.variable];
  if (!*variable.known)
    throw InvalidGraph({.where = "run",
                        .what = "variable '" + Graph::attrs<TosaVariableAccessAttrs>(node).name +
                                "' is read before it is written",
                        .hint = "Give it an initial value, or set the state"});
  const std::size_t bytes = prepared_.graph().type(prepared_.graph().result(node)).bytes();
  if (bytes != 0) std::memcpy(results(step)[0], variable.data, bytes);
}

void Frame::write_variable(const Step& step) const {
  const Node& node = prepared_.graph().node(step.node);
  const VariablePlace& variable = variables_[step.variable];
  const std::size_t bytes = prepared_.graph().type(prepared_.graph().operands(node)[0]).bytes();
  if (bytes != 0) std::memcpy(variable.data, operands(step)[0], bytes);
  *variable.known = true;
}

void Frame::call(const Step& step, const NodeFunction& function) {
  const Graph& graph = prepared_.graph();
  const Node& node = graph.node(step.node);
  std::vector<ArrayView> reads;
  std::vector<MutableArrayView> writes;
  for (std::uint32_t i = 0; i < step.operand_count; ++i) {
    const ValueId value = graph.operands(node)[i];
    if (!value.valid())
      reads.emplace_back();
    else
      reads.push_back(ArrayView::dense(operands(step)[i], graph.type(value).dtype, graph.type(value).shape));
  }
  for (std::uint32_t i = 0; i < step.result_count; ++i) {
    const TensorType& type = graph.type(graph.result(node, i));
    writes.push_back(MutableArrayView::dense(results(step)[i], type.dtype, type.shape));
  }
  function({graph, node, step.name, reads, writes});
}

void Frame::record(const Step& step, const TraceRequest& request, RunResult& result) const {
  if (!request.all && std::find(request.nodes.begin(), request.nodes.end(), step.name) == request.nodes.end())
    return;
  const Graph& graph = prepared_.graph();
  for (std::uint32_t i = 0; i < step.result_count; ++i) {
    const ValueId value = graph.result(graph.node(step.node), i);
    Array array = Array::allocate(graph.type(value).dtype, graph.type(value).shape);
    if (array.storage.size() != 0)
      std::memcpy(array.storage.writable(), results(step)[i], array.storage.size());
    result.trace.push_back({value, std::move(array)});
  }
}

}  // namespace tosaic::exec
