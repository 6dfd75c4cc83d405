// dW = dY^T X, summed over all pixels. A row of the product is a filter; a column is an element of the window, ordered by tap and channel.
// Pixels are processed in blocks. The columns of a block are gathered into GEMM panels, and all filters are multiplied by a panel while it
// is in L1.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/conv_gradient_nhwc.h"
#include "kernels/conv/conv_in_planes.h"
#include "kernels/conv/gradient_rows.h"
#include "kernels/conv/winograd_gradient.h"
#include "kernels/gemm/tile.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kDepth = 128;         // number of pixels of a block; a panel of 64 columns takes 32 KB
constexpr int64_t kMaxFilters = 512;    // maximum number of filters of a block of dy, which takes 256 KB
constexpr int64_t kPanelsTogether = 4;  // number of panels that share a copied block of dy
constexpr int64_t kEnoughItems = 16;    // number of work items that keep the threads busy; if there are fewer, the pixels are divided too
constexpr int64_t kLeastBlocks = 8;     // minimum number of pixel blocks, or of output lines, that one work item sums
constexpr int64_t kLineFloats = 16;     // padding of rows in floats, since rows whose size is a power of two would share cache sets
constexpr int64_t kImageGroups = 8;     // maximum number of groups of images or output lines; each group has its own partial sums

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool is_depthwise(const ConvParams& p) { return p.group == p.C && p.group == p.M; }

/// How the product of one group is divided into panels, filters and cuts (parts of the pixels). It depends only on the sizes.
struct WeightsPlan {
  int64_t channels, filters, columns, pixels;
  bool whole_rows;  // true if a row of the window is contiguous in the image
  bool in_place;    // true if there is one tap: dw then has the layout of the sums, and the first cut is summed directly into it
  int64_t runs, run_length;
  Panels panels;
  int64_t panel_ranges, filter_ranges, filters_each, cuts, cut_pixels;

  explicit WeightsPlan(const ConvParams& p)
      : channels(p.C / p.group),
        filters(p.M / p.group),
        columns(channels * p.window.kernel_size()),
        pixels(p.N * p.window.out_size()),
        whole_rows(p.group == 1 && p.window.dilation[2] == 1),
        in_place(p.window.kernel_size() == 1),
        runs(whole_rows ? p.window.kernel[0] * p.window.kernel[1] : p.window.kernel_size()),
        run_length(whole_rows ? channels * p.window.kernel[2] : channels),
        panels(columns, panel_shape<float>()) {
    panel_ranges = divide_up(panels.count, kPanelsTogether);
    filter_ranges = divide_up(filters, kMaxFilters);
    filters_each = divide_up(filters, filter_ranges);
    const int64_t items = p.group * panel_ranges * filter_ranges, blocks = divide_up(pixels, kDepth);
    cuts = items >= kEnoughItems ? 1 : std::clamp<int64_t>(blocks / kLeastBlocks, 1, divide_up(kEnoughItems, items));
    cut_pixels = std::max<int64_t>(1, divide_up(blocks, cuts)) * kDepth;
    cuts = divide_up(pixels, cut_pixels);
  }
  int64_t items(const ConvParams& p) const { return cuts * p.group * panel_ranges * filter_ranges; }
  int64_t sums(const ConvParams& p) const { return (in_place ? cuts - 1 : cuts) * p.M * columns; }
  float* sums_of(const ConvParams& p, int64_t cut, float* dw, float* sums) const {
    if (!in_place) return sums + cut * p.M * columns;
    return cut == 0 ? dw : sums + (cut - 1) * p.M * columns;
  }
  int64_t dy_row() const { return filters_each + kLineFloats; }
  int64_t panel_floats() const { return kDepth * panel_shape<float>().max_vectors * panel_shape<float>().lanes; }
  size_t slot_bytes(Bf16Choice bf16) const {
    const size_t blocks = aligned_bytes<float>(kDepth * dy_row()) + aligned_bytes<float>(panel_floats());
    const int64_t width = panel_shape<float>().max_vectors * panel_shape<float>().lanes;
    return bf16 ? blocks + gemm_bf16_unpacked_scratch_bytes({.M = filters_each, .N = width, .K = kDepth}, *bf16) : blocks;
  }
};

/// A block of pixels, with the positions of their windows in x.
struct PixelBlock {
  int64_t count = 0;
  int64_t image[kDepth], line[kDepth], along[kDepth];  // offset of the image in floats; first row and first column of the window

  PixelBlock(const ConvParams& p, int64_t begin, int64_t end) : count(end - begin) {
    const Window& w = p.window;
    int64_t ow = begin % w.out[2], oh = begin / w.out[2] % w.out[1], n = begin / w.out_size();
    for (int64_t i = 0; i < count; ++i) {
      image[i] = n * w.in_size() * p.C, line[i] = oh * w.stride[1] - w.pad_begin[1], along[i] = ow * w.stride[2] - w.pad_begin[2];
      if (++ow < w.out[2]) continue;
      ow = 0;
      if (++oh < w.out[1]) continue;
      oh = 0, ++n;
    }
  }
};

/// Gathers elements [begin, end) of a run (contiguous elements of a window) for all pixels of a block into columns of a panel. @param alone
/// true if no other run has columns in the panel
void gather_run(const ConvParams& p, const WeightsPlan& plan, const PixelBlock& block, int64_t run, int64_t group, int64_t begin,
                int64_t end, const float* x, float* to, int64_t width, bool alone) {
  const Window& w = p.window;
  const int64_t down = (plan.whole_rows ? run : run / w.kernel[2]) * w.dilation[1],
                across = plan.whole_rows ? 0 : run % w.kernel[2] * w.dilation[2], reach = plan.whole_rows ? w.kernel[2] : 1;
  int64_t offsets[kDepth];
  bool cut[kDepth];
  bool any_cut = false;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t ih = block.line[i] + down, iw = block.along[i] + across;
    const bool line = ih >= 0 && ih < w.in[1], inside = line && iw >= 0 && iw + reach <= w.in[2];
    offsets[i] = inside ? block.image[i] + (ih * w.in[2] + iw) * p.C + group * plan.channels + begin : kNoRow;
    cut[i] = line && !inside && iw + reach > 0 && iw < w.in[2];
    any_cut |= cut[i];
  }
  if (alone) {
    gather_rows(x, offsets, block.count, end - begin, width, to);
  } else {
    for (int64_t i = 0; i < block.count; ++i) {  // the run has only some columns of the panel
      if (offsets[i] != kNoRow)
        std::copy_n(x + offsets[i], end - begin, to + i * width);
      else
        std::fill_n(to + i * width, end - begin, 0.0F);
    }
  }
  if (!any_cut || !plan.whole_rows) return;
  for (int64_t i = 0; i < block.count; ++i) {  // handles windows that are partly outside the image
    if (!cut[i]) continue;
    const int64_t ih = block.line[i] + down, iw = block.along[i];
    const int64_t first = std::max(begin, -iw * p.C), last = std::min(end, (w.in[2] - iw) * p.C);
    if (first < last)
      std::copy(x + block.image[i] + (ih * w.in[2] + iw) * p.C + first, x + block.image[i] + (ih * w.in[2] + iw) * p.C + last,
                to + i * width + first - begin);
  }
}

void gather_panel(const ConvParams& p, const WeightsPlan& plan, const PixelBlock& block, int64_t group, int64_t first, int64_t width,
                  const float* x, float* panel) {
  const int64_t last = std::min(plan.columns, first + width);
  const bool alone = first % plan.run_length + last - first <= plan.run_length;
  for (int64_t column = first; column < last;) {
    const int64_t run = column / plan.run_length, begin = column % plan.run_length, end = std::min(plan.run_length, begin + last - column);
    gather_run(p, plan, block, run, group, begin, end, x, panel + column - first, width, alone);
    column += end - begin;
  }
  for (int64_t i = 0; i < block.count && !alone; ++i) std::fill(panel + i * width + last - first, panel + (i + 1) * width, 0.0F);
}

/// Multiplies a block of dy by a panel. The block is [pixel][filter], or for bfloat16 [filter][pixel].
void multiply_panel(const WeightsPlan& plan, const float* rows, const float* panel, int64_t k, int64_t filters, int64_t depth, float* out,
                    const Epilogue<float>& epilogue, Bf16Choice bf16, std::byte* scratch) {
  const int64_t column = plan.panels.first_column(k), vectors = plan.panels.width_vectors(k), width = vectors * plan.panels.lanes;
  const int64_t columns = std::min(width, plan.columns - column);
  if (bf16) {
    const GemmShape shape{.M = filters, .N = columns, .K = depth, .a_row = kDepth, .ldb = width, .ldc = plan.columns};
    Epilogue<float> here = epilogue;
    if (here.residual != nullptr) here.residual += column;
    return gemm_bf16_unpacked(shape, rows, panel, out + column, here, *bf16, scratch);
  }
  gemm_tile_rows<float>({.A = rows,
                         .a_row = 1,
                         .a_col = plan.dy_row(),
                         .B = panel,
                         .b_row = width,
                         .vectors = vectors,
                         .C = out + column,
                         .ldc = plan.columns,
                         .K = depth,
                         .row_begin = 0,
                         .row_end = filters,
                         .first_column = column,
                         .columns = columns,
                         .epilogue = &epilogue});
}

void weights_item(const ConvParams& p, const WeightsPlan& plan, int64_t item, const float* dy, const float* x, float* dw, float* sums,
                  std::byte* scratch, Bf16Choice bf16) {
  const int64_t range = item % plan.panel_ranges, filter_range = item / plan.panel_ranges % plan.filter_ranges,
                group = item / plan.panel_ranges / plan.filter_ranges % p.group,
                cut = item / plan.panel_ranges / plan.filter_ranges / p.group;
  const int64_t first_filter = filter_range * plan.filters_each, filters = std::min(plan.filters_each, plan.filters - first_filter);
  const int64_t last_pixel = std::min(plan.pixels, (cut + 1) * plan.cut_pixels), lda = plan.dy_row();
  if (filters <= 0) return;
  auto* rows = reinterpret_cast<float*>(scratch);
  auto* panel = reinterpret_cast<float*>(scratch + aligned_bytes<float>(kDepth * lda));
  float* out = plan.sums_of(p, cut, dw, sums) + (group * plan.filters + first_filter) * plan.columns;
  Epilogue<float> first, others;
  others.residual = out, others.residual_row = plan.columns;
  for (int64_t pixel = cut * plan.cut_pixels; pixel < last_pixel; pixel += kDepth) {
    const PixelBlock block(p, pixel, std::min(last_pixel, pixel + kDepth));
    const float* from = dy + pixel * p.M + group * plan.filters + first_filter;
    PhaseScope phase(KernelPhase::pack);
    if (bf16) {
      transpose_plane(block.count, filters, from, p.M, rows, kDepth);
    } else {
      for (int64_t i = 0; i < block.count; ++i) std::copy_n(from + i * p.M, filters, rows + i * lda);
    }
    const int64_t last_panel = std::min(plan.panels.count, (range + 1) * kPanelsTogether);
    for (int64_t k = range * kPanelsTogether; k < last_panel; ++k) {
      phase.next(KernelPhase::windows);
      gather_panel(p, plan, block, group, plan.panels.first_column(k), plan.panels.width_vectors(k) * plan.panels.lanes, x, panel);
      phase.next(KernelPhase::compute);
      multiply_panel(plan, rows, panel, k, filters, block.count, out, pixel == cut * plan.cut_pixels ? first : others, bf16,
                     scratch + plan.slot_bytes({}));
    }
  }
}

/// Adds up the sums of all cuts (parts of the pixels) and transposes them from [filter][tap][channel] to [filter][channel][tap].
void join_cuts(const ConvParams& p, const WeightsPlan& plan, float* sums, float* dw, ThreadPool* pool) {
  if (plan.in_place && plan.cuts == 1) return;
  const int64_t taps = p.window.kernel_size();
  const PhaseScope phase(KernelPhase::output_transform);
  parallel_for(pool, p.M, std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, plan.columns)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      float* row = plan.sums_of(p, 0, dw, sums) + m * plan.columns;
      for (int64_t cut = 1; cut < plan.cuts; ++cut) {
        const float* more = plan.sums_of(p, cut, dw, sums) + m * plan.columns;
        for (int64_t i = 0; i < plan.columns; ++i) row[i] += more[i];
      }
      if (!plan.in_place) transpose_plane(taps, plan.channels, row, plan.channels, dw + m * plan.columns, taps);
    }
  });
}

/// The plan for few channels, as in a network's first convolution. A row of the product is an element of one line (row) of the window, a
/// column is a filter. Both operands are read in place, but lines of x whose windows cross the border are copied.
struct LinesPlan {
  int64_t rows, columns;  // number of elements in a line of the window; number of filters, rounded up to whole vectors
  int64_t lines, groups;  // number of lines of all outputs; number of partial sums
  int64_t x_line, kept_lines;
  bool copies_dy;  // true if rows of dy do not consist of whole vectors

  static bool fits(const ConvParams& p) {
    constexpr int64_t kMostRows = 32;
    constexpr int64_t kLeastFilters = 4;  // minimum number of filters: with fewer, most of a vector's 16 lanes would be unused
    constexpr int64_t kLeastPixels = 16;  // minimum for 1x1 windows: with fewer pixels, sums would be loaded and stored for few products
    const Window& w = p.window;
    if (w.kernel_size() == 1 && w.out[2] < kLeastPixels) return false;
    return p.group == 1 && w.kernel[0] == 1 && w.in[0] == 1 && w.out[0] == 1 && w.dilation[2] == 1 && p.C * w.kernel[2] <= kMostRows &&
           p.M >= kLeastFilters;
  }
  explicit LinesPlan(const ConvParams& p) {
    const Window& w = p.window;
    rows = p.C * w.kernel[2], columns = divide_up(p.M, kLineFloats) * kLineFloats;
    lines = p.N * w.out[1], groups = std::clamp<int64_t>(lines / kLeastBlocks, 1, kImageGroups);
    x_line = ((w.out[2] - 1) * w.stride[2] + w.kernel[2]) * p.C;
    kept_lines = (w.kernel[1] - 1) * w.dilation[1] + 1;
    copies_dy = columns != p.M;
  }
  int64_t sums(const ConvParams& p) const { return p.window.kernel[1] * rows * columns; }
  size_t slot_bytes(const ConvParams& p) const {
    return aligned_bytes<float>(sums(p)) + aligned_bytes<float>(kept_lines * x_line) +
           aligned_bytes<float>(copies_dy ? p.window.out[2] * columns : 0);
  }
};

/// Sums the gradients from output lines [begin, end), in the layout [line of the window][tap and channel][filter].
void sum_lines(const ConvParams& p, const LinesPlan& plan, int64_t begin, int64_t end, const float* dy, const float* x, std::byte* slot) {
  const Window& w = p.window;
  const Panels panels(plan.columns, panel_shape<float>());
  auto* sums = reinterpret_cast<float*>(slot);
  auto* kept = reinterpret_cast<float*>(slot + aligned_bytes<float>(plan.sums(p)));
  auto* dy_copy = reinterpret_cast<float*>(slot + aligned_bytes<float>(plan.sums(p)) + aligned_bytes<float>(plan.kept_lines * plan.x_line));
  std::fill_n(sums, plan.sums(p), 0.0F);
  std::vector<int64_t> held(static_cast<size_t>(plan.kept_lines), -1);
  const bool inside = w.pad_begin[2] == 0 && plan.x_line <= w.in[2] * p.C;
  // Returns a line of x with zeros on both sides: in place if no window crosses the border, otherwise a copy, kept while windows use it.
  const auto padded = [&](int64_t image, int64_t ih) {
    const int64_t number = image * w.in[1] + ih;
    const float* line = x + number * w.in[2] * p.C;
    if (inside) return line;
    const int64_t place = number % plan.kept_lines;
    float* copy = kept + place * plan.x_line;
    if (std::exchange(held[static_cast<size_t>(place)], number) == number) return static_cast<const float*>(copy);
    const int64_t before = std::min(w.pad_begin[2] * p.C, plan.x_line), count = std::min(w.in[2] * p.C, plan.x_line - before);
    std::fill_n(copy, before, 0.0F);
    std::copy_n(line, count, copy + before);
    std::fill(copy + before + count, copy + plan.x_line, 0.0F);
    return static_cast<const float*>(copy);
  };
  for (int64_t line = begin; line < end; ++line) {
    const int64_t image = line / w.out[1], oh = line % w.out[1];
    const float* gradient = dy + line * w.out[2] * p.M;
    if (plan.copies_dy) {
      for (int64_t i = 0; i < w.out[2]; ++i)
        std::fill(std::copy_n(gradient + i * p.M, p.M, dy_copy + i * plan.columns), dy_copy + (i + 1) * plan.columns, 0.0F);
      gradient = dy_copy;
    }
    const Taps down = taps_inside(w, 1, oh);
    for (int64_t k = down.first; k < down.last; ++k) {
      const float* rows = padded(image, down.start + k * w.dilation[1]);
      float* const own = sums + k * plan.rows * plan.columns;
      Epilogue<float> more;
      more.residual = own, more.residual_row = plan.columns;
      for (int64_t pixel = 0; pixel < w.out[2]; pixel += kDepth) {
        for (int64_t panel = 0; panel < panels.count; ++panel) {
          const int64_t column = panels.first_column(panel), vectors = panels.width_vectors(panel);
          gemm_tile_rows<float>({.A = rows + pixel * w.stride[2] * p.C,
                                 .a_row = 1,
                                 .a_col = w.stride[2] * p.C,
                                 .B = gradient + pixel * plan.columns + column,
                                 .b_row = plan.columns,
                                 .vectors = vectors,
                                 .C = own + column,
                                 .ldc = plan.columns,
                                 .K = std::min(kDepth, w.out[2] - pixel),
                                 .row_begin = 0,
                                 .row_end = plan.rows,
                                 .first_column = column,
                                 .columns = vectors * panels.lanes,
                                 .epilogue = &more});
        }
      }
    }
  }
}

size_t lines_scratch_bytes(const ConvParams& p) {
  const LinesPlan plan(p);
  return plan.slot_bytes(p) * static_cast<size_t>(plan.groups);
}

void weights_by_lines(const ConvParams& p, const float* dy, const float* x, float* dw, std::byte* scratch, ThreadPool* pool) {
  const LinesPlan plan(p);
  const PhaseScope phase(KernelPhase::compute);
  const auto slot = [&](int64_t group) { return scratch + plan.slot_bytes(p) * static_cast<size_t>(group); };
  parallel_for(pool, plan.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group)
      sum_lines(p, plan, plan.lines * group / plan.groups, plan.lines * (group + 1) / plan.groups, dy, x, slot(group));
  });
  const auto* sums = reinterpret_cast<const float*>(slot(0));
  const int64_t high = p.window.kernel[1], wide = p.window.kernel[2];
  for (int64_t m = 0; m < p.M; ++m)
    for (int64_t c = 0; c < p.C; ++c)
      for (int64_t k = 0; k < high * wide; ++k) {
        const int64_t at = (k * p.C + c) * plan.columns + m;
        float sum = sums[at];
        for (int64_t group = 1; group < plan.groups; ++group) sum += reinterpret_cast<const float*>(slot(group))[at];
        dw[(m * p.C + c) * high * wide + k] = sum;
      }
}

size_t depthwise_scratch_bytes(const ConvParams& p) {
  return aligned_bytes<float>(std::clamp<int64_t>(p.N, 1, kImageGroups) * p.C * p.window.kernel_size());
}

void depthwise_weights(const ConvParams& p, const float* dy, const float* x, float* dw, float* sums, ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t taps = w.kernel_size(), groups = std::clamp<int64_t>(p.N, 1, kImageGroups), size = taps * p.C,
                block = std::min<int64_t>(p.C, 64), blocks = divide_up(p.C, block);
  const PhaseScope phase(KernelPhase::compute);
  std::fill_n(sums, groups * size, 0.0F);
  parallel_for(pool, groups * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / blocks, c0 = item % blocks * block, c1 = std::min(p.C, c0 + block);
      for (int64_t n = p.N * group / groups; n < p.N * (group + 1) / groups; ++n) {
        for (int64_t oh = 0; oh < w.out[1]; ++oh) {
          const Taps down = taps_inside(w, 1, oh);
          const float* row = dy + (n * w.out[1] + oh) * w.out[2] * p.C;
          for (int64_t k = down.first; k < down.last; ++k)
            depthwise_gradient_row(w, p.C, row, x + (n * w.in[1] + down.start + k * w.dilation[1]) * w.in[2] * p.C, c0, c1,
                                   sums + group * size + k * w.kernel[2] * p.C);
        }
      }
    }
  });
  for (int64_t group = 1; group < groups; ++group)
    for (int64_t i = 0; i < size; ++i) sums[i] += sums[group * size + i];
  transpose_plane(taps, p.C, sums, p.C, dw, taps);
}

bool takes_winograd(const ConvParams& p, const ConvChoice& choice, Bf16Choice bf16) { return !bf16 && winograd_gradient_pays(p, choice); }

size_t direct_scratch_bytes(const ConvParams& p, int max_threads, Bf16Choice bf16) {
  const WeightsPlan plan(p);
  return aligned_bytes<float>(plan.sums(p)) + plan.slot_bytes(bf16) * static_cast<size_t>(ScratchSlots::count(max_threads, plan.items(p)));
}

void direct_weights(const ConvParams& p, const float* dy, const float* x, float* dw, void* scratch, int max_threads, ThreadPool* pool,
                    Bf16Choice bf16) {
  const WeightsPlan plan(p);
  auto* sums = static_cast<float*>(scratch);
  ScratchSlots slots(static_cast<std::byte*>(scratch) + aligned_bytes<float>(plan.sums(p)), plan.slot_bytes(bf16),
                     ScratchSlots::count(max_threads, plan.items(p)));
  parallel_for(pool, plan.items(p), 1, [&](int64_t begin, int64_t end) {
    const ScratchSlots::Lease lease(slots);
    for (int64_t item = begin; item < end; ++item) weights_item(p, plan, item, dy, x, dw, sums, lease.data(), bf16);
  });
  join_cuts(p, plan, sums, dw, pool);
}

}  // namespace

size_t conv_grad_weights_nhwc_scratch_bytes(const ConvParams& p, const ConvChoice& choice, int max_threads, Bf16Choice bf16) {
  if (is_depthwise(p)) return depthwise_scratch_bytes(p);
  if (!bf16 && LinesPlan::fits(p)) return lines_scratch_bytes(p);
  if (!bf16 && conv_grad_weights_in_planes_pays(p)) return conv_grad_weights_in_planes_scratch_bytes(p, max_threads);
  const size_t direct = direct_scratch_bytes(p, max_threads, bf16);
  return takes_winograd(p, choice, bf16) ? std::max(direct, winograd_gradient_scratch_bytes(p)) : direct;
}

void conv_grad_weights_nhwc(const ConvParams& p, const ConvChoice& choice, const float* dy, const float* x, float* dw, void* scratch,
                            int max_threads, ThreadPool* pool, Bf16Choice bf16) {
  const int64_t size = p.M * (p.C / std::max<int64_t>(1, p.group)) * p.window.kernel_size();
  if (p.N <= 0 || p.window.out_size() <= 0) return std::fill_n(dw, size, 0.0F), void();
  if (size == 0) return;
  if (is_depthwise(p)) return depthwise_weights(p, dy, x, dw, static_cast<float*>(scratch), pool);
  if (!bf16 && LinesPlan::fits(p)) return weights_by_lines(p, dy, x, dw, static_cast<std::byte*>(scratch), pool);
  if (!bf16 && conv_grad_weights_in_planes_pays(p)) return conv_grad_weights_in_planes(p, dy, x, dw, scratch, max_threads, pool);
  if (takes_winograd(p, choice, bf16) && winograd_gradient(p, dy, x, dw, scratch, pool)) return;
  direct_weights(p, dy, x, dw, scratch, max_threads, pool, bf16);
}

}  // namespace treadle::kernels
