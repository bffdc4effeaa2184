// state-to-variables: turns the states of a TOSA program into TOSA variables, if the target has them.
//
//   state %h: f32[4] initial=c          tosa.variable(c) {name="h"}
//                                       %h = tosa.variable_read() {name="h"}
//   %y = tosa.add(%h, %x)          ->   %y = tosa.add(%h, %x)
//   return %y mutates=%h                tosa.variable_write(%y) {name="h"}
//
// A variable is read once, before all other nodes, and written once, after them, so its value is that of the
// state. State of a dtype that variables cannot have stays an input and an output. A state without an initial
// value begins at zero.

#include <algorithm>

#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/type_support.h"

namespace tosaic::passes {
namespace {

// The initial value of a state as a new constant. Its name differs from the name of the state, so that the
// result of tosa.variable_read can have that name.
ConstantRef initial_of(const Input& input, const Value& value) {
  auto initial = input.initial ? std::make_shared<Constant>(*input.initial) : std::make_shared<Constant>();
  initial->name = value.name + ".initial";
  if (input.initial) return initial;
  initial->kind = ConstantKind::kBuffer;
  initial->dtype = value.type.dtype;
  initial->shape = value.type.shape;
  initial->storage = Storage::allocate(value.type.bytes());
  return initial;
}

class Conversion {
 public:
  Conversion(const Graph& source, const target::TargetSpec& target)
      : source_(source),
        dtypes_(target::dtypes_of(target, Op::kTosaVariable, 0)),
        map_(source.values().size()) {}

  std::optional<Graph> run() {
    if (source_.stage != Stage::kTosa || !std::ranges::any_of(source_.inputs(), [this](const Input& input) {
          return becomes_variable(input);
        }))
      return std::nullopt;
    out_.name = source_.name;
    out_.stage = source_.stage;
    inputs();
    for (const Node& node : source_.nodes())
      copy_node(source_, node, out_, map_, [this](ValueId id) { return mapped(id); });
    outputs();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool becomes_variable(const Input& input) const {
    return input.kind == InputKind::kState &&
           std::ranges::find(dtypes_, source_.type(input.value).dtype) != dtypes_.end();
  }

  [[nodiscard]] TosaVariableAccessAttrs named(const Input& input) const {
    const TensorType& type = source_.type(input.value);
    return {input.path.empty() ? source_.value(input.value).name : input.path, type.dtype, type.shape};
  }

  // Adds the inputs that stay before the variables, so that values retain the order of the signature.
  void inputs() {
    for (const Input& input : source_.inputs()) {
      index_.push_back(static_cast<std::uint32_t>(out_.inputs().size()));
      if (becomes_variable(input)) continue;
      const Value& value = source_.value(input.value);
      map_[input.value.index()] =
          out_.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial);
    }
    for (const Input& input : source_.inputs())
      if (becomes_variable(input)) declare(input);
  }

  void declare(const Input& input) {
    const Value& value = source_.value(input.value);
    const TosaVariableAccessAttrs attrs = named(input);
    const ValueId initial = out_.add_constant(initial_of(input, value));
    out_.add_node(Op::kTosaVariable, share(TosaVariableAttrs{attrs.name, attrs.dtype, attrs.shape}),
                  std::span(&initial, 1), {}, nullptr, "");
    const NodeId read = out_.add_node(Op::kTosaVariableRead, share(attrs), {}, std::span(&value.type, 1),
                                      nullptr, value.name);
    map_[input.value.index()] = out_.result(out_.node(read));
  }

  ValueId mapped(ValueId old) {
    if (!old.valid()) return old;
    ValueId& fresh = map_[old.index()];
    const Value& value = source_.value(old);
    if (!fresh.valid() && value.kind == ValueKind::kConstant) {
      fresh = out_.add_constant(value.constant);
      out_.try_rename(fresh, value.name);
    }
    return fresh;
  }

  void outputs() {
    for (const Output& output : source_.outputs()) {
      if (output.kind == OutputKind::kMutation) {
        const Input& target = source_.inputs()[output.mutated_input];
        if (becomes_variable(target)) {
          const ValueId value = mapped(output.value);
          out_.add_node(Op::kTosaVariableWrite, share(named(target)), std::span(&value, 1), {}, nullptr, "");
          continue;
        }
      }
      Output copy = output;
      copy.value = mapped(output.value);
      if (copy.kind == OutputKind::kMutation) copy.mutated_input = index_[output.mutated_input];
      out_.add_output(std::move(copy));
    }
  }

  const Graph& source_;
  std::vector<DType> dtypes_;  // the dtypes that the target's variables may have
  Graph out_;
  std::vector<ValueId> map_;          // by old value: the new value
  std::vector<std::uint32_t> index_;  // by old input: the new index of an input that stays
};

}  // namespace

std::optional<Graph> state_to_variables(const Graph& graph, const PassOptions& options) {
  return Conversion(graph, options.target).run();
}

}  // namespace tosaic::passes
