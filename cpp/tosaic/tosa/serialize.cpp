#include "tosaic/tosa/serialize.h"

#include <tosa_generated.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "tosaic/tosa/constant_operands.h"
#include "tosaic/tosa/location.h"
#include "tosaic/tosa/schema_map.h"

static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");

namespace tosaic::tosa {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kPieceAlignment = 64;  // in bytes, of constants behind the flatbuffer
constexpr std::size_t kDataAlignment = 8;

std::size_t rounded_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

// ---- the file as plain data ----

// What has a name in a block: a tensor, constant or not, a variable, or a shape value.
struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  ConstantRef constant;       // elements in memory
  std::string variable_name;  // of a variable
  bool is_shape = false;
  std::vector<std::int64_t> extents;  // of a shape value

  [[nodiscard]] std::size_t packed_bytes() const {
    return packed_size(dtype, static_cast<std::size_t>(num_elements(shape)));
  }
};

struct Operator {
  std::uint32_t code = 0;
  const Node* node = nullptr;                  // null: CONST, CONST_SHAPE or an IDENTITY added for an output
  std::vector<std::uint32_t> inputs, outputs;  // indices of entries
  std::vector<std::string> regions;            // the names of their blocks
};

// The program or a region. In the file it is a region with one block of the same name.
struct Block {
  const Graph* graph = nullptr;
  std::string name;
  std::vector<Entry> entries;
  std::vector<Operator> constants, operators;
  std::vector<std::uint32_t> inputs, outputs;
};

struct File {
  std::vector<Block> blocks;  // the program first
};

// ---- graph -> file ----

// The names of the blocks. A region has one block even if it is used several times.
class Regions {
 public:
  explicit Regions(const Graph& program) { names_.emplace(&program, "main"); }

  // The name of a region's block. At the first call for a region, adds the region to `waiting`.
  const std::string& name(const Graph& region) {
    const auto [it, fresh] = names_.try_emplace(&region);
    if (fresh) {
      const std::string wanted = region.name.empty() ? "region" : region.name;
      it->second = wanted;
      for (int i = 1; !taken_.insert(it->second).second; ++i) it->second = wanted + "_" + std::to_string(i);
      waiting.push_back(&region);
    }
    return it->second;
  }

  std::vector<const Graph*> waiting;  // regions whose blocks are still to be planned, in order

 private:
  std::unordered_map<const Graph*, std::string> names_;
  std::unordered_set<std::string> taken_{"main"};
};

class Planner {
 public:
  Planner(const Graph& graph, Regions& regions)
      : graph_(graph), regions_(regions), entry_of_(graph.values().size(), kNone) {}

  // A region may have inputs and constants as outputs; the program needs an IDENTITY for these (add_output).
  Block plan(bool is_program) {
    block_.graph = &graph_;
    block_.name = is_program ? "main" : regions_.name(graph_);
    for (const Value& value : graph_.values()) taken_.insert(value.name);
    for (const Input& input : graph_.inputs()) block_.inputs.push_back(add_value(input.value));
    for (const Node& node : graph_.nodes()) add_node(node);
    for (const Output& output : graph_.outputs()) add_output(output.value, is_program);
    return std::move(block_);
  }

  // ---- constant operands of the node being added; called by visit_constant_operands ----

  // An unsigned zero point is written with its bits, as the signed dtype.
  void zero_point(const char* name, DType dtype, std::int64_t value, bool is_unsigned) {
    const std::int64_t low = is_unsigned ? 0 : lowest(dtype);
    const std::int64_t high = is_unsigned ? -2 * lowest(dtype) - 1 : -(lowest(dtype) + 1);
    if (is_float(dtype) ? value != 0 : value < low || value > high)
      throw_here(std::string(name) + " does not fit its dtype", std::string(to_string(dtype)),
                 std::to_string(value));
    const bool wraps = is_unsigned && value > -(lowest(dtype) + 1);
    add_element("zp", dtype, static_cast<double>(wraps ? value + 2 * lowest(dtype) : value));
  }
  void elements(const char* name, DType dtype, const std::vector<std::int64_t>& values) {
    std::vector<double> numbers;
    for (const std::int64_t value : values) {
      if (value < lowest(dtype) || value > -(lowest(dtype) + 1))
        throw_here(std::string(name) + " does not fit its dtype", std::string(to_string(dtype)),
                   std::to_string(value));
      numbers.push_back(static_cast<double>(value));
    }
    add_elements(name, dtype, numbers);
  }
  void element(const char* /*name*/, DType dtype, const Scalar& value) {
    add_element("value", dtype, as_double(value));
  }
  void shift(const char* name, std::int64_t value) {
    if (value < 0 || value > 63)
      throw_here(std::string(name) + " is out of range", "0 to 63", std::to_string(value));
    add_element("shift", DType::kI8, static_cast<double>(value));
  }
  void dims(const char* /*name*/, const Dims& value) { add_shape({value.begin(), value.end()}); }
  void padding(const char* /*name*/, const Dims& before, const Dims& after) {
    if (before.size() != after.size())
      throw_here("padding differs in rank", std::to_string(before.size()), std::to_string(after.size()));
    std::vector<std::int64_t> both;
    for (std::size_t i = 0; i < before.size(); ++i) both.insert(both.end(), {before[i], after[i]});
    add_shape(std::move(both));
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  static std::int64_t lowest(DType dtype) {
    const std::size_t bits = dtype == DType::kI4 ? 4 : dtype == DType::kI48 ? 48 : byte_size(dtype) * 8;
    return -(std::int64_t{1} << (bits - 1));
  }

  [[noreturn]] void throw_here(std::string what, std::string expected, std::string got) const {
    throw InvalidGraph(located(
        {.where = "tosa", .what = std::move(what), .expected = std::move(expected), .got = std::move(got)},
        node_->origin, graph_.node_name(*node_)));
  }

  std::uint32_t add_entry(Entry entry) {
    block_.entries.push_back(std::move(entry));
    return static_cast<std::uint32_t>(block_.entries.size() - 1);
  }

  std::uint32_t add_value(ValueId id) {
    const Value& value = graph_.value(id);
    check_value(value);
    Entry entry;
    entry.name = value.name;
    entry.dtype = value.type.dtype;
    entry.shape = value.type.shape;
    entry.constant = value.constant;
    const std::uint32_t index = add_entry(std::move(entry));
    entry_of_[id.index()] = index;
    if (value.kind == ValueKind::kConstant) add_constant_operator(schema::Op::CONST, index);
    return index;
  }

  void check_value(const Value& value) const {
    const auto fail = [&value](std::string what, std::string expected, std::string got) {
      return ErrorParts{.where = "tosa",
                        .what = std::move(what),
                        .expected = std::move(expected),
                        .got = std::move(got),
                        .node = value.name};
    };
    if (!dtype_code(value.type.dtype))
      throw UnsupportedOp(fail("TOSA has no such dtype",
                               "bool, i4, i8, i16, i32, i48 or a float of at most 32 bits",
                               std::string(to_string(value.type.dtype))));
    if (!value.type.order.is_identity())
      throw InvalidGraph(fail("a tosa value must have the identity dim order", "", to_string(value.type)));
    for (const std::int64_t extent : value.type.shape) {
      if (extent < 1) throw UnsupportedOp(fail("TOSA has no empty tensors", "", to_string(value.type.shape)));
      if (extent > std::numeric_limits<std::int32_t>::max())
        throw UnsupportedOp(fail("an extent does not fit 32 bits", "", to_string(value.type.shape)));
    }
    if (value.kind != ValueKind::kConstant) return;
    const std::size_t bytes = value.constant->bytes().size();
    if (bytes != value.type.bytes())
      throw InvalidGraph(fail("the constant has the wrong size",
                              std::to_string(value.type.bytes()) + " bytes",
                              std::to_string(bytes) + " bytes"));
  }

  void add_constant_operator(schema::Op code, std::uint32_t output) {
    block_.constants.push_back({static_cast<std::uint32_t>(code), nullptr, {}, {output}, {}});
  }

  std::string fresh_name(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !taken_.insert(name).second; ++i) name = wanted + "_" + std::to_string(i);
    return name;
  }

  void add_element(const std::string& role, DType dtype, double value) {
    const std::string text = is_float(dtype) ? "" : "_" + std::to_string(static_cast<std::int64_t>(value));
    add_elements(role, dtype, std::span(&value, 1), text);
  }

  // A constant of one axis; operands with the same dtype and elements share it.
  void add_elements(const std::string& role, DType dtype, std::span<const double> values,
                    const std::string& text = "") {
    const std::size_t step = byte_size(dtype);
    std::vector<std::byte> bytes(values.size() * step);
    for (std::size_t i = 0; i < values.size(); ++i) store_element(dtype, &bytes[i * step], values[i]);
    const auto [it, fresh] = elements_.try_emplace({dtype, bytes}, kNone);
    if (fresh) {
      auto constant = std::make_shared<Constant>();
      constant->name = fresh_name(role + "_" + std::string(to_string(dtype)) + text);
      constant->dtype = dtype;
      constant->shape = Shape{static_cast<std::int64_t>(values.size())};
      constant->storage = Storage::of(bytes);
      Entry entry;
      entry.name = constant->name;
      entry.dtype = dtype;
      entry.shape = constant->shape;
      entry.constant = std::move(constant);
      it->second = add_entry(std::move(entry));
      add_constant_operator(schema::Op::CONST, it->second);
    }
    operator_->inputs.push_back(it->second);
  }

  void add_shape(std::vector<std::int64_t> extents) {
    const auto [it, fresh] = shapes_.try_emplace(extents, kNone);
    if (fresh) {
      std::string wanted = "shape";
      for (const std::int64_t extent : extents) wanted += "_" + std::to_string(extent);
      Entry entry;
      entry.name = fresh_name(wanted);
      entry.is_shape = true;
      entry.extents = std::move(extents);
      it->second = add_entry(std::move(entry));
      add_constant_operator(schema::Op::CONST_SHAPE, it->second);
    }
    operator_->inputs.push_back(it->second);
  }

  void add_node(const Node& node) {
    node_ = &node;
    const std::optional<std::uint32_t> code = op_code(node.op);
    if (!code)
      throw UnsupportedOp(located({.where = "tosa",
                                   .what = "not an operator of TOSA 1.0",
                                   .expected = "operators of stage tosa only",
                                   .got = "'" + std::string(info(node.op).name) + "'",
                                   .hint = "Lower the graph to stage tosa first"},
                                  node.origin, graph_.node_name(node)));
    Operator built;
    built.code = *code;
    built.node = &node;
    operator_ = &built;
    if (info(node.op).has(kEffect))
      add_variable_operands(node);
    else
      add_operands(node);
    for (const auto& region : node.regions) built.regions.push_back(regions_.name(*region));
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      built.outputs.push_back(add_value(graph_.result(node, i)));
    block_.operators.push_back(std::move(built));
  }

  std::uint32_t entry(ValueId operand) {
    if (!operand.valid()) throw_here("an operand is absent", "all operands of a TOSA operator", "none");
    const std::uint32_t known = entry_of_[operand.index()];
    return known == kNone ? add_value(operand) : known;
  }

  void add_operands(const Node& node) {
    std::vector<DType> dtypes;
    for (const ValueId operand : graph_.operands(node)) {
      operator_->inputs.push_back(entry(operand));
      dtypes.push_back(graph_.type(operand).dtype);
    }
    if (dtypes.size() < info(node.op).min_operands)
      throw_here("operands are missing", std::to_string(info(node.op).min_operands),
                 std::to_string(dtypes.size()));
    visit([&](const auto& attrs) { visit_constant_operands(attrs, std::span<const DType>(dtypes), *this); },
          *node.attrs);
  }

  // ---- variables: the operand of VARIABLE_READ, the result of VARIABLE and VARIABLE_WRITE ----

  void add_variable_operands(const Node& node) {
    const std::span<const ValueId> operands = graph_.operands(node);
    if (node.op == Op::kTosaVariable) {
      const auto& attrs = Graph::attrs<TosaVariableAttrs>(node);
      const ValueId initial = operands.empty() ? ValueId() : operands[0];
      operator_->outputs.push_back(variable(attrs.name, attrs.dtype, attrs.shape, initial));
      return;
    }
    const auto& attrs = Graph::attrs<TosaNameAttrs>(node);
    const std::uint32_t tensor = variable(attrs.name, attrs.dtype, attrs.shape, ValueId());
    if (node.op == Op::kTosaVariableRead) {
      operator_->inputs.push_back(tensor);
      return;
    }
    operator_->inputs.push_back(entry(operands[0]));
    operator_->outputs.push_back(tensor);
  }

  // The tensor of a variable in this block. It has the name of its initial value if that constant has no
  // other use, else the name of the variable.
  std::uint32_t variable(const std::string& name, DType dtype, const Shape& shape, ValueId initial) {
    const auto [it, fresh] = variables_.try_emplace(name, kNone);
    if (!fresh) return it->second;
    Entry entry;
    entry.variable_name = name;
    entry.dtype = dtype;
    entry.shape = shape;
    if (initial.valid()) {
      const Value& value = graph_.value(initial);
      if (value.kind != ValueKind::kConstant)
        throw_here("the initial value of variable '" + name + "' is computed", "a constant",
                   "'" + value.name + "'");
      check_value(value);
      entry.constant = value.constant;
      if (graph_.users(initial).size() == 1 && !graph_.is_output(initial)) entry.name = value.name;
    }
    if (entry.name.empty()) entry.name = fresh_name(name);
    it->second = add_entry(std::move(entry));
    return it->second;
  }

  void add_output(ValueId id, bool is_program) {
    if (entry_of_[id.index()] == kNone) add_value(id);
    const std::uint32_t entry = entry_of_[id.index()];
    const bool as_it_is = !is_program || graph_.value(id).kind == ValueKind::kResult;
    if (as_it_is && outputs_.insert(entry).second) {
      block_.outputs.push_back(entry);
      return;
    }
    Entry copy;
    copy.name = fresh_name(graph_.value(id).name + "_out");
    copy.dtype = block_.entries[entry].dtype;
    copy.shape = block_.entries[entry].shape;
    Operator identity;
    identity.code = static_cast<std::uint32_t>(schema::Op::IDENTITY);
    identity.inputs = {entry};
    identity.outputs = {add_entry(std::move(copy))};
    block_.outputs.push_back(identity.outputs.front());
    block_.operators.push_back(std::move(identity));
  }

  const Graph& graph_;
  Regions& regions_;
  Block block_;
  std::vector<std::uint32_t> entry_of_;  // by value: the index of its entry, or kNone
  std::unordered_set<std::string> taken_;
  std::unordered_set<std::uint32_t> outputs_;
  std::map<std::pair<DType, std::vector<std::byte>>, std::uint32_t> elements_;
  std::map<std::string, std::uint32_t> variables_;
  std::map<std::vector<std::int64_t>, std::uint32_t> shapes_;
  const Node* node_ = nullptr;  // the node being added
  Operator* operator_ = nullptr;
};

File plan(const Graph& program) {
  Regions regions(program);
  File file;
  file.blocks.push_back(Planner(program, regions).plan(true));
  for (std::size_t i = 0; i < regions.waiting.size(); ++i)
    file.blocks.push_back(Planner(*regions.waiting[i], regions).plan(false));
  return file;
}

// ---- file -> flatbuffer ----

// File offsets of the constants behind the flatbuffer, in order of the entries; empty if all data is inline.
using PieceOffsets = std::vector<std::uint64_t>;

// In the flatbuffer, a constant of at least this many bytes is a hole: memory that is never written. filled()
// puts the constant in its place. Memory that nobody touches costs nothing, but copying weights twice does.
constexpr std::size_t kHoleBytes = std::size_t{16} << 10;

// The place of a constant in a flatbuffer that does not contain the elements.
struct Hole {
  std::size_t from_end = 0;  // from the first byte of the elements to the end of the flatbuffer
  std::span<const std::byte> elements;
  ConstantRef constant;  // owns the elements
};

struct Frame {
  FlatBufferBuilder builder;
  std::vector<Hole> holes;  // from back to front
};

class Encoder {
 public:
  Encoder(const File& file, const SerializeOptions& options, std::size_t reserve)
      : file_(file), options_(options), builder_(reserve) {}

  Frame finish(const PieceOffsets& pieces) {
    std::vector<Offset<schema::TosaRegion>> regions;
    auto piece = pieces.begin();
    for (const Block& block : file_.blocks)
      regions.push_back(encode(block, pieces.empty() ? nullptr : &piece));
    const auto version = schema::CreateVersion(builder_, 1, 0, 0, false);
    const auto root = schema::CreateTosaGraph(builder_, version, builder_.CreateVector(regions));
    schema::FinishTosaGraphBuffer(builder_, root);
    return {std::move(builder_), std::move(holes_)};
  }

 private:
  using Ints = Offset<flatbuffers::Vector<std::int32_t>>;
  using Bytes = Offset<flatbuffers::Vector<std::uint8_t>>;

  // `piece`: the offset of the block's next constant; null if constants are inline.
  Offset<schema::TosaRegion> encode(const Block& block, PieceOffsets::const_iterator* piece) {
    graph_ = block.graph;
    names_.clear();
    for (const Entry& entry : block.entries) names_.push_back(builder_.CreateString(entry.name));
    std::vector<Offset<schema::TosaTensor>> tensors;
    std::vector<Offset<schema::TosaShape>> shapes;
    for (std::size_t i = 0; i < block.entries.size(); ++i) {
      const Entry& entry = block.entries[i];
      if (entry.is_shape)
        shapes.push_back(shape(entry, names_[i]));
      else
        tensors.push_back(
            tensor(entry, names_[i], entry.constant && piece != nullptr ? *(*piece)++ : std::uint64_t{0}));
    }
    std::vector<Offset<schema::TosaOperator>> operators;
    for (const Operator& op : block.constants) operators.push_back(encode(op));
    for (const Operator& op : block.operators) operators.push_back(encode(op));
    const auto name = builder_.CreateString(block.name);
    const auto built = schema::CreateTosaBasicBlock(builder_, name, builder_.CreateVector(operators),
                                                    builder_.CreateVector(tensors), names(block.inputs),
                                                    names(block.outputs), builder_.CreateVector(shapes));
    return schema::CreateTosaRegion(builder_, name, builder_.CreateVector(&built, 1));
  }

  // A byte vector of `size` bytes, which `fill` writes, and of zeros up to a multiple of 8, as other writers
  // have it.
  template <class Fill>
  Bytes bytes(std::size_t size, Fill fill) {
    const std::size_t padded = rounded_up(size, kDataAlignment);
    builder_.ForceVectorAlignment(padded, 1, kDataAlignment);
    std::uint8_t* at = nullptr;
    const Bytes vector = builder_.CreateUninitializedVector(padded, &at);
    std::memset(at + size, 0, padded - size);
    fill(std::span(reinterpret_cast<std::byte*>(at), size));
    return vector;
  }

  Bytes element(DType dtype, const Scalar& value) {
    return bytes(byte_size(dtype),
                 [&](std::span<std::byte> to) { store_element(dtype, to.data(), as_double(value)); });
  }

  Offset<schema::TosaTensor> tensor(const Entry& entry, Offset<flatbuffers::String> name,
                                    std::uint64_t offset) {
    Bytes data = 0;
    if (entry.constant && offset == 0) {
      const std::span<const std::byte> elements = entry.constant->bytes();
      const bool leave_out = same_layout(entry.dtype) && elements.size() >= kHoleBytes;
      data = bytes(entry.packed_bytes(), [&](std::span<std::byte> to) {
        if (!leave_out) pack(entry.dtype, elements, to);
      });
      if (leave_out) holes_.push_back({data.o - sizeof(flatbuffers::uoffset_t), elements, entry.constant});
    }
    const std::optional<std::uint32_t> code = dtype_code(entry.dtype);
    if (!code)
      throw UnsupportedOp({.where = "tosa",
                           .what = "TOSA has no such dtype",
                           .got = std::string(to_string(entry.dtype)),
                           .node = entry.name});
    const bool is_variable = !entry.variable_name.empty();
    const auto variable = is_variable ? builder_.CreateString(entry.variable_name) : 0;
    return schema::CreateTosaTensor(builder_, name, ints("shape", entry.shape),
                                    static_cast<schema::DType>(*code), data, is_variable, false, variable,
                                    offset, offset == 0 ? 0 : entry.packed_bytes());
  }

  Offset<schema::TosaShape> shape(const Entry& entry, Offset<flatbuffers::String> name) {
    const std::size_t size = entry.extents.size() * sizeof(std::int64_t);
    const Bytes data = bytes(size, [&](std::span<std::byte> to) {
      if (size != 0) std::memcpy(to.data(), entry.extents.data(), size);
    });
    return schema::CreateTosaShape(builder_, name, static_cast<std::uint32_t>(entry.extents.size()), data);
  }

  Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> names(const std::vector<std::uint32_t>& entries) {
    std::vector<Offset<flatbuffers::String>> list;
    for (const std::uint32_t entry : entries) list.push_back(names_[entry]);
    return builder_.CreateVector(list);
  }

  Offset<schema::TosaOperator> encode(const Operator& op) {
    node_ = op.node;
    operator_ = &op;
    const Offset<void> attribute =
        node_ == nullptr ? no_fields()
                         : visit([this](const auto& attrs) { return write(attrs); }, *node_->attrs);
    const auto inputs = names(op.inputs);
    const auto outputs = names(op.outputs);
    Offset<schema::OpLocation> location = 0;
    const std::string text = options_.locations && node_ != nullptr ? location_text(node_->origin) : "";
    if (!text.empty()) location = schema::CreateOpLocation(builder_, builder_.CreateString(text));
    return schema::CreateTosaOperator(builder_, static_cast<schema::Op>(op.code),
                                      static_cast<schema::Attribute>(op.code), attribute, inputs, outputs,
                                      location);
  }

  // ---- attribute tables; operators whose tables have equal fields, and so equal bytes, share a writer ----

  Offset<void> no_fields() { return schema::CreateConstAttribute(builder_).Union(); }

  // Attributes that are operands in the file or follow from the types; of control flow, the region names.
  template <class A>
  Offset<void> write(const A& /*attrs*/) {
    if (operator_->regions.size() != 2) return no_fields();
    const auto first = builder_.CreateString(operator_->regions[0]);
    const auto second = builder_.CreateString(operator_->regions[1]);
    return schema::CreateCondIfAttribute(builder_, first, second).Union();
  }
  Offset<void> write(const TosaFftAttrs& a) {
    return schema::CreateFFT2dAttribute(builder_, a.inverse, a.local_bound).Union();
  }
  Offset<void> write(const TosaRfftAttrs& a) {
    return schema::CreateRFFT2dAttribute(builder_, a.local_bound).Union();
  }
  Offset<void> write(const TosaRescaleAttrs& a) {
    return schema::CreateRescaleAttribute(builder_, a.scale32, rounding_mode(a.rounding_mode), a.per_channel,
                                          a.input_unsigned, a.output_unsigned)
        .Union();
  }
  Offset<void> write(const TosaCustomAttrs& a) {
    const auto name = builder_.CreateString(a.operator_name);
    const auto domain = builder_.CreateString(a.domain_name);
    const auto* text = reinterpret_cast<const std::uint8_t*>(a.implementation_attrs.data());
    const auto attrs = builder_.CreateVector(text, a.implementation_attrs.size());
    return schema::CreateCustomAttribute(builder_, name, domain, attrs).Union();
  }
  Offset<void> write(const AxisAttrs& a) {
    return schema::CreateReduceSumAttribute(builder_, narrow("axis", a.axis)).Union();
  }
  Offset<void> write(const PermuteAttrs& a) {
    return schema::CreateTransposeAttribute(builder_, ints("perms", a.perm)).Union();
  }
  Offset<void> write(const TosaConvAttrs& a) {
    return schema::CreateConv2dAttribute(builder_, ints("pad", a.pad), ints("stride", a.stride),
                                         ints("dilation", a.dilation), a.local_bound, acc_type(a.acc_type))
        .Union();
  }
  Offset<void> write(const TosaTransposeConvAttrs& a) {
    return schema::CreateTransposeConv2dAttribute(builder_, ints("out_pad", a.out_pad),
                                                  ints("stride", a.stride), a.local_bound,
                                                  acc_type(a.acc_type))
        .Union();
  }
  Offset<void> write(const TosaAvgPoolAttrs& a) {
    return schema::CreateAvgPool2dAttribute(builder_, ints("kernel", a.kernel), ints("stride", a.stride),
                                            ints("pad", a.pad), acc_type(a.acc_type))
        .Union();
  }
  Offset<void> write(const TosaMaxPoolAttrs& a) {
    return schema::CreateMaxPool2dAttribute(builder_, ints("kernel", a.kernel), ints("stride", a.stride),
                                            ints("pad", a.pad), nan_mode(a.nan_mode))
        .Union();
  }
  Offset<void> write(const TosaClampAttrs& a) {
    const DType dtype = graph_->type(graph_->operands(*node_)[0]).dtype;
    return schema::CreateClampAttribute(builder_, element(dtype, a.min_val), element(dtype, a.max_val),
                                        nan_mode(a.nan_mode))
        .Union();
  }
  Offset<void> write(const TosaAxisNanAttrs& a) {
    return schema::CreateArgMaxAttribute(builder_, narrow("axis", a.axis), nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaNanAttrs& a) {
    return schema::CreateMaximumAttribute(builder_, nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaShiftAttrs& a) {
    return schema::CreateArithmeticRightShiftAttribute(builder_, a.round).Union();
  }
  Offset<void> write(const TosaResizeAttrs& a) {
    const bool nearest = a.mode == ResizeMode::kNearest;
    return schema::CreateResizeAttribute(builder_,
                                         nearest ? schema::ResizeMode::NEAREST : schema::ResizeMode::BILINEAR)
        .Union();
  }

  std::int32_t narrow(const char* field, std::int64_t value) const {
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
      throw InvalidGraph(located({.where = "tosa",
                                  .what = std::string(field) + " does not fit 32 bits",
                                  .got = std::to_string(value)},
                                 node_ == nullptr ? nullptr : node_->origin,
                                 node_ == nullptr ? "" : graph_->node_name(*node_)));
    return static_cast<std::int32_t>(value);
  }
  Ints ints(const char* field, const Dims& dims) {
    std::array<std::int32_t, kMaxRank> list{};
    for (std::size_t i = 0; i < dims.size(); ++i) list.at(i) = narrow(field, dims[i]);
    return builder_.CreateVector(list.data(), dims.size());
  }
  schema::DType acc_type(DType dtype) const {
    const std::optional<std::uint32_t> code = dtype_code(dtype);
    if (!code)
      throw UnsupportedOp(located({.where = "tosa",
                                   .what = "TOSA has no such accumulator",
                                   .expected = "i32, i48, f16 or f32",
                                   .got = std::string(to_string(dtype))},
                                  node_->origin, graph_->node_name(*node_)));
    return static_cast<schema::DType>(*code);
  }
  static schema::RoundingMode rounding_mode(RoundingMode mode) {
    switch (mode) {
      case RoundingMode::kSingleRound:
        return schema::RoundingMode::SINGLE_ROUND;
      case RoundingMode::kInexactRound:
        return schema::RoundingMode::INEXACT_ROUND;
      case RoundingMode::kDoubleRound:
        return schema::RoundingMode::DOUBLE_ROUND;
    }
    return schema::RoundingMode::UNKNOWN;
  }
  static schema::NanPropagationMode nan_mode(NanMode mode) {
    return mode == NanMode::kPropagate ? schema::NanPropagationMode::PROPAGATE
                                       : schema::NanPropagationMode::IGNORE;
  }

  const File& file_;
  const SerializeOptions& options_;
  FlatBufferBuilder builder_;
  std::vector<Hole> holes_;
  const Graph* graph_ = nullptr;                    // of the block being written
  std::vector<Offset<flatbuffers::String>> names_;  // the names of its entries
  const Operator* operator_ = nullptr;              // the operator whose attributes are being written
  const Node* node_ = nullptr;                      // its node
};

// A rough size of an entry without its constant, for the initial size of the builder.
constexpr std::size_t kBytesPerEntry = 256;
// Flatbuffer offsets end at 2 GiB; the difference is room for everything but constants.
constexpr std::size_t kMaxInline = 2'000'000'000;

// All constants, in the order in which they are written.
std::vector<const Entry*> constants_of(const File& file) {
  std::vector<const Entry*> constants;
  for (const Block& block : file.blocks)
    for (const Entry& entry : block.entries)
      if (entry.constant) constants.push_back(&entry);
  return constants;
}

std::size_t constant_bytes(const File& file) {
  std::size_t total = 0;
  for (const Entry* entry : constants_of(file))
    total += rounded_up(entry->packed_bytes(), kDataAlignment) + kDataAlignment;
  return total;
}

std::size_t bytes_without_constants(const File& file) {
  std::size_t entries = 4;
  for (const Block& block : file.blocks) entries += block.entries.size();
  return kBytesPerEntry * entries;
}

// The flatbuffer as a FileImage, with the constants in the place of the holes.
FileImage filled(Frame frame) {
  const auto buffer = std::make_shared<flatbuffers::DetachedBuffer>(frame.builder.Release());
  const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(buffer->data()), buffer->size());
  FileImage image;
  std::size_t at = 0;
  for (auto hole = frame.holes.rbegin(); hole != frame.holes.rend(); ++hole) {
    const std::size_t start = whole.size() - hole->from_end;
    image.add(whole.subspan(at, start - at), buffer);
    image.add(hole->elements, hole->constant);
    at = start + hole->elements.size();
  }
  image.add(whole.subspan(at), buffer);
  return image;
}

// The flatbuffer, then the constants. The offsets of the constants depend on the flatbuffer's size, which
// does not depend on the values of offsets that are not 0. So it is built twice: with placeholders, then with
// the offsets.
FileImage with_constants_behind(const File& file, const SerializeOptions& options) {
  const std::vector<const Entry*> constants = constants_of(file);
  const std::size_t reserve = bytes_without_constants(file);
  const auto encode = [&](const PieceOffsets& pieces) {
    return filled(Encoder(file, options, reserve).finish(pieces));
  };
  PieceOffsets offsets(constants.size(), kPieceAlignment);
  std::uint64_t end = encode(offsets).size();
  for (std::size_t i = 0; i < constants.size(); ++i) {
    offsets[i] = rounded_up(end, kPieceAlignment);
    end = offsets[i] + constants[i]->packed_bytes();
  }
  FileImage image = encode(offsets);
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const Entry& entry = *constants[i];
    if (const std::size_t gap = offsets[i] - image.size(); gap != 0) {
      const auto zeros = std::make_shared<const std::vector<std::byte>>(gap);
      image.add(*zeros, zeros);
    }
    if (same_layout(entry.dtype)) {
      image.add(entry.constant->bytes(), entry.constant);
    } else {
      const auto packed = std::make_shared<std::vector<std::byte>>(entry.packed_bytes());
      pack(entry.dtype, entry.constant->bytes(), *packed);
      image.add(*packed, packed);
    }
  }
  return image;
}

}  // namespace

void FileImage::add(std::span<const std::byte> bytes, Owner owner) {
  pieces_.push_back(bytes);
  owners_.push_back(std::move(owner));
  size_ += bytes.size();
}

void FileImage::copy(std::byte* to) const {
  for (const std::span<const std::byte> piece : pieces_) to = std::copy(piece.begin(), piece.end(), to);
}

FileImage lay_out(const Graph& graph, const SerializeOptions& options) {
  const File file = plan(graph);
  const std::size_t constants = constant_bytes(file);
  if (constants > std::min(options.inline_limit, kMaxInline)) return with_constants_behind(file, options);
  return filled(Encoder(file, options, constants + bytes_without_constants(file)).finish(PieceOffsets()));
}

Storage serialize(const Graph& graph, const SerializeOptions& options) {
  const FileImage image = lay_out(graph, options);
  Storage out = Storage::allocate(image.size());
  image.copy(out.writable());
  return out;
}

}  // namespace tosaic::tosa
