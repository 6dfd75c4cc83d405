#include "kernels/conv/conv_int.h"

#include <algorithm>
#include <cstring>

#include "core/base/checked.h"
#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile.h"
#include "kernels/gemm/tile_i16.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

/// Describes the copy of the image that tiles read instead of im2col columns: int16 values minus the zero point, with borders, channels in
/// pairs. A stride of s splits an axis into s phases. Then adjacent outputs read adjacent elements, and a tap is a fixed offset. Layout:
///
///     channel pair, phase, rows of the grid of pairs
struct PairsImage {
  int64_t channel_pairs;  // number of channel pairs of a group
  int64_t phases[3];      // number of phases of each axis that taps read
  int64_t grid[3];        // extent of the grid for each axis: the outputs, and what taps read after the last output
  int64_t phase_pairs, channel_size;

  explicit PairsImage(const ConvParams& p) : channel_pairs((p.C / p.group + 1) / 2) {
    const Window& w = p.window;
    for (int axis = 0; axis < 3; ++axis) {
      phases[axis] = 1;
      for (int64_t k = 1; k < w.kernel[axis] && phases[axis] < w.stride[axis]; ++k)
        phases[axis] = std::max(phases[axis], k * w.dilation[axis] % w.stride[axis] + 1);
      grid[axis] = checked_add(w.out[axis], checked_mul(w.kernel[axis] - 1, w.dilation[axis]) / w.stride[axis]);
    }
    phase_pairs = checked_mul(checked_mul(grid[0], grid[1]), grid[2]);
    channel_size = checked_mul(phase_pairs, phases[0] * phases[1] * phases[2]);
  }
  int64_t group_size() const { return checked_mul(channel_pairs, channel_size); }
  int64_t phase(int64_t d, int64_t h, int64_t w) const { return ((d * phases[1] + h) * phases[2] + w) * phase_pairs; }
  int64_t at(int64_t d, int64_t h, int64_t w) const { return (d * grid[1] + h) * grid[2] + w; }
};

constexpr int64_t kRowsBytes = 256 << 10;  // bytes of weights that stay in L2 while all panels read them

int64_t taps_of(const ConvParams& p) { return (p.C / p.group + 1) / 2 * p.window.kernel_size(); }

/// The runs (contiguous positions) of the grid that are computed together: either rows of outputs, or the whole grid including the gaps
/// between rows if that takes fewer columns.
struct Runs {
  int64_t count, length;
  bool gaps;  // the run is the whole grid, including positions that are not outputs
  Panels panels;

  Runs(const Window& w, const PairsImage& image)
      : count(w.out[0] * w.out[1]),
        length(w.out[2]),
        gaps(false),
        panels(w.out[2], panel_shape<float>()) {  // int32 has as many lanes as float
    const Panels whole(image.at(w.out[0] - 1, w.out[1] - 1, w.out[2]), panel_shape<float>());
    if (whole.padded_columns() > count * panels.padded_columns()) return;
    count = 1, length = whole.N, gaps = whole.N != w.out_size(), panels = whole;
  }
  int64_t widest() const { return (panels.vectors + (panels.wide > 0 ? 1 : 0)) * panels.lanes; }
};

/// Fills the phases of one channel pair with pixels. Positions outside the image become zero.
struct PairsFiller {
  const Window& w;
  const PairsImage& image;
  bool is_signed;
  int32_t zero;

  void fill(const uint8_t* even, const uint8_t* odd, int16_t* to) const {
    for (int64_t d = 0; d < image.phases[0]; ++d)
      for (int64_t h = 0; h < image.phases[1]; ++h)
        for (int64_t gd = 0; gd < image.grid[0]; ++gd)
          for (int64_t gh = 0; gh < image.grid[1]; ++gh) {
            const int64_t id = gd * w.stride[0] + d - w.pad_begin[0], ih = gh * w.stride[1] + h - w.pad_begin[1];
            const bool inside = id >= 0 && id < w.in[0] && ih >= 0 && ih < w.in[1];
            const int64_t row = inside ? (id * w.in[1] + ih) * w.in[2] : -1;
            for (int64_t phase = 0; phase < image.phases[2]; ++phase) {
              int16_t* dst = to + 2 * (image.phase(d, h, phase) + image.at(gd, gh, 0));
              if (inside) {
                fill_row(even + row, odd ? odd + row : nullptr, phase, dst);
              } else {
                std::memset(dst, 0, static_cast<size_t>(image.grid[2]) * 2 * sizeof(int16_t));
              }
            }
          }
  }
  void fill_row(const uint8_t* even, const uint8_t* odd, int64_t phase, int16_t* dst) const {
    const Taps inside = places_inside(phase - w.pad_begin[2], w.stride[2], image.grid[2], w.in[2]);
    const int64_t first = phase - w.pad_begin[2] + inside.first * w.stride[2], count = inside.last - inside.first;
    std::memset(dst, 0, static_cast<size_t>(inside.first) * 2 * sizeof(int16_t));
    pairs_to_i16({.even = even + first, .odd = odd ? odd + first : nullptr, .step = w.stride[2], .is_signed = is_signed, .zero = zero},
                 count, dst + 2 * inside.first);
    std::memset(dst + 2 * inside.last, 0, static_cast<size_t>(image.grid[2] - inside.last) * 2 * sizeof(int16_t));
  }
};

/// Writes each tap's offset in a group's image, in int16 elements.
void write_offsets(const Window& w, const PairsImage& image, int64_t* offsets) {
  for (int64_t c = 0; c < image.channel_pairs; ++c)
    for (int64_t d = 0; d < w.kernel[0]; ++d)
      for (int64_t h = 0; h < w.kernel[1]; ++h)
        for (int64_t k = 0; k < w.kernel[2]; ++k) {
          const int64_t at[3] = {d * w.dilation[0], h * w.dilation[1], k * w.dilation[2]};
          *offsets++ = 2 * (c * image.channel_size + image.phase(at[0] % w.stride[0], at[1] % w.stride[1], at[2] % w.stride[2]) +
                            image.at(at[0] / w.stride[0], at[1] / w.stride[1], at[2] / w.stride[2]));
        }
}

/// Copies those columns [first, first + columns) of the grid that are outputs, from rows of `width` elements to planes of `plane` elements.
void copy_outputs(const Window& w, const PairsImage& image, int64_t first, int64_t columns, const int32_t* from, int64_t width,
                  int64_t rows, int32_t* to, int64_t plane) {
  for (int64_t column = 0; column < columns;) {
    const int64_t at = first + column, ow = at % image.grid[2], row = at / image.grid[2];
    const int64_t oh = row % image.grid[1], od = row / image.grid[1], left = std::min(columns - column, image.grid[2] - ow);
    const int64_t count = oh < w.out[1] ? std::clamp<int64_t>(w.out[2] - ow, 0, left) : 0;
    if (count > 0) {
      int32_t* dst = to + (od * w.out[1] + oh) * w.out[2] + ow;
      for (int64_t m = 0; m < rows; ++m)
        std::memcpy(dst + m * plane, from + m * width + column, static_cast<size_t>(count) * sizeof(int32_t));
    }
    column += left;
  }
}

/// The sizes of the scratch: images of all groups (with a panel after the last image, which tiles may read), offsets, and buffers for tiles
/// with gaps.
struct Room {
  size_t image_bytes, offsets_bytes, slot_bytes;
  int slots;

  Room(const ConvParams& p, const PairsImage& image, const Runs& runs, int max_threads)
      : image_bytes(aligned_bytes<int16_t>(2 * checked_add(checked_mul(p.N * p.group, image.group_size()), runs.widest()))),
        offsets_bytes(aligned_bytes<int64_t>(taps_of(p))),
        slot_bytes(runs.gaps ? aligned_bytes<int32_t>(p.M / p.group * runs.widest()) : 0),
        slots(ScratchSlots::count(max_threads, p.N * p.group * runs.count * runs.panels.count)) {}
  size_t total() const { return image_bytes + offsets_bytes + slot_bytes * static_cast<size_t>(slots); }
};

}  // namespace

int64_t conv_int_weights_size(const ConvParams& p) { return p.M * 2 * taps_of(p); }

void pack_conv_int_weights(const ConvParams& p, const ByteMatrix& weights, int16_t* packed) {
  const int64_t channels = p.C / p.group, kernel = p.window.kernel_size();
  const PhaseScope phase(KernelPhase::pack);
  for (int64_t m = 0; m < p.M; ++m) {
    const int32_t zero = zero_of(weights, m);
    for (int64_t c = 0; c < channels; c += 2, packed += 2 * kernel) {
      const uint8_t* even = static_cast<const uint8_t*>(weights.data) + (m * channels + c) * kernel;
      pairs_to_i16({.even = even, .odd = c + 1 < channels ? even + kernel : nullptr, .is_signed = weights.is_signed, .zero = zero}, kernel,
                   packed);
    }
  }
}

size_t conv_int_scratch_bytes(const ConvParams& p, int max_threads) {
  if (p.N <= 0 || p.M <= 0 || p.window.out_size() <= 0) return 0;
  const PairsImage image(p);
  return Room(p, image, Runs(p.window, image), max_threads).total();
}

void conv_int(const ConvParams& p, const ByteMatrix& x, const int16_t* packed_weights, int32_t* y, void* scratch, int max_threads,
              ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t out_size = w.out_size();
  if (p.N <= 0 || p.M <= 0 || out_size <= 0) return;
  const PairsImage image(p);
  const Runs runs(w, image);
  const Panels& panels = runs.panels;
  const Room room(p, image, runs, max_threads);
  auto* images = static_cast<int16_t*>(scratch);
  auto* offsets = reinterpret_cast<int64_t*>(static_cast<std::byte*>(scratch) + room.image_bytes);
  write_offsets(w, image, offsets);

  const int64_t channels = p.C / p.group, pairs = image.channel_pairs;
  PhaseScope widening(KernelPhase::pack);
  const PairsFiller filler{w, image, x.is_signed, zero_of(x, 0)};
  parallel_for(pool, p.N * p.group * pairs, std::max<int64_t>(1, 32'768 / image.channel_size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t c = item % pairs * 2;
      const uint8_t* even = static_cast<const uint8_t*>(x.data) + (item / pairs * channels + c) * w.in_size();
      filler.fill(even, c + 1 < channels ? even + w.in_size() : nullptr, images + 2 * item * image.channel_size);
    }
  });
  widening.next(KernelPhase::none);

  const int64_t rows = p.M / p.group, taps = taps_of(p), row_bytes = 2 * taps * static_cast<int64_t>(sizeof(int16_t));
  const int64_t in_block = std::clamp<int64_t>(kRowsBytes / std::max<int64_t>(row_bytes, 1), 1, rows),
                blocks = (rows + in_block - 1) / in_block;
  const int64_t in_image = runs.count * panels.count, items = p.N * p.group * blocks * in_image;
  ScratchSlots slots(static_cast<std::byte*>(scratch) + room.image_bytes + room.offsets_bytes, room.slot_bytes, room.slots);
  const int64_t macs = std::max<int64_t>(1, in_block * 2 * taps * runs.widest());
  parallel_for(pool, items, std::max<int64_t>(1, 100'000 / macs), [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    auto* with_gaps = reinterpret_cast<int32_t*>(lease.data());
    const PhaseScope phase(KernelPhase::compute);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item % panels.count, run = item / panels.count % runs.count, block = item / in_image % blocks;
      const int64_t n = item / in_image / blocks, row = block * in_block, count = std::min(in_block, rows - row);
      const int64_t first = panels.first_column(panel), vectors = panels.width_vectors(panel), width = vectors * panels.lanes;
      const int64_t from = image.at(run / w.out[1], run % w.out[1], 0) + first, columns = std::min(width, runs.length - first);
      int32_t* planes = y + (n * rows + row) * out_size;
      gemm_tile_rows_i16({.A = packed_weights + (n % p.group * rows + row) * 2 * taps,
                          .B = images + 2 * (n * image.group_size() + from),
                          .offsets = offsets,
                          .pairs = taps,
                          .vectors = vectors,
                          .C = runs.gaps ? with_gaps : planes + run * runs.length + first,
                          .ldc = runs.gaps ? width : out_size,
                          .row_begin = 0,
                          .row_end = count,
                          .columns = runs.gaps ? width : columns});
      if (runs.gaps) copy_outputs(w, image, first, columns, with_gaps, width, count, planes, out_size);
    }
  });
}

}  // namespace treadle::kernels
