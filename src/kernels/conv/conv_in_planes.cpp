#include "kernels/conv/conv_in_planes.h"

#include <utility>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/conv_gradient.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// Limits for this method: at most this many pixels, and at least this many filters. Measured on an Intel Xeon 6 with 3 to 9 taps, 32 to 512
// channels and 4 to 100 pixels. With fewer filters, im2col takes too large a share of the time.
constexpr int64_t kFewPixels = 64, kManyFilters = 192;

bool has_few_pixels(const ConvParams& p) {
  return p.N == 1 && p.group == 1 && p.window.kernel_size() > 1 && p.window.out_size() > 0 && p.window.out_size() <= kFewPixels &&
         p.C > 0 && p.M > 0;
}

/// Returns parameters for the plain kernels, which need contiguous planes.
ConvParams plain(ConvParams p) {
  p.x_pixel = p.y_pixel = 0;
  p.x_planes = false;
  return p;
}
/// Returns parameters of the transposed convolution that computes the input's gradient.
ConvParams transposed(ConvParams p) {
  std::swap(p.C, p.M);
  return plain(p);
}

/// The layout of the scratch: x and y in NCHW, then the scratch of the plain kernel.
struct Planes {
  float *x, *y;
  void* rest;

  Planes(const ConvParams& p, void* scratch) {
    auto* room = static_cast<std::byte*>(scratch);
    x = reinterpret_cast<float*>(room);
    y = reinterpret_cast<float*>(room + x_bytes(p));
    rest = room + bytes(p);
  }
  static size_t x_bytes(const ConvParams& p) { return aligned_bytes<float>(p.C * p.window.in_size()); }
  static size_t bytes(const ConvParams& p) { return x_bytes(p) + aligned_bytes<float>(p.M * p.window.out_size()); }
};

void to_planes(int64_t pixels, int64_t channels, const float* image, int64_t step, float* planes) {
  const PhaseScope phase(KernelPhase::pack);
  transpose_plane(pixels, channels, image, step, planes, pixels);
}
void from_planes(int64_t pixels, int64_t channels, const float* planes, float* image, int64_t step) {
  const PhaseScope phase(KernelPhase::output_transform);
  transpose_plane(channels, pixels, planes, pixels, image, step);
}

}  // namespace

bool conv_in_planes_pays(const ConvParams& p) { return has_few_pixels(p) && p.M >= kManyFilters; }

size_t conv_in_planes_scratch_bytes(const ConvParams& p, int max_threads) {
  return Planes::bytes(p) + conv_scratch_bytes(plain(p), max_threads);
}

void conv_in_planes(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
                    int max_threads, ThreadPool* pool) {
  const Planes planes(p, scratch);
  const int64_t pixels = p.window.out_size();
  if (!p.x_planes) to_planes(p.window.in_size(), p.C, x, p.x_step(), planes.x);
  ConvEpilogue own = epilogue;
  if (epilogue.residual != nullptr) {
    to_planes(pixels, p.M, epilogue.residual, p.M, planes.y);
    own.residual = planes.y;
  }
  conv(plain(p), p.x_planes ? x : planes.x, weights, planes.y, own, planes.rest, max_threads, pool);
  from_planes(pixels, p.M, planes.y, y, p.y_step());
}

bool conv_grad_input_in_planes_pays(const ConvParams& p) { return has_few_pixels(p); }

size_t conv_grad_input_in_planes_scratch_bytes(const ConvParams& p, int max_threads) {
  return Planes::bytes(p) + conv_transpose_scratch_bytes(transposed(p), max_threads);
}

void conv_grad_input_in_planes(const ConvParams& p, const float* dy, const float* weights, float* dx, void* scratch, int max_threads,
                               ThreadPool* pool) {
  const Planes planes(p, scratch);
  to_planes(p.window.out_size(), p.M, dy, p.M, planes.y);
  conv_transpose(transposed(p), planes.y, weights, planes.x, {}, planes.rest, max_threads, pool);
  from_planes(p.window.in_size(), p.C, planes.x, dx, p.C);
}

bool conv_grad_weights_in_planes_pays(const ConvParams& p) { return has_few_pixels(p) && p.M >= kManyFilters; }

size_t conv_grad_weights_in_planes_scratch_bytes(const ConvParams& p, int max_threads) {
  return Planes::bytes(p) + conv_grad_weights_scratch_bytes<float>(plain(p), max_threads);
}

void conv_grad_weights_in_planes(const ConvParams& p, const float* dy, const float* x, float* dw, void* scratch, int max_threads,
                                 ThreadPool* pool) {
  const Planes planes(p, scratch);
  to_planes(p.window.in_size(), p.C, x, p.C, planes.x);
  to_planes(p.window.out_size(), p.M, dy, p.M, planes.y);
  conv_grad_weights<float>(plain(p), planes.y, planes.x, dw, planes.rest, max_threads, pool);
}

}  // namespace treadle::kernels
