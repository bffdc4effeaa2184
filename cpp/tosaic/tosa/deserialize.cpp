#include "tosaic/tosa/deserialize.h"

#include <tosa_generated.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <queue>
#include <unordered_map>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/lexical.h"
#include "tosaic/ir/verify.h"
#include "tosaic/tosa/constant_operands.h"
#include "tosaic/tosa/location.h"
#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

constexpr std::size_t kDataAlignment = 8;
constexpr std::size_t kMaxShapeLength = 2 * kMaxRank;  // entries of a shape value: padding has two per axis
constexpr std::size_t kMaxRegionDepth = 64;
constexpr std::size_t kMaxRegions = 1 << 14;  // a region counts once per use

template <class T>
std::size_t length(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

std::string_view view(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view() : text->string_view();
}

// The text, with bytes that are not UTF-8 as "\xNN".
std::string readable(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string escaped;
  append_quoted(escaped, text);
  return escaped.substr(1, escaped.size() - 2);
}

std::string quoted(std::string_view text) { return "'" + readable(text) + "'"; }

// A string of the file that becomes a name, or part of a name, in the graph. Throws unless it is UTF-8.
std::string name_of(const char* what, std::string_view text) {
  if (!is_utf8(text))
    throw InvalidGraph({.where = "tosa",
                        .what = std::string(what) + " is not UTF-8",
                        .expected = "text",
                        .got = quoted(text)});
  return std::string(text);
}

// ---- the file as a whole ----

// Throws unless `bytes` is a well-formed flatbuffer of a version that we read.
const schema::TosaGraph& checked_root(std::span<const std::byte> bytes) {
  constexpr std::size_t kHeader = 8;
  if (bytes.size() < kHeader)
    throw InvalidGraph({.where = "tosa",
                        .what = "the file is truncated",
                        .expected = "at least 8 bytes",
                        .got = std::to_string(bytes.size())});
  if (std::memcmp(bytes.data() + 4, schema::TosaGraphIdentifier(), 4) != 0) {
    std::string got;
    for (const std::byte b : bytes.subspan(4, 4)) {
      const auto c = std::to_integer<char>(b);
      got += c >= ' ' && c <= '~' ? c : '?';
    }
    throw InvalidGraph({.where = "tosa",
                        .what = "not a TOSA file",
                        .expected = "the identifier 'TOSA' at byte 4",
                        .got = quoted(got)});
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::size_t size = std::min<std::size_t>(bytes.size(), FLATBUFFERS_MAX_BUFFER_SIZE - 1);
  const InvalidGraph damaged({.where = "tosa",
                              .what = "the file is truncated or damaged",
                              .expected = "a well-formed flatbuffer",
                              .got = std::to_string(bytes.size()) + " bytes that are not"});
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(size / 4 + 64);

  // The version is verified and read first: a file of another version need not be well-formed by this schema.
  flatbuffers::Verifier head(data, size, options);
  if (head.VerifyOffset<flatbuffers::uoffset_t>(0) == 0) throw damaged;
  const auto* root = flatbuffers::GetRoot<flatbuffers::Table>(data);
  if (!root->VerifyTableStart(head) || !root->VerifyOffset(head, schema::TosaGraph::VT_VERSION))
    throw damaged;
  const auto* version = root->GetPointer<const schema::Version*>(schema::TosaGraph::VT_VERSION);
  if (version == nullptr || !head.VerifyTable(version)) throw damaged;
  if (version->_major() != 1 || version->_minor() < 0 || version->_minor() > 1)
    throw UnsupportedOp({.where = "tosa",
                         .what = "unknown version of the format",
                         .expected = "TOSA 1.0 or 1.1",
                         .got = std::to_string(version->_major()) + "." + std::to_string(version->_minor()) +
                                "." + std::to_string(version->_patch())});

  flatbuffers::Verifier verifier(data, size, options);
  if (!schema::VerifyTosaGraphBuffer(verifier)) throw damaged;
  return *schema::GetTosaGraph(data);
}

// ---- several blocks ----

// A block of the file. The program and each region are one block.
struct BlockEntry {
  const schema::TosaBasicBlock* block = nullptr;
  std::unordered_map<std::string_view, const schema::TosaTensor*> tensors;  // by name, once it is referred to
  std::shared_ptr<const Graph> graph;                                       // once it is read
  std::size_t regions = 1;  // this block and all regions inside, each once per use
  bool open = false;        // it is being read
  bool used = false;
};

// The blocks by name, and limits on what reading all of them may take.
class BlockTable {
 public:
  BlockTable(const Storage& file, const schema::TosaGraph& root) : file_(file) {
    for (std::size_t r = 0; r < length(root.regions()); ++r) {
      const auto* region = root.regions()->Get(static_cast<flatbuffers::uoffset_t>(r));
      for (std::size_t b = 0; b < length(region->blocks()); ++b)
        add(name_of("the name of a region", view(region->name())),
            *region->blocks()->Get(static_cast<flatbuffers::uoffset_t>(b)));
    }
    if (entries_.empty()) throw InvalidGraph({.where = "tosa", .what = "the file has no block of operators"});
  }

  // The program: the block of the region "main", or the first.
  BlockEntry& program() {
    const auto it = regions_.find("main");
    return entries_[it == regions_.end() ? 0 : it->second];
  }

  // The first block of the region of this name, or else the block of this name, or null.
  BlockEntry* find(std::string_view name) {
    for (const auto* names : {&regions_, &blocks_})
      if (const auto it = names->find(std::string(name)); it != names->end()) return &entries_[it->second];
    return nullptr;
  }

  [[nodiscard]] std::size_t count() const { return entries_.size(); }

  void require_all_used() const {
    for (const BlockEntry& entry : entries_)
      if (!entry.used)
        throw InvalidGraph(
            {.where = "tosa",
             .what = "block " + quoted(view(entry.block->name())) + " is used by no operator"});
  }

  // Adds to the number of names, or of bytes of constants, that have been read; false once the number exceeds
  // the file's size in bytes. This happens only if lists overlap, which would let a small file take unlimited
  // time and memory.
  [[nodiscard]] bool take_names(std::size_t count) { return (names_ += count) <= file_.size(); }
  [[nodiscard]] bool take_bytes(std::size_t count) { return (bytes_ += count) <= file_.size(); }
  [[nodiscard]] const Storage& file() const { return file_; }
  void note(Note note) { notes_.push_back(std::move(note)); }
  [[nodiscard]] std::vector<Note> notes() && { return std::move(notes_); }

 private:
  void add(const std::string& region, const schema::TosaBasicBlock& block) {
    regions_.emplace(region, entries_.size());
    blocks_.emplace(name_of("the name of a block", view(block.name())), entries_.size());
    entries_.emplace_back().block = &block;
  }

  const Storage& file_;
  std::vector<BlockEntry> entries_;
  std::unordered_map<std::string, std::size_t> regions_, blocks_;
  std::size_t names_ = 0, bytes_ = 0;
  std::vector<Note> notes_;
};

using Names = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

std::string_view name_at(const Names* names, std::size_t i) {
  return view(names->Get(static_cast<flatbuffers::uoffset_t>(i)));
}

// The type that the file declares for a tensor, valid or not: "f32[2,3]".
std::string declared_type(const schema::TosaTensor& tensor) {
  const auto code = static_cast<std::uint32_t>(tensor.type());
  const std::optional<DType> dtype = dtype_from_code(code);
  std::string text = (dtype ? std::string(to_string(*dtype)) : dtype_code_name(code)) + "[";
  for (std::size_t i = 0; i < length(tensor.shape()); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(tensor.shape()->Get(static_cast<flatbuffers::uoffset_t>(i)));
  return text + "]";
}

bool has_data(const schema::TosaTensor& tensor) { return length(tensor.data()) != 0 || tensor.offset() > 1; }

// ---- one block ----

// The tensor or shape value that has a name.
struct Slot {
  static constexpr std::uint32_t kNone = 0xffffffffu;

  const schema::TosaTensor* tensor = nullptr;  // either this or `shape` is set
  const schema::TosaShape* shape = nullptr;
  TensorType type;                 // of a tensor
  std::uint32_t producer = kNone;  // index of the operator
  bool is_input = false;
  bool is_variable = false;
  ValueId value;                    // once it is in the graph
  std::optional<Storage> constant;  // elements, once needed
};

class BlockReader {
 public:
  BlockReader(BlockTable& blocks, BlockEntry& entry, std::size_t depth)
      : blocks_(blocks), entry_(entry), block_(*entry.block), file_(blocks.file()), depth_(depth) {}

  Graph read() {
    entry_.open = entry_.used = true;
    read_names();
    read_inputs();
    read_producers();
    check_declared_extents();
    read_regions();
    graph_.stage = Stage::kTosa;
    for (const std::uint32_t index : topological_order()) emit(index);
    read_outputs();
    entry_.open = false;
    return std::move(graph_);
  }

  // ---- constant operands, called by visit_constant_operands; `next_` is the index of the next operand ----

  void zero_point(const char* name, DType dtype, std::int64_t& value, bool is_unsigned) {
    const bool of_weight = std::string_view(name) == "weight_zp";
    const std::array<std::byte, 8> bytes =
        of_weight ? weight_zero_point(name, dtype) : element_bytes(name, dtype);
    const double read = load_element(dtype, bytes.data());
    if (is_float(dtype) && !(read == 0))
      throw_here<InvalidGraph>(std::string(name) + " of a float operand is not zero", "0",
                               std::to_string(read));
    value = static_cast<std::int64_t>(read);
    if (is_unsigned && value < 0) value += std::int64_t{1} << (8 * byte_size(dtype));
  }
  void elements(const char* name, DType dtype, std::vector<std::int64_t>& values) {
    Slot& slot = constant_operand(name, false);
    if (slot.type.dtype != dtype || slot.type.rank() != 1)
      throw_here<InvalidGraph>("the operand " + std::string(name) + " has the wrong type",
                               std::string(to_string(dtype)) + " of rank 1", to_string(slot.type));
    const std::byte* at = constant_storage(slot).bytes().data();
    values.clear();
    for (std::int64_t i = 0; i < slot.type.shape[0]; ++i, at += byte_size(dtype))
      values.push_back(static_cast<std::int64_t>(load_element(dtype, at)));
  }
  void element(const char* name, DType dtype, Scalar& value) {
    const std::array<std::byte, 8> bytes = element_bytes(name, dtype);
    value = scalar(dtype, bytes.data());
  }
  void shift(const char* name, std::int64_t& value) {
    const std::array<std::byte, 8> bytes = element_bytes(name, DType::kI8);
    value = static_cast<std::int64_t>(load_element(DType::kI8, bytes.data()));
    if (value < 0 || value > 63)
      throw_here<InvalidGraph>(std::string(name) + " is out of range", "0 to 63", std::to_string(value));
  }
  void dims(const char* name, Dims& value) {
    const std::vector<std::int64_t> list = shape_values(name);
    if (list.size() > kMaxRank)
      throw_here<UnsupportedOp>(std::string(name) + " is too long",
                                "at most " + std::to_string(kMaxRank) + " entries",
                                std::to_string(list.size()));
    value = Dims(std::span<const std::int64_t>(list));
  }
  void padding(const char* name, Dims& before, Dims& after) {
    const std::vector<std::int64_t> list = shape_values(name);
    if (list.size() % 2 != 0)
      throw_here<InvalidGraph>(std::string(name) + " has an odd number of entries", "two per axis",
                               std::to_string(list.size()));
    before = after = Dims();
    for (std::size_t i = 0; i < list.size(); i += 2) {
      before.push_back(list[i]);
      after.push_back(list[i + 1]);
    }
  }

 private:
  // ---- errors ----

  [[nodiscard]] std::string here() const {
    if (index_ == Slot::kNone) return "";
    return "operator " + std::to_string(index_) + " (" + op_code_name(static_cast<std::uint32_t>(op_->op())) +
           "): ";
  }

  [[nodiscard]] std::string result_name() const {
    if (index_ == Slot::kNone || length(op_->outputs()) == 0) return "";
    return readable(name_at(op_->outputs(), 0));
  }

  template <class E>
  [[noreturn]] void throw_here(const std::string& what, const std::string& expected = "",
                               const std::string& got = "", const std::string& hint = "") const {
    throw E({.where = "tosa",
             .what = here() + what,
             .expected = expected,
             .got = got,
             .node = result_name(),
             .hint = hint});
  }

  // Runs `f` and adds to its errors which operator of the file they are about.
  template <class F>
  auto at_operator(F f) const {
    const auto parts = [this](const Error& error) {
      ErrorParts changed = error.parts();
      changed.where = "tosa";
      changed.what = here() + changed.what;
      changed.node = result_name();
      return changed;
    };
    try {
      return f();
    } catch (const UnsupportedOp& error) {
      throw UnsupportedOp(parts(error));
    } catch (const InvalidGraph& error) {
      throw InvalidGraph(parts(error));
    }
  }

  // ---- names ----

  void add_name(std::string_view name, Slot slot) {
    if (name.empty()) throw_here<InvalidGraph>("a tensor has no name");
    static_cast<void>(name_of("the name of a tensor", name));
    if (!names_.emplace(name, static_cast<std::uint32_t>(slots_.size())).second)
      throw_here<InvalidGraph>("two tensors are named " + quoted(name));
    slots_.push_back(std::move(slot));
  }

  void read_names() {
    const std::size_t count = length(block_.tensors()) + length(block_.shapes());
    slots_.reserve(count);
    names_.reserve(count);
    for (std::size_t i = 0; i < length(block_.tensors()); ++i) {
      const auto* tensor = block_.tensors()->Get(static_cast<flatbuffers::uoffset_t>(i));
      Slot slot;
      slot.tensor = tensor;
      slot.type = tensor_type(*tensor);
      slot.is_variable = tensor->variable();
      add_name(view(tensor->name()), std::move(slot));
    }
    for (std::size_t i = 0; i < length(block_.shapes()); ++i) {
      const auto* shape = block_.shapes()->Get(static_cast<flatbuffers::uoffset_t>(i));
      Slot slot;
      slot.shape = shape;
      add_name(view(shape->name()), std::move(slot));
    }
  }

  TensorType tensor_type(const schema::TosaTensor& tensor) const {
    const std::string name = "tensor " + quoted(view(tensor.name()));
    TensorType type;
    const auto code = static_cast<std::uint32_t>(tensor.type());
    const std::optional<DType> dtype = dtype_from_code(code);
    if (!dtype)
      throw_here<UnsupportedOp>(name + " has an unknown dtype", "a dtype of TOSA 1.0", dtype_code_name(code));
    type.dtype = *dtype;
    if (tensor.is_unranked()) throw_here<UnsupportedOp>(name + " has no rank: shapes must be static");
    if (length(tensor.shape()) > kMaxRank)
      throw_here<UnsupportedOp>(name + " has too many axes", "at most " + std::to_string(kMaxRank),
                                std::to_string(length(tensor.shape())));
    for (std::size_t i = 0; i < length(tensor.shape()); ++i)
      type.shape.push_back(tensor.shape()->Get(static_cast<flatbuffers::uoffset_t>(i)));
    return type;
  }

  void check_extents(const Slot& slot) const {
    const std::string name = "tensor " + quoted(view(slot.tensor->name()));
    for (const std::int64_t extent : slot.type.shape)
      if (extent < 1)
        throw_here<InvalidGraph>(name + " has an extent that is not positive", "at least 1",
                                 std::to_string(extent));
    std::int64_t count = std::numeric_limits<std::int64_t>::max() / 8;
    for (const std::int64_t extent : slot.type.shape) count /= extent;
    if (count == 0)
      throw_here<InvalidGraph>(name + " is too large", "at most 2^60 elements", to_string(slot.type.shape));
  }

  // Checks the extents of all tensors except inferred results: these are compared with the inferred type,
  // whose error says more.
  void check_declared_extents() const {
    for (const Slot& slot : slots_)
      if (slot.tensor != nullptr && !is_inferred(slot)) check_extents(slot);
  }

  [[nodiscard]] bool is_inferred(const Slot& slot) const {
    if (slot.producer == Slot::kNone) return false;
    const std::optional<Op> op =
        op_from_code(static_cast<std::uint32_t>(block_.operators()->Get(slot.producer)->op()));
    return op && has_inference(*op);
  }

  std::uint32_t find(std::string_view name) const {
    const auto it = names_.find(name);
    if (it == names_.end()) throw_here<InvalidGraph>("no tensor is named " + quoted(name));
    return it->second;
  }

  // ---- signature and order ----

  void read_inputs() {
    for (std::size_t i = 0; i < length(block_.inputs()); ++i) {
      const std::string_view name = view(block_.inputs()->Get(static_cast<flatbuffers::uoffset_t>(i)));
      Slot& slot = slots_[find(name)];
      if (slot.tensor == nullptr) throw_here<UnsupportedOp>("input " + quoted(name) + " is a shape value");
      if (slot.is_variable) throw_here<InvalidGraph>("input " + quoted(name) + " is a variable");
      if (slot.is_input) throw_here<InvalidGraph>("input " + quoted(name) + " is listed twice");
      check_extents(slot);
      slot.is_input = true;
      slot.value = graph_.add_input(InputKind::kUser, std::string(name), slot.type, std::string(name));
    }
  }

  void read_producers() {
    for (std::uint32_t i = 0; i < operator_count(); ++i) {
      enter(i);
      check_supported();
      check_operand_count();
      const std::size_t expected = result_count();
      if (expected != kAnyNumber && length(op_->outputs()) != expected)
        throw_here<InvalidGraph>("wrong number of results", std::to_string(expected),
                                 std::to_string(length(op_->outputs())));
      take_names(length(op_->outputs()));
      for (std::size_t r = 0; r < length(op_->outputs()); ++r) define(name_at(op_->outputs(), r), i);
    }
    index_ = Slot::kNone;
  }

  void check_operand_count() const {
    const std::optional<Op> op = op_from_code(static_cast<std::uint32_t>(op_->op()));
    if (op && !info(*op).has(kEffect)) {
      static_cast<void>(plain_operands(*op, default_attrs(*op)));
      return;
    }
    const std::size_t expected = op && op != Op::kTosaVariable ? 1 : 0;  // VARIABLE_READ and _WRITE have one
    if (length(op_->inputs()) != expected)
      throw_here<InvalidGraph>("wrong number of operands", std::to_string(expected),
                               std::to_string(length(op_->inputs())));
  }

  // The number of results that an operator lists. VARIABLE and VARIABLE_WRITE list the variable as a result.
  [[nodiscard]] std::size_t result_count() const {
    if (is_constant(*op_)) return 1;
    const OpInfo& row = info(*op_from_code(static_cast<std::uint32_t>(op_->op())));
    if (row.results < 0) return kAnyNumber;
    return row.has(kEffect) ? 1 : static_cast<std::size_t>(row.results);
  }

  [[nodiscard]] bool lists_variable_as_result() const {
    return op_->op() == schema::Op::VARIABLE || op_->op() == schema::Op::VARIABLE_WRITE;
  }

  void define(std::string_view name, std::uint32_t producer) {
    Slot& slot = slots_[find(name)];
    if (slot.is_variable != lists_variable_as_result())
      throw_here<InvalidGraph>("the result " + quoted(name) + " is of the wrong kind",
                               slot.is_variable ? "a tensor" : "a variable",
                               slot.is_variable ? "a variable" : "a tensor");
    if (slot.is_variable) return;
    if (slot.is_input || slot.producer != Slot::kNone)
      throw_here<InvalidGraph>("the result " + quoted(name) + " is defined already");
    if ((slot.shape != nullptr) != (op_->op() == schema::Op::CONST_SHAPE))
      throw_here<InvalidGraph>("the result " + quoted(name) + " is of the wrong kind",
                               slot.shape != nullptr ? "a tensor" : "a shape value",
                               slot.shape != nullptr ? "a shape value" : "a tensor");
    slot.producer = producer;
  }

  void take_names(std::size_t count) const {
    if (!blocks_.take_names(count)) throw_here<InvalidGraph>("the lists of operands overlap");
  }

  void check_supported() const {
    const auto code = static_cast<std::uint32_t>(op_->op());
    const auto attribute = static_cast<std::uint32_t>(op_->attribute_type());
    if (!is_constant(*op_) && !op_from_code(code))
      throw_here<UnsupportedOp>("this operator is not supported", "an operator of 'tosaic ops'",
                                op_code_name(code));
    if (attribute != 0 && attribute != code)
      throw_here<InvalidGraph>("the attributes are of another operator", op_code_name(code),
                               op_code_name(attribute));
  }

  static bool is_constant(const schema::TosaOperator& op) {
    return op.op() == schema::Op::CONST || op.op() == schema::Op::CONST_SHAPE;
  }

  [[nodiscard]] std::uint32_t operator_count() const {
    return static_cast<std::uint32_t>(length(block_.operators()));
  }

  void enter(std::uint32_t index) {
    index_ = index;
    op_ = block_.operators()->Get(index);
  }

  // The operators other than constants; of those that are ready, the first of the file comes first.
  std::vector<std::uint32_t> topological_order() {
    std::vector<std::uint32_t> missing(operator_count(), 0), order;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> uses;  // producer, consumer
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
    std::uint32_t expected = 0, last_effect = Slot::kNone;
    for (std::uint32_t i = 0; i < operator_count(); ++i) {
      enter(i);
      if (is_constant(*op_)) continue;
      ++expected;
      missing[i] = add_uses(i, uses);
      if (touches_variables(i)) {  // such operators stay in the order of the file
        if (last_effect != Slot::kNone) {
          uses.emplace_back(last_effect, i);
          ++missing[i];
        }
        last_effect = i;
      }
      if (missing[i] == 0) ready.push(i);
    }
    index_ = Slot::kNone;
    std::sort(uses.begin(), uses.end());
    while (!ready.empty()) {
      const std::uint32_t done = ready.top();
      ready.pop();
      order.push_back(done);
      for (auto use = std::lower_bound(uses.begin(), uses.end(), std::pair(done, 0u));
           use != uses.end() && use->first == done; ++use)
        if (--missing[use->second] == 0) ready.push(use->second);
    }
    if (order.size() != expected) throw_cycle(missing);
    return order;
  }

  std::uint32_t add_uses(std::uint32_t consumer, std::vector<std::pair<std::uint32_t, std::uint32_t>>& uses) {
    take_names(length(op_->inputs()));
    std::uint32_t count = 0;
    for (std::size_t k = 0; k < length(op_->inputs()); ++k) {
      const std::string_view name = view(op_->inputs()->Get(static_cast<flatbuffers::uoffset_t>(k)));
      const Slot& slot = slots_[find(name)];
      if (slot.is_variable != (op_->op() == schema::Op::VARIABLE_READ))
        throw_here<InvalidGraph>("the operand " + quoted(name) + " is of the wrong kind",
                                 slot.is_variable ? "a tensor" : "a variable",
                                 slot.is_variable ? "a variable" : "a tensor");
      if (slot.is_input || slot.is_variable) continue;
      if (slot.producer == Slot::kNone)
        throw_here<InvalidGraph>("nothing defines the operand " + quoted(name));
      if (is_constant(*block_.operators()->Get(slot.producer))) continue;
      uses.emplace_back(slot.producer, consumer);
      ++count;
    }
    return count;
  }

  [[noreturn]] void throw_cycle(const std::vector<std::uint32_t>& missing) {
    for (std::uint32_t i = 0; i < missing.size(); ++i) {
      if (missing[i] == 0) continue;
      enter(i);
      throw_here<InvalidGraph>("the operator depends on its own result");
    }
    throw InternalError({.where = "tosa", .what = "operators left over without a cycle"});
  }

  // ---- control flow ----

  [[nodiscard]] bool touches_variables(std::uint32_t index) const {
    const Op op = *op_from_code(static_cast<std::uint32_t>(block_.operators()->Get(index)->op()));
    if (info(op).has(kEffect)) return true;
    const auto it = regions_.find(index);
    if (it == regions_.end()) return false;
    return std::any_of(it->second.begin(), it->second.end(), [](const auto& region) {
      const auto nodes = region->nodes();
      return std::any_of(nodes.begin(), nodes.end(),
                         [](const Node& node) { return tosaic::touches_variables(node); });
    });
  }

  // Compares the types that the file declares before it reads anything inside a region.
  void read_regions() {
    for (std::uint32_t i = 0; i < operator_count(); ++i) {
      enter(i);
      if (op_->op() == schema::Op::COND_IF) {
        const auto& attributes = table<schema::CondIfAttribute>();
        check_condition(slot_type(op_->inputs(), 0, "condition"), "the condition");
        BlockEntry& then_block = region("then_graph", view(attributes.then_graph()));
        BlockEntry& else_block = region("else_graph", view(attributes.else_graph()));
        for (const auto& [role, block] :
             {std::pair("then_graph", &then_block), {"else_graph", &else_block}}) {
          check_list(role, " takes", *block, block->block->inputs(), op_->inputs(), 1);
          check_list(role, " gives", *block, block->block->outputs(), op_->outputs(), 0);
        }
        regions_[i] = {read_region(then_block), read_region(else_block)};
      } else if (op_->op() == schema::Op::WHILE_LOOP) {
        const auto& attributes = table<schema::WhileLoopAttribute>();
        check_carried();
        BlockEntry& condition = region("cond_graph", view(attributes.cond_graph()));
        BlockEntry& body = region("body_graph", view(attributes.body_graph()));
        check_list("cond_graph", " takes", condition, condition.block->inputs(), op_->inputs(), 0);
        check_list("body_graph", " takes", body, body.block->inputs(), op_->inputs(), 0);
        check_list("body_graph", " gives", body, body.block->outputs(), op_->outputs(), 0);
        if (length(condition.block->outputs()) != 1)
          throw_here<InvalidGraph>("cond_graph gives the wrong number of outputs", "1",
                                   std::to_string(length(condition.block->outputs())));
        check_condition(tensor_of(condition, name_at(condition.block->outputs(), 0), "cond_graph"),
                        "the output of cond_graph");
        regions_[i] = {read_region(condition), read_region(body)};
      }
    }
    index_ = Slot::kNone;
  }

  const schema::TosaTensor& slot_type(const Names* names, std::size_t i, const char* role) const {
    if (i >= length(names))
      throw_here<InvalidGraph>("wrong number of operands", "at least " + std::to_string(i + 1),
                               std::to_string(length(names)));
    const Slot& slot = slots_[find(name_at(names, i))];
    if (slot.tensor == nullptr)
      throw_here<InvalidGraph>(std::string(role) + " " + quoted(name_at(names, i)) + " is a shape value",
                               "a tensor");
    return *slot.tensor;
  }

  const schema::TosaTensor& tensor_of(const BlockEntry& block, std::string_view name,
                                      const char* role) const {
    const auto it = block.tensors.find(name);
    if (it == block.tensors.end())
      throw_here<InvalidGraph>("no tensor of " + std::string(role) + " is named " + quoted(name));
    return *it->second;
  }

  void check_condition(const schema::TosaTensor& tensor, const std::string& what) const {
    if (tensor.type() != schema::DType::BOOL)
      throw_here<InvalidGraph>(what + " has the wrong dtype", "bool", declared_type(tensor));
    for (std::size_t i = 0; i < length(tensor.shape()); ++i)
      if (tensor.shape()->Get(static_cast<flatbuffers::uoffset_t>(i)) != 1)
        throw_here<InvalidGraph>(what + " is not of size one", "1 element", declared_type(tensor));
  }

  void check_carried() const {
    if (length(op_->outputs()) != length(op_->inputs()))
      throw_here<InvalidGraph>("the results differ from the operands in number",
                               std::to_string(length(op_->inputs())), std::to_string(length(op_->outputs())));
    for (std::size_t i = 0; i < length(op_->inputs()); ++i) {
      const std::string before = declared_type(slot_type(op_->inputs(), i, "operand"));
      const std::string after = declared_type(slot_type(op_->outputs(), i, "result"));
      if (before != after)
        throw_here<InvalidGraph>("result " + std::to_string(i) + " differs from the operand in type", before,
                                 after);
    }
  }

  // Compares the operands (from `first` on) or results of the operator with those of the region.
  void check_list(const char* role, const char* does, const BlockEntry& block, const Names* inner,
                  const Names* outer, std::size_t first) const {
    take_names(length(inner));
    if (length(inner) + first != length(outer))
      throw_here<InvalidGraph>(std::string(role) + does + " another number of tensors",
                               std::to_string(length(outer) - first), std::to_string(length(inner)));
    for (std::size_t i = 0; i < length(inner); ++i) {
      const std::string expected = declared_type(slot_type(outer, i + first, "operand"));
      const std::string got = declared_type(tensor_of(block, name_at(inner, i), role));
      if (expected != got)
        throw_here<InvalidGraph>(std::string(role) + does + " another type at " + std::to_string(i), expected,
                                 got);
    }
  }

  BlockEntry& region(const char* role, std::string_view name) {
    BlockEntry* const found = blocks_.find(name);
    if (found == nullptr)
      throw_here<InvalidGraph>(std::string(role) + ": no region is named " + quoted(name));
    if (found->tensors.empty())
      for (std::size_t i = 0; i < length(found->block->tensors()); ++i) {
        const auto* tensor = found->block->tensors()->Get(static_cast<flatbuffers::uoffset_t>(i));
        found->tensors.emplace(view(tensor->name()), tensor);
      }
    return *found;
  }

  std::shared_ptr<const Graph> read_region(BlockEntry& block) {
    const std::string name(view(block.block->name()));
    if (block.open) throw_here<InvalidGraph>("region " + quoted(name) + " contains itself");
    if (depth_ == kMaxRegionDepth)
      throw_here<UnsupportedOp>("regions are nested too deeply",
                                "at most " + std::to_string(kMaxRegionDepth));
    if (!block.graph) {
      Graph graph = BlockReader(blocks_, block, depth_ + 1).read();
      graph.name = name;
      block.graph = std::make_shared<const Graph>(std::move(graph));
    }
    entry_.regions += block.regions;
    if (entry_.regions > kMaxRegions)
      throw_here<UnsupportedOp>("too many regions", "at most " + std::to_string(kMaxRegions));
    return block.graph;
  }

  // ---- constants ----

  // The bytes of a constant, with padding, in the flatbuffer or behind it.
  std::span<const std::byte> raw_bytes(const Slot& slot) const {
    const schema::TosaTensor& tensor = *slot.tensor;
    const std::string name = "constant " + quoted(view(tensor.name()));
    if (length(tensor.data()) != 0)
      return {reinterpret_cast<const std::byte*>(tensor.data()->data()), tensor.data()->size()};
    if (tensor.offset() <= 1) throw_here<InvalidGraph>(name + " has no data");
    if (tensor.offset() > file_.size() || tensor.size() > file_.size() - tensor.offset())
      throw_here<InvalidGraph>(
          name + " lies beyond the end of the file: it is truncated",
          "bytes " + std::to_string(tensor.offset()) + " to " +
              std::to_string(tensor.offset() + std::min(tensor.size(), ~tensor.offset())),
          std::to_string(file_.size()) + " bytes");
    return file_.bytes().subspan(tensor.offset(), tensor.size());
  }

  // The elements of a constant, packed as in the file, without padding.
  std::span<const std::byte> packed_bytes(const Slot& slot) {
    const std::string name = "constant " + quoted(view(slot.tensor->name()));
    const std::span<const std::byte> bytes = raw_bytes(slot);
    const std::size_t needed =
        packed_size(slot.type.dtype, static_cast<std::size_t>(num_elements(slot.type.shape)));
    if (bytes.size() < needed || bytes.size() - needed >= kDataAlignment)
      throw_here<InvalidGraph>(name + " has the wrong size", std::to_string(needed) + " bytes",
                               std::to_string(bytes.size()) + " bytes");
    if (!blocks_.take_bytes(needed)) throw_here<InvalidGraph>("the data of constants overlaps");
    return bytes.first(needed);
  }

  const Storage& constant_storage(Slot& slot) {
    if (slot.constant) return *slot.constant;
    const std::span<const std::byte> packed = packed_bytes(slot);
    const DType dtype = slot.type.dtype;
    const bool aligned = reinterpret_cast<std::uintptr_t>(packed.data()) % kDataAlignment == 0;
    if (same_layout(dtype) && aligned) {
      slot.constant.emplace(std::make_shared<const Storage>(file_), packed.data(), packed.size());
    } else {
      Storage storage = Storage::allocate(slot.type.bytes());
      unpack(dtype, packed, {storage.writable(), storage.size()});
      slot.constant = std::move(storage);
    }
    return *slot.constant;
  }

  // The slot of the next operand. Throws unless the operand is a constant.
  Slot& constant_operand(const char* name, bool wants_shape) {
    Slot& slot = slots_[find(view(op_->inputs()->Get(static_cast<flatbuffers::uoffset_t>(next_++))))];
    if ((slot.shape != nullptr) != wants_shape)
      throw_here<InvalidGraph>("the operand " + std::string(name) + " is of the wrong kind",
                               wants_shape ? "a shape value" : "a tensor",
                               wants_shape ? "a tensor" : "a shape value");
    if (slot.is_input || !is_constant(*block_.operators()->Get(slot.producer)))
      throw_here<UnsupportedOp>(
          "the operand " + std::string(name) + " is computed when the program runs", "a constant",
          quoted(view(slot.tensor != nullptr ? slot.tensor->name() : slot.shape->name())));
    return slot;
  }

  // The only element of the next operand, as it is in memory.
  std::array<std::byte, 8> element_bytes(const char* name, DType dtype) {
    Slot& slot = constant_operand(name, false);
    TensorType wanted;
    wanted.dtype = dtype;
    wanted.shape = Shape{1};
    if (!(slot.type == wanted))
      throw_here<InvalidGraph>("the operand " + std::string(name) + " has the wrong type", to_string(wanted),
                               to_string(slot.type));
    std::array<std::byte, 8> bytes{};
    const std::span<const std::byte> stored = constant_storage(slot).bytes();
    std::copy(stored.begin(), stored.end(), bytes.begin());
    return bytes;
  }

  // The weight zero point of an i8 weight. ExecuTorch writes one per channel: either the tensor is declared
  // with one element per channel, or it is declared with one element and its data holds more. (The rest of
  // the data is zero padding otherwise.) Returns the element that all channels have.
  std::array<std::byte, 8> weight_zero_point(const char* name, DType dtype) {
    Slot& peek = slots_[find(name_at(op_->inputs(), next_))];
    const Shape& result = slots_[find(name_at(op_->outputs(), 0))].type.shape;
    const bool is_list = dtype == DType::kI8 && peek.tensor != nullptr && peek.type.dtype == dtype &&
                         peek.type.rank() == 1 && !result.empty() && result.back() > 1;
    if (!is_list) return element_bytes(name, dtype);
    const auto channels = static_cast<std::size_t>(result.back());
    const bool declared = peek.type.shape[0] == result.back();
    if (!declared && peek.type.shape[0] != 1) return element_bytes(name, dtype);
    const Slot& slot = constant_operand(name, false);
    const std::span<const std::byte> data = raw_bytes(slot);
    const bool long_enough = data.size() >= channels && data.size() - channels < kDataAlignment;
    const std::span<const std::byte> rest = data.subspan(std::min<std::size_t>(1, data.size()));
    const bool padded = std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
    if (!declared && (!long_enough || (padded && data.size() <= kDataAlignment))) {
      --next_;
      return element_bytes(name, dtype);
    }
    const std::span<const std::byte> list = declared ? packed_bytes(slot) : data.first(channels);
    if (!declared && !blocks_.take_bytes(channels))
      throw_here<InvalidGraph>("the data of constants overlaps");
    const auto text = [&](std::size_t i) {
      return std::to_string(static_cast<std::int64_t>(load_element(dtype, &list[i])));
    };
    for (std::size_t i = 1; i < channels; ++i)
      if (list[i] != list[0])
        throw_here<UnsupportedOp>(
            std::string(name) + " differs by channel", "one zero point for all channels",
            text(0) + " for channel 0 and " + text(i) + " for channel " + std::to_string(i));
    blocks_.note({.rule = "repeated-zero-point",
                  .message = here() + "the " + std::to_string(channels) + " elements of " + name +
                             ", one a channel, are all " + text(0) + " and are read as one",
                  .name = result_name()});
    std::array<std::byte, 8> bytes{};
    bytes[0] = list[0];
    return bytes;
  }

  std::vector<std::int64_t> shape_values(const char* name) {
    const schema::TosaShape& shape = *constant_operand(name, true).shape;
    if (shape.rank() > kMaxShapeLength)
      throw_here<UnsupportedOp>("the operand " + std::string(name) + " is too long",
                                "at most " + std::to_string(kMaxShapeLength) + " entries",
                                std::to_string(shape.rank()));
    const std::size_t needed = shape.rank() * sizeof(std::int64_t);
    const bool placeholder =
        shape.rank() == 0 && length(shape.data()) == sizeof(std::int64_t);  // some writers store one
    if (length(shape.data()) != needed && !placeholder)
      throw_here<InvalidGraph>("the shape value " + quoted(view(shape.name())) + " has the wrong size",
                               std::to_string(needed) + " bytes",
                               std::to_string(length(shape.data())) + " bytes");
    std::vector<std::int64_t> values(shape.rank());
    if (needed != 0) std::memcpy(values.data(), shape.data()->data(), needed);
    return values;
  }

  static Scalar scalar(DType dtype, const std::byte* at) {
    const double value = load_element(dtype, at);
    if (dtype == DType::kBool) return value != 0;
    if (is_float(dtype)) return value;
    return static_cast<std::int64_t>(value);
  }

  // ---- operators ----

  // The value of a tensor that is an operand of the node, or an output.
  ValueId value_of(std::string_view name) {
    Slot& slot = slots_[find(name)];
    if (slot.value.valid()) return slot.value;
    if (slot.tensor == nullptr) throw_here<InvalidGraph>(quoted(name) + " is a shape value", "a tensor");
    if (slot.is_variable) throw_here<InvalidGraph>(quoted(name) + " is a variable", "a tensor");
    if (slot.producer == Slot::kNone) throw_here<InvalidGraph>("nothing defines " + quoted(name));
    slot.value = add_constant(slot);
    return slot.value;
  }

  ValueId add_constant(Slot& slot) {
    auto constant = std::make_shared<Constant>();
    constant->name = std::string(view(slot.tensor->name()));
    constant->dtype = slot.type.dtype;
    constant->shape = slot.type.shape;
    constant->storage = constant_storage(slot);
    return graph_.add_constant(std::move(constant));
  }

  void emit(std::uint32_t index) {
    enter(index);
    const Op op = *op_from_code(static_cast<std::uint32_t>(op_->op()));
    if (info(op).has(kEffect))
      emit_variable(op);
    else
      emit_plain(op);
    index_ = Slot::kNone;
  }

  void emit_plain(Op op) {
    Attrs attrs = default_attrs(op);
    const std::size_t operand_count = plain_operands(op, attrs);
    std::vector<ValueId> operands;
    std::vector<DType> dtypes;
    for (std::size_t i = 0; i < operand_count; ++i) operands.push_back(value_of(name_at(op_->inputs(), i)));
    for (const ValueId operand : operands) dtypes.push_back(graph_.type(operand).dtype);
    const std::vector<TensorType> declared = declared_results();
    next_ = operand_count;
    visit(
        [&](auto& a) {
          read(a, dtypes, declared.empty() ? TensorType() : declared.front());
          visit_constant_operands(a, std::span<const DType>(dtypes), *this);
        },
        attrs);
    if (has_inference(op)) check_results(op, attrs, operands, declared);
    for (std::size_t r = 0; r < declared.size(); ++r) check_extents(slots_[find(name_at(op_->outputs(), r))]);
    add_node(op, std::move(attrs), operands, declared);
  }

  [[nodiscard]] std::vector<TensorType> declared_results() const {
    std::vector<TensorType> types;
    for (std::size_t r = 0; r < length(op_->outputs()); ++r)
      types.push_back(slots_[find(name_at(op_->outputs(), r))].type);
    return types;
  }

  void check_results(Op op, const Attrs& attrs, const std::vector<ValueId>& operands,
                     const std::vector<TensorType>& declared) const {
    std::vector<const TensorType*> types;
    for (const ValueId operand : operands) types.push_back(&graph_.type(operand));
    const std::vector<TensorType> inferred = at_operator([&] { return infer(op, attrs, types); });
    for (std::size_t r = 0; r < inferred.size(); ++r)
      if (r >= declared.size() || !(inferred[r] == declared[r]))
        throw_here<InvalidGraph>("the result has the wrong type", to_string(inferred[r]),
                                 r < declared.size() ? to_string(declared[r]) : "none");
  }

  // Adds the node; its results have their names in the file.
  void add_node(Op op, Attrs attrs, const std::vector<ValueId>& operands,
                const std::vector<TensorType>& results) {
    OriginRef origin;
    if (op_->location() != nullptr)
      origin = locations_.read(
          at_operator([&] { return name_of("the location", view(op_->location()->text())); }));
    const auto regions = regions_.find(index_);
    const NodeId node = graph_.add_node(op, share(std::move(attrs)), operands, results, origin, result_name(),
                                        regions == regions_.end() ? Regions() : regions->second);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const std::string_view name = name_at(op_->outputs(), r);
      Slot& slot = slots_[find(name)];
      slot.value = graph_.result(graph_.node(node), r);
      if (graph_.value(slot.value).name != name) graph_.try_rename(slot.value, std::string(name));
    }
  }

  // ---- variables: the operand of VARIABLE_READ, the result of VARIABLE and VARIABLE_WRITE ----

  void emit_variable(Op op) {
    const bool reads = op == Op::kTosaVariableRead;
    Slot& slot = slots_[find(name_at(reads ? op_->inputs() : op_->outputs(), 0))];
    std::string name =
        at_operator([&] { return name_of("the name of a variable", view(slot.tensor->variable_name())); });
    if (name.empty()) name = std::string(view(slot.tensor->name()));
    if (op == Op::kTosaVariable) {
      std::vector<ValueId> initial;
      if (has_data(*slot.tensor)) initial.push_back(add_constant(slot));
      add_node(op, TosaVariableAttrs{name, slot.type.dtype, slot.type.shape}, initial, {});
      return;
    }
    const Attrs attrs = TosaNameAttrs{name, slot.type.dtype, slot.type.shape};
    std::vector<ValueId> operands;
    if (!reads) operands.push_back(value_of(name_at(op_->inputs(), 0)));
    const std::vector<TensorType> results = reads ? declared_results() : std::vector<TensorType>();
    check_results(op, attrs, operands, results);
    add_node(op, attrs, operands, results);
  }

  struct CountOperands {
    std::size_t count = 0;
    void zero_point(const char* /*name*/, DType /*dtype*/, std::int64_t /*value*/, bool /*is_unsigned*/) {
      ++count;
    }
    void elements(const char* /*name*/, DType /*dtype*/, const std::vector<std::int64_t>& /*values*/) {
      ++count;
    }
    void element(const char* /*name*/, DType /*dtype*/, const Scalar& /*value*/) { ++count; }
    void shift(const char* /*name*/, std::int64_t /*value*/) { ++count; }
    void dims(const char* /*name*/, const Dims& /*value*/) { ++count; }
    void padding(const char* /*name*/, const Dims& /*before*/, const Dims& /*after*/) { ++count; }
  };

  // The number of operands that become operands of the node; throws if the number of all operands is wrong.
  std::size_t plain_operands(Op op, const Attrs& attrs) const {
    const OpInfo& row = info(op);
    const std::size_t got = length(op_->inputs());
    if (row.max_operands == std::numeric_limits<std::uint8_t>::max()) {
      const std::size_t least = op == Op::kTosaCustom ? 0 : 1;
      if (got < least)
        throw_here<InvalidGraph>("wrong number of operands", "at least " + std::to_string(least),
                                 std::to_string(got));
      return got;
    }
    CountOperands constants;
    const std::vector<DType> dtypes(row.max_operands, DType::kF32);
    visit([&](const auto& a) { visit_constant_operands(a, std::span<const DType>(dtypes), constants); },
          attrs);
    if (got != row.max_operands + constants.count)
      throw_here<InvalidGraph>("wrong number of operands", std::to_string(row.max_operands + constants.count),
                               std::to_string(got));
    return row.max_operands;
  }

  void read_outputs() {
    for (std::size_t i = 0; i < length(block_.outputs()); ++i) {
      const std::string_view name = view(block_.outputs()->Get(static_cast<flatbuffers::uoffset_t>(i)));
      Output output;
      output.value = value_of(name);
      output.path = std::string(name);
      graph_.add_output(std::move(output));
    }
  }

  // ---- attribute tables ----

  template <class T>
  const T& table() const {
    if (op_->attribute() == nullptr || op_->attribute_type() == schema::Attribute::NONE)
      throw_here<InvalidGraph>("the attributes are missing");
    return *static_cast<const T*>(op_->attribute());
  }

  using Ints = flatbuffers::Vector<std::int32_t>;
  Dims ints(const char* field, const Ints* list, std::size_t expected) const {
    if (length(list) != expected)
      throw_here<InvalidGraph>(std::string(field) + " has the wrong length", std::to_string(expected),
                               std::to_string(length(list)));
    Dims dims;
    for (std::size_t i = 0; i < expected; ++i)
      dims.push_back(list->Get(static_cast<flatbuffers::uoffset_t>(i)));
    return dims;
  }

  DType acc_type(schema::DType type) const {
    const auto code = static_cast<std::uint32_t>(type);
    const std::optional<DType> dtype = dtype_from_code(code);
    if (!dtype)
      throw_here<InvalidGraph>("acc_type is not a dtype", "INT32, INT48, FP16 or FP32",
                               dtype_code_name(code));
    return *dtype;
  }

  // A file without the field has UNKNOWN, which means PROPAGATE.
  NanMode nan_mode(schema::NanPropagationMode mode) const {
    if (mode > schema::NanPropagationMode::MAX)
      throw_here<InvalidGraph>("unknown nan_mode", "PROPAGATE or IGNORE",
                               std::to_string(static_cast<std::uint32_t>(mode)));
    return mode == schema::NanPropagationMode::IGNORE ? NanMode::kIgnore : NanMode::kPropagate;
  }

  Scalar bound(const char* field, const flatbuffers::Vector<std::uint8_t>* data, DType dtype) const {
    const std::size_t needed = byte_size(dtype);
    if (length(data) < needed || length(data) - needed >= kDataAlignment)
      throw_here<InvalidGraph>(std::string(field) + " has the wrong size", std::to_string(needed) + " bytes",
                               std::to_string(length(data)) + " bytes");
    return scalar(dtype, reinterpret_cast<const std::byte*>(data->data()));
  }

  using DTypes = std::vector<DType>;

  // Nothing to read: the operator has no attributes, or all are operands.
  template <class A>
  void read(A& /*attrs*/, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {}
  void read(CastAttrs& a, const DTypes& /*dtypes*/, const TensorType& result) const {
    a.dtype = result.dtype;
  }
  void read(TosaMatmulAttrs& a, const DTypes& dtypes, const TensorType& result) const {
    if (dtypes[0] == DType::kF16 && result.dtype == DType::kF32) a.dtype = result.dtype;
  }
  void read(AxisAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    a.axis = table<schema::ReduceSumAttribute>().axis();
  }
  void read(PermuteAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const Ints* perms = table<schema::TransposeAttribute>().perms();
    a.perm = ints("perms", perms, std::min<std::size_t>(length(perms), kMaxRank));
  }
  void read(TosaConvAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::Conv2dAttribute>();
    const std::size_t spatial = op_->op() == schema::Op::CONV3D ? 3 : 2;
    a.pad = ints("pad", t.pad(), 2 * spatial);
    a.stride = ints("stride", t.stride(), spatial);
    a.dilation = ints("dilation", t.dilation(), spatial);
    a.local_bound = t.local_bound();
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaTransposeConvAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::TransposeConv2dAttribute>();
    a.out_pad = ints("out_pad", t.out_pad(), 4);
    a.stride = ints("stride", t.stride(), 2);
    a.local_bound = t.local_bound();
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaAvgPoolAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::AvgPool2dAttribute>();
    a.kernel = ints("kernel", t.kernel(), 2);
    a.stride = ints("stride", t.stride(), 2);
    a.pad = ints("pad", t.pad(), 4);
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaMaxPoolAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::MaxPool2dAttribute>();
    a.kernel = ints("kernel", t.kernel(), 2);
    a.stride = ints("stride", t.stride(), 2);
    a.pad = ints("pad", t.pad(), 4);
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaClampAttrs& a, const DTypes& dtypes, const TensorType& /*result*/) const {
    const auto& t = table<schema::ClampAttribute>();
    a.min_val = bound("min_val", t.min_val(), dtypes[0]);
    a.max_val = bound("max_val", t.max_val(), dtypes[0]);
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaAxisNanAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::ArgMaxAttribute>();
    a.axis = t.axis();
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaNanAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    a.nan_mode = nan_mode(table<schema::MaximumAttribute>().nan_mode());
  }
  void read(TosaShiftAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    a.round = table<schema::ArithmeticRightShiftAttribute>().round();
  }
  void read(TosaFftAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::FFT2dAttribute>();
    a.inverse = t.inverse();
    a.local_bound = t.local_bound();
  }
  void read(TosaRfftAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    a.local_bound = table<schema::RFFT2dAttribute>().local_bound();
  }
  void read(TosaRescaleAttrs& a, const DTypes& /*dtypes*/, const TensorType& result) const {
    const auto& t = table<schema::RescaleAttribute>();
    a.dtype = result.dtype;
    a.scale32 = t.scale32();
    a.rounding_mode = rounding_mode(t.rounding_mode());
    a.per_channel = t.per_channel();
    a.input_unsigned = t.input_unsigned();
    a.output_unsigned = t.output_unsigned();
  }
  RoundingMode rounding_mode(schema::RoundingMode mode) const {
    switch (mode) {
      case schema::RoundingMode::SINGLE_ROUND:
        return RoundingMode::kSingleRound;
      case schema::RoundingMode::INEXACT_ROUND:
        return RoundingMode::kInexactRound;
      case schema::RoundingMode::DOUBLE_ROUND:
        return RoundingMode::kDoubleRound;
      case schema::RoundingMode::UNKNOWN:
        break;
    }
    throw_here<InvalidGraph>("unknown rounding_mode", "SINGLE_ROUND, INEXACT_ROUND or DOUBLE_ROUND",
                             std::to_string(static_cast<std::uint32_t>(mode)));
  }
  void read(TosaCustomAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const auto& t = table<schema::CustomAttribute>();
    a.operator_name = at_operator([&] { return name_of("operator_name", view(t.operator_name())); });
    a.domain_name = at_operator([&] { return name_of("domain_name", view(t.domain_name())); });
    const auto* text = t.implementation_attrs();
    if (length(text) != 0) a.implementation_attrs.assign(text->begin(), text->end());
  }
  void read(TosaResizeAttrs& a, const DTypes& /*dtypes*/, const TensorType& /*result*/) const {
    const schema::ResizeMode mode = table<schema::ResizeAttribute>().mode();
    if (mode != schema::ResizeMode::NEAREST && mode != schema::ResizeMode::BILINEAR)
      throw_here<InvalidGraph>("unknown mode", "NEAREST or BILINEAR",
                               std::to_string(static_cast<std::uint32_t>(mode)));
    a.mode = mode == schema::ResizeMode::NEAREST ? ResizeMode::kNearest : ResizeMode::kBilinear;
  }

  using Regions = std::vector<std::shared_ptr<const Graph>>;
  static constexpr std::size_t kAnyNumber = ~std::size_t{0};

  BlockTable& blocks_;
  BlockEntry& entry_;
  const schema::TosaBasicBlock& block_;
  const Storage& file_;
  std::size_t depth_;
  Graph graph_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string_view, std::uint32_t> names_;
  std::unordered_map<std::uint32_t, Regions> regions_;  // by operator
  LocationReader locations_;
  std::uint32_t index_ = Slot::kNone;  // of the operator being read, op_
  const schema::TosaOperator* op_ = nullptr;
  std::size_t next_ = 0;
};

Read read_program(const Storage& file) {
  BlockTable blocks(file, checked_root(file.bytes()));
  Graph graph = BlockReader(blocks, blocks.program(), 0).read();
  blocks.require_all_used();
  const auto nodes = graph.nodes();
  const bool has_variables =
      std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return touches_variables(node); });
  if (has_variables) verify(graph, {.types = false, .stage = false});  // the use of variables across regions
  return {std::move(graph), std::move(blocks).notes()};
}

Storage aligned_copy(std::span<const std::byte> file) {
  Storage copy = Storage::allocate(file.size());
  std::copy(file.begin(), file.end(), copy.writable());
  return copy;
}

}  // namespace

Read read(const Storage& file) {
  if (reinterpret_cast<std::uintptr_t>(file.bytes().data()) % kDataAlignment != 0)
    return read_program(aligned_copy(file.bytes()));
  return read_program(file);
}

Graph deserialize(const Storage& file) { return read(file).graph; }

Graph deserialize(std::span<const std::byte> file) { return deserialize(aligned_copy(file)); }

}  // namespace tosaic::tosa
