#include "kernels/conv/conv.h"

#include <algorithm>
#include <string>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/depthwise.h"
#include "kernels/conv/im2col.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kEnoughPanels = 12;          // with at least this many panels, a division by panels alone keeps the threads busy
constexpr int64_t kMinMacsPerChunk = 100'000;  // minimum number of multiplications per chunk: about 2 us

/// Returns true for a 1x1 convolution without strides and pads. Its columns are the pixels of the image.
bool is_pointwise(const Window& w) {
  for (int i = 0; i < 3; ++i) {
    if (w.kernel[i] != 1 || w.stride[i] != 1 || w.pad_begin[i] != 0 || w.in[i] != w.out[i]) return false;
  }
  return true;
}
/// Returns the window of a pointwise convolution that treats the image as a single row.
Window flattened(const Window& w) {
  Window flat = w;
  flat.in[0] = flat.in[1] = flat.out[0] = flat.out[1] = 1;
  flat.in[2] = flat.out[2] = w.in_size();
  return flat;
}

enum class Method { depthwise, panels, whole };
Method method_of(const ConvParams& p, const Panels& panels) {
  if (p.C == p.group && p.window.kernel_size() > 1 && p.window.kernel_size() <= kMaxDepthwiseTaps) return Method::depthwise;
  return panels.count * p.N * p.group >= kEnoughPanels ? Method::panels : Method::whole;
}

int64_t depth_of(const ConvParams& p) { return p.C / p.group * p.window.kernel_size(); }

Epilogue<float> group_epilogue(const ConvEpilogue& e, int64_t first_channel, int64_t y_offset, int64_t out_size) {
  return {.bias = e.bias ? e.bias + first_channel : nullptr,
          .bias_row = 1,
          .bias_col = 0,
          .residual = e.residual ? e.residual + y_offset : nullptr,
          .residual_row = out_size,
          .activation = e.activation,
          .a = e.a,
          .b = e.b};
}

}  // namespace

void check_conv(const ConvParams& p) {
  if (p.group < 1 || p.C % p.group != 0 || p.M % p.group != 0) {
    throw Error(ErrorCode::invalid_argument, "group = " + std::to_string(p.group) + " must divide " + std::to_string(p.C) + " input and " +
                                                 std::to_string(p.M) + " output channels");
  }
}

size_t conv_scratch_bytes(const ConvParams& p, int max_threads) {
  const Panels panels(p.window.out_size(), panel_shape<float>());
  switch (method_of(p, panels)) {
    case Method::depthwise: return depthwise_slot_bytes(p.window) * static_cast<size_t>(ScratchSlots::count(max_threads, p.N * p.C));
    case Method::panels:
      return aligned_bytes<float>(depth_of(p) * (panels.vectors + 1) * panels.lanes) *
             static_cast<size_t>(ScratchSlots::count(max_threads, p.N * p.group * panels.count));
    case Method::whole: return aligned_bytes<float>(depth_of(p) * panels.padded_columns());
  }
  return 0;
}

void conv(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch, int max_threads,
          ThreadPool* pool) {
  const int64_t out_size = p.window.out_size();
  if (p.N <= 0 || p.M <= 0 || out_size <= 0) return;
  const Panels panels(out_size, panel_shape<float>());
  const Method method = method_of(p, panels);
  if (method == Method::depthwise) return depthwise(p, x, weights, y, epilogue, scratch, max_threads, pool);

  const bool pointwise = is_pointwise(p.window);
  const Window w = pointwise ? flattened(p.window) : p.window;
  const int64_t K = depth_of(p), channels = p.C / p.group, rows = p.M / p.group, in_size = w.in_size();
  auto pack = [&](int64_t image, int64_t group, int64_t panel, float* dst) {
    const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
    im2col_panel(w, channels, x + (image * p.C + group * channels) * in_size, 0.0f, n0, std::min(width, out_size - n0), width, dst);
  };

  if (method == Method::whole) {
    float* packed = static_cast<float*>(scratch);
    for (int64_t i = 0; i < p.N * p.group; ++i) {
      const int64_t image = i / p.group, group = i % p.group;
      PhaseScope phase(KernelPhase::windows);
      parallel_for(pool, panels.count, std::max<int64_t>(1, 8192 / (K * 64)), [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) pack(image, group, panel, packed + K * panels.first_column(panel));
      });
      phase.next(KernelPhase::none);
      const int64_t offset = (image * p.M + group * rows) * out_size;
      gemm<float>(rows, {weights + group * rows * K, K, 1}, {K, out_size, packed}, y + offset, out_size,
                  group_epilogue(epilogue, group * rows, offset, out_size), pool);
    }
    return;
  }

  const int64_t items = p.N * p.group * panels.count;
  const int64_t slot_floats = K * (panels.vectors + 1) * panels.lanes;
  ScratchSlots slots(scratch, aligned_bytes<float>(slot_floats), ScratchSlots::count(max_threads, items));
  const int64_t grain = std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, rows * slot_floats));
  parallel_for(pool, items, grain, [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    float* packed = reinterpret_cast<float*>(lease.data());
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item % panels.count, group = item / panels.count % p.group, image = item / panels.count / p.group;
      const int64_t offset = (image * p.M + group * rows) * out_size;
      const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel);
      // A pointwise convolution reads the image directly as columns.
      const bool in_place = pointwise && n0 + vectors * panels.lanes <= out_size;
      PhaseScope phase(in_place ? KernelPhase::compute : KernelPhase::windows);
      if (!in_place) {
        pack(image, group, panel, packed);
        phase.next(KernelPhase::compute);
      }
      const Epilogue<float> e = group_epilogue(epilogue, group * rows, offset, out_size);
      run_tile<float>({.A = weights + group * rows * K,
                       .a_row = K,
                       .a_col = 1,
                       .B = in_place ? x + (image * p.C + group * channels) * in_size + n0 : packed,
                       .b_row = in_place ? in_size : vectors * panels.lanes,
                       .vectors = vectors,
                       .C = y + offset + n0,
                       .ldc = out_size,
                       .K = K,
                       .row_begin = 0,
                       .row_end = rows,
                       .first_column = n0,
                       .columns = std::min(vectors * panels.lanes, out_size - n0),
                       .epilogue = &e});
    }
  });
}

}  // namespace treadle::kernels
