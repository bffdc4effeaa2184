#include "tosaic/exec/session.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "tosaic/base/error_text.h"
#include "tosaic/exec/boundary.h"
#include "tosaic/exec/runner.h"

namespace tosaic::exec {
namespace {

bool overlap(const ArrayView& a, const ArrayView& b) {
  const auto [a_begin, a_end] = extent(a);
  const auto [b_begin, b_end] = extent(b);
  return a_begin < b_end && b_begin < a_end;
}

bool aligned(const void* data, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

// The name of an input or output in messages: its path, or the name of its value if the path is empty.
template <class Port>
std::string boundary_name(const Graph& graph, const Port& port) {
  return port.path.empty() ? graph.value(port.value).name : port.path;
}

template <class Port>
std::vector<std::string> boundary_names(const Graph& graph, std::span<const Port> ports,
                                        std::span<const std::uint32_t> indices) {
  std::vector<std::string> names;
  for (const std::uint32_t i : indices) names.push_back(boundary_name(graph, ports[i]));
  return names;
}

std::string count_text(std::size_t count, const Graph& graph, std::span<const std::uint32_t> inputs) {
  std::string names;
  for (const std::string& name : boundary_names(graph, graph.inputs(), inputs))
    names += (names.empty() ? "" : ", ") + name;
  return std::to_string(count) + (names.empty() ? "" : " (" + names + ")");
}

// The memory of one run: arena, frame, and staging for inputs and outputs that cannot be used in place.
struct Context {
  explicit Context(const Prepared& prepared)
      : arena(prepared.memory().all_bytes()),
        frame(prepared, arena.data()),
        input_staging(prepared.graph().inputs().size()),
        output_staging(prepared.graph().outputs().size()),
        inputs(prepared.graph().inputs().size()),
        outputs(prepared.graph().outputs().size()) {}

  static std::byte* staging(Memory& memory, std::size_t bytes) {
    if (memory.data() == nullptr || memory.size() < bytes) memory = Memory(bytes);
    return memory.data();
  }

  Memory arena;
  Frame frame;
  std::vector<Memory> input_staging, output_staging;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// The value of one state input: `current` is the value, `next` is where a run writes the new value.
struct State {
  std::uint32_t input = 0;
  Memory current, next;
  bool mutated = false;
};

// The value of one variable: `current` is the value after the last run, `next` the value that the current run
// makes.
struct VariableState {
  Memory current, next;
  bool known = false, next_known = false;  // true after a write or with an initial value
};

}  // namespace

class Session::Impl {
 public:
  explicit Impl(Prepared prepared) : prepared_(std::move(prepared)), threads_(prepared_.data().threads) {
    if (!threads_.share_all) threads_.count = std::min(threads_.count, usable_cores());
    const Graph& graph = prepared_.graph();
    for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) add_input(i);
    for (std::uint32_t i = 0; i < graph.outputs().size(); ++i) add_output(i);
    for (const Variable& variable : declared())
      variables_.push_back({Memory(variable.type.bytes()), Memory(variable.type.bytes()), false, false});
    reset_state();
    contexts_.push_back(std::make_unique<Context>(prepared_));
  }

  const Prepared& prepared() const { return prepared_; }
  std::span<const std::uint32_t> inputs() const { return inputs_; }
  std::span<const std::uint32_t> outputs() const { return outputs_; }

  RunResult run(std::span<const ArrayView> inputs, const RunOptions& options) {
    RunResult result;
    std::vector<MutableArrayView> views;
    for (const std::uint32_t i : outputs_) {
      result.outputs.push_back(allocate_array(output_forms_[i]));
      Array& array = result.outputs.back();
      views.push_back({array.storage.writable(), array.dtype, array.shape, array.strides});
    }
    run_into(inputs, views, options, result);
    return result;
  }

  void run_into(std::span<const ArrayView> inputs, std::span<const MutableArrayView> outputs,
                const RunOptions& options, RunResult& result) {
    verify(inputs, outputs, options);
    std::unique_lock<std::mutex> turn(state_mutex_, std::defer_lock);
    if (!states_.empty() || !variables_.empty()) turn.lock();
    const auto context = take_context();
    Team team(threads_.count, threads_.share_all);
    bind_inputs(*context, inputs, team);
    bind_outputs(*context, inputs, outputs);
    if (options.times != nullptr) options.times->read();
    context->frame.run(context->inputs, context->outputs, bind_variables(), options, &result, &team);
    export_outputs(*context, outputs);
    for (State& state : states_)
      if (state.mutated) std::swap(state.current, state.next);
    for (std::size_t i = 0; i < variables_.size(); ++i)
      if (declared()[i].written) {
        std::swap(variables_[i].current, variables_[i].next);
        variables_[i].known = variables_[i].next_known;
      }
    if (options.times != nullptr) options.times->read();
  }

  Array imported(std::uint32_t i, const ArrayView& view) const {
    const BoundaryFormat& boundary = prepared_.graph().inputs()[i].boundary;
    verify_array(input_forms_[i], boundary, view, "input", input_name(i));
    Array array = Array::allocate(input_type(i).dtype, input_type(i).shape);
    import_array(input_forms_[i], input_type(i), boundary, view, array.storage.writable(), input_name(i),
                 nullptr);
    return array;
  }

  Array state(const std::string& path) const {
    const Place place = find_state(path);
    const std::lock_guard lock(state_mutex_);
    Array array = Array::allocate(place.type.dtype, place.type.shape);
    if (place.type.bytes() != 0)
      std::memcpy(array.storage.writable(), place.current->data(), place.type.bytes());
    return array;
  }

  void set_state(const std::string& path, const ArrayView& value) {
    const Place place = find_state(path);
    const ArrayFormat form = array_format(Stage::kExported, place.type, {});
    verify_array(form, {}, value, "state", path);
    const std::lock_guard lock(state_mutex_);
    copy(value, MutableArrayView::dense(place.current->data(), place.type.dtype, place.type.shape));
    if (place.variable) variables_[*place.variable].known = true;
  }

  void reset_state() {
    const std::lock_guard lock(state_mutex_);
    for (State& state : states_) {
      const Input& input = prepared_.graph().inputs()[state.input];
      put_initial(input.path, input.initial, input_type(state.input), state.current);
    }
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      const Variable& variable = declared()[i];
      put_initial(variable.name, variable.initial, variable.type, variables_[i].current);
      variables_[i].known = variable.initial != nullptr;
    }
  }

 private:
  // Returns a context to the pool.
  struct Return {
    Impl* impl;
    void operator()(Context* context) const {
      const std::lock_guard lock(impl->contexts_mutex_);
      impl->contexts_.emplace_back(context);
    }
  };

  std::unique_ptr<Context, Return> take_context() {
    {
      const std::lock_guard lock(contexts_mutex_);
      if (!contexts_.empty()) {
        Context* context = contexts_.back().release();
        contexts_.pop_back();
        return {context, Return{this}};
      }
    }
    return {new Context(prepared_), Return{this}};
  }

  const TensorType& input_type(std::uint32_t i) const {
    return prepared_.graph().type(prepared_.graph().inputs()[i].value);
  }
  const TensorType& output_type(std::uint32_t i) const {
    return prepared_.graph().type(prepared_.graph().outputs()[i].value);
  }

  void add_input(std::uint32_t i) {
    const Graph& graph = prepared_.graph();
    input_forms_.push_back(array_format(graph.stage, input_type(i), graph.inputs()[i].boundary));
    if (graph.inputs()[i].kind == InputKind::kUser) {
      inputs_.push_back(i);
      return;
    }
    const std::size_t bytes = input_type(i).bytes();
    states_.push_back({i, Memory(bytes), Memory(bytes), false});
  }

  void add_output(std::uint32_t i) {
    const Output& output = prepared_.graph().outputs()[i];
    output_forms_.push_back(array_format(prepared_.graph().stage, output_type(i), output.boundary));
    state_of_output_.push_back(nullptr);
    if (output.kind == OutputKind::kMutation) {
      const auto state = std::find_if(states_.begin(), states_.end(),
                                      [&](const State& s) { return s.input == output.mutated_input; });
      if (state != states_.end()) {
        verify_mutation(output, *state);
        state->mutated = true;
        state_of_output_.back() = &*state;
        return;
      }
    }
    outputs_.push_back(i);
  }

  void verify_mutation(const Output& output, const State& state) const {
    const TensorType& from = prepared_.graph().type(output.value);
    const TensorType& to = input_type(state.input);
    if (from.dtype != to.dtype || from.shape != to.shape)
      throw InvalidGraph({.where = "prepare",
                          .what = "the mutation of '" + output.path + "' has another type than the state",
                          .expected = to_string(to),
                          .got = to_string(from)});
    if (state.mutated)
      throw InvalidGraph({.where = "prepare", .what = "state '" + output.path + "' is mutated twice"});
  }

  // A state input or a variable.
  struct Place {
    TensorType type;
    const Memory* current = nullptr;
    std::optional<std::size_t> variable;
  };

  Place find_state(const std::string& path) const {
    for (const State& state : states_)
      if (prepared_.graph().inputs()[state.input].path == path)
        return {input_type(state.input), &state.current, std::nullopt};
    for (std::size_t i = 0; i < variables_.size(); ++i)
      if (declared()[i].name == path) return {declared()[i].type, &variables_[i].current, i};
    throw InvalidGraph({.where = "run", .what = "the graph has no state of that name", .got = quoted(path)});
  }

  // Copies the initial value, or writes zeros if there is none.
  static void put_initial(const std::string& name, const ConstantRef& initial, const TensorType& type,
                          const Memory& to) {
    const std::size_t bytes = type.bytes();
    if (!initial) {
      std::memset(to.data(), 0, bytes);
      return;
    }
    const auto from = initial->bytes();
    if (from.size() != bytes)
      throw InvalidGraph({.where = "run",
                          .what = "state '" + name + "' has an initial value of another size",
                          .expected = std::to_string(bytes) + " bytes",
                          .got = std::to_string(from.size())});
    if (bytes != 0) std::memcpy(to.data(), from.data(), bytes);
  }

  std::span<const Variable> declared() const { return prepared_.data().variables; }

  // The places of the variables for a run. A variable that the program writes gets a copy of its value, so
  // that a run that fails does not change the value.
  std::span<const VariablePlace> bind_variables() {
    places_.clear();
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      VariableState& variable = variables_[i];
      if (!declared()[i].written) {
        places_.push_back({variable.current.data(), &variable.known});
        continue;
      }
      const std::size_t bytes = declared()[i].type.bytes();
      if (bytes != 0) std::memcpy(variable.next.data(), variable.current.data(), bytes);
      variable.next_known = variable.known;
      places_.push_back({variable.next.data(), &variable.next_known});
    }
    return places_;
  }

  std::string input_name(std::uint32_t i) const {
    const Input& input = prepared_.graph().inputs()[i];
    return boundary_name(prepared_.graph(), input);
  }

  void verify(std::span<const ArrayView> inputs, std::span<const MutableArrayView> outputs,
              const RunOptions& options) const {
    const Graph& graph = prepared_.graph();
    if (inputs.size() != inputs_.size())
      throw InvalidGraph({.where = "run",
                          .what = "wrong number of inputs",
                          .expected = count_text(inputs_.size(), graph, inputs_),
                          .got = std::to_string(inputs.size())});
    if (outputs.size() != outputs_.size())
      throw InvalidGraph({.where = "run",
                          .what = "wrong number of outputs",
                          .expected = std::to_string(outputs_.size()),
                          .got = std::to_string(outputs.size())});
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const std::uint32_t i = inputs_[k];
      verify_array(input_forms_[i], graph.inputs()[i].boundary, inputs[k], "input", input_name(i));
      verify_order(input_forms_[i], inputs[k], input_name(i));
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const Output& output = graph.outputs()[outputs_[k]];
      verify_array(output_forms_[outputs_[k]], output.boundary, outputs[k].read(), "output",
                   boundary_name(graph, output));
    }
    verify_trace(options.trace);
    if (options.check_constants) prepared_.check_constants();
  }

  void verify_trace(const TraceRequest& trace) const {
    for (const std::string& name : trace.nodes)
      if (std::none_of(prepared_.steps().begin(), prepared_.steps().end(),
                       [&](const Step& step) { return step.name == name; }))
        throw InvalidGraph(
            {.where = "run", .what = "the trace names no node of the graph", .got = quoted(name)});
  }

  void bind_inputs(Context& context, std::span<const ArrayView> arrays, Team& team) const {
    for (const State& state : states_) context.inputs[state.input] = state.current.data();
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      const std::uint32_t i = inputs_[k];
      const TensorType& type = input_type(i);
      const ArrayView view = in_graph_axes(input_forms_[i], arrays[k]);
      if (!input_forms_[i].converts && view.dtype == type.dtype &&
          is_dense(view.shape, view.strides, view.dtype) && aligned(view.data, byte_size(type.dtype))) {
        context.inputs[i] = view.data;
        continue;
      }
      std::byte* const staged = Context::staging(context.input_staging[i], type.bytes());
      import_array(input_forms_[i], type, prepared_.graph().inputs()[i].boundary, arrays[k], staged,
                   input_name(i), &team);
      context.inputs[i] = staged;
    }
  }

  bool writable_directly(std::uint32_t i, const MutableArrayView& array,
                         std::span<const ArrayView> inputs) const {
    const MutableArrayView view = in_graph_axes(output_forms_[i], array);
    if (output_forms_[i].converts || !is_dense(view.shape, view.strides, view.dtype) ||
        !aligned(view.data, memory::kAlignment))
      return false;
    return std::none_of(inputs.begin(), inputs.end(),
                        [&](const ArrayView& input) { return overlap(input, array.read()); });
  }

  void bind_outputs(Context& context, std::span<const ArrayView> inputs,
                    std::span<const MutableArrayView> arrays) {
    for (std::uint32_t i = 0; i < state_of_output_.size(); ++i)
      if (state_of_output_[i] != nullptr) context.outputs[i] = state_of_output_[i]->next.data();
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      const std::uint32_t i = outputs_[k];
      context.outputs[i] = writable_directly(i, arrays[k], inputs)
                               ? arrays[k].data
                               : Context::staging(context.output_staging[i], output_type(i).bytes());
    }
  }

  void export_outputs(const Context& context, std::span<const MutableArrayView> arrays) const {
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      const std::uint32_t i = outputs_[k];
      if (context.outputs[i] != arrays[k].data)
        export_array(output_forms_[i], output_type(i), context.outputs[i], arrays[k]);
    }
  }

  Prepared prepared_;
  kernels::Threads threads_;  // at most one for each core, unless tests share all work
  std::vector<std::uint32_t> inputs_, outputs_;
  std::vector<ArrayFormat> input_forms_, output_forms_;
  std::vector<State> states_;
  std::vector<VariableState> variables_;  // in the order of declared()
  std::vector<VariablePlace> places_;     // the places of the variables in the current run
  std::vector<State*> state_of_output_;   // null for outputs that the caller gets
  mutable std::mutex state_mutex_;
  std::mutex contexts_mutex_;
  std::vector<std::unique_ptr<Context>> contexts_;
};

Session::Session(Prepared prepared) : impl_(std::make_unique<Impl>(std::move(prepared))) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Prepared& Session::prepared() const { return impl_->prepared(); }
std::span<const std::uint32_t> Session::inputs() const { return impl_->inputs(); }
std::span<const std::uint32_t> Session::outputs() const { return impl_->outputs(); }

std::vector<std::string> Session::input_names() const {
  return boundary_names(prepared().graph(), prepared().graph().inputs(), inputs());
}
std::vector<std::string> Session::output_names() const {
  return boundary_names(prepared().graph(), prepared().graph().outputs(), outputs());
}

RunResult Session::run(std::span<const ArrayView> inputs, const RunOptions& options) {
  return impl_->run(inputs, options);
}

RunResult Session::run_into(std::span<const ArrayView> inputs, std::span<const MutableArrayView> outputs,
                            const RunOptions& options) {
  RunResult result;
  impl_->run_into(inputs, outputs, options, result);
  return result;
}

Array Session::imported(std::uint32_t input, const ArrayView& array) const {
  return impl_->imported(input, array);
}
Array Session::state(const std::string& path) const { return impl_->state(path); }
void Session::set_state(const std::string& path, const ArrayView& value) { impl_->set_state(path, value); }
void Session::reset_state() { impl_->reset_state(); }

std::vector<Array> run(std::shared_ptr<const Graph> graph, std::span<const ArrayView> inputs,
                       const PrepareOptions& options) {
  Session session(prepare(std::move(graph), options));
  return session.run(inputs).outputs;
}

}  // namespace tosaic::exec
