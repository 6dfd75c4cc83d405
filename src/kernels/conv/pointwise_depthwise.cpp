#include "kernels/conv/pointwise_depthwise.h"

#include <algorithm>

#include "kernels/conv/depthwise_nhwc.h"
#include "kernels/conv/nhwc_tile.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kPixelsAtOnce = 64;  // for which a row of the pointwise weights is read once
constexpr int64_t kRowsPerBand = 8;    // at least: the rows at a band's border are computed for both its sides
constexpr int64_t kFewestRows = 3;     // of a band, where some threads would have none otherwise

/// Rows of y are done in steps; a ring holds the rows of the image between that a step reads. With several threads y is cut into bands.
struct Plan {
  int64_t reach;  // rows that a window spans
  int64_t rows_per_step, ring_rows, bands = 1;
  size_t slot_bytes;

  explicit Plan(const PointwiseDepthwise& p) {
    const Window& w = p.depthwise.window;
    reach = (w.kernel[1] - 1) * w.dilation[1] + 1;
    const int64_t pixels = std::max<int64_t>(1, w.stride[1] * w.in[2]);
    rows_per_step = std::clamp<int64_t>((kPixelsAtOnce + pixels - 1) / pixels, 1, std::max<int64_t>(1, w.out[1]));
    ring_rows = (rows_per_step - 1) * w.stride[1] + reach;
    const int64_t threads = p.max_threads;
    if (threads > 1)
      bands = std::clamp<int64_t>(w.out[1] / kRowsPerBand, std::clamp<int64_t>(w.out[1] / kFewestRows, 1, threads), 2 * threads);
    slot_bytes = aligned_bytes<float>(ring_rows * w.in[2] * p.depthwise.C);
  }
};

/// Rows [from, to) of the image between, which lie side by side in the ring.
void expand(const ConvParams& p, int64_t wide, const float* x, const ConvStage& stage, int64_t from, int64_t to, float* y) {
  const Panels panels(p.M, panel_shape<float>());
  const Clamp clamp = clamp_of(stage.epilogue);
  const int64_t pixels = (to - from) * wide, origin = 0;
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t column = panels.first_column(panel), vectors = panels.width_vectors(panel);
    nhwc_tile({.A = x + from * wide * p.x_step(),
               .a_row = p.x_step(),
               .pixels = nullptr,
               .segments = &origin,
               .num_segments = 1,
               .length = p.C,
               .B = stage.packed + p.C * column,
               .vectors = vectors,
               .C = y + column,
               .ldc = p.M,
               .rows = pixels,
               .columns = std::min(vectors * panels.lanes, p.M - column),
               .bias = stage.epilogue.bias != nullptr ? stage.epilogue.bias + column : nullptr,
               .residual = nullptr,
               .residual_row = 0,
               .low = clamp.low,
               .high = clamp.high,
               .fold = direct_fold(p)});
  }
  if (!clamp.complete) unary_f32(stage.epilogue.activation, stage.epilogue.a, stage.epilogue.b, y, y, pixels * p.M);
}

}  // namespace

size_t pointwise_depthwise_scratch_bytes(const PointwiseDepthwise& p) {
  const Plan plan(p);
  return plan.slot_bytes * static_cast<size_t>(ScratchSlots::count(p.max_threads, p.depthwise.N * plan.bands));
}

void pointwise_depthwise(const PointwiseDepthwise& p, const float* x, const ConvStage& pointwise, const ConvStage& depthwise, float* y,
                         void* scratch, ThreadPool* pool) {
  const Window& w = p.depthwise.window;
  const int64_t C = p.depthwise.C, image_row = w.in[2] * C;
  if (p.depthwise.N <= 0 || C <= 0 || w.out_size() <= 0) return;
  const Plan plan(p);
  const ConvEpilogue& e = depthwise.epilogue;
  const Clamp clamp = clamp_of(e);
  ScratchSlots slots(scratch, plan.slot_bytes, ScratchSlots::count(p.max_threads, p.depthwise.N * plan.bands));
  parallel_for(pool, p.depthwise.N * plan.bands, 1, [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    float* ring = reinterpret_cast<float*>(lease.data());
    for (int64_t item = begin; item < end; ++item) {
      const int64_t image = item / plan.bands, band = item % plan.bands;
      const float* from = x + image * w.in_size() * p.pointwise.x_step();
      const int64_t last_row = w.out[1] * (band + 1) / plan.bands;
      int64_t have = 0;  // rows of the image between from here on are not computed yet
      for (int64_t oh = w.out[1] * band / plan.bands; oh < last_row; oh += plan.rows_per_step) {
        const int64_t step_end = std::min(last_row, oh + plan.rows_per_step), first = oh * w.stride[1] - w.pad_begin[1];
        const int64_t need = std::min(w.in[1], (step_end - 1) * w.stride[1] - w.pad_begin[1] + plan.reach);
        for (have = std::max(have, first); have < need;) {
          const int64_t slot = have % plan.ring_rows, to = std::min(need, have + plan.ring_rows - slot);
          expand(p.pointwise, w.in[2], from, pointwise, have, to, ring + slot * image_row);
          have = to;
        }
        const int64_t block = depthwise_nhwc_block(w), step = p.depthwise.y_step(), row = image * w.out[1];
        for (int64_t c = 0; c < C; c += block) {
          for (int64_t r = oh; r < step_end; ++r) {
            const int64_t pixel = (row + r) * w.out[2];
            depthwise_nhwc_row(w, C, {ring, plan.ring_rows, C}, depthwise.packed, e.bias,
                               e.residual != nullptr ? e.residual + pixel * C : nullptr, clamp.low, clamp.high, r, c,
                               std::min(C, c + block), y + pixel * step, step);
          }
        }
        if (!clamp.complete) activate(e, y + (row + oh) * w.out[2] * step, (step_end - oh) * w.out[2], C, step);
      }
    }
  });
}

}  // namespace treadle::kernels
