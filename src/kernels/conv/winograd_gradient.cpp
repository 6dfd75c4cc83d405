#include "kernels/conv/winograd_gradient.h"

#include <algorithm>
#include <atomic>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/winograd.h"
#include "kernels/conv/winograd_transform.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int kOut = 4;  // number of outputs of a tile's side
constexpr int64_t kPoints = int64_t{kOut + 2} * (kOut + 2);
// Floats of a block of transformed tiles (1 to 12 MB). A block reads and writes all sums, which should take less time than its products.
constexpr int64_t kLeastTransformed = int64_t{1} << 18, kMostTransformed = int64_t{3} << 20, kTransformedToSums = 2;
// Number of sums of a range of filters (1 MB), which stay in L2 until they are transformed.
constexpr int64_t kSumFloats = int64_t{1} << 18;
constexpr int64_t kLeastFilters = 16;  // minimum number of filters of a range
constexpr int64_t kDepth = 128;        // number of tiles per product; a panel of 64 channels takes 32 KB

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
/// Returns the row stride: whole vectors plus a cache line, since rows a power of two apart would share cache sets.
int64_t row_of(int64_t channels) { return divide_up(channels, kWinogradLanes) * kWinogradLanes + kWinogradLanes; }

/// Divides the tiles into blocks (whole images, or some tile rows of one image), and the filters into ranges.
struct Plan {
  int64_t high, wide;  // numbers of tiles of an image along its height and width
  int64_t rows_per_block, images_per_block, blocks_of_image, blocks;
  int64_t v_row, z_row, v_matrix, z_matrix;  // strides of the transformed x (v) and dy (z)
  int64_t filters_each, ranges, s_matrix;

  explicit Plan(const ConvParams& p)
      : high(divide_up(p.window.out[1], kOut)), wide(divide_up(p.window.out[2], kOut)), v_row(row_of(p.C)), z_row(row_of(p.M)) {
    const int64_t floats = std::clamp(kTransformedToSums * kPoints * p.C * p.M, kLeastTransformed, kMostTransformed);
    const int64_t most = std::max<int64_t>(1, floats / (kPoints * (v_row + z_row))), of_image = high * wide;
    const bool whole = of_image <= most;
    rows_per_block = whole ? high : std::clamp<int64_t>(most / wide, 1, high);
    blocks_of_image = divide_up(high, rows_per_block);
    rows_per_block = divide_up(high, blocks_of_image);
    images_per_block = whole ? std::min(p.N, most / of_image) : 1;
    images_per_block = divide_up(p.N, divide_up(p.N, images_per_block));
    blocks = blocks_of_image * divide_up(p.N, images_per_block);
    const int64_t tiles = images_per_block * rows_per_block * wide;
    v_matrix = tiles * v_row, z_matrix = tiles * z_row;
    // With one block, the sums of a range of filters are transformed as soon as it is complete; with several, after the last block.
    filters_each = blocks > 1 ? p.M : std::min(p.M, std::max(kLeastFilters, kSumFloats / (kPoints * v_row)));
    ranges = divide_up(p.M, filters_each);
    s_matrix = filters_each * v_row;
  }
  // Returns the size in bytes, including the columns that panels read after the last row of a matrix.
  size_t v_bytes() const { return aligned_bytes<float>(kPoints * v_matrix + 4 * kWinogradLanes); }
  size_t z_bytes() const { return aligned_bytes<float>(kPoints * z_matrix); }
  size_t s_bytes() const { return aligned_bytes<float>(kPoints * s_matrix); }
  size_t zeros_bytes() const { return aligned_bytes<float>(v_row); }
};

struct Memory {
  float *v, *z, *s, *zeros;
  Memory(const Plan& plan, void* scratch) {
    auto* at = static_cast<std::byte*>(scratch);
    v = reinterpret_cast<float*>(at), at += plan.v_bytes();
    z = reinterpret_cast<float*>(at), at += plan.z_bytes();
    s = reinterpret_cast<float*>(at), at += plan.s_bytes();
    zeros = reinterpret_cast<float*>(at);
  }
};

struct Gradient {
  const ConvParams& p;
  const Plan& plan;
  const float *dy, *x;
  float* dw;
  Memory memory;
  ThreadPool* pool;

  /// Transforms both operands of a block. @return the number of the block's tiles
  int64_t transform(int64_t block) const {
    const Window& w = p.window;
    const int64_t image = block / plan.blocks_of_image * plan.images_per_block, images = std::min(plan.images_per_block, p.N - image);
    const int64_t first_row = block % plan.blocks_of_image * plan.rows_per_block,
                  rows = std::min(plan.rows_per_block, plan.high - first_row);
    const int64_t each = rows * plan.wide;
    const PhaseScope phase(KernelPhase::input_transform);
    parallel_for(pool, images * rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = image + i / rows, row = first_row + i % rows, tile = i * plan.wide;
        winograd_input(kOut, 0, plan.wide,
                       {.tiles_wide = plan.wide,
                        .x = x + n * w.in_size() * p.C,
                        .rows = w.in[1],
                        .columns = w.in[2],
                        .x_pixel = p.C,
                        .top = row * kOut - w.pad_begin[1],
                        .left = -w.pad_begin[2],
                        .channels = p.C,
                        .zeros = memory.zeros,
                        .v = memory.v + tile * plan.v_row,
                        .v_matrix = plan.v_matrix,
                        .v_row = plan.v_row});
        winograd_output_gradient(kOut, 0, plan.wide,
                                 {.tiles_wide = plan.wide,
                                  .dy = dy + (n * w.out_size() + row * kOut * w.out[2]) * p.M,
                                  .rows = w.out[1] - row * kOut,
                                  .columns = w.out[2],
                                  .channels = p.M,
                                  .z = memory.z + tile * plan.z_row,
                                  .z_matrix = plan.z_matrix,
                                  .z_row = plan.z_row});
      }
    });
    return images * each;
  }

  /// Computes s = z^T v for one point, where z and v are the transformed dy and x. If `add` is true, adds the product to s.
  void multiply(int64_t point, int64_t first_filter, int64_t filters, int64_t tiles, bool add) const {
    const Panels panels(p.C, panel_shape<float>());
    float* const sums = memory.s + point * plan.s_matrix;
    Epilogue<float> first, others;
    others.residual = sums, others.residual_row = plan.v_row;
    for (int64_t tile = 0; tile < tiles; tile += kDepth) {
      for (int64_t panel = 0; panel < panels.count; ++panel) {
        const int64_t column = panels.first_column(panel), vectors = panels.width_vectors(panel);
        gemm_tile_rows<float>({.A = memory.z + point * plan.z_matrix + tile * plan.z_row + first_filter,
                               .a_row = 1,
                               .a_col = plan.z_row,
                               .B = memory.v + point * plan.v_matrix + tile * plan.v_row + column,
                               .b_row = plan.v_row,
                               .vectors = vectors,
                               .C = sums + column,
                               .ldc = plan.v_row,
                               .K = std::min(kDepth, tiles - tile),
                               .row_begin = 0,
                               .row_end = filters,
                               .first_column = column,
                               .columns = std::min(vectors * panels.lanes, p.C - column),
                               .epilogue = add || tile > 0 ? &others : &first});
      }
    }
  }

  bool run() const {
    std::fill_n(memory.zeros, plan.v_row, 0.0F);
    std::atomic<bool> finite = true;
    for (int64_t block = 0; block < plan.blocks; ++block) {
      const int64_t tiles = transform(block);
      for (int64_t range = 0; range < plan.ranges; ++range) {
        const int64_t first = range * plan.filters_each, filters = std::min(plan.filters_each, p.M - first);
        PhaseScope phase(KernelPhase::compute);
        parallel_for(pool, kPoints, 1, [&](int64_t begin, int64_t end) {
          for (int64_t point = begin; point < end; ++point) multiply(point, first, filters, tiles, block > 0);
        });
        if (block + 1 < plan.blocks) continue;
        phase.next(KernelPhase::output_transform);
        parallel_for(pool, filters, 4, [&](int64_t begin, int64_t end) {
          bool all = true;
          for (int64_t m = begin; m < end; ++m)
            all &= winograd_weights_gradient(kOut, memory.s + m * plan.v_row, plan.s_matrix, p.C, dw + (first + m) * p.C * 9);
          if (!all) finite.store(false, std::memory_order_relaxed);
        });
      }
    }
    return finite.load(std::memory_order_relaxed);
  }
};

}  // namespace

bool winograd_gradient_pays(const ConvParams& p, const ConvChoice& choice) {
  if (!winograd_applies(p) || choice.max_weight_expansion < static_cast<double>(kPoints) / 9) return false;
  const Plan plan(p);
  const ConvRates& rates = choice.rates;
  const double C = static_cast<double>(p.C), M = static_cast<double>(p.M), pixels = static_cast<double>(p.N * p.window.out_size()),
               tiles = static_cast<double>(p.N * plan.high * plan.wide), points = kPoints;
  const double direct = 2 * 9 * pixels * C * M / static_cast<double>(rates.direct);
  const double products = 2 * points * tiles * C * M / static_cast<double>(rates.winograd);
  const double transforms = 2 * points * tiles * (C + M) * sizeof(float) / static_cast<double>(rates.transforms);
  const double sums = 2 * points * C * M * sizeof(float) * static_cast<double>(plan.blocks) / static_cast<double>(rates.cached);
  return products + transforms + sums < direct;
}

size_t winograd_gradient_scratch_bytes(const ConvParams& p) {
  const Plan plan(p);
  return plan.v_bytes() + plan.z_bytes() + plan.s_bytes() + plan.zeros_bytes();
}

bool winograd_gradient(const ConvParams& p, const float* dy, const float* x, float* dw, void* scratch, ThreadPool* pool) {
  const Plan plan(p);
  return Gradient{.p = p, .plan = plan, .dy = dy, .x = x, .dw = dw, .memory = Memory(plan, scratch), .pool = pool}.run();
}

}  // namespace treadle::kernels
