// Between the GEMM driver and the micro-kernels: one call computes a block of rows of one panel.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// The vectors of this machine, as the packing sees them.
struct PanelShape {
  int64_t lanes = 1;        // elements of a vector
  int64_t max_vectors = 1;  // widest panel
  int64_t rows = 1;         // of A that pass over it together
};

/// The panels of N columns: `count` of them, the first `wide` have `vectors + 1` vectors, the others `vectors`.
struct Panels {
  int64_t N, lanes, count, vectors, wide;

  Panels(int64_t n, const PanelShape& shape) : N(n), lanes(shape.lanes) {
    const int64_t total = (n + lanes - 1) / lanes;
    count = (total + shape.max_vectors - 1) / shape.max_vectors;
    vectors = count > 0 ? total / count : 0;
    wide = count > 0 ? total % count : 0;
  }
  int64_t first_column(int64_t panel) const { return (panel * vectors + (panel < wide ? panel : wide)) * lanes; }
  int64_t width_vectors(int64_t panel) const { return vectors + (panel < wide ? 1 : 0); }
  int64_t padded_columns() const { return first_column(count); }
};

/// Rows [row_begin, row_end) of C and the `columns` columns of one panel.
template <typename T>
struct TileJob {
  const T* A;
  int64_t a_row, a_col;
  int64_t a_rows = 0, a_panel = 0;  // A in blocks of so many rows, each so many elements behind the one before; 0: a_row apart
  const T* B;                       // the panel's first row
  int64_t b_row;                    // elements from one row of the panel to the next
  int64_t vectors;                  // width of the panel
  T* C;                             // row 0 and the panel's first column
  int64_t ldc;
  int64_t K, row_begin, row_end;
  int64_t first_column, columns;  // the panel's place in C, and how many of its columns exist
  const Epilogue<T>* epilogue;
  const void* next = nullptr;  // what is read after this panel, and as large: fetched into L2 meanwhile
};

/// Whether micro-kernels apply it themselves; the others pass over C once more.
inline bool is_clamp(Unary activation) { return activation == Unary::none || activation == Unary::relu || activation == Unary::clip; }

template <typename T>
PanelShape panel_shape();
/// gemm_tile_rows, then the activations that are more than a clamp, in pieces that stay in L1.
template <typename T>
void run_tile(const TileJob<T>& job);
template <typename T>
void gemm_tile_rows(const TileJob<T>& job);
/// C of rows [to.row_begin, to.row_end) = what the epilogue makes of their sums, without activations that are more than a clamp.
/// @param sums  rows of to.vectors vectors, aligned to 64 bytes
void finish_sums(const float* sums, const TileJob<float>& to);
/// C(m, n) = sum over k of A(m, k) B(n, k) with A's rows and B's rows contiguous, for B not packed and few rows of A.
template <typename T>
void gemm_dot_rows(const T* A, int64_t a_row, const T* B, int64_t ldb, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end,
                   int64_t K);
/// C(n) = sum over k of A(k) B(k, n) for one row of A whose elements are `a_col` apart, and B not packed.
template <typename T>
void gemm_row_product(const T* A, int64_t a_col, const T* B, int64_t ldb, T* C, int64_t N, int64_t K);

}  // namespace treadle::kernels
