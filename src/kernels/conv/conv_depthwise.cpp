#include "kernels/conv/conv_depthwise.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/depthwise_nhwc.h"
#include "kernels/conv/nhwc_direct.h"
#include "kernels/conv/nhwc_tile.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kPixelsAtOnce = 64;      // number of pixels that share one read of a row of the first convolution's weights
constexpr int64_t kRowsPerBand = 8;        // minimum number of rows of a band, since rows at a border are computed once for each side
constexpr int64_t kFewestRows = 3;         // minimum number of rows of a band if some threads would otherwise get none
constexpr int64_t kRingFloats = 9 * 1024;  // number of floats of the ring that stay in L1 beside the weights
constexpr int64_t kMostTwice = 16;         // at most one column in this many is computed twice, because both strips at a border need it

/// y is computed in steps of a few rows. A ring buffer holds the rows of the intermediate image (the first convolution's output) that a
/// step reads. With several threads, y is cut into bands of rows. If whole rows exceed L1, y is also cut into strips of columns with their
/// own rings, provided that strips overlap little. The input is padded as in nhwc_conv, one image at a time.
struct Plan {
  int64_t reach;  // number of rows that a window spans
  int64_t rows_per_step, ring_rows, bands = 1, strips = 1;
  size_t slot_bytes, padded_bytes;

  explicit Plan(const ConvDepthwise& p) {
    const Window& w = p.depthwise.window;
    reach = (w.kernel[1] - 1) * w.dilation[1] + 1;
    const int64_t pixels = std::max<int64_t>(1, w.stride[1] * w.in[2]);
    rows_per_step = std::clamp<int64_t>((kPixelsAtOnce + pixels - 1) / pixels, 1, std::max<int64_t>(1, w.out[1]));
    ring_rows = (rows_per_step - 1) * w.stride[1] + reach;
    const int64_t threads = p.max_threads;
    if (threads > 1)
      bands = std::clamp<int64_t>(w.out[1] / kRowsPerBand, std::clamp<int64_t>(w.out[1] / kFewestRows, 1, threads), 2 * threads);
    const int64_t column = std::max<int64_t>(1, ring_rows * p.depthwise.C), columns = std::max<int64_t>(1, kRingFloats / column);
    const int64_t wanted = std::clamp<int64_t>((w.in[2] + columns - 1) / columns, 1, std::max<int64_t>(1, w.out[2]));
    if ((wanted - 1) * shared_columns(w) * kMostTwice <= w.in[2]) strips = wanted;
    const direct::Source source(p.first);
    padded_bytes = source.copied ? aligned_bytes<float>(source.pixels() * p.first.C) : 0;
    int64_t widest = 0;
    for (int64_t i = 0; i < strips; ++i) widest = std::max(widest, strip(w, i).window.in[2]);
    slot_bytes = aligned_bytes<float>(ring_rows * widest * p.depthwise.C);
  }

  /// Returns the number of columns that are read by windows on both sides of a border between strips.
  static int64_t shared_columns(const Window& w) { return std::max<int64_t>(0, (w.kernel[2] - 1) * w.dilation[2] + 1 - w.stride[2]); }
  /// Describes a strip as a separate image: its window, and its first column in y and in the intermediate image.
  struct Strip {
    Window window;
    int64_t first, first_in;
  };
  Strip strip(const Window& w, int64_t i) const {
    const int64_t first = w.out[2] * i / strips, last = w.out[2] * (i + 1) / strips;
    const int64_t begin = first * w.stride[2] - w.pad_begin[2],
                  end = (last - 1) * w.stride[2] - w.pad_begin[2] + (w.kernel[2] - 1) * w.dilation[2] + 1;
    Strip s{w, first, std::clamp<int64_t>(begin, 0, w.in[2])};
    s.window.in[2] = std::clamp(end, s.first_in, w.in[2]) - s.first_in;
    s.window.out[2] = last - first;
    s.window.pad_begin[2] = s.first_in - begin;
    return s;
  }
};

/// Computes rows of the first convolution's output.
class FirstRows {
 public:
  FirstRows(const ConvParams& p, const ConvStage& stage)
      : p_(p),
        stage_(stage),
        source_(p),
        segments_(p),
        offsets_(p, source_, segments_),
        flat_(direct::is_flat(p.window)),
        clamp_(clamp_of(stage.epilogue)) {}

  /// Computes columns [first, first + columns) of rows [from, to), contiguous in y. A 1x1 convolution treats several whole rows as one row.
  void compute(const float* x, int64_t from, int64_t to, int64_t first, int64_t columns, float* y) const {
    if (columns <= 0) return;  // the strip is within the padding
    const Window& w = p_.window;
    const Panels panels(p_.M, panel_shape<float>());
    const bool one_line = flat_ && columns == w.out[2];
    const int64_t lines = one_line ? 1 : to - from, pixels = one_line ? (to - from) * columns : columns;
    const int64_t line_step = w.stride[1] * source_.extent[2] * source_.step, pixel_step = w.stride[2] * source_.step;
    x += from * line_step + first * pixel_step;
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t column = panels.first_column(panel), vectors = panels.width_vectors(panel);
      for (int64_t line = 0; line < lines; ++line) {
        nhwc_tile({.A = x + line * line_step,
                   .a_row = pixel_step,
                   .pixels = nullptr,
                   .segments = offsets_.data(),
                   .num_segments = segments_.count,
                   .length = segments_.length,
                   .B = stage_.packed + direct::depth_of(p_) * column,
                   .vectors = vectors,
                   .C = y + line * pixels * p_.M + column,
                   .ldc = p_.M,
                   .rows = pixels,
                   .columns = std::min(vectors * panels.lanes, p_.M - column),
                   .bias = stage_.epilogue.bias != nullptr ? stage_.epilogue.bias + column : nullptr,
                   .residual = nullptr,
                   .residual_row = 0,
                   .low = clamp_.low,
                   .high = clamp_.high,
                   .fold = direct_fold(p_)});
      }
    }
    const ConvEpilogue& e = stage_.epilogue;
    if (!clamp_.complete) unary_f32(e.activation, e.a, e.b, y, y, lines * pixels * p_.M);
  }
  const direct::Source& source() const { return source_; }

 private:
  const ConvParams& p_;
  const ConvStage& stage_;
  direct::Source source_;
  direct::Segments segments_;
  direct::SegmentOffsets offsets_;
  bool flat_;
  Clamp clamp_;
};

}  // namespace

size_t conv_depthwise_scratch_bytes(const ConvDepthwise& p) {
  const Plan plan(p);
  return plan.padded_bytes +
         plan.slot_bytes * static_cast<size_t>(ScratchSlots::count(p.max_threads, p.depthwise.N * plan.bands * plan.strips));
}

void conv_depthwise(const ConvDepthwise& p, const float* x, const ConvStage& first, const ConvStage& depthwise, float* y, void* scratch,
                    ThreadPool* pool) {
  const Window& w = p.depthwise.window;
  const int64_t C = p.depthwise.C;
  if (p.depthwise.N <= 0 || C <= 0 || w.out_size() <= 0) return;
  const Plan plan(p);
  const FirstRows rows(p.first, first);
  const ConvEpilogue& e = depthwise.epilogue;
  const Clamp clamp = clamp_of(e);
  float* padded = static_cast<float*>(scratch);
  ScratchSlots slots(static_cast<std::byte*>(scratch) + plan.padded_bytes, plan.slot_bytes,
                     ScratchSlots::count(p.max_threads, p.depthwise.N * plan.bands * plan.strips));
  auto run = [&](int64_t image, int64_t band, const Plan::Strip& strip, const float* from, float* ring) {
    const Window& own = strip.window;
    const int64_t last_row = w.out[1] * (band + 1) / plan.bands, block = depthwise_nhwc_block(own), step = p.depthwise.y_step();
    int64_t have = 0;  // index of the next row of the intermediate image to compute
    for (int64_t oh = w.out[1] * band / plan.bands; oh < last_row; oh += plan.rows_per_step) {
      const int64_t step_end = std::min(last_row, oh + plan.rows_per_step), reached = oh * w.stride[1] - w.pad_begin[1];
      const int64_t need = std::min(w.in[1], (step_end - 1) * w.stride[1] - w.pad_begin[1] + plan.reach);
      for (have = std::max(have, reached); have < need;) {
        const int64_t slot = have % plan.ring_rows, to = std::min(need, have + plan.ring_rows - slot);
        rows.compute(from, have, to, strip.first_in, own.in[2], ring + slot * own.in[2] * C);
        have = to;
      }
      auto pixel_of = [&](int64_t r) { return (image * w.out[1] + r) * w.out[2] + strip.first; };
      for (int64_t c = 0; c < C; c += block) {
        for (int64_t r = oh; r < step_end; ++r) {
          depthwise_nhwc_row(own, C, {ring, plan.ring_rows, C}, depthwise.packed, e.bias,
                             e.residual != nullptr ? e.residual + pixel_of(r) * C : nullptr, clamp.low, clamp.high, r, c,
                             std::min(C, c + block), y + pixel_of(r) * step, step);
        }
      }
      if (clamp.complete) continue;
      if (plan.strips == 1) {
        activate(e, y + pixel_of(oh) * step, (step_end - oh) * w.out[2], C, step);
        continue;
      }
      for (int64_t r = oh; r < step_end; ++r) activate(e, y + pixel_of(r) * step, own.out[2], C, step);
    }
  };
  const bool copied = rows.source().copied;
  const int64_t images_at_once = copied ? 1 : p.depthwise.N;
  for (int64_t first_image = 0; first_image < p.depthwise.N; first_image += images_at_once) {
    if (copied) direct::copy_padded(p.first, rows.source(), x + first_image * p.first.window.in_size() * p.first.x_step(), padded, pool);
    const int64_t per_image = plan.bands * plan.strips;
    const PhaseScope phase(KernelPhase::compute);
    parallel_for(pool, images_at_once * per_image, 1, [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(slots);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t image = first_image + item / per_image;
        run(image, item % per_image / plan.strips, plan.strip(w, item % plan.strips),
            copied ? padded : x + image * p.first.window.in_size() * p.first.x_step(), reinterpret_cast<float*>(lease.data()));
      }
    });
  }
}

}  // namespace treadle::kernels
