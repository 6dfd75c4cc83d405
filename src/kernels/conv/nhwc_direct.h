// Describes how NHWC convolutions read the image in place. The float32 and bfloat16 methods share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/conv/conv.h"
#include "kernels/gemm/tile.h"

namespace treadle::kernels::direct {

// Number of floats of the image that a block of rows reads. They stay in L2 together with a panel of weights.
inline constexpr int64_t kBlockFloats = 48 * 1024;
inline constexpr int64_t kMaxBlockRows = 192;        // maximum number of rows of a block, so that there are enough blocks for the threads
inline constexpr int64_t kEnoughItems = 8;           // number of items that keeps the threads busy
inline constexpr int64_t kMinMacsPerItem = 100'000;  // minimum number of multiplications per item: about 1 us
inline constexpr int64_t kMaxPieceRows = 192;        // maximum number of pixels whose offsets are listed on the stack
inline constexpr int64_t kMaxSegments = 128;         // maximum number of segments whose offsets are listed on the stack

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

inline bool is_padded(const Window& w) {
  for (int i = 0; i < 3; ++i) {
    if (w.pad_begin[i] != 0 || (w.out[i] - 1) * w.stride[i] + (w.kernel[i] - 1) * w.dilation[i] + 1 > w.in[i]) return true;
  }
  return false;
}

/// Returns true if output i reads only pixel i of a contiguous image. (False for a gradient's phase that omits the last pixels.)
inline bool is_flat(const Window& w) {
  return w.kernel_size() == 1 && w.stride[0] == 1 && w.stride[1] == 1 && w.stride[2] == 1 && !is_padded(w) &&
         std::equal(w.in, w.in + 3, w.out);
}

/// Describes the image as the direct method reads it. The image is copied if it needs padding or is in NCHW, or if its pixels are not
/// contiguous and windows have several pixels.
struct Source {
  int64_t extent[3];
  bool copied;
  int64_t step;  // stride of pixels in floats
  explicit Source(const ConvParams& p) : copied(p.x_planes || is_padded(p.window) || (p.x_step() != p.C && p.window.kernel_size() > 1)) {
    const Window& w = p.window;
    step = copied ? p.C : p.x_step();
    for (int i = 0; i < 3; ++i) {
      const int64_t reach = (w.out[i] - 1) * w.stride[i] + (w.kernel[i] - 1) * w.dilation[i] + 1;
      extent[i] = copied ? std::max(reach, w.in[i] + w.pad_begin[i]) : w.in[i];
    }
  }
  int64_t pixels() const { return extent[0] * extent[1] * extent[2]; }
};

/// A window as segments of contiguous floats.
struct Segments {
  int64_t count, length;
  bool whole_rows;  // true if each row of the window, with all channels, is one segment
  explicit Segments(const ConvParams& p) {
    const Window& w = p.window;
    whole_rows = p.group == 1 && (w.dilation[2] == 1 || w.kernel[2] == 1);
    count = w.kernel[0] * w.kernel[1] * (whole_rows ? 1 : w.kernel[2]);
    length = p.C / p.group * (whole_rows ? w.kernel[2] : 1);
  }
  void offsets(const ConvParams& p, const Source& source, int64_t* to) const {
    const Window& w = p.window;
    for (int64_t d = 0; d < w.kernel[0]; ++d) {
      for (int64_t h = 0; h < w.kernel[1]; ++h) {
        for (int64_t i = 0; i < (whole_rows ? 1 : w.kernel[2]); ++i)
          *to++ = (((d * w.dilation[0]) * source.extent[1] + h * w.dilation[1]) * source.extent[2] + i * w.dilation[2]) * source.step;
      }
    }
  }
};

/// The offsets of the segments from the start of a window.
class SegmentOffsets {
 public:
  SegmentOffsets(const ConvParams& p, const Source& source, const Segments& segments) : data_(few_) {
    if (segments.count > kMaxSegments) {
      many_.resize(static_cast<size_t>(segments.count));
      data_ = many_.data();
    }
    segments.offsets(p, source, data_);
  }
  SegmentOffsets(const SegmentOffsets&) = delete;
  SegmentOffsets& operator=(const SegmentOffsets&) = delete;
  const int64_t* data() const { return data_; }

 private:
  int64_t few_[kMaxSegments];
  std::vector<int64_t> many_;
  int64_t* data_;
};

/// Copies one image with padding to to[source.pixels() * p.C], laid out as `source` describes. @pre source.copied
void copy_padded(const ConvParams& p, const Source& source, const float* x, float* to, ThreadPool* pool);

/// Packs the weights for the direct method, without folding (NhwcTile::fold).
void pack_rows(const ConvParams& p, const float* weights, float* packed, ThreadPool* pool = nullptr);

/// Returns the number of images that are computed together.
int64_t images_together(const ConvParams& p, const Source& source);
/// Computes the convolution. @param padded  scratch for images_together() copied images; unused if the source is not copied
void convolve_directly(const ConvParams& p, const float* x, const float* packed, float* y, const ConvEpilogue& e, float* padded,
                       ThreadPool* pool);

inline int64_t depth_of(const ConvParams& p) { return p.C / p.group * p.window.kernel_size(); }

/// The division of the direct method's work: into blocks of output lines (within which pixels are evenly spaced), groups, and ranges of
/// panels. It depends only on sizes.
struct DirectPlan {
  int64_t lines, line;  // number of an image's output lines, and the length of a line
  int64_t block_lines, blocks;
  Panels panels;
  int64_t panel_ranges, panels_per_range;

  /// @param least_rows  minimum number of pixels of a block, if possible, even if the inputs of these pixels exceed the cache
  explicit DirectPlan(const ConvParams& p, int64_t least_rows = 24) : panels(p.M / p.group, panel_shape<float>()) {
    const Window& w = p.window;
    lines = w.out[0] * w.out[1];
    line = w.out[2];
    // A 1x1 convolution treats all its pixels as one line, which is then divided so that each block is a line.
    const bool flat = is_flat(w);
    // Number of floats that each additional output makes a block read. If the stride exceeds the kernel, only the window counts.
    const int64_t pixel_floats = p.C / p.group * std::min(w.stride[1], w.kernel[1]) * std::min(w.stride[2], w.kernel[2]);
    int64_t rows = std::clamp<int64_t>(kBlockFloats / std::max<int64_t>(1, pixel_floats), least_rows, kMaxBlockRows);
    // Each block reads all weights. If the weights are larger than the image, fewer blocks are better, even if the image then comes from a
    // slower cache.
    const int64_t weights = p.C / p.group * (p.M / p.group) * w.kernel_size();
    if (weights > kBlockFloats * 4) rows = std::clamp<int64_t>(weights / std::max<int64_t>(1, pixel_floats), rows, kMaxBlockRows);
    if (flat) {
      const int64_t pixels = w.out_size();
      // Divides the pixels in half for two threads, in this layer as in the next, so that each thread reads what it wrote. But not if
      // reading all weights twice costs more than reading half of the image from another core.
      if (weights <= pixels * (p.C + p.M)) rows = std::clamp(divide_up(pixels, 2), std::min(least_rows, rows), rows);
      lines = std::max<int64_t>(1, divide_up(pixels, rows));
      line = divide_up(pixels, lines);
      block_lines = 1;
      lines = divide_up(pixels, line);
    } else {
      block_lines = std::clamp<int64_t>(rows / std::max<int64_t>(1, line), 1, lines);
    }
    blocks = divide_up(lines, block_lines);
    const int64_t items = blocks * p.N * p.group;
    panel_ranges = items >= kEnoughItems ? 1 : std::min(panels.count, divide_up(kEnoughItems, items));
    panels_per_range = divide_up(panels.count, panel_ranges);
    panel_ranges = divide_up(panels.count, panels_per_range);
  }
};

/// Writes the offsets, in floats, of the windows of outputs [begin, end) in the source.
inline void pixel_offsets(const ConvParams& p, const Source& source, int64_t begin, int64_t end, int64_t* to) {
  const Window& w = p.window;
  int64_t ow = begin % w.out[2], oh = begin / w.out[2] % w.out[1], od = begin / w.out[2] / w.out[1];
  for (int64_t i = begin; i < end; ++i) {
    *to++ = (((od * w.stride[0]) * source.extent[1] + oh * w.stride[1]) * source.extent[2] + ow * w.stride[2]) * source.step;
    if (++ow < w.out[2]) continue;
    ow = 0;
    if (++oh < w.out[1]) continue;
    oh = 0, ++od;
  }
}

}  // namespace treadle::kernels::direct
