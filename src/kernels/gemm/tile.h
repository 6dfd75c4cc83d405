// The interface between the GEMM driver and the micro-kernels: one call computes a block of rows of one panel (some columns of C).
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// The vector length of this machine and the limits of panels, for packing.
struct PanelShape {
  int64_t lanes = 1;        // number of elements of a vector
  int64_t max_vectors = 1;  // maximum width of a panel, in vectors
  int64_t rows = 1;         // number of rows of a tile, if the panel has the maximum width
};

/// The division of N columns into `count` panels: the first `wide` panels have `vectors + 1` vectors each, the others `vectors`.
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

/// A job of the micro-kernel: to compute rows [row_begin, row_end) of one panel of C, which has `columns` columns.
template <typename T>
struct TileJob {
  const T* A;
  int64_t a_row, a_col;
  int64_t a_rows = 0, a_panel = 0;  // if A is in blocks: rows per block, and elements from block to block; 0: rows are a_row apart
  const T* B;                       // address of the panel's first row
  int64_t b_row;                    // row stride of the panel in elements
  int64_t vectors;                  // width of the panel in vectors
  T* C;                             // address of row 0 in the panel's first column
  int64_t ldc;
  int64_t K, row_begin, row_end;
  int64_t first_column, columns;  // first column of the panel in C, and its number of columns without padding
  const Epilogue<T>* epilogue;
  const void* next = nullptr;  // the next memory to read, of this panel's size; it is prefetched into L2. May be null
};

/// Returns true if micro-kernels apply the activation in registers. Other activations need one more pass over C.
inline bool is_clamp(Unary activation) { return activation == Unary::none || activation == Unary::relu || activation == Unary::clip; }

template <typename T>
PanelShape panel_shape();
/// Runs gemm_tile_rows(), then applies an activation that is not a clamp, in blocks of C that are still in L1.
template <typename T>
void run_tile(const TileJob<T>& job);
template <typename T>
void gemm_tile_rows(const TileJob<T>& job);
/// Applies the epilogue to the sums of rows [to.row_begin, to.row_end) and stores them in C. Does not apply activations other than clamps.
/// @param sums  rows of to.vectors vectors, aligned to 64 bytes
void finish_sums(const float* sums, const TileJob<float>& to);
/// Computes C(m, n) = sum over k of A(m, k) B(n, k), for an unpacked B with contiguous rows and few rows of A.
template <typename T>
void gemm_dot_rows(const T* A, int64_t a_row, const T* B, int64_t ldb, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end,
                   int64_t K);
/// Computes C(n) = sum over k of A(k) B(k, n), for one row of A with element stride `a_col` and an unpacked B.
template <typename T>
void gemm_row_product(const T* A, int64_t a_col, const T* B, int64_t ldb, T* C, int64_t N, int64_t K);

}  // namespace treadle::kernels
