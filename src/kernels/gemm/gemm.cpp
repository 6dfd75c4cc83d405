// The GEMM driver: packs B, splits a product into tiles, distributes them over threads, and runs batches.
#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/trace/kernel_phases.h"
#include "core/values/large_memory.h"
#include "kernels/gemm/gemm_split.h"
#include "kernels/gemm/outer.h"
#include "kernels/gemm/tile.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kRowsPerChunk = 96;  // multiple of both tile heights (6 and 8); with 64 columns, the block of C stays in L1
// Number of rows per chunk if at least kManyPanels panels give all threads work. Larger chunks load each panel less often.
constexpr int64_t kRowsOfManyPanels = 192;
constexpr int64_t kManyPanels = 8;
constexpr int64_t kMinMacsPerChunk = 100'000;  // minimum number of multiplications per chunk: 2 us, 20 times the cost of a parallel region
constexpr int64_t kPanelBytes = 192 * 1024;    // size of a panel that stays in L2 (1 MB) beside the rows of A
constexpr int64_t kFewRows = 4;                // up to this number of rows, packing B would cost as much as the product

int64_t grain_for(int64_t macs_per_item) { return std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, macs_per_item)); }

template <typename T>
void pack_panel(const T* B, int64_t K, int64_t columns, int64_t width, int64_t ldb, bool transposed, T* dst) {
  if (!transposed) {
    for (int64_t k = 0; k < K; ++k) {
      std::memcpy(dst + k * width, B + k * ldb, static_cast<size_t>(columns) * sizeof(T));
      std::fill(dst + k * width + columns, dst + (k + 1) * width, T{0});
    }
    return;
  }
  constexpr int64_t kBlock = 16;  // number of rows of the panel that are written together, so that they stay in L1
  for (int64_t k0 = 0; k0 < K; k0 += kBlock) {
    const int64_t k1 = std::min(K, k0 + kBlock);
    if constexpr (std::is_same_v<T, float>) {
      transpose_plane(columns, k1 - k0, B + k0, ldb, dst + k0 * width, width);
    } else {
      for (int64_t n = 0; n < columns; ++n) {
        for (int64_t k = k0; k < k1; ++k) dst[k * width + n] = B[n * ldb + k];
      }
    }
    for (int64_t k = k0; k < k1; ++k) std::fill(dst + k * width + columns, dst + (k + 1) * width, T{0});
  }
}

template <typename T>
void pack_one(const T* B, int64_t K, const Panels& panels, int64_t panel, int64_t ldb, bool transposed, T* data) {
  if (K == 0) return;  // in this case B may be null
  const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
  pack_panel(B + n0 * (transposed ? ldb : 1), K, std::min(width, panels.N - n0), width, ldb, transposed, data + K * n0);
}

/// Describes A as the micro-kernel reads it: strided in place, or copied into blocks of rows.
template <typename T>
struct ReadableA : MatrixA<T> {
  int64_t rows = 0, step = 0;  // rows of a block, and number of elements from block to block; 0: A is strided
};

/// Returns a job for one panel, in which the caller still has to set B and the row range.
template <typename T>
TileJob<T> job_for(const ReadableA<T>& A, int64_t K, const Panels& panels, int64_t panel, T* C, int64_t ldc, const Epilogue<T>& epilogue) {
  const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel);
  return {.A = A.data,
          .a_row = A.row,
          .a_col = A.col,
          .a_rows = A.rows,
          .a_panel = A.step,
          .B = nullptr,
          .b_row = vectors * panels.lanes,
          .vectors = vectors,
          .C = C + n0,
          .ldc = ldc,
          .K = K,
          .row_begin = 0,
          .row_end = 0,
          .first_column = n0,
          .columns = std::min(vectors * panels.lanes, panels.N - n0),
          .epilogue = &epilogue};
}

/// Computes one panel of an unpacked B. A last panel that ends within a vector is packed into `tail`, so that no load reads past B's end.
template <typename T>
void gemm_in_place(const GemmShape& s, const Panels& panels, int64_t panel, const T* A, const T* B, T* C, const Epilogue<T>& epilogue,
                   T* tail) {
  const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
  TileJob<T> job = job_for<T>({{A, s.a_row, s.a_col}}, s.K, panels, panel, C, s.ldc, epilogue);
  job.row_end = s.M;
  if (n0 + width <= s.N) {
    job.B = B + n0;
    job.b_row = s.ldb;
  } else {
    const PhaseScope phase(KernelPhase::pack);
    pack_panel(B + n0, s.K, s.N - n0, width, s.ldb, false, tail);
    job.B = tail;
  }
  run_tile(job);
}

bool is_plain(const auto& e) { return e.alpha == 1 && e.bias == nullptr && e.residual == nullptr && e.activation == Unary::none; }

enum class Method { pack, in_place, row, dot };
// Chooses the method from the shape alone: methods sum in different orders, and the sums of a product must not change with its epilogue.
Method method_of(const GemmShape& s) {
  if (s.M > kFewRows || s.K == 0) return Method::pack;  // if K == 0, B may be null, which only the packing method allows
  if (!s.b_transposed) return s.M == 1 ? Method::row : Method::in_place;
  return s.a_col == 1 ? Method::dot : Method::pack;
}

// The micro-kernel can read a transposed A in place. But if A's rows are long, the elements of one column of a tile lie in different pages
// and compete for few cache sets. So A is copied first if enough columns of B reuse the copy: as blocks of the tiles' rows if all panels
// have the maximum width, otherwise as a transposed matrix.
constexpr int64_t kFewestTurned = 64, kFewestColumns = 192, kLineElements = 16;
template <typename T>
bool turns_a(const GemmShape& s) {
  return std::is_same_v<T, float> && method_of(s) == Method::pack && s.a_row == 1 && s.a_col >= kFewestTurned && s.K >= kFewestTurned &&
         s.M >= kFewestTurned && s.N >= kFewestColumns;
}
/// Returns the row stride of the transposed A, in floats. The padding avoids powers of two, which map rows to the same cache sets.
int64_t turned_row(const GemmShape& s) { return s.K + kLineElements; }

bool takes_blocks(const Panels& panels, const PanelShape& shape) { return panels.wide == 0 && panels.vectors == shape.max_vectors; }

/// Returns the size in floats of the copy of A, enough for both layouts.
int64_t turned_size(const GemmShape& s) {
  const PanelShape shape = panel_shape<float>();
  const int64_t blocks = (s.M + shape.rows - 1) / shape.rows;
  return std::max(s.M * turned_row(s), blocks * shape.rows * s.K);
}

/// Copies A [K, M] into blocks of `rows` columns: to[M / rows, K, rows].
void copy_blocks(const float* A, int64_t lda, int64_t K, int64_t M, int64_t rows, float* to, ThreadPool* pool) {
  constexpr int64_t kLines = 32;  // number of rows of A that are copied together, so that they stay in cache from block to block
  const int64_t blocks = (M + rows - 1) / rows;
  parallel_for(pool, (K + kLines - 1) / kLines, grain_for(M * kLines), [&](int64_t begin, int64_t end) {
    for (int64_t k0 = begin * kLines; k0 < std::min(K, end * kLines); k0 += kLines) {
      const int64_t k1 = std::min(K, k0 + kLines);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t count = std::min(rows, M - block * rows);
        const float* from = A + block * rows;
        float* at = to + block * rows * K;
        if (count == 6) {  // a copy of constant length compiles to two moves
          for (int64_t k = k0; k < k1; ++k) std::memcpy(at + k * rows, from + k * lda, 6 * sizeof(float));
        } else {
          for (int64_t k = k0; k < k1; ++k) std::memcpy(at + k * rows, from + k * lda, static_cast<size_t>(count) * sizeof(float));
        }
      }
    }
  });
}

/// Returns A as the micro-kernel reads it: in place, or copied to `to`.
template <typename T>
ReadableA<T> readable_a(const GemmShape& s, const T* A, T* to, ThreadPool* pool) {
  if constexpr (std::is_same_v<T, float>) {
    if (turns_a<T>(s)) {
      const PhaseScope phase(KernelPhase::pack);
      const PanelShape shape = panel_shape<T>();
      if (takes_blocks(Panels(s.N, shape), shape)) {
        copy_blocks(A, s.a_col, s.K, s.M, shape.rows, to, pool);
        return {{to, 1, shape.rows}, shape.rows, shape.rows * s.K};
      }
      constexpr int64_t kRows = 64;
      const int64_t blocks = (s.M + kRows - 1) / kRows;
      parallel_for(pool, blocks, grain_for(s.K * kRows), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          transpose_plane(s.K, std::min(kRows, s.M - i * kRows), A + i * kRows, s.a_col, to + i * kRows * turned_row(s), turned_row(s));
      });
      return {{to, turned_row(s), 1}};
    }
  }
  return {{A, s.a_row, s.a_col}};
}

template <typename T>
bool splits(const GemmShape& s) {
  return std::is_same_v<T, float> && method_of(s) == Method::pack && pays_to_split(s);
}

/// Returns true if there are so many products that each runs on one thread.
bool are_many(int64_t products, int max_threads) { return products >= 2 * static_cast<int64_t>(max_threads); }

template <typename T>
size_t slot_bytes(const GemmShape& s, int max_threads) {
  const PanelShape shape = panel_shape<T>();
  if (splits<T>(s)) return split_b_bytes(s) + gemm_split_scratch_bytes(s, are_many(s.batch, max_threads) ? 1 : max_threads);
  switch (method_of(s)) {
    case Method::pack: return aligned_bytes<T>(packed_b_size<T>(s.K, s.N)) + (turns_a<T>(s) ? aligned_bytes<T>(turned_size(s)) : 0);
    case Method::in_place: return aligned_bytes<T>(s.K * shape.lanes * shape.max_vectors);
    case Method::row:
    case Method::dot: return 0;
  }
  return 0;
}

int num_slots(const GemmShape& s, int max_threads) {
  if (method_of(s) == Method::in_place) return ScratchSlots::count(max_threads, ScratchSlots::kMaxSlots);
  return are_many(s.batch, max_threads) ? ScratchSlots::count(max_threads, s.batch) : 1;
}

template <typename T>
void finish_products(const Epilogue<T>& e, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end) {
  if (is_plain(e)) return;
  const PhaseScope phase(KernelPhase::epilogue);
  for (int64_t m = 0; m < M; ++m) {
    T* c = C + m * ldc;
    for (int64_t n = n_begin; n < n_end; ++n) {
      T value = e.alpha * c[n];
      if (e.bias) value += e.beta * e.bias[m * e.bias_row + n * e.bias_col];
      if (e.residual) value += e.residual[m * e.residual_row + n];
      if constexpr (!std::is_same_v<T, float>) {
        if (e.activation == Unary::relu) value = value < 0 ? T{0} : value;
        if (e.activation == Unary::clip) value = value < T(e.a) ? T(e.a) : value > T(e.b) ? T(e.b) : value;
      }
      c[n] = value;
    }
    if constexpr (std::is_same_v<T, float>) unary_f32(e.activation, e.a, e.b, c + n_begin, c + n_begin, n_end - n_begin);
  }
}

/// Computes columns [n_begin, n_end) of the product without the epilogue.
template <typename T>
void plain_products(const GemmShape& s, const T* A, const T* B, T* C, int64_t ldc, int64_t n_begin, int64_t n_end) {
  if (s.b_transposed) return gemm_dot_rows(A, s.a_row, B, s.ldb, C, ldc, s.M, n_begin, n_end, s.K);
  gemm_row_product(A, s.a_col, B + n_begin, s.ldb, C + n_begin, n_end - n_begin, s.K);
}

// The residual may be C itself. So the products are first computed into a buffer, and the residual is read before C is written.
template <typename T>
void products_with_residual(const GemmShape& s, const T* A, const T* B, T* C, const Epilogue<T>& epilogue, int64_t n_begin, int64_t n_end) {
  constexpr int64_t kBlock = 64;
  T products[kFewRows * kBlock];
  Epilogue<T> rest = epilogue;
  rest.alpha = 1;
  rest.residual = nullptr;
  for (int64_t n = n_begin; n < n_end; n += kBlock) {
    const int64_t count = std::min(kBlock, n_end - n);
    plain_products(s, A, B + (s.b_transposed ? n * s.ldb : n), products, kBlock, 0, count);
    for (int64_t m = 0; m < s.M; ++m)
      for (int64_t j = 0; j < count; ++j)
        C[m * s.ldc + n + j] = epilogue.alpha * products[m * kBlock + j] + epilogue.residual[m * epilogue.residual_row + n + j];
  }
  finish_products(rest, C, s.ldc, s.M, n_begin, n_end);
}

template <typename T>
void product(int64_t M, const ReadableA<T>& A, const PackedB<T>& B, T* C, int64_t ldc, const Epilogue<T>& epilogue, ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const PhaseScope phase(KernelPhase::compute);
  const Panels panels(B.N, panel_shape<T>());
  const int64_t rows = panels.count < kManyPanels ? kRowsPerChunk : kRowsOfManyPanels, chunks = (M + rows - 1) / rows;
  const int64_t width = (panels.vectors + 1) * panels.lanes;
  const int64_t grain = grain_for(B.K * std::min(M, rows) * width);
  const int64_t next_item = grain > 1 ? 1 : chunks_ahead(pool);
  // The outer loop runs over panels: a panel stays in L2 while all row chunks use it.
  const int64_t items = panels.count * chunks;
  parallel_for(pool, items, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t item = B.backwards ? items - 1 - i : i;
      TileJob<T> job = job_for(A, B.K, panels, item / chunks, C, ldc, epilogue);
      job.B = B.data + B.K * job.first_column;
      const int64_t unit = std::max<int64_t>(1, A.rows), units = (M + unit - 1) / unit;
      job.row_begin = units * (item % chunks) / chunks * unit;
      job.row_end = std::min(M, units * (item % chunks + 1) / chunks * unit);
      const int64_t next = B.backwards ? item - next_item : item + next_item;
      if (next < 0 || next >= items)
        job.next = B.next;
      else if (next / chunks != item / chunks)
        job.next = B.data + B.K * panels.first_column(next / chunks);
      run_tile(job);
    }
  });
}

/// Runs products of a batch with the memory of one scratch slot. Consecutive products with the same B pack it only once.
template <typename T>
class PackingProducts {
 public:
  PackingProducts(const GemmShape& shape, const Epilogue<T>& epilogue, void* slot, int max_threads, ThreadPool* pool)
      : s_(shape),
        epilogue_(epilogue),
        slot_(static_cast<std::byte*>(slot)),
        max_threads_(max_threads),
        pool_(pool),
        splits_(splits<T>(shape)) {}

  void run(const T* A, const T* B, T* C) {
    const bool is_packed = B == packed_from_;
    packed_from_ = B;
    if constexpr (std::is_same_v<T, float>) {
      if (splits_) {
        if (!is_packed) split_ = split_b(s_, B, slot_, pool_);
        return gemm_split(s_, A, split_, C, epilogue_, slot_ + split_b_bytes(s_), max_threads_, pool_);
      }
    }
    T* packed = reinterpret_cast<T*>(slot_);
    T* turned = reinterpret_cast<T*>(slot_ + aligned_bytes<T>(packed_b_size<T>(s_.K, s_.N)));
    if (!is_packed) pack_b(B, s_.K, s_.N, s_.ldb, s_.b_transposed, packed, pool_);
    product<T>(s_.M, readable_a(s_, A, turned, pool_), {s_.K, s_.N, packed}, C, s_.ldc, epilogue_, pool_);
  }

 private:
  const GemmShape& s_;
  const Epilogue<T>& epilogue_;
  std::byte* slot_;
  int max_threads_;
  ThreadPool* pool_;
  bool splits_;
  const T* packed_from_ = nullptr;
  SplitB split_;
};

}  // namespace

template <typename T>
void run_tile(const TileJob<T>& job) {
  const Epilogue<T>& e = *job.epilogue;
  const int64_t depth = kPanelBytes / (job.vectors * panel_shape<T>().lanes * static_cast<int64_t>(sizeof(T)));
  if (job.K > depth + depth / 2 && job.row_end - job.row_begin > kFewRows) {
    // A deep panel would be evicted from L2 between two tiles. So K is split into parts; between parts, C contains the partial sum.
    const int64_t parts = (job.K + depth - 1) / depth;
    Epilogue<T> middle = e;
    middle.bias = nullptr;
    middle.activation = Unary::none;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t begin = job.K * i / parts, end = job.K * (i + 1) / parts;
      Epilogue<T> own = i + 1 < parts ? middle : e;
      if (i > 0) own.residual = job.C - job.first_column, own.residual_row = job.ldc;
      TileJob<T> part = job;
      part.A += begin * job.a_col;
      part.B += begin * job.b_row;
      part.K = end - begin;
      if (i + 1 < parts) part.next = part.B + part.K * job.b_row;
      part.epilogue = &own;
      run_tile(part);
    }
    return;
  }
  if (is_clamp(e.activation) || !std::is_same_v<T, float>) return gemm_tile_rows(job);
  if constexpr (std::is_same_v<T, float>) {
    TileJob<T> piece = job;
    for (int64_t row = job.row_begin; row < job.row_end; row = piece.row_end) {
      piece.row_begin = row;
      piece.row_end = std::min(job.row_end, row + kRowsPerChunk);
      gemm_tile_rows(piece);
      piece.next = nullptr;
      const PhaseScope phase(KernelPhase::epilogue);
      for (int64_t m = row; m < piece.row_end; ++m) {
        float* c = job.C + m * job.ldc;
        unary_f32(e.activation, e.a, e.b, c, c, job.columns);
      }
    }
  }
}

template <typename T>
int64_t packed_b_size(int64_t K, int64_t N) {
  return K * Panels(N, panel_shape<T>()).padded_columns();
}

template <typename T>
PackedB<T> pack_b(const T* B, int64_t K, int64_t N, int64_t ldb, bool transposed, T* data, ThreadPool* pool) {
  const Panels panels(N, panel_shape<T>());
  if (K > 0) {
    const PhaseScope phase(KernelPhase::pack);
    parallel_for(pool, panels.count, grain_for(K * 64), [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) pack_one(B, K, panels, panel, ldb, transposed, data);
    });
  }
  return {K, N, data};
}

template <typename T>
OwnedPackedB<T> pack_b(const T* B, int64_t K, int64_t N, int64_t ldb, bool transposed) {
  OwnedPackedB<T> owned;
  owned.storage = allocate_large(static_cast<size_t>(packed_b_size<T>(K, N)) * sizeof(T));
  owned.view = pack_b(B, K, N, ldb, transposed, reinterpret_cast<T*>(owned.storage->data()));
  return owned;
}

template <typename T>
void unpack_b(const PackedB<T>& packed, T* B) {
  const Panels panels(packed.N, panel_shape<T>());
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
    for (int64_t k = 0; k < packed.K; ++k)
      std::copy_n(packed.data + packed.K * n0 + k * width, std::min(width, packed.N - n0), B + k * packed.N + n0);
  }
}

template <typename T>
void gemm(int64_t M, const MatrixA<T>& A, const PackedB<T>& B, T* C, int64_t ldc, const Epilogue<T>& epilogue, ThreadPool* pool) {
  product(M, ReadableA<T>{A}, B, C, ldc, epilogue, pool);
}

template <typename T>
size_t gemm_scratch_bytes(const GemmShape& shape, int max_threads) {
  return slot_bytes<T>(shape, max_threads) * static_cast<size_t>(num_slots(shape, max_threads));
}

template <typename T>
void gemm_batched(const GemmShape& s, const BatchStrides& batch, const T* A, const T* B, T* C, const Epilogue<T>& epilogue, void* scratch,
                  int max_threads, ThreadPool* pool) {
  const int64_t products = num_products(batch);
  if (s.M <= 0 || s.N <= 0 || products <= 0) return;
  if (is_outer(s, epilogue)) return outer_products(s, batch, A, B, C, pool);
  const Method method = method_of(s);
  if (method == Method::dot || method == Method::row) {
    const PhaseScope phase(KernelPhase::compute);
    const int64_t columns = method == Method::dot ? 64 : 256;
    const int64_t blocks = (s.N + columns - 1) / columns;
    parallel_for(pool, products * blocks, grain_for(s.M * columns * s.K), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const BatchOffsets o = offsets_of(batch, item / blocks);
        const int64_t n0 = item % blocks * columns, n1 = std::min(s.N, n0 + columns);
        if (epilogue.residual) {
          products_with_residual(s, A + o.a, B + o.b, C + o.c, epilogue, n0, n1);
          continue;
        }
        plain_products(s, A + o.a, B + o.b, C + o.c, s.ldc, n0, n1);
        finish_products(epilogue, C + o.c, s.ldc, s.M, n0, n1);
      }
    });
    return;
  }
  ScratchSlots slots(scratch, slot_bytes<T>(s, max_threads), num_slots(s, max_threads));
  if (method == Method::in_place) {
    const PhaseScope phase(KernelPhase::compute);
    const Panels panels(s.N, panel_shape<T>());
    parallel_for(pool, products * panels.count, grain_for(s.M * 64 * s.K), [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(slots);
      for (int64_t item = begin; item < end; ++item) {
        const BatchOffsets o = offsets_of(batch, item / panels.count);
        gemm_in_place(s, panels, item % panels.count, A + o.a, B + o.b, C + o.c, epilogue, reinterpret_cast<T*>(lease.data()));
      }
    });
    return;
  }
  // Many products run on one thread each, with separate scratch memory. A few run one after the other, each on all threads.
  if (are_many(products, max_threads)) {
    parallel_for(pool, products, grain_for(s.M * s.N * s.K), [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(slots);
      PackingProducts<T> one(s, epilogue, lease.data(), 1, nullptr);
      for (int64_t i = begin; i < end; ++i) {
        const BatchOffsets o = offsets_of(batch, i);
        one.run(A + o.a, B + o.b, C + o.c);
      }
    });
    return;
  }
  PackingProducts<T> one(s, epilogue, scratch, max_threads, pool);
  for (int64_t i = 0; i < products; ++i) {
    const BatchOffsets o = offsets_of(batch, i);
    one.run(A + o.a, B + o.b, C + o.c);
  }
}

template <typename T>
void gemm_batched(const GemmShape& s, const BatchStrides& batch, const T* A, const PackedB<T>& B, T* C, const Epilogue<T>& epilogue,
                  ThreadPool* pool) {
  const int64_t products = num_products(batch);
  if (s.M <= 0 || s.N <= 0 || products <= 0) return;
  const bool same_for_all_rows = (epilogue.bias == nullptr || epilogue.bias_row == 0) && epilogue.residual == nullptr;
  // If the matrices of A and of C are contiguous, the batch is one product with more rows.
  if (batch.rank == 1 && batch.a[0] == s.M * s.a_row && batch.c[0] == s.M * s.ldc && same_for_all_rows) {
    return gemm<T>(s.M * products, {A, s.a_row, s.a_col}, B, C, s.ldc, epilogue, pool);
  }
  if (products == 1) {
    const BatchOffsets o = offsets_of(batch, 0);
    return gemm<T>(s.M, {A + o.a, s.a_row, s.a_col}, B, C + o.c, s.ldc, epilogue, pool);
  }
  parallel_for(pool, products, grain_for(s.M * s.N * s.K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const BatchOffsets o = offsets_of(batch, i);
      gemm<T>(s.M, {A + o.a, s.a_row, s.a_col}, B, C + o.c, s.ldc, epilogue, nullptr);
    }
  });
}

#define TREADLE_INSTANTIATE(T)                                                                                                            \
  template void run_tile(const TileJob<T>&);                                                                                              \
  template int64_t packed_b_size<T>(int64_t, int64_t);                                                                                    \
  template PackedB<T> pack_b(const T*, int64_t, int64_t, int64_t, bool, T*, ThreadPool*);                                                 \
  template OwnedPackedB<T> pack_b(const T*, int64_t, int64_t, int64_t, bool);                                                             \
  template void unpack_b(const PackedB<T>&, T*);                                                                                          \
  template void gemm(int64_t, const MatrixA<T>&, const PackedB<T>&, T*, int64_t, const Epilogue<T>&, ThreadPool*);                        \
  template size_t gemm_scratch_bytes<T>(const GemmShape&, int);                                                                           \
  template void gemm_batched(const GemmShape&, const BatchStrides&, const T*, const T*, T*, const Epilogue<T>&, void*, int, ThreadPool*); \
  template void gemm_batched(const GemmShape&, const BatchStrides&, const T*, const PackedB<T>&, T*, const Epilogue<T>&, ThreadPool*);
TREADLE_INSTANTIATE(float)
TREADLE_INSTANTIATE(double)
#undef TREADLE_INSTANTIATE

}  // namespace treadle::kernels
