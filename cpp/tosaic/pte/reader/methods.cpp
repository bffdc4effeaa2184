#include "tosaic/pte/reader/methods.h"

#include <unordered_set>

#include "tosaic/pte/reader/values.h"

namespace tosaic::pte {
namespace {

// ---- delegates ----

CompileSpec read_spec(State& state, const Place& place, const schema::CompileSpec& table) {
  return {state.text(place, "the key", table.key()), state.bytes_of(table.value())};
}

Delegate read_delegate(State& state, const Place& outer, const schema::Delegate& table, const File& file) {
  Delegate delegate;
  delegate.backend = state.name(outer, "the id of the backend", table.backend());
  const Place place{outer.outer, outer.kind, outer.index, delegate.backend};
  const schema::PayloadPlace* at = table.payload();
  if (at == nullptr) fail<InvalidGraph>(place, "the payload is missing");
  if (at->location() < 0 || at->location() > 1)
    fail<UnsupportedOp>(place, "unknown place of the payload", "0 or 1", std::to_string(at->location()));
  delegate.location = static_cast<PayloadLocation>(at->location());
  delegate.index = at->index();
  if (delegate.location == PayloadLocation::kInline)
    check_index(place, "the payload", delegate.index, file.payloads.size());
  else
    check_index(place, "the segment of the payload", delegate.index, file.segments.size());
  delegate.specs = state.tables(
      place, "compile spec", table.specs(),
      [&](const Place& spec, const schema::CompileSpec& each) { return read_spec(state, spec, each); });
  return delegate;
}

// ---- instructions ----

std::vector<std::int32_t> read_indices(State& state, const Place& place, const char* what,
                                       const List<std::int32_t>* list, const Method& method) {
  std::vector<std::int32_t> indices = state.numbers<std::int32_t>(place, list);
  for (const std::int32_t index : indices) check_index(place, what, index, method.values.size());
  return indices;
}

Instruction read_kernel_call(State& state, const Place& outer, const schema::KernelCall& table,
                             const Method& method) {
  check_index(outer, "the operator", table.callee(), method.operators.size());
  const Operator& op = method.operators[static_cast<std::size_t>(table.callee())];
  const Place place{outer.outer, outer.kind, outer.index, op.name};
  return KernelCall{table.callee(), read_indices(state, place, "an argument", table.args(), method)};
}

Instruction read_delegate_call(State& state, const Place& outer, const schema::DelegateCall& table,
                               const Method& method) {
  check_index(outer, "the delegate", table.callee(), method.delegates.size());
  const Delegate& delegate = method.delegates[static_cast<std::size_t>(table.callee())];
  const Place place{outer.outer, outer.kind, outer.index, delegate.backend};
  DelegateCall call{table.callee(), read_indices(state, place, "an argument", table.args(), method)};
  return call;
}

Instruction read_jump(const Place& place, const schema::JumpFalse& table, const Method& method,
                      std::size_t instructions) {
  check_index(place, "the condition", table.condition(), method.values.size());
  check_index(place, "the destination of the jump", table.destination(), instructions + 1);
  return JumpFalse{table.condition(), table.destination()};
}

Instruction read_instruction(State& state, const Place& place, const schema::Instruction& table,
                             const Method& method, std::size_t count) {
  switch (table.action_type()) {
    case schema::Action::KernelCall:
      if (const auto* call = table.action_as_KernelCall())
        return read_kernel_call(state, place, *call, method);
      break;
    case schema::Action::DelegateCall:
      if (const auto* call = table.action_as_DelegateCall())
        return read_delegate_call(state, place, *call, method);
      break;
    case schema::Action::Move:
      if (const auto* move = table.action_as_Move()) {
        check_index(place, "the value", move->from(), method.values.size());
        check_index(place, "the value", move->to(), method.values.size());
        return Move{move->from(), move->to()};
      }
      break;
    case schema::Action::JumpFalse:
      if (const auto* jump = table.action_as_JumpFalse()) return read_jump(place, *jump, method, count);
      break;
    case schema::Action::Free:
      if (const auto* call = table.action_as_Free()) {
        check_index(place, "the value", call->value(), method.values.size());
        return Free{call->value()};
      }
      break;
    case schema::Action::NONE:
      break;
    default:
      fail<UnsupportedOp>(place, "unknown kind of instruction", "1 to 5",
                          std::to_string(static_cast<int>(table.action_type())));
  }
  fail<InvalidGraph>(place, "the instruction is missing");
}

Frame read_frame(State& state, const Place& place, const schema::Frame& table) {
  return {state.text(place, "the file", table.file()), table.line(),
          state.text(place, "the function", table.function()),
          state.text(place, "the source", table.source())};
}

Chain read_chain(State& state, const Place& place, const schema::Chain& table, const Method& method) {
  Chain chain;
  chain.inputs = read_indices(state, place, "an input", table.inputs(), method);
  chain.outputs = read_indices(state, place, "an output", table.outputs(), method);
  const std::size_t count = length(table.instructions());
  // The place of an instruction names the method: a method has one chain in all programs that are known.
  chain.instructions = state.tables(*place.outer, "instruction", table.instructions(),
                                    [&](const Place& at, const schema::Instruction& instruction) {
                                      return read_instruction(state, at, instruction, method, count);
                                    });
  if (table.traces() == nullptr) return chain;
  chain.traces =
      state.tables(place, "stack trace", table.traces(), [&](const Place& at, const schema::Frames& frames) {
        return state.tables(at, "frame", frames.items(), [&](const Place& frame, const schema::Frame& each) {
          return read_frame(state, frame, each);
        });
      });
  return chain;
}

// ---- methods ----

void read_memories(State& state, const Place& place, const schema::Method& table, Method& method) {
  method.memories = state.numbers<std::int64_t>(place, table.memories());
  for (const std::int64_t size : method.memories)
    if (size < 0) fail<InvalidGraph>(place, "a memory has a negative size", "", std::to_string(size));
  if (table.memory_devices() == nullptr) return;
  method.memory_devices =
      state.tables(place, "device of a memory", table.memory_devices(),
                   [&](const Place& at, const schema::MemoryDevice& device) {
                     check_index(at, "the memory", device.memory(), method.memories.size());
                     return MemoryDevice{device.memory(), device.device(), device.device_index()};
                   });
}

Method read_method(State& state, const Place& outer, const schema::Method& table, const File& file) {
  Method method;
  method.name = state.name(outer, "the name", table.name());
  const Place place{nullptr, "method", -1, method.name};
  if (const schema::Containers* containers = table.containers(); containers != nullptr) {
    method.input_containers = state.text(place, "the structure of the inputs", containers->inputs());
    method.output_containers = state.text(place, "the structure of the outputs", containers->outputs());
  }
  read_memories(state, place, table, method);
  method.values = read_values(state, place, table, method, file);
  method.inputs = read_indices(state, place, "an input", table.inputs(), method);
  method.outputs = read_indices(state, place, "an output", table.outputs(), method);
  method.operators =
      state.tables(place, "operator", table.operators(), [&](const Place& at, const schema::Operator& op) {
        return Operator{state.name(at, "the name", op.name()), state.text(at, "the overload", op.overload())};
      });
  method.delegates = state.tables(place, "delegate", table.delegates(),
                                  [&](const Place& at, const schema::Delegate& delegate) {
                                    return read_delegate(state, at, delegate, file);
                                  });
  method.chains = state.tables(
      place, "chain", table.chains(),
      [&](const Place& at, const schema::Chain& chain) { return read_chain(state, at, chain, method); });
  return method;
}

}  // namespace

std::vector<Method> read_methods(State& state, const schema::Program& program, const File& file) {
  const Place root;
  std::vector<Method> methods =
      state.tables(root, "method", program.methods(), [&](const Place& place, const schema::Method& table) {
        return read_method(state, place, table, file);
      });
  std::unordered_set<std::string_view> names;
  for (const Method& method : methods)
    if (!names.insert(method.name).second)
      fail<InvalidGraph>(root, "two methods are named " + quoted(method.name));
  return methods;
}

}  // namespace tosaic::pte
