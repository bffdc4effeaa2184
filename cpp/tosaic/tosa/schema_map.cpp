#include "tosaic/tosa/schema_map.h"

#include <tosa_generated.h>

#include <array>
#include <cstring>
#include <unordered_map>

namespace tosaic::tosa {
namespace {

struct OpCodes {
  std::unordered_map<Op, std::uint32_t> code;
  std::unordered_map<std::uint32_t, Op> op;
};

std::string text_name(schema::Op code) {
  std::string text = "tosa.";
  for (const char* c = schema::EnumNameOp(code); *c != '\0'; ++c)
    text += *c >= 'A' && *c <= 'Z' ? static_cast<char>(*c - 'A' + 'a') : *c;
  return text;
}

const OpCodes& op_codes() {
  static const OpCodes* const codes = [] {
    auto* built = new OpCodes;
    for (const schema::Op code : schema::EnumValuesOp()) {
      const std::optional<Op> op = parse_op(text_name(code));
      if (!op) continue;
      built->code.emplace(*op, static_cast<std::uint32_t>(code));
      built->op.emplace(static_cast<std::uint32_t>(code), *op);
    }
    return built;
  }();
  return *codes;
}

struct DTypePair {
  DType ours;
  schema::DType theirs;
};
constexpr std::array<DTypePair, 11> kDTypes{{{DType::kBool, schema::DType::BOOL},
                                             {DType::kI4, schema::DType::INT4},
                                             {DType::kI8, schema::DType::INT8},
                                             {DType::kI16, schema::DType::INT16},
                                             {DType::kI32, schema::DType::INT32},
                                             {DType::kI48, schema::DType::INT48},
                                             {DType::kF32, schema::DType::FP32},
                                             {DType::kF16, schema::DType::FP16},
                                             {DType::kBF16, schema::DType::BF16},
                                             {DType::kF8E4M3, schema::DType::FP8E4M3},
                                             {DType::kF8E5M2, schema::DType::FP8E5M2}}};

constexpr std::size_t kI48InMemory = 8;
constexpr std::size_t kI48Packed = 6;

std::byte sign_extended_nibble(std::byte nibble) {
  const int value = std::to_integer<int>(nibble & std::byte{15});
  return static_cast<std::byte>(value >= 8 ? value - 16 : value);
}

}  // namespace

std::optional<std::uint32_t> op_code(Op op) {
  const auto it = op_codes().code.find(op);
  if (it == op_codes().code.end()) return std::nullopt;
  return it->second;
}

std::optional<Op> op_from_code(std::uint32_t code) {
  const auto it = op_codes().op.find(code);
  if (it == op_codes().op.end()) return std::nullopt;
  return it->second;
}

std::string op_code_name(std::uint32_t code) {
  if (code > static_cast<std::uint32_t>(schema::Op::MAX)) return "number " + std::to_string(code);
  return schema::EnumNameOp(static_cast<schema::Op>(code));
}

std::optional<std::uint32_t> dtype_code(DType dtype) {
  for (const DTypePair& pair : kDTypes)
    if (pair.ours == dtype) return static_cast<std::uint32_t>(pair.theirs);
  return std::nullopt;
}

std::optional<DType> dtype_from_code(std::uint32_t code) {
  for (const DTypePair& pair : kDTypes)
    if (static_cast<std::uint32_t>(pair.theirs) == code) return pair.ours;
  return std::nullopt;
}

std::string dtype_code_name(std::uint32_t code) {
  if (code > static_cast<std::uint32_t>(schema::DType::MAX)) return "dtype number " + std::to_string(code);
  return schema::EnumNameDType(static_cast<schema::DType>(code));
}

bool same_layout(DType dtype) { return dtype != DType::kBool && dtype != DType::kI4 && dtype != DType::kI48; }

std::size_t packed_size(DType dtype, std::size_t count) {
  if (dtype == DType::kI4) return count / 2 + count % 2;
  if (dtype == DType::kI48) return count * kI48Packed;
  return count * byte_size(dtype);
}

void pack(DType dtype, std::span<const std::byte> elements, std::span<std::byte> packed) {
  if (dtype == DType::kBool) {
    for (std::size_t i = 0; i < elements.size(); ++i)
      packed[i] = elements[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  } else if (dtype == DType::kI4) {
    for (std::size_t i = 0; i < packed.size(); ++i) {
      const std::byte high = 2 * i + 1 < elements.size() ? elements[2 * i + 1] : std::byte{0};
      packed[i] = (elements[2 * i] & std::byte{15}) | ((high & std::byte{15}) << 4);
    }
  } else if (dtype == DType::kI48) {
    for (std::size_t i = 0; i < packed.size() / kI48Packed; ++i)
      std::memcpy(&packed[i * kI48Packed], &elements[i * kI48InMemory], kI48Packed);
  } else if (!elements.empty()) {
    std::memcpy(packed.data(), elements.data(), packed.size());
  }
}

void unpack(DType dtype, std::span<const std::byte> packed, std::span<std::byte> elements) {
  if (dtype == DType::kI4) {
    for (std::size_t i = 0; i < elements.size(); ++i)
      elements[i] = sign_extended_nibble(i % 2 == 0 ? packed[i / 2] : packed[i / 2] >> 4);
  } else if (dtype == DType::kI48) {
    for (std::size_t i = 0; i < packed.size() / kI48Packed; ++i) {
      const std::byte* from = &packed[i * kI48Packed];
      std::memcpy(&elements[i * kI48InMemory], from, kI48Packed);
      const bool negative = (from[kI48Packed - 1] & std::byte{0x80}) != std::byte{0};
      for (std::size_t k = kI48Packed; k < kI48InMemory; ++k)
        elements[i * kI48InMemory + k] = negative ? std::byte{0xff} : std::byte{0};
    }
  } else {
    pack(dtype, packed, elements);  // any nonzero bool becomes 1 in either direction
  }
}

}  // namespace tosaic::tosa
