#include "kernels/conv/winograd.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/winograd_transform.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kPointsPerBlock = 32 * 36;    // number of tiles times matrices per block; the tiles' transformed inputs stay in L2
constexpr int64_t kPointsInOneBlock = 49 * 36;  // up to this size there is only one block, since each block reads all weights
// Number of channels that are summed in one chain of additions. The rounding errors of longer chains would dominate the result's error.
// Chains are shorter if there would otherwise be fewer than kFewChains.
constexpr int64_t kLongestSum = 128, kShortestSum = 16, kFewChains = 4;
// The number of channels is padded to a multiple of this; larger multiples would waste products with zeros.
constexpr int64_t kChannelsTogether = 8;
// With at least this many blocks, each thread computes whole blocks; with fewer, all threads share each block.
constexpr int64_t kEnoughBlocks = 6;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
int64_t round_up(int64_t n, int64_t to) { return divide_up(n, to) * to; }

/// Divides the tiles of one image into blocks of whole tile rows. If images have few tiles, a block has several images.
struct Plan {
  int64_t out, points;  // number of outputs along a tile's side; number of points of a tile, which is the number of matrices
  int64_t C, M;         // numbers of channels, rounded up
  int64_t high, wide;   // numbers of tiles along height and width
  int64_t rows_per_block, images_per_block;
  int64_t blocks;              // number of blocks of one image
  int64_t items;               // number of blocks of all images
  int64_t v_matrix, m_matrix;  // matrix strides in floats: one cache line of padding, as powers of two would share cache sets
  size_t v_bytes, m_bytes, zeros_bytes, slot_bytes;

  Plan(const ConvParams& p, int outputs) : out(outputs), points((out + 2) * (out + 2)) {
    const Window& w = p.window;
    const int64_t tiles_per_block = kPointsPerBlock / points, tiles_in_one_block = kPointsInOneBlock / points;
    C = round_up(p.C, kChannelsTogether);
    M = round_up(p.M, kWinogradLanes);
    high = (w.out[1] + out - 1) / out;
    wide = (w.out[2] + out - 1) / out;
    rows_per_block = high * wide <= tiles_in_one_block ? high : std::clamp<int64_t>(tiles_per_block / wide, 1, high);
    blocks = (high + rows_per_block - 1) / rows_per_block;
    rows_per_block = (high + blocks - 1) / blocks;
    images_per_block =
        blocks == 1 ? std::clamp<int64_t>(tiles_per_block / std::max<int64_t>(1, high * wide), 1, std::max<int64_t>(1, p.N)) : 1;
    items = blocks * ((p.N + images_per_block - 1) / images_per_block);
    const int64_t tiles = images_per_block * rows_per_block * wide;
    v_matrix = tiles * C + kWinogradLanes;
    m_matrix = tiles * M + kWinogradLanes;
    v_bytes = aligned_bytes<float>(points * v_matrix);
    m_bytes = aligned_bytes<float>(points * m_matrix);
    zeros_bytes = aligned_bytes<float>(C);
    slot_bytes = v_bytes + m_bytes + zeros_bytes + aligned_bytes<uint8_t>(tiles);
  }
  bool by_block() const { return items >= kEnoughBlocks; }
};

/// Returns the number of floats of one point's transformed weights. It includes one cache line of padding, since sizes of a power of two
/// would make points share cache sets.
int64_t point_size(const ConvParams& p, int64_t padded_columns) { return p.C * padded_columns + kWinogradLanes; }

/// Divides the channels into parts of nearly equal length that are summed separately. A point's weights are packed part by part, so that a
/// panel of a part stays in L1. Within a part, sums are cut into chains of at most longest_sum terms.
struct Parts {
  int64_t C, count, longest_sum;
  explicit Parts(int64_t channels) : C(channels), count(std::max(int64_t{1}, divide_up(C, kLongestSum))) {
    const int64_t chains = std::max(count, std::min(kFewChains, divide_up(C, kShortestSum)));
    longest_sum = std::max(int64_t{1}, divide_up(divide_up(C, count), divide_up(chains, count)));
  }
  int64_t begin(int64_t part) const { return C * part / count; }
};

/// The transformed weights of a range of panels, ordered by point, and within a point by part of the channels.
struct PackedPanels {
  int64_t begin, end;     // the range of panels
  int64_t first, padded;  // first column, and number of columns including the padding of the last panel
  int64_t point;          // number of floats from point to point
  const float* data;

  PackedPanels(const ConvParams& p, const Panels& panels, int64_t from, int64_t to, const float* packed)
      : begin(from),
        end(to),
        first(panels.first_column(from)),
        padded(panels.first_column(to) - first),
        point(point_size(p, padded)),
        data(packed) {}
};

/// Transforms and packs the weights of some panels. @param to  receives the packed weights
void pack_panels(const ConvParams& p, int out, const Panels& panels, const PackedPanels& some, const float* weights, float* to,
                 ThreadPool* pool) {
  const PhaseScope phase(KernelPhase::pack);
  const Parts parts(p.C);
  parallel_for(pool, some.end - some.begin, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = some.begin + begin; panel < some.begin + end; ++panel) {
      const int64_t first = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
      for (int64_t part = 0; part < parts.count; ++part) {
        const int64_t from = parts.begin(part), depth = parts.begin(part + 1) - from;
        winograd_weights(out, weights + (first * p.C + from) * 9, p.C * 9, depth, std::min(width, p.M - first), width,
                         to + from * some.padded + (first - some.first) * depth, some.point);
      }
    }
  });
}

/// If weights are packed during the run, returns how many panels to pack at a time. With one block of tiles, as many as stay in the cache
/// until they are multiplied, but at least one per thread; otherwise all, as each block needs all of them.
int64_t panels_at_once(const ConvParams& p, const Plan& plan, const Panels& panels, int max_threads) {
  constexpr int64_t kInCache = int64_t{6} << 20;  // bytes that stay in the cache
  if (plan.items > 1) return panels.count;
  const int64_t of_panel = plan.points * p.C * panels.width_vectors(0) * panels.lanes * static_cast<int64_t>(sizeof(float));
  return std::min(panels.count, std::max<int64_t>({1, max_threads, kInCache / std::max<int64_t>(1, of_panel)}));
}

/// One block of tiles of some images, computed by all threads of `pool`.
struct Block {
  const ConvParams& p;
  const Plan& plan;
  const float *x, *weights;
  const float* packed = nullptr;  // packed weights of all panels
  float* unpacked = nullptr;  // memory for weights that the block packs, panels_at_once panels at a time; null: weights are packed already
  int64_t panels_at_once = 0;
  float* y;
  const ConvEpilogue& epilogue;
  std::byte* scratch = nullptr;
  ThreadPool* pool = nullptr;
  int64_t image = 0, images = 0, first_row = 0, tile_rows = 0;  // first image and number of images; tile rows of the block

  float* v() const { return reinterpret_cast<float*>(scratch); }
  float* m() const { return reinterpret_cast<float*>(scratch + plan.v_bytes); }
  float* zeros() const { return reinterpret_cast<float*>(scratch + plan.v_bytes + plan.m_bytes); }
  uint8_t* finite() const { return reinterpret_cast<uint8_t*>(scratch + plan.v_bytes + plan.m_bytes + plan.zeros_bytes); }
  int64_t tiles_of_image() const { return tile_rows * plan.wide; }
  int64_t tiles() const { return images * tiles_of_image(); }
  int64_t output_rows() const { return std::min(tile_rows * plan.out, p.window.out[1] - first_row * plan.out); }

  /// Computes the matrices m: the products of the transformed inputs v and the weights.
  void products() const {
    const Panels panels(p.M, panel_shape<float>());
    if (unpacked == nullptr) return multiply(panels, {p, panels, 0, panels.count, packed});
    for (int64_t panel = 0; panel < panels.count; panel += panels_at_once) {
      const PackedPanels some(p, panels, panel, std::min(panels.count, panel + panels_at_once), unpacked);
      pack_panels(p, static_cast<int>(plan.out), panels, some, weights, unpacked, pool);
      multiply(panels, some);
    }
  }

  /// Multiplies point by point and, within a point, part by part of the channels: a panel of a part stays in L1 for all tiles.
  void multiply(const Panels& panels, const PackedPanels& some) const {
    const Parts parts(p.C);
    const int64_t ahead = chunks_ahead(pool);
    parallel_for(pool, plan.points, 1, [&](int64_t begin, int64_t end) {
      Epilogue<float> first, others;
      first.longest_sum = others.longest_sum = parts.longest_sum;
      others.residual_row = plan.M;
      for (int64_t point = begin; point < end; ++point) {
        float* const sums = m() + point * plan.m_matrix;
        others.residual = sums;
        for (int64_t part = 0; part < parts.count; ++part) {
          const int64_t from = parts.begin(part), depth = parts.begin(part + 1) - from;
          const float* own = some.data + point * some.point + from * some.padded;
          for (int64_t panel = some.begin; panel < some.end; ++panel) {
            const int64_t column = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
            const bool last = part + 1 == parts.count && panel + 1 == some.end;
            const float* next = last ? some.data + (point + ahead) % plan.points * some.point : own + depth * width;
            gemm_tile_rows<float>({.A = v() + point * plan.v_matrix + from,
                                   .a_row = plan.C,
                                   .a_col = 1,
                                   .B = own,
                                   .b_row = width,
                                   .vectors = width / panels.lanes,
                                   .C = sums + column,
                                   .ldc = plan.M,
                                   .K = depth,
                                   .row_begin = 0,
                                   .row_end = tiles(),
                                   .first_column = column,
                                   .columns = std::min(width, p.M - column),
                                   .epilogue = part > 0 ? &others : &first,
                                   .next = next});
            own += depth * width;
          }
        }
      }
    });
  }

  float direct(int64_t n, int64_t m, int64_t oh, int64_t ow) const {
    const Window& w = p.window;
    float sum = 0;
    for (int64_t c = 0; c < p.C; ++c) {
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t ih = oh + k / 3 - w.pad_begin[1], iw = ow + k % 3 - w.pad_begin[2];
        if (ih < 0 || ih >= w.in[1] || iw < 0 || iw >= w.in[2]) continue;
        float weight;
        std::memcpy(&weight, weights + (m * p.C + c) * 9 + k, sizeof(float));
        sum += x[((n * w.in[1] + ih) * w.in[2] + iw) * p.x_step() + c] * weight;
      }
    }
    return sum;
  }

  void repair(float low, float high) const {
    const Window& w = p.window;
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      if (finite()[tile] != 0) continue;
      const int64_t n = image + tile / tiles_of_image(), place = tile % tiles_of_image();
      const int64_t h0 = (first_row + place / plan.wide) * plan.out, w0 = place % plan.wide * plan.out;
      for (int64_t m = 0; m < p.M; ++m) {
        for (int64_t oh = h0; oh < std::min(h0 + plan.out, w.out[1]); ++oh) {
          for (int64_t ow = w0; ow < std::min(w0 + plan.out, w.out[2]); ++ow) {
            const int64_t pixel = (n * w.out[1] + oh) * w.out[2] + ow;
            float value = direct(n, m, oh, ow) + (epilogue.bias != nullptr ? epilogue.bias[m] : 0.0f);
            if (epilogue.residual != nullptr) value += epilogue.residual[pixel * p.M + m];
            if (value < low) value = low;
            if (value > high) value = high;
            y[pixel * p.y_step() + m] = value;
          }
        }
      }
    }
  }

  /// Calls part(image within the block, begin and end of its tiles) for each image that has tiles in [begin, end) of the block.
  template <typename Part>
  void each_image(int64_t begin, int64_t end, Part part) const {
    const int64_t each = tiles_of_image();
    for (int64_t n = begin / each; n * each < end; ++n) part(n, std::max(begin - n * each, int64_t{0}), std::min(end - n * each, each));
  }

  void run() const {
    const Clamp clamp = clamp_of(epilogue);
    const int64_t first_pixel = image * p.window.out_size() + first_row * plan.out * p.window.out[2], step = p.y_step();
    const int64_t each = tiles_of_image();
    std::fill_n(zeros(), p.C, 0.0f);
    PhaseScope phase(KernelPhase::input_transform);
    parallel_for(pool, tiles(), 4, [&](int64_t first_tile, int64_t last_tile) {
      each_image(first_tile, last_tile, [&](int64_t n, int64_t begin, int64_t end) {
        winograd_input(static_cast<int>(plan.out), begin, end,
                       {.tiles_wide = plan.wide,
                        .x = x + (image + n) * p.window.in[1] * p.window.in[2] * p.x_step(),
                        .rows = p.window.in[1],
                        .columns = p.window.in[2],
                        .x_pixel = p.x_step(),
                        .top = first_row * plan.out - p.window.pad_begin[1],
                        .left = -p.window.pad_begin[2],
                        .channels = p.C,
                        .zeros = zeros(),
                        .v = v() + n * each * plan.C,
                        .v_matrix = plan.v_matrix,
                        .v_row = plan.C});
      });
    });
    phase.next(KernelPhase::compute);
    products();
    phase.next(KernelPhase::output_transform);
    parallel_for(pool, tiles(), 4, [&](int64_t first_tile, int64_t last_tile) {
      each_image(first_tile, last_tile, [&](int64_t n, int64_t begin, int64_t end) {
        const int64_t pixel = first_pixel + n * p.window.out_size();
        winograd_output(static_cast<int>(plan.out), begin, end,
                        {.tiles_wide = plan.wide,
                         .m = m() + n * each * plan.M,
                         .m_matrix = plan.m_matrix,
                         .m_row = plan.M,
                         .rows = output_rows(),
                         .columns = p.window.out[2],
                         .channels = p.M,
                         .bias = epilogue.bias,
                         .residual = epilogue.residual != nullptr ? epilogue.residual + pixel * p.M : nullptr,
                         .low = clamp.low,
                         .high = clamp.high,
                         .y = y + pixel * step,
                         .y_pixel = step,
                         .finite = finite() + n * each});
      });
    });
    repair(clamp.low, clamp.high);
    phase.next(KernelPhase::none);
    if (clamp.complete) return;
    for (int64_t n = 0; n < images; ++n)
      activate(epilogue, y + (first_pixel + n * p.window.out_size()) * step, output_rows() * p.window.out[2], p.M, step, pool);
  }
};

}  // namespace

bool winograd_applies(const ConvParams& p) {
  const Window& w = p.window;
  if (p.group != 1 || w.kernel[0] != 1 || w.in[0] != 1 || w.out[0] != 1 || w.pad_begin[0] != 0) return false;
  for (int i = 1; i < 3; ++i) {
    if (w.kernel[i] != 3 || w.stride[i] != 1 || w.dilation[i] != 1 || w.pad_begin[i] > 2) return false;
  }
  return p.C >= 16 && p.M >= 16 && p.N > 0 && w.out_size() > 0;
}

// Estimates the time in microseconds from the measured rates. Products run near the peak rate; L2 limits the transforms; products overlap
// with the loading of weights from L3 or memory for half of the shorter of both times. Tiles that extend beyond the outputs waste work,
// which favors the direct method.
double winograd_estimate(const ConvParams& p, int side, const ConvRates& rates, bool from_memory) {
  const double C = static_cast<double>(p.C), M = static_cast<double>(p.M);
  const double stream = static_cast<double>(from_memory ? rates.memory : rates.cached);
  auto with_weights = [&](double products_us, double matrices) {
    const double stream_us = matrices * C * M * sizeof(float) / stream;
    return std::max(products_us, stream_us) + 0.5 * std::min(products_us, stream_us);
  };
  if (side == 0) return with_weights(2 * 9 * static_cast<double>(p.N * p.window.out_size()) * C * M / static_cast<double>(rates.direct), 9);
  const Plan plan(p, side);
  const double tiles = static_cast<double>(p.N * plan.high * plan.wide), points = static_cast<double>(plan.points);
  return with_weights(2 * points * tiles * C * M / static_cast<double>(rates.winograd), points) +
         tiles * (C + M) * points * sizeof(float) * 2 / static_cast<double>(rates.transforms);
}

int winograd_choice(const ConvParams& p, const ConvChoice& choice) {
  if (!winograd_applies(p)) return 0;
  const double weights = static_cast<double>(p.C * p.M);
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int side : {0, 2, 4}) {
    const double matrices = side == 0 ? 9 : (side + 2) * (side + 2);
    const double transformed = matrices * static_cast<double>(p.C * Panels(p.M, panel_shape<float>()).padded_columns());
    if (side != 0 && transformed > choice.max_weight_expansion * 9 * weights) continue;
    constexpr double kLastCache = 16e6;  // size of the last cache in bytes, which the model's other weights share
    double us = winograd_estimate(p, side, choice.rates, matrices * weights * sizeof(float) >= kLastCache);
    if (choice.packs_in_run) us += (9 + matrices) * weights * sizeof(float) / static_cast<double>(choice.rates.memory);
    if (us < least) least = us, best = side;
  }
  return best;
}

int64_t winograd_weights_size(const ConvParams& p, int out) {
  return (out + 2) * (out + 2) * point_size(p, Panels(p.M, panel_shape<float>()).padded_columns());
}

void winograd_pack(const ConvParams& p, int out, const float* weights, float* packed, ThreadPool* pool) {
  const Panels panels(p.M, panel_shape<float>());
  const PackedPanels all(p, panels, 0, panels.count, packed);
  pack_panels(p, out, panels, all, weights, packed, pool);
  for (int64_t end = all.point; end <= (out + 2) * (out + 2) * all.point; end += all.point)  // zeros, as they may be saved to a file
    std::fill_n(packed + end - kWinogradLanes, kWinogradLanes, 0.0F);
}

size_t winograd_scratch_bytes(const ConvParams& p, int out, int max_threads) {
  const Plan plan(p, out);
  return plan.slot_bytes * static_cast<size_t>(plan.by_block() ? ScratchSlots::count(max_threads, plan.items) : 1);
}

namespace {

void run_blocks(const Plan& plan, Block block, void* scratch, int max_threads, ThreadPool* pool) {
  const auto run = [&](int64_t item, std::byte* memory, ThreadPool* threads) {
    Block own = block;
    own.scratch = memory;
    own.pool = threads;
    own.image = item / plan.blocks * plan.images_per_block;
    own.images = std::min(plan.images_per_block, own.p.N - own.image);
    own.first_row = item % plan.blocks * plan.rows_per_block;
    own.tile_rows = std::min(plan.rows_per_block, plan.high - own.first_row);
    own.run();
  };
  if (!plan.by_block()) {
    for (int64_t item = 0; item < plan.items; ++item) run(item, static_cast<std::byte*>(scratch), pool);
    return;
  }
  ScratchSlots slots(scratch, plan.slot_bytes, ScratchSlots::count(max_threads, plan.items));
  parallel_for(pool, plan.items, 1, [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    for (int64_t item = begin; item < end; ++item) run(item, lease.data(), nullptr);
  });
}

}  // namespace

void winograd(const ConvParams& p, int out, const float* x, const float* weights, const float* packed, float* y,
              const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool) {
  const Plan plan(p, out);
  run_blocks(plan, {.p = p, .plan = plan, .x = x, .weights = weights, .packed = packed, .y = y, .epilogue = epilogue}, scratch, max_threads,
             pool);
}

size_t winograd_unpacked_scratch_bytes(const ConvParams& p, int out, int max_threads) {
  const Plan plan(p, out);
  const Panels panels(p.M, panel_shape<float>());
  const PackedPanels some(p, panels, 0, panels_at_once(p, plan, panels, max_threads), nullptr);
  return aligned_bytes<float>(plan.points * some.point) + winograd_scratch_bytes(p, out, max_threads);
}

void winograd_unpacked(const ConvParams& p, int out, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue,
                       void* scratch, int max_threads, ThreadPool* pool) {
  const Plan plan(p, out);
  const Panels panels(p.M, panel_shape<float>());
  Block block{.p = p, .plan = plan, .x = x, .weights = weights, .y = y, .epilogue = epilogue};
  block.panels_at_once = panels_at_once(p, plan, panels, max_threads);
  const PackedPanels some(p, panels, 0, block.panels_at_once, nullptr);
  auto* room = static_cast<float*>(scratch);
  if (block.panels_at_once < panels.count)
    block.unpacked = room;
  else
    winograd_pack(p, out, weights, room, pool);
  block.packed = room;
  run_blocks(plan, block, static_cast<std::byte*>(scratch) + aligned_bytes<float>(plan.points * some.point), max_threads, pool);
}

}  // namespace treadle::kernels
