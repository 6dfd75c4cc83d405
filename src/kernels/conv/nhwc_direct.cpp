#include "kernels/conv/nhwc_direct.h"

#include <algorithm>
#include <limits>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/nhwc_tile.h"
#include "kernels/movement/transpose_plane.h"

namespace treadle::kernels::direct {
namespace {

// Number of floats in a part of a panel. Two parts, and the rows that are multiplied by them, stay in L2 (1 MB).
constexpr int64_t kPartFloats = 64 * 1024;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kCopiedFloats = 32 * 1024;  // number of floats of padded images that are copied and computed together

/// Sets to[i * channels + c] = planes[c * plane + i].
void interleave(int64_t channels, int64_t count, const float* planes, int64_t plane, float* to) {
  if (channels >= 2 && channels <= 4)
    return kernels::interleave(static_cast<int>(channels), count, reinterpret_cast<const uint32_t*>(planes), plane,
                               reinterpret_cast<uint32_t*>(to));
  transpose_plane(channels, count, planes, plane, to, channels);
}

/// Splits the depth K of a convolution into nearly equal parts: whole segments, or pieces of one segment. The part of a panel in use and
/// the part being prefetched stay in L2 while all pixels of a block are multiplied by it.
struct DepthParts {
  int64_t pieces, segments_each, segment_count, length, fold, count;

  DepthParts(const Segments& segments, int64_t width, int fold_by) : segment_count(segments.count), length(segments.length), fold(fold_by) {
    const int64_t depth = std::max<int64_t>(1, kPartFloats / width);
    const bool whole = segments.count * length <= depth + depth / 2;
    pieces = whole ? 1 : std::max<int64_t>(1, divide_up(length, depth));
    segments_each = whole ? segments.count : pieces > 1 ? 1 : std::max<int64_t>(1, depth / std::max<int64_t>(1, length));
    count = pieces * divide_up(segments.count, segments_each);
  }
  struct Part {
    int64_t first_segment, segments, begin, length;
  };
  int64_t cut(int64_t piece) const { return length / fold * piece / pieces * fold; }
  Part part(int64_t i) const {
    const int64_t first = i / pieces * segments_each, begin = cut(i % pieces);
    return {first, std::min(segments_each, segment_count - first), begin, cut(i % pieces + 1) - begin};
  }
};

void copy_images(const ConvParams& p, const Source& source, const float* x, int64_t images, float* to, ThreadPool* pool) {
  const int64_t from_floats = p.window.in_size() * p.x_step(), to_floats = source.pixels() * p.C;
  if (images == 1) return copy_padded(p, source, x, to, pool);
  parallel_for(pool, images, std::max<int64_t>(1, 16'384 / to_floats), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy_padded(p, source, x + i * from_floats, to + i * to_floats, nullptr);
  });
}

/// Computes a convolution by the direct method. An item of work consists of a block of an image's output lines, one group, and a range of
/// the group's panels.
struct DirectConv {
  const ConvParams& p;
  const float* packed;
  float* y;
  const ConvEpilogue& e;
  const Source source;
  const Segments segments;
  const DirectPlan plan;
  const SegmentOffsets offsets;
  const Clamp clamp;
  const bool flat, uniform;  // uniform: the pixels of a line are evenly spaced
  const int64_t channels, filters, depth, out_size;
  const int fold;

  DirectConv(const ConvParams& params, const float* weights, float* to, const ConvEpilogue& epilogue)
      : p(params),
        packed(weights),
        y(to),
        e(epilogue),
        source(p),
        segments(p),
        plan(p),
        offsets(p, source, segments),
        clamp(clamp_of(e)),
        flat(is_flat(p.window)),
        uniform(flat || (plan.block_lines == 1 && plan.line <= kMaxPieceRows)),
        channels(p.C / p.group),
        filters(p.M / p.group),
        depth(depth_of(p)),
        out_size(p.window.out_size()),
        fold(direct_fold(p)) {}

  int64_t items_per_image() const { return plan.blocks * p.group * plan.panel_ranges; }
  int64_t grain() const {
    const int64_t macs = plan.block_lines * plan.line * depth * plan.panels_per_range * plan.panels.lanes * (plan.panels.vectors + 1);
    return std::max<int64_t>(1, kMinMacsPerItem / std::max<int64_t>(1, macs));
  }
  const float* weights_of(int64_t group, int64_t panel) const {
    return packed + depth * (group * plan.panels.padded_columns() + plan.panels.first_column(panel));
  }

  /// @param from  the image, laid out as `source` describes
  /// @param next  the item computed after this one, whose weights are prefetched
  void run(int64_t image, const float* from, int64_t item, int64_t next) const {
    const int64_t group = item / plan.panel_ranges % p.group, block = item / plan.panel_ranges / p.group % plan.blocks;
    const int64_t first_pixel = block * plan.block_lines * plan.line,
                  last_pixel = std::min(out_size, first_pixel + plan.block_lines * plan.line);
    const int64_t first_panel = item % plan.panel_ranges * plan.panels_per_range,
                  last_panel = std::min(plan.panels.count, first_panel + plan.panels_per_range);
    const float* weights_of_next = weights_of(next / plan.panel_ranges % p.group, next % plan.panel_ranges * plan.panels_per_range);
    const int64_t pieces = divide_up(last_pixel - first_pixel, kMaxPieceRows);
    int64_t pixels[kMaxPieceRows];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t p0 = first_pixel + (last_pixel - first_pixel) * piece / pieces,
                    p1 = first_pixel + (last_pixel - first_pixel) * (piece + 1) / pieces;
      const float* first_window = from + group * channels;
      if (uniform) {
        int64_t place = p0 * source.step;
        if (!flat) pixel_offsets(p, source, p0, p0 + 1, &place);
        first_window += place;
      } else {
        pixel_offsets(p, source, p0, p1, pixels);
      }
      for (int64_t panel = first_panel; panel < last_panel; ++panel)
        multiply(first_window, uniform ? nullptr : pixels, image * out_size + p0, p1 - p0, group, panel,
                 panel + 1 == last_panel ? weights_of_next : nullptr);
    }
    if (clamp.complete) return;
    const int64_t c0 = group * filters + plan.panels.first_column(first_panel);
    const int64_t c1 = std::min(group * filters + plan.panels.first_column(last_panel), (group + 1) * filters);
    activate(e, y + (image * out_size + first_pixel) * p.y_step() + c0, last_pixel - first_pixel, c1 - c0, p.y_step());
  }

  /// Multiplies `rows` outputs, beginning with `pixel`, by one panel. @param weights_of_next  prefetched; null: the panel after this one
  void multiply(const float* first_window, const int64_t* pixels, int64_t pixel, int64_t rows, int64_t group, int64_t panel,
                const float* weights_of_next) const {
    const int64_t column = plan.panels.first_column(panel), vectors = plan.panels.width_vectors(panel), width = vectors * plan.panels.lanes;
    const int64_t filter = group * filters + column;
    float* to = y + pixel * p.y_step() + filter;
    const float* residual = e.residual != nullptr ? e.residual + pixel * p.M + filter : nullptr;
    const DepthParts parts(segments, width, fold);
    const float* weights_of_part = weights_of(group, panel);
    for (int64_t i = 0; i < parts.count; ++i) {
      const bool first = i == 0, last = i + 1 == parts.count;
      const DepthParts::Part part = parts.part(i);
      const float* behind = weights_of_part + part.segments * part.length / fold * width;
      nhwc_tile({.A = first_window + part.begin,
                 .a_row = p.window.stride[2] * source.step,
                 .pixels = pixels,
                 .segments = offsets.data() + part.first_segment,
                 .num_segments = part.segments,
                 .length = part.length,
                 .B = weights_of_part,
                 .vectors = vectors,
                 .C = to,
                 .ldc = p.y_step(),
                 .rows = rows,
                 .columns = std::min(width, filters - column),
                 .bias = first && e.bias != nullptr ? e.bias + filter : nullptr,
                 .residual = first ? residual : to,
                 .residual_row = first ? p.M : p.y_step(),
                 .low = last ? clamp.low : -kInfinity,
                 .high = last ? clamp.high : kInfinity,
                 .fold = fold,
                 .next = last && weights_of_next != nullptr ? weights_of_next : behind});
      weights_of_part = behind;
    }
  }
};

}  // namespace

void copy_padded(const ConvParams& p, const Source& source, const float* x, float* to, ThreadPool* pool) {
  const Window& w = p.window;
  const PhaseScope phase(KernelPhase::borders);
  const int64_t row = source.extent[2] * p.C;
  parallel_for(pool, source.extent[0] * source.extent[1], std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, row)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const int64_t d = r / source.extent[1] - w.pad_begin[0], h = r % source.extent[1] - w.pad_begin[1];
                   float* out = to + r * row;
                   if (d < 0 || d >= w.in[0] || h < 0 || h >= w.in[1]) {
                     std::fill(out, out + row, 0.0f);
                     continue;
                   }
                   float* inside = out + w.pad_begin[2] * p.C;
                   const int64_t count = std::clamp<int64_t>(w.in[2] * p.C, 0, out + row - inside);
                   const int64_t first_pixel = (d * w.in[1] + h) * w.in[2];
                   const float* from = x + first_pixel * p.x_step();
                   std::fill(out, inside, 0.0f);
                   if (p.x_planes) {
                     interleave(p.C, count / p.C, x + first_pixel, w.in_size(), inside);
                   } else if (p.x_step() == p.C) {
                     std::copy(from, from + count, inside);
                   } else {
                     for (int64_t i = 0; i < count / p.C; ++i) std::copy_n(from + i * p.x_step(), p.C, inside + i * p.C);
                   }
                   std::fill(inside + count, out + row, 0.0f);
                 }
               });
}

// Returns how many small images are computed together: enough to keep threads busy, as long as their padded copies stay in L2.
int64_t images_together(const ConvParams& p, const Source& source) {
  const double macs = static_cast<double>(p.window.out_size()) * static_cast<double>(p.M) * static_cast<double>(depth_of(p));
  const auto wanted = static_cast<int64_t>(std::min(1e6, static_cast<double>(kEnoughItems * kMinMacsPerItem) / std::max(1.0, macs)));
  const int64_t fit = source.copied ? kCopiedFloats / std::max<int64_t>(1, source.pixels() * p.C) : wanted;
  return std::clamp<int64_t>(std::min(wanted, fit), 1, p.N);
}

void convolve_directly(const ConvParams& p, const float* x, const float* packed, float* y, const ConvEpilogue& e, float* padded,
                       ThreadPool* pool) {
  const DirectConv conv(p, packed, y, e);
  const Source& source = conv.source;
  const int64_t per_image = conv.items_per_image(), grain = conv.grain(), next_item = grain > 1 ? 1 : chunks_ahead(pool);
  const int64_t together = images_together(p, source),
                image_floats = source.copied ? source.pixels() * p.C : p.window.in_size() * p.x_step();
  for (int64_t first_image = 0; first_image < p.N; first_image += together) {
    const int64_t images = std::min(together, p.N - first_image);
    const float* from = x + first_image * p.window.in_size() * p.x_step();
    if (source.copied) {
      copy_images(p, source, from, images, padded, pool);
      from = padded;
    }
    const PhaseScope phase(KernelPhase::compute);
    parallel_for(pool, images * per_image, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item)
        conv.run(first_image + item / per_image, from + item / per_image * image_floats, item % per_image, item + next_item);
    });
  }
}

}  // namespace treadle::kernels::direct
