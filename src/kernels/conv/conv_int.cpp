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

// A slot holds the panel as im2col writes it, and again with its rows in pairs.
int64_t panel_elements(const ConvParams& p, const Panels& panels) { return 2 * pairs_of(p) * (panels.vectors + 1) * panels.lanes; }
size_t slot_bytes(const ConvParams& p, const Panels& panels) { return 2 * aligned_bytes<int16_t>(panel_elements(p, panels)); }
int num_slots(const ConvParams& p, const Panels& panels, int max_threads) {
  return ScratchSlots::count(max_threads, p.N * p.group * panels.count);
}

void interleave(const int16_t* rows, int64_t depth, int64_t width, int16_t* pairs) {
  for (int64_t k = 0; k < depth; k += 2, pairs += 2 * width) {
    const int16_t *even = rows + k * width, *odd = even + width;
    if (k + 1 < depth) {
      for (int64_t j = 0; j < width; ++j) pairs[2 * j] = even[j], pairs[2 * j + 1] = odd[j];
    } else {
      for (int64_t j = 0; j < width; ++j) pairs[2 * j] = even[j], pairs[2 * j + 1] = 0;
    }
  }
}

}  // namespace

int64_t conv_int_weights_size(const ConvParams& p) { return packed_a_i16_size(p.M, depth_of(p)); }

void pack_conv_int_weights(const ConvParams& p, const ByteMatrix& weights, int16_t* packed) {
  pack_a_i16(weights, p.M, depth_of(p), depth_of(p), packed);
}

size_t conv_int_scratch_bytes(const ConvParams& p, int max_threads) {
  const Panels panels(p.window.out_size(), panel_shape<float>());
  return aligned_bytes<int16_t>(p.N * p.C * p.window.in_size()) +
         slot_bytes(p, panels) * static_cast<size_t>(num_slots(p, panels, max_threads));
}

void conv_int(const ConvParams& p, const ByteMatrix& x, const int16_t* packed_weights, int32_t* y, void* scratch, int max_threads,
              ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t out_size = w.out_size(), in_size = w.in_size();
  if (p.N <= 0 || p.M <= 0 || out_size <= 0) return;
  const Panels panels(out_size, panel_shape<float>());
  // The whole image as int16 less its zero point: the pads are then plain zeros.
  int16_t* image = static_cast<int16_t*>(scratch);
  const int64_t total = p.N * p.C * in_size;
  int32_t zero = 0;
  if (x.zero) zero = x.is_signed ? int32_t{*static_cast<const int8_t*>(x.zero)} : int32_t{*static_cast<const uint8_t*>(x.zero)};
  PhaseScope widening(KernelPhase::pack);
  parallel_for(pool, total, 65'536, [&](int64_t begin, int64_t end) {
    if (x.is_signed) {
      for (int64_t i = begin; i < end; ++i) image[i] = static_cast<int16_t>(static_cast<const int8_t*>(x.data)[i] - zero);
    } else {
      for (int64_t i = begin; i < end; ++i) image[i] = static_cast<int16_t>(static_cast<const uint8_t*>(x.data)[i] - zero);
    }
  });

  widening.next(KernelPhase::none);
  const int64_t K = depth_of(p), pairs = pairs_of(p), channels = p.C / p.group, rows = p.M / p.group, items = p.N * p.group * panels.count;
  ScratchSlots slots(static_cast<std::byte*>(scratch) + aligned_bytes<int16_t>(total), slot_bytes(p, panels),
                     num_slots(p, panels, max_threads));
  parallel_for(pool, items, std::max<int64_t>(1, 100'000 / std::max<int64_t>(1, rows * K * 64)), [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    int16_t* raw = reinterpret_cast<int16_t*>(lease.data());
    int16_t* packed = reinterpret_cast<int16_t*>(lease.data() + aligned_bytes<int16_t>(panel_elements(p, panels)));
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item % panels.count, group = item / panels.count % p.group, n = item / panels.count / p.group;
      const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel), width = vectors * panels.lanes;
      const int64_t columns = std::min(width, out_size - n0);
      PhaseScope phase(KernelPhase::windows);
      im2col_panel<int16_t>(w, channels, image + (n * p.C + group * channels) * in_size, 0, n0, columns, width, raw);
      interleave(raw, K, width, packed);
      phase.next(KernelPhase::compute);
      gemm_tile_rows_i16({.A = packed_weights + group * rows * 2 * pairs,
                          .B = packed,
                          .pairs = pairs,
                          .vectors = vectors,
                          .C = y + (n * p.M + group * rows) * out_size + n0,
                          .ldc = out_size,
                          .row_begin = 0,
                          .row_end = rows,
                          .columns = columns});
    }
  });
}

}  // namespace treadle::kernels
