// Matrix products by the blocked GEMM.
//
// If all batches share the right operand, they are computed as one product of all rows. A constant right
// operand is packed at prepare time. Any other right operand is packed one block of columns at a time, just
// before the block is used. Threads share a product with a constant right operand by the parts of a GemmGrid,
// and any other product by blocks of columns.
#include "tosaic/kernels/gemm/contraction.h"
#include "tosaic/kernels/gemm/excess.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/gemm/word_scaling.h"

namespace tosaic::kernels {
namespace {

// Merges all batches into one if they read consecutive rows of A and the same B.
Product merge_batches(Product p) {
  if (p.has_input || p.a_row != p.depth) return p;
  for (std::size_t i = 0; i < p.batches.size(); ++i)
    if (p.batches[i].b != p.batches[0].b || p.batches[i].a != static_cast<Index>(i) * p.rows * p.depth)
      return p;
  p.rows *= static_cast<Index>(p.batches.size());
  p.batches.resize(std::min<std::size_t>(p.batches.size(), 1));
  return p;
}

template <class T>
class BlockedProduct {
 public:
  BlockedProduct(const Product& product, const FastInputs<T>& inputs)
      : p_(merge_batches(product)), inputs_(inputs), kernels_(*inputs.loops.gemm) {
    const SumsTo to = inputs_.epilogue.rescales_to_bytes() ? SumsTo::kRescale
                      : inputs_.epilogue && !rescales()    ? SumsTo::kTake
                                                           : SumsTo::kResult;
    band_ = band();
    blocking_ = gemm_blocking(kernels_, p_.rows, bands_of(p_.cols), to);
    if (inputs_.epilogue.word_tables && inputs_.right != nullptr && band_ >= p_.depth)
      words_.emplace(*inputs_.epilogue.word_tables, 1, p_.cols, kernels_.lanes);
    copies_rows_ = !kReadsInPlace<T> || rows_collide<T>(p_.a_row);
    // A block of packed columns is wide enough to be worth a pass over A, and small enough for the cache.
    // Threads need several blocks each, of about the same size.
    constexpr Index most_elements = 98304;
    const Index most_panels =
        std::max<Index>(1, most_elements / (std::max<Index>(p_.depth, 1) * kernels_.panel));
    const auto batches = std::max<Index>(1, static_cast<Index>(p_.batches.size()));
    panels_ = std::max<Index>(1, ceil_div(p_.cols, kernels_.panel));
    blocks_ = inputs.by_rows ? 1 : ceil_div(panels_, most_panels);
    if (inputs.threads.count > 1 && !inputs.by_rows) {
      const Index parts = ceil_div(Index{kPartsPerThread} * Index{inputs.threads.count}, batches);
      blocks_ = std::max(blocks_, std::min(panels_, parts));
    }
    if (inputs.right != nullptr) pack_constant(inputs.right);
    grid_ = gemm_grid(kernels_, p_.rows, p_.cols, p_.depth, inputs.threads);
    ScratchPlan own;
    if (packed_ == nullptr) packed_at_ = own.take<Factor<T>>(bands_of(most_block_cols()).elements());
    if constexpr (kRescales<T>) bias_at_ = own.take<Sum<T>>(p_.cols + kernels_.panel);
    if (copies_rows_) gathered_at_ = own.take<Factor<T>>(blocking_.gather_elements());
    if (inputs_.epilogue.rescales_to_bytes() && blocking_.depth < p_.depth)
      staged_at_ = own.take<Sum<T>>(blocking_.rows * p_.cols);
    if (inputs_.epilogue && !rescales()) {
      staged_at_ = own.take<Sum<T>>(blocking_.rows * p_.cols);
      epilogue_at_ = own.take<std::byte>(static_cast<Index>(inputs_.epilogue.scratch_bytes));
    }
    if (words_) words_at_ = plan_.take<Index>(words_->elements());
    workers_ = plan_.take_each(own, inputs.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return packed_ != nullptr; }

  void run(const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace) const {
    if (packed_ != nullptr)
      multiply_by_constant(operands, result, workspace);
    else
      multiply_by_operand(operands, result, workspace);
    if (!p_.has_input) return;
    const Loop rows{.count = static_cast<Index>(p_.batches.size()) * p_.rows,
                    .unit_cost = static_cast<double>(p_.cols) * cost::kCopy};
    parallel_for(workspace.team, rows, [&](Index begin, Index end, Worker) {
      for (Index row = begin; row < end; ++row)
        add_input(operands.third + p_.batches[static_cast<std::size_t>(row / p_.rows)].input, row % p_.rows,
                  reinterpret_cast<Sum<T>*>(result) + row * p_.cols);
    });
  }

  // Packs all columns of the right operand, for multiply_rows() with the same scratch memory.
  void pack_right(const Factor<T>* right, std::byte* scratch) const {
    pack_columns(right, bands_of(p_.cols), workers_.of(scratch, 0));
  }
  void multiply_rows(const Source<T>* left, Index rows, std::byte* result, std::byte* scratch) const {
    if (p_.cols != 0)
      multiply_packed({left, 0, rows}, bands_of(p_.cols), nullptr, {0, 0, p_.cols}, result,
                      workers_.of(scratch, 0));
  }

 private:
  // Columns [first, first + count) of the result matrix that starts at element `matrix`.
  struct Columns {
    Index matrix, first, count;
  };

  // Rows [first, end) of the left operand, whose row 0 is at `a`.
  struct Rows {
    const Source<T>* a;
    Index first, end;
  };

  [[nodiscard]] Bands<T> bands_of(Index cols) const { return {kernels_, p_.depth, cols, band_}; }
  [[nodiscard]] Index band() const {
    if constexpr (std::is_same_v<T, WidePairs>)
      if (inputs_.right != nullptr)
        return exact_band(p_.depth, num_matrices(p_) * p_.cols, [&](Index j, Factor<T>* to) {
          const Factor<T>* from = inputs_.right + j / p_.cols * p_.depth * p_.cols + j % p_.cols * p_.b_col;
          for (Index k = 0; k < p_.depth; ++k) to[k] = from[k * p_.b_depth];
        });
    return band_depth<T>(p_.depth);
  }

  void multiply_by_constant(const CoreOperands<T>& operands, std::byte* result,
                            const Workspace& workspace) const {
    const Index* added_words = nullptr;
    if constexpr (std::is_same_v<T, WidePairs>)
      if (auto* to = piece<Index>(workspace.scratch, words_at_);
          words_ && words_->find(p_.has_bias ? operands.third : nullptr, 1, to))
        added_words = to;
    for (std::size_t i = 0; i < p_.batches.size(); ++i) {
      const Index matrix = p_.batches[i].b / std::max<Index>(1, p_.depth * p_.cols);
      const Right right{packed_->data() + matrix * bands_of(p_.cols).elements(), bands_of(p_.cols), 0,
                        added_words, excess_of_matrix(matrix)};
      const Sum<T>* terms = terms_.data() + (kHasQuads<T> ? matrix * p_.cols : 0);
      const Sum<T>* bias = p_.has_bias ? operands.third : nullptr;
      for_each_part(
          workspace.team, kernels_, grid_, p_.rows, p_.cols, [&](const GemmPart& part, Worker worker) {
            std::byte* const scratch = workers_.of(workspace.scratch, worker);
            const Index col = part.first_col, cols = part.end_col - col;
            const Sum<T>* added = bias_of(bias == nullptr ? nullptr : bias + col,
                                          kHasQuads<T> ? terms + col : nullptr, cols, scratch);
            multiply_columns({operands.left + p_.batches[i].a, part.first_row, part.end_row},
                             {right.packed, right.bands, col, right.added_words, right.excess}, added,
                             {static_cast<Index>(i) * p_.rows * p_.cols, col, cols}, result, scratch);
          });
    }
  }

  void multiply_by_operand(const CoreOperands<T>& operands, std::byte* result,
                           const Workspace& workspace) const {
    if (p_.cols == 0) return;
    const Loop all{
        .count = static_cast<Index>(p_.batches.size()) * blocks_,
        .unit_cost = static_cast<double>(p_.rows * p_.depth * most_block_cols()) * kernels_.multiply_add};
    parallel_for(workspace.team, all, [&](Index begin, Index end, Worker worker) {
      for (Index unit = begin; unit < end; ++unit)
        multiply_block(operands, unit / blocks_, unit % blocks_, result,
                       workers_.of(workspace.scratch, worker));
    });
  }

  // The first column of a block.
  [[nodiscard]] Index block_col(Index block) const {
    return std::min(panels_ * block / blocks_ * kernels_.panel, p_.cols);
  }
  [[nodiscard]] Index most_block_cols() const { return ceil_div(panels_, blocks_) * kernels_.panel; }

  // Packs a block of columns of the right operand, and multiplies by it.
  void multiply_block(const CoreOperands<T>& operands, Index matrix, Index block, std::byte* result,
                      std::byte* scratch) const {
    const Product::Batch& batch = p_.batches[static_cast<std::size_t>(matrix)];
    const Index col = block_col(block), cols = block_col(block + 1) - col;
    const Bands<T> bands = bands_of(cols);
    pack_columns(operands.right + batch.b + col * p_.b_col, bands, scratch);
    multiply_packed({operands.left + batch.a, 0, p_.rows}, bands,
                    p_.has_bias ? operands.third + col : nullptr, {matrix * p_.rows * p_.cols, col, cols},
                    result, scratch);
  }

  // Packs columns of the right operand into scratch memory, and computes their terms.
  void pack_columns(const Factor<T>* right, const Bands<T>& bands, std::byte* scratch) const {
    Factor<T>* packed = piece<Factor<T>>(scratch, packed_at_);
    pack(right, bands, packed);
    if constexpr (kHasQuads<T>)
      column_terms(kernels_, bands, packed, {}, inputs_.left_zero_point, piece<Sum<T>>(scratch, bias_at_));
  }

  // Multiplies by the columns that pack_columns() has packed.
  void multiply_packed(const Rows& rows, const Bands<T>& bands, const Sum<T>* bias, const Columns& columns,
                       std::byte* result, std::byte* scratch) const {
    multiply_columns(rows, {piece<Factor<T>>(scratch, packed_at_), bands, 0, nullptr, {}},
                     bias_of(bias, piece<Sum<T>>(scratch, bias_at_), columns.count, scratch), columns, result,
                     scratch);
  }

  void pack(const Factor<T>* b, const Bands<T>& bands, Factor<T>* packed) const {
    pack_bands(kernels_, bands, b, p_.b_depth, p_.b_col, packed);
  }

  void pack_constant(const Factor<T>* right) {
    const Index matrix = p_.depth * p_.cols, matrices = num_matrices(p_);
    const Bands<T> bands = bands_of(p_.cols);
    const Index elements = bands.elements();
    packed_ = packed_weights(inputs_, [&] {
      LargeArray<Factor<T>> packed(matrices * elements);
      for (Index m = 0; m < matrices; ++m) pack(right + m * matrix, bands, packed.data() + m * elements);
      return with_excess(kernels_, bands, matrices, std::move(packed));
    });
    if constexpr (kHasQuads<T>) {
      terms_.resize(static_cast<std::size_t>(matrices * p_.cols));
      for (Index m = 0; m < matrices; ++m)
        column_terms(kernels_, bands, packed_->data() + m * elements, excess_of_matrix(m),
                     inputs_.left_zero_point, terms_.data() + m * p_.cols);
    }
  }

  // The excess of a constant matrix.
  [[nodiscard]] Excess excess_of_matrix(Index matrix) const {
    return excess_of(*packed_, bands_of(p_.cols), num_matrices(p_), matrix);
  }

  [[nodiscard]] bool rescales() const { return inputs_.epilogue.tables.has_value(); }

  // Returns one number per column, which the product adds to the sums: the bias, plus `terms` if
  // kHasQuads<T>. For integers, the numbers are in scratch, because vector loads read beyond the last one.
  // `terms` may already be at that place in scratch.
  const Sum<T>* bias_of(const Sum<T>* bias, const Sum<T>* terms, Index cols, std::byte* scratch) const {
    if (!kRescales<T> || (!kHasQuads<T> && bias == nullptr)) return bias;
    auto* to = piece<Sum<T>>(scratch, bias_at_);
    for (Index j = 0; j < cols; ++j)
      to[j] = (kHasQuads<T> ? terms[j] : Sum<T>{}) + (bias == nullptr ? Sum<T>{} : bias[j]);
    return to;
  }

  // A packed right operand, and the first of its columns that are multiplied.
  struct Right {
    const Factor<T>* packed;
    Bands<T> bands;
    Index first_col;
    const Index* added_words;  // the terms of WordScaling if it applies
    Excess excess;
  };

  void multiply_columns(const Rows& rows, const Right& right, const Sum<T>* bias, const Columns& columns,
                        std::byte* result, std::byte* scratch) const {
    GemmProblem<T> problem{.rows = rows.end,
                           .cols = columns.count,
                           .first_row = rows.first,
                           .a = rows.a,
                           .a_stride = p_.a_row,
                           .copies_rows = copies_rows_,
                           .zero_point = inputs_.left_zero_point,
                           .right_zero_point = inputs_.right_zero_point,
                           .b = right.packed,
                           .excess = right.excess,
                           .bands = right.bands,
                           .first_col = right.first_col,
                           .column_bias = bias,
                           .clamp = inputs_.clamp,
                           .low = inputs_.low,
                           .high = inputs_.high,
                           .gathered = piece<Factor<T>>(scratch, gathered_at_)};
    const TakeRows<T> take = [&](Index row, Index count, const Sum<T>* sums) {
      put_rows(columns, row, count, sums, result, scratch);
    };
    RescaleTables<std::int32_t> tables;
    WordTables words;
    if (right.added_words != nullptr) {
      words = words_->at(0, columns.first, right.added_words);
      problem.rescale_words = &words;
      problem.words = reinterpret_cast<std::int16_t*>(result) + columns.matrix + columns.first;
      problem.words_stride = p_.cols;
    } else if (inputs_.epilogue.rescales_to_bytes()) {
      problem.bytes = reinterpret_cast<std::int8_t*>(result) + columns.matrix + columns.first;
      problem.bytes_stride = p_.cols;
      if (blocking_.depth < p_.depth) problem.c = piece<Sum<T>>(scratch, staged_at_);
      problem.c_stride = columns.count;
    } else if (inputs_.epilogue && !rescales()) {
      problem.c = piece<Sum<T>>(scratch, staged_at_);
      problem.c_stride = columns.count;
      problem.take = &take;
    } else {
      problem.c = reinterpret_cast<Sum<T>*>(result) + columns.matrix + columns.first;
      problem.c_stride = p_.cols;
    }
    if (rescales()) {
      tables = inputs_.epilogue.tables->at(columns.first);
      problem.rescale = &tables;
    }
    multiply(kernels_, blocking_, problem);
  }

  void put_rows(const Columns& columns, Index row, Index count, const Sum<T>* sums, std::byte* result,
                std::byte* scratch) const {
    const Epilogue<T>& epilogue = inputs_.epilogue;
    const auto put = [&](const Sum<T>* from, Index elements, Index at) {
      epilogue.run(from, elements, columns.first, result + at * static_cast<Index>(epilogue.bytes),
                   piece<std::byte>(scratch, epilogue_at_));
    };
    if (columns.count == p_.cols) return put(sums, count * p_.cols, columns.matrix + row * p_.cols);
    for (Index i = 0; i < count; ++i)
      put(sums + i * columns.count, columns.count, columns.matrix + (row + i) * p_.cols + columns.first);
  }

  // Adds row `i` of the addend to a row of the result.
  void add_input(const Sum<T>* input, Index i, Sum<T>* c) const {
    const auto alpha = static_cast<Sum<T>>(as_double(p_.alpha));
    const auto beta = static_cast<Sum<T>>(as_double(p_.beta));
    for (Index j = 0; j < p_.cols; ++j, ++c)
      *c = beta == 0 ? alpha * *c : alpha * *c + beta * input[i * p_.input_row + j * p_.input_col];
  }

  Product p_;
  FastInputs<T> inputs_;
  const GemmKernels<T>& kernels_;
  GemmBlocking blocking_;
  bool copies_rows_ = false;
  Index panels_ = 1, blocks_ = 1;  // of columns; blocks of a right operand that is packed when it is used
  std::shared_ptr<const LargeArray<Factor<T>>> packed_;
  GemmGrid grid_;
  ScratchPlan plan_;
  std::vector<Sum<T>> terms_;
  Index band_ = 1;
  std::optional<WordScaling> words_;
  std::size_t words_at_ = 0;
  PerWorker workers_;
  std::size_t packed_at_ = 0, bias_at_ = 0, gathered_at_ = 0, staged_at_ = 0,
              epilogue_at_ = 0;  // in a worker's scratch
};

}  // namespace

template <class T>
Core<T> fast_product(const Product& product, const FastInputs<T>& inputs) {
  if (!inputs.by_rows || inputs.right != nullptr || product.batches.size() != 1 || product.has_bias ||
      product.has_input)
    return as_core<T, BlockedProduct<T>>("matmul.gemm", product, inputs);
  auto blocked = std::make_shared<const BlockedProduct<T>>(product, inputs);
  Core<T> core = as_core<T>("matmul.gemm", blocked);
  core.pack = [blocked](const Factor<T>* right, std::byte* scratch) { blocked->pack_right(right, scratch); };
  core.multiply_rows = [blocked](const Source<T>* left, Index rows, std::byte* result, std::byte* scratch) {
    blocked->multiply_rows(left, rows, result, scratch);
  };
  return core;
}

#define TOSAIC_INSTANTIATE(T) template Core<T> fast_product(const Product&, const FastInputs<T>&);
TOSAIC_EACH_ARITHMETIC(TOSAIC_INSTANTIATE)

}  // namespace tosaic::kernels
