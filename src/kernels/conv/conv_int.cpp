#include "kernels/conv/conv_int.h"

#include <algorithm>

#include "core/kernel_phases.h"
#include "kernels/conv/im2col.h"
#include "kernels/gemm/tile.h"
#include "kernels/gemm/tile_i16.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

int64_t depth_of(const ConvParams& p) { return p.C / p.group * p.window.kernel_size(); }
int64_t pairs_of(const ConvParams& p) { return (depth_of(p) + 1) / 2; }

/// Panels of outputs whose windows are written at once: copies of a panel's width would be too short.
constexpr int64_t kPanelsAtOnce = 4;
struct Groups {
  Panels panels;
  int64_t size, count;

  Groups(const ConvParams& p, int max_threads) : panels(p.window.out_size(), panel_shape<float>()) {
    const int64_t for_each_thread = p.N * p.group * panels.count / (2 * std::max(1, max_threads));
    const int64_t most = std::min(kPanelsAtOnce, kMaxPanelWidth / ((panels.vectors + 1) * panels.lanes));
    size = std::clamp<int64_t>(for_each_thread, 1, std::max<int64_t>(1, most));
    count = (panels.count + size - 1) / size;
  }
  int64_t first_panel(int64_t group) const { return std::min(group * size, panels.count); }
  int64_t columns_at_most() const { return size * (panels.vectors + 1) * panels.lanes; }
};

// A slot holds the windows as im2col writes them, and again as panels with rows in pairs.
int64_t windows_elements(const ConvParams& p, const Groups& groups) { return 2 * pairs_of(p) * groups.columns_at_most(); }
size_t slot_bytes(const ConvParams& p, const Groups& groups) { return 2 * aligned_bytes<int16_t>(windows_elements(p, groups)); }
int num_slots(const ConvParams& p, const Groups& groups, int max_threads) {
  return ScratchSlots::count(max_threads, p.N * p.group * groups.count);
}

/// A panel of `width` columns out of rows `stride` apart.
void interleave(const int16_t* rows, int64_t depth, int64_t width, int64_t stride, int16_t* pairs) {
  for (int64_t k = 0; k < depth; k += 2, pairs += 2 * width) {
    const int16_t* even = rows + k * stride;
    interleave_i16(even, k + 1 < depth ? even + stride : nullptr, width, pairs);
  }
}

}  // namespace

int64_t conv_int_weights_size(const ConvParams& p) { return packed_a_i16_size(p.M, depth_of(p)); }

void pack_conv_int_weights(const ConvParams& p, const ByteMatrix& weights, int16_t* packed) {
  pack_a_i16(weights, p.M, depth_of(p), depth_of(p), packed);
}

size_t conv_int_scratch_bytes(const ConvParams& p, int max_threads) {
  const Groups groups(p, max_threads);
  return aligned_bytes<int16_t>(p.N * p.C * p.window.in_size()) +
         slot_bytes(p, groups) * static_cast<size_t>(num_slots(p, groups, max_threads));
}

void conv_int(const ConvParams& p, const ByteMatrix& x, const int16_t* packed_weights, int32_t* y, void* scratch, int max_threads,
              ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t out_size = w.out_size(), in_size = w.in_size();
  if (p.N <= 0 || p.M <= 0 || out_size <= 0) return;
  const Groups groups(p, max_threads);
  const Panels& panels = groups.panels;
  // The whole image as int16 less its zero point: the pads are then plain zeros.
  int16_t* image = static_cast<int16_t*>(scratch);
  const int64_t total = p.N * p.C * in_size;
  int32_t zero = 0;
  if (x.zero) zero = x.is_signed ? int32_t{*static_cast<const int8_t*>(x.zero)} : int32_t{*static_cast<const uint8_t*>(x.zero)};
  PhaseScope widening(KernelPhase::pack);
  parallel_for(pool, total, 65'536, [&](int64_t begin, int64_t end) {
    widen_to_i16(static_cast<const uint8_t*>(x.data) + begin, x.is_signed, zero, end - begin, image + begin);
  });

  widening.next(KernelPhase::none);
  const int64_t K = depth_of(p), pairs = pairs_of(p), channels = p.C / p.group, rows = p.M / p.group, items = p.N * p.group * groups.count;
  ScratchSlots slots(static_cast<std::byte*>(scratch) + aligned_bytes<int16_t>(total), slot_bytes(p, groups),
                     num_slots(p, groups, max_threads));
  const int64_t macs = std::max<int64_t>(1, rows * K * groups.columns_at_most());
  parallel_for(pool, items, std::max<int64_t>(1, 100'000 / macs), [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    int16_t* windows = reinterpret_cast<int16_t*>(lease.data());
    int16_t* packed = reinterpret_cast<int16_t*>(lease.data() + aligned_bytes<int16_t>(windows_elements(p, groups)));
    for (int64_t item = begin; item < end; ++item) {
      const int64_t part = item % groups.count, group = item / groups.count % p.group, n = item / groups.count / p.group;
      const int64_t first = groups.first_panel(part), last = groups.first_panel(part + 1);
      const int64_t from = panels.first_column(first), width = panels.first_column(last) - from, columns = std::min(width, out_size - from);
      PhaseScope phase(KernelPhase::windows);
      im2col_panel<int16_t>(w, channels, image + (n * p.C + group * channels) * in_size, 0, from, columns, width, windows);
      for (int64_t panel = first; panel < last; ++panel) {
        const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel), wide = vectors * panels.lanes;
        phase.next(KernelPhase::windows);
        interleave(windows + (n0 - from), K, wide, width, packed);
        phase.next(KernelPhase::compute);
        gemm_tile_rows_i16({.A = packed_weights + group * rows * 2 * pairs,
                            .B = packed,
                            .pairs = pairs,
                            .vectors = vectors,
                            .C = y + (n * p.M + group * rows) * out_size + n0,
                            .ldc = out_size,
                            .row_begin = 0,
                            .row_end = rows,
                            .columns = std::min(wide, out_size - n0)});
      }
    }
  });
}

}  // namespace treadle::kernels
