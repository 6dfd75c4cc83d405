#include "kernels/gemm/gemm_bf16.h"

#include <algorithm>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/elementwise/convert.h"
#include "kernels/gemm/tile_amx.h"
#include "kernels/gemm/tile_bf16.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kRowsPerChunk = 96;          // number of rows, as in gemm.cpp: the block of C stays in L1
constexpr int64_t kTiledRowsPerChunk = 128;    // number of rows with AMX; their sums stay in L2
constexpr int64_t kTileGain = 8;               // AMX is this many times as fast as vectors
constexpr int64_t kMinMacsPerChunk = 200'000;  // minimum number of multiplications per chunk: about 2 us
constexpr int64_t kMinConverted = 16'384;      // minimum number of elements to convert per chunk

// Returns the number of pairs of adjacent elements in a row of K. For AMX, rows are padded so that tiles of equal depth divide the pairs.
int64_t pairs_of(int64_t K) {
  const int64_t pairs = (K + 1) / 2;
  return cpu_info().features.amx_bf16 ? amx_even_pairs(pairs) : pairs;
}
int64_t terms_of(Bf16Form form) { return form == Bf16Form::three ? 3 : 1; }
int64_t parts_of(Bf16Form form) { return form == Bf16Form::three ? 2 : 1; }  // Returns the number of bfloat16 parts of each operand.

// Rounds rows [begin, end) of A. Each row stores its high parts, padded to an even length; in the three-term form, its low parts follow.
void round_rows(const float* A, int64_t lda, int64_t K, Bf16Form form, int64_t begin, int64_t end, uint16_t* to) {
  const int64_t length = 2 * pairs_of(K), row = length * parts_of(form);
  for (int64_t m = begin; m < end; ++m) {
    uint16_t *hi = to + m * row, *lo = form == Bf16Form::three ? hi + length : nullptr;
    if (form == Bf16Form::float16)
      narrow(A + m * lda, reinterpret_cast<Float16*>(hi), K);
    else
      to_bf16(A + m * lda, K, hi, lo);
    std::fill(hi + K, hi + length, uint16_t{0});
    if (lo != nullptr) std::fill(lo + K, lo + length, uint16_t{0});
  }
}

// Packs a panel of B. In the three-term form, the high parts come first, then the low parts. They are multiplied in the order high, low,
// high by A's high, high and low parts.
// @param room  working memory of wide_floats(K, width) floats
int64_t wide_floats(int64_t K, int64_t width) { return 2 * pairs_of(K) * width; }
void pack_panel(const float* B, int64_t K, int64_t columns, int64_t width, int64_t ldb, bool transposed, Bf16Form form, float* room,
                uint32_t* dst) {
  const int64_t pairs = pairs_of(K);
  if (!transposed) {
    const float* rows = B;
    if (columns < width) pack_b(B, K, columns, ldb, false, room), rows = room, ldb = width;
    for (int64_t term = 0; term < parts_of(form); ++term, dst += pairs * width) {
      if (form == Bf16Form::float16)
        pair_float16_rows(rows, ldb, K, width, dst);
      else
        pair_rows(rows, ldb, K, width, term == 1, dst);
      std::fill(dst + (K + 1) / 2 * width, dst + pairs * width, 0U);
    }
    return;
  }
  // Columns of B are contiguous. Two rounded numbers fit one 32-bit word, so that pairs are transposed as if they were floats.
  auto* narrow = reinterpret_cast<uint16_t*>(room);
  round_rows(B, ldb, K, form, 0, columns, narrow);
  const int64_t words = pairs * parts_of(form);
  for (int64_t term = 0; term < parts_of(form); ++term, dst += pairs * width) {
    transpose_plane(columns, pairs, reinterpret_cast<const uint32_t*>(room) + (term == 1 ? pairs : 0), words, dst, width);
    for (int64_t k = 0; k < pairs; ++k) std::fill(dst + k * width + columns, dst + (k + 1) * width, 0U);
  }
}

// Describes the layout of the rounded A: rows as round_rows() writes them, or AMX tiles, with the high parts' tiles before the low parts'.
struct RoundedA {
  Bf16Form form;
  int64_t M, K, row;      // `row` is the row stride of the rounded A in elements
  int64_t tile_rows = 0;  // number of elements from one 16-row band of tiles to the next; 0: A is in rows
  int64_t depth = 0;
  int64_t offsets[3];  // offsets in a row of the parts (high, high, low) for the three products with B's parts

  RoundedA(int64_t rows, int64_t columns, Bf16Form in_form, bool emulated) : form(in_form), M(rows), K(columns) {
    const int64_t parts = parts_of(form), pairs = pairs_of(K);
    if (!emulated && form != Bf16Form::float16 && M >= kLeastAmxRows && cpu_info().features.amx_bf16) depth = amx_depth(pairs);
    const int64_t part = depth != 0 ? pairs / depth * kAmxTile : 2 * pairs;
    row = parts * 2 * pairs;
    if (depth != 0) tile_rows = parts * part;
    offsets[0] = offsets[1] = 0, offsets[2] = part;
  }
  // Returns the number of elements of the rounded A, which suffices for both layouts.
  int64_t size() const { return std::max(M * row, (M + 15) / 16 * tile_rows); }
  void round(const float* A, int64_t lda, uint16_t* to, ThreadPool* pool) const {
    const PhaseScope phase(KernelPhase::pack);
    if (depth == 0) {
      const int64_t grain = std::max<int64_t>(1, kMinConverted / std::max<int64_t>(1, K));
      return parallel_for(pool, M, grain, [&](int64_t begin, int64_t end) { round_rows(A, lda, K, form, begin, end, to); });
    }
    parallel_for(pool, (M + 15) / 16, std::max<int64_t>(1, kMinConverted / 16 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint16_t* hi = to + i * tile_rows;
        to_bf16_tiles(A + 16 * i * lda, lda, std::min<int64_t>(16, M - 16 * i), K, 2 * pairs_of(K), depth, hi,
                      form == Bf16Form::three ? hi + offsets[2] : nullptr);
      }
    });
  }
};

// Returns a job for one panel, in which the caller still has to set B and the row range.
Bf16Tile job_for(const uint16_t* A, const RoundedA& layout, const Panels& panels, int64_t panel, float* C, int64_t ldc,
                 const Epilogue<float>& epilogue) {
  const int64_t n0 = panels.first_column(panel);
  Bf16Tile job{.A = A,
               .a_row = layout.row,
               .pixels = nullptr,
               .segments = layout.offsets,
               .num_segments = terms_of(layout.form),
               .b_segments = parts_of(layout.form),
               .b_first = 0,
               .length = 2 * pairs_of(layout.K),
               .B = nullptr,
               .to = {},
               .a_tiles = layout.tile_rows};
  job.to.vectors = panels.width_vectors(panel);
  job.to.C = C + n0, job.to.ldc = ldc;
  job.to.first_column = n0, job.to.columns = std::min(job.to.vectors * panels.lanes, panels.N - n0);
  job.to.epilogue = &epilogue;
  job.is_float16 = layout.form == Bf16Form::float16;
  return job;
}

}  // namespace

int64_t packed_bf16_size(int64_t K, int64_t N, Bf16Form form) {
  return pairs_of(K) * parts_of(form) * Panels(N, panel_shape<float>()).padded_columns();
}

PackedBf16 pack_bf16(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, Bf16Form form, uint32_t* data, ThreadPool* pool) {
  const Panels panels(N, panel_shape<float>());
  const int64_t rows = pairs_of(K) * parts_of(form);
  const PhaseScope phase(KernelPhase::pack);
  auto pack_panels = [&](int64_t begin, int64_t end) {
    std::vector<float> wide;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
      wide.resize(static_cast<size_t>(wide_floats(K, width)));
      pack_panel(B + n0 * (transposed ? ldb : 1), K, std::min(width, N - n0), width, ldb, transposed, form, wide.data(), data + rows * n0);
    }
  };
  if (K > 0) parallel_for(pool, panels.count, std::max<int64_t>(1, 4096 / K), pack_panels);
  return {K, N, form, data};
}

size_t gemm_bf16_scratch_bytes(int64_t M, int64_t K, Bf16Form form) { return aligned_bytes<uint16_t>(RoundedA(M, K, form, false).size()); }

void gemm_bf16(int64_t M, const float* A, int64_t lda, const PackedBf16& B, float* C, int64_t ldc, const Epilogue<float>& epilogue,
               void* scratch, ThreadPool* pool, bool emulated) {
  if (M <= 0 || B.N <= 0) return;
  const int64_t K = B.K;
  auto* narrow = static_cast<uint16_t*>(scratch);
  const RoundedA layout(M, K, B.form, emulated);
  layout.round(A, lda, narrow, pool);
  const PhaseScope phase(KernelPhase::compute);
  const Panels panels(B.N, panel_shape<float>());
  // A chunk consists of whole units of this many rows, because AMX tiles must not be split.
  const int64_t unit = layout.depth != 0 ? kAmxRows : 1, units = (M + unit - 1) / unit;
  const int64_t per_chunk = layout.depth != 0 ? kTiledRowsPerChunk : kRowsPerChunk;
  const int64_t chunks = (M + per_chunk - 1) / per_chunk, width = (panels.vectors + 1) * panels.lanes;
  const int64_t macs = K * terms_of(B.form) * std::min(M, per_chunk) * width / (layout.depth != 0 ? kTileGain : 1);
  const int64_t grain = std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, macs)), next_item = grain > 1 ? 1 : chunks_ahead(pool);
  parallel_for(pool, panels.count * chunks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item / chunks;
      Bf16Tile job = job_for(narrow, layout, panels, panel, C, ldc, epilogue);
      job.B = B.data + pairs_of(K) * parts_of(B.form) * panels.first_column(panel);
      job.to.row_begin = units * (item % chunks) / chunks * unit;
      job.to.row_end = std::min(M, units * (item % chunks + 1) / chunks * unit);
      const int64_t next_panel = (item + next_item) / chunks;
      if (next_panel != panel && next_panel < panels.count)
        job.to.next = B.data + pairs_of(K) * parts_of(B.form) * panels.first_column(next_panel);
      job.emulated = emulated;
      run_bf16_tile(job);
    }
  });
}

size_t gemm_bf16_unpacked_scratch_bytes(const GemmShape& s, Bf16Form form) {
  const PanelShape shape = panel_shape<float>();
  const int64_t width = shape.lanes * shape.max_vectors;
  return gemm_bf16_scratch_bytes(s.M, s.K, form) + aligned_bytes<float>(wide_floats(s.K, width)) +
         aligned_bytes<uint32_t>(pairs_of(s.K) * parts_of(form) * width);
}

void gemm_bf16_unpacked(const GemmShape& s, const float* A, const float* B, float* C, const Epilogue<float>& epilogue, Bf16Form form,
                        void* scratch) {
  if (s.M <= 0 || s.N <= 0) return;
  auto* room = static_cast<std::byte*>(scratch);
  auto* narrow = reinterpret_cast<uint16_t*>(room);
  auto* words = reinterpret_cast<uint32_t*>(room += gemm_bf16_scratch_bytes(s.M, s.K, form));
  const PanelShape shape = panel_shape<float>();
  auto* wide = reinterpret_cast<float*>(room + aligned_bytes<uint32_t>(pairs_of(s.K) * parts_of(form) * shape.lanes * shape.max_vectors));
  const RoundedA layout(s.M, s.K, form, false);
  layout.round(A, s.a_row, narrow, nullptr);
  const Panels panels(s.N, shape);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t n0 = panels.first_column(panel);
    Bf16Tile job = job_for(narrow, layout, panels, panel, C, s.ldc, epilogue);
    PhaseScope phase(KernelPhase::pack);
    if (s.K > 0)
      pack_panel(B + n0 * (s.b_transposed ? s.ldb : 1), s.K, job.to.columns, job.to.vectors * panels.lanes, s.ldb, s.b_transposed, form,
                 wide, words);
    phase.next(KernelPhase::compute);
    job.B = words;
    for (int64_t row = 0; row < s.M; row = job.to.row_end) {
      job.to.row_begin = row, job.to.row_end = std::min(s.M, row + kRowsPerChunk);  // a chunk's first row is a multiple of 16
      run_bf16_tile(job);
    }
  }
}

namespace {

// Returns true if there are many products: then each runs on one thread with a separate scratch slot. A few products run one after the
// other, each on all threads.
bool are_many(const GemmShape& s, int max_threads) { return s.batch >= 2 * static_cast<int64_t>(max_threads); }

size_t turned_bytes(const GemmShape& s) { return s.a_col == 1 ? 0 : aligned_bytes<float>(s.M * s.K); }

// Returns A with contiguous rows: A itself, or its transpose in `room`.
const float* rows_of(GemmShape& s, const float* A, float* room, ThreadPool* pool) {
  if (s.a_col == 1) return A;
  const PhaseScope phase(KernelPhase::pack);
  const int64_t grain = std::max<int64_t>(16, kMinConverted / std::max<int64_t>(1, s.K));
  parallel_for(pool, s.M, grain, [&](int64_t begin, int64_t end) {
    transpose_plane(s.K, end - begin, A + begin * s.a_row, s.a_col, room + begin * s.K, s.K);
  });
  s.a_row = s.K, s.a_col = 1;
  return room;
}

}  // namespace

size_t gemm_bf16_batched_scratch_bytes(const GemmShape& s, Bf16Form form, int max_threads) {
  if (are_many(s, max_threads))
    return (turned_bytes(s) + gemm_bf16_unpacked_scratch_bytes(s, form)) * static_cast<size_t>(ScratchSlots::count(max_threads, s.batch));
  return turned_bytes(s) + aligned_bytes<uint32_t>(packed_bf16_size(s.K, s.N, form)) + gemm_bf16_scratch_bytes(s.M, s.K, form);
}

void gemm_bf16_batched(const GemmShape& s, const BatchStrides& batch, const float* A, const float* B, float* C,
                       const Epilogue<float>& epilogue, Bf16Form form, void* scratch, int max_threads, ThreadPool* pool) {
  if (s.M <= 0 || s.N <= 0 || s.batch <= 0) return;
  if (are_many(s, max_threads)) {
    ScratchSlots slots(scratch, turned_bytes(s) + gemm_bf16_unpacked_scratch_bytes(s, form), ScratchSlots::count(max_threads, s.batch));
    const int64_t grain = std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, s.M * s.N * s.K));
    parallel_for(pool, s.batch, grain, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      for (int64_t i = begin; i < end; ++i) {
        const BatchOffsets o = offsets_of(batch, i);
        GemmShape one = s;
        const float* rows = rows_of(one, A + o.a, reinterpret_cast<float*>(lease.data()), nullptr);
        gemm_bf16_unpacked(one, rows, B + o.b, C + o.c, epilogue, form, lease.data() + turned_bytes(s));
      }
    });
    return;
  }
  auto* room = static_cast<std::byte*>(scratch);
  auto* words = reinterpret_cast<uint32_t*>(room + turned_bytes(s));
  void* rounded = room + turned_bytes(s) + aligned_bytes<uint32_t>(packed_bf16_size(s.K, s.N, form));
  int64_t packed_at = -1;
  for (int64_t i = 0; i < s.batch; ++i) {
    const BatchOffsets o = offsets_of(batch, i);
    GemmShape one = s;
    const float* rows = rows_of(one, A + o.a, reinterpret_cast<float*>(room), pool);
    if (o.b != packed_at) pack_bf16(B + o.b, s.K, s.N, s.ldb, s.b_transposed, form, words, pool);
    packed_at = o.b;
    gemm_bf16(s.M, rows, one.a_row, {s.K, s.N, form, words}, C + o.c, s.ldc, epilogue, rounded, pool);
  }
}

}  // namespace treadle::kernels
