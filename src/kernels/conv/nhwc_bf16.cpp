#include "kernels/conv/nhwc_bf16.h"

#include <algorithm>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/nhwc_direct.h"
#include "kernels/elementwise/convert.h"
#include "kernels/gemm/tile_bf16.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

using direct::depth_of;
using direct::DirectPlan;
using direct::divide_up;
using direct::kMaxPieceRows;
using direct::Segments;
using direct::Source;

constexpr int64_t kMinMacsPerItem = 200'000;  // minimum number of multiplications per item: about 1 us
constexpr int64_t kLeastTiledRows = 128;      // minimum with AMX; with fewer, rereading the weights costs more than reading the image
constexpr int64_t kMinConverted = 16'384;     // minimum number of elements to convert per chunk

int64_t terms_of(Bf16Form form) { return form == Bf16Form::three ? 3 : 1; }
// Returns the number of bfloat16 parts of each weight and pixel.
int64_t parts_of(Bf16Form form) { return form == Bf16Form::three ? 2 : 1; }
int64_t group_words(const ConvParams& p, Bf16Form form) {
  return depth_of(p) / 2 * parts_of(form) * Panels(p.M / p.group, panel_shape<float>()).padded_columns();
}

/// Describes the rounded image, whose pixels are contiguous.
Source rounded_source(ConvParams p) {
  p.x_pixel = 0;
  return Source(p);
}

/// Rounds the image and pads it with zeros. In the three-term form, the remainders of rounding are stored after the image.
void round_padded(const ConvParams& p, Bf16Form form, const Source& source, const float* x, uint16_t* to, ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t row = source.extent[2] * p.C;
  uint16_t* const rest = form == Bf16Form::three ? to + source.pixels() * p.C : nullptr;
  const PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, source.extent[0] * source.extent[1], std::max<int64_t>(1, kMinConverted / std::max<int64_t>(1, row)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const int64_t d = r / source.extent[1] - w.pad_begin[0], h = r % source.extent[1] - w.pad_begin[1];
                   const bool outside = d < 0 || d >= w.in[0] || h < 0 || h >= w.in[1];
                   const int64_t left = outside ? row : w.pad_begin[2] * p.C;
                   const int64_t count = std::clamp<int64_t>(w.in[2] * p.C, 0, row - left);
                   for (uint16_t* line : {to + r * row, rest != nullptr ? rest + r * row : nullptr}) {
                     if (line == nullptr) continue;
                     std::fill(line, line + left, uint16_t{0});
                     std::fill(line + left + count, line + row, uint16_t{0});
                   }
                   if (outside) continue;
                   const float* from = x + (d * w.in[1] + h) * w.in[2] * p.x_step();
                   const int64_t run = p.x_step() == p.C ? count : p.C;
                   for (int64_t i = left; i < left + count; i += run, from += p.x_step()) {
                     if (form == Bf16Form::float16)
                       narrow(from, reinterpret_cast<Float16*>(to + r * row + i), run);
                     else
                       to_bf16(from, run, to + r * row + i, rest != nullptr ? rest + r * row + i : nullptr);
                   }
                 }
               });
}

/// The data shared by all work items of an image.
struct Shared {
  const ConvParams& p;
  Bf16Form form;
  Source source;
  Segments segments;
  DirectPlan plan;
  bool flat, uniform;  // uniform: pixels within a line are evenly spaced
  bool even_lines;     // pixels are evenly spaced across lines too, if unwanted positions between lines are counted
  int64_t num_offsets;
  const int64_t* offsets;
  const uint16_t* image;
  const uint32_t* packed;
  bool emulated;

  Shared(const ConvParams& params, Bf16Form in_form, const uint16_t* rounded, const uint32_t* weights, bool emulate)
      : p(params),
        form(in_form),
        source(rounded_source(params)),
        segments(params),
        plan(params, cpu_info().features.amx_bf16 ? kLeastTiledRows : 24),
        flat(direct::is_flat(params.window)),
        uniform(flat || (plan.block_lines == 1 && plan.line <= kMaxPieceRows)),
        even_lines(params.window.stride[1] == 1 && params.window.stride[2] == 1 && params.window.out[0] == 1),
        num_offsets(segments.count * terms_of(in_form)),
        offsets(few_),
        image(rounded),
        packed(weights),
        emulated(emulate) {
    int64_t* to = few_;
    if (num_offsets > kFewOffsets) {
      many_.resize(static_cast<size_t>(num_offsets));
      offsets = to = many_.data();
    }
    segments.offsets(p, source, to);
    // In the three-term form, the panel holds the high and then the low parts of the weights. They are multiplied in the order high, low,
    // high by the image's high, high and low parts.
    for (int64_t i = segments.count; i < num_offsets; ++i)
      to[i] = to[i % segments.count] + (i >= 2 * segments.count ? source.pixels() * p.C : 0);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  /// Multiplies pixels [p0, p1) of an image by panels [first, last) of a group.
  void piece(int64_t p0, int64_t p1, int64_t group, int64_t first_panel, int64_t last_panel, const Epilogue<float>& image_epilogue,
             float* y) const {
    const Window& w = p.window;
    int64_t pixels[kMaxPieceRows];
    const int64_t channels = p.C / p.group, filters = p.M / p.group, words = depth_of(p) / 2 * parts_of(form);
    const uint16_t* first_window = image + group * channels;
    if (uniform) {
      int64_t place = p0 * p.C;
      if (!flat) direct::pixel_offsets(p, source, p0, p0 + 1, &place);
      first_window += place;
    } else {
      direct::pixel_offsets(p, source, p0, p1, pixels);
    }
    Epilogue<float> epilogue = image_epilogue;
    if (epilogue.residual != nullptr) epilogue.residual += p0 * p.M;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t column = plan.panels.first_column(panel), vectors = plan.panels.width_vectors(panel), filter = group * filters + column;
      Bf16Tile job{.A = first_window,
                   .a_row = w.stride[2] * p.C,
                   .pixels = uniform ? nullptr : pixels,
                   .segments = offsets,
                   .num_segments = num_offsets,
                   .b_segments = segments.count * parts_of(form),
                   .b_first = 0,
                   .length = segments.length,
                   .B = packed + group * group_words(p, form) + words * column,
                   .to = {},
                   .line = uniform || !even_lines ? 0 : w.out[2],
                   .gap = source.extent[2] - w.out[2],
                   .first_in_line = p0 % w.out[2],
                   .emulated = emulated,
                   .is_float16 = form == Bf16Form::float16};
      job.to.vectors = vectors;
      job.to.C = y + p0 * p.y_step() + filter, job.to.ldc = p.y_step();
      job.to.row_begin = 0, job.to.row_end = p1 - p0;
      job.to.first_column = filter, job.to.columns = std::min(vectors * plan.panels.lanes, filters - column);
      job.to.epilogue = &epilogue;
      if (panel + 1 < last_panel) job.to.next = packed + group * group_words(p, form) + words * plan.panels.first_column(panel + 1);
      run_bf16_tile(job);
    }
  }

  void item(int64_t item, const Epilogue<float>& epilogue, float* y) const {
    const int64_t range = item % plan.panel_ranges, group = item / plan.panel_ranges % p.group, block = item / plan.panel_ranges / p.group;
    const int64_t first_pixel = block * plan.block_lines * plan.line,
                  last_pixel = std::min(p.window.out_size(), first_pixel + plan.block_lines * plan.line);
    const int64_t first_panel = range * plan.panels_per_range,
                  last_panel = std::min(plan.panels.count, first_panel + plan.panels_per_range);
    const int64_t count = last_pixel - first_pixel, pieces = divide_up(count, kMaxPieceRows);
    for (int64_t i = 0; i < pieces; ++i)
      piece(first_pixel + count * i / pieces, first_pixel + count * (i + 1) / pieces, group, first_panel, last_panel, epilogue, y);
  }

 private:
  // Number of offsets that are kept on the stack, so that a run does not allocate.
  static constexpr int64_t kFewOffsets = 3 * direct::kMaxSegments;
  int64_t few_[kFewOffsets];
  std::vector<int64_t> many_;
};

}  // namespace

bool nhwc_bf16_fits(const ConvParams& p) { return !p.x_planes && Segments(p).length % 2 == 0; }

bool nhwc_bf16_pays(const ConvParams& p, NhwcMethod method, Bf16Form form) {
  return nhwc_bf16_fits(p) && (form == Bf16Form::three ? method == NhwcMethod::direct : method != NhwcMethod::depthwise);
}

int64_t nhwc_bf16_packed_size(const ConvParams& p, Bf16Form form) { return p.group * group_words(p, form); }

void nhwc_bf16_pack(const ConvParams& p, Bf16Form form, const float* weights, uint32_t* packed) {
  std::vector<float> wide(static_cast<size_t>(nhwc_packed_size(p, NhwcMethod::direct)));
  direct::pack_rows(p, weights, wide.data());
  const Panels panels(p.M / p.group, panel_shape<float>());
  const int64_t K = depth_of(p);
  const float* rows = wide.data();
  for (int64_t group = 0; group < p.group; ++group) {
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t width = panels.width_vectors(panel) * panels.lanes;
      for (int64_t term = 0; term < parts_of(form); ++term, packed += K / 2 * width) {
        if (form == Bf16Form::float16)
          pair_float16_rows(rows, width, K, width, packed);
        else
          pair_rows(rows, width, K, width, term == 1, packed);
      }
      rows += K * width;
    }
  }
}

size_t nhwc_bf16_scratch_bytes(const ConvParams& p, Bf16Form form) {
  if (p.N <= 0 || p.window.out_size() <= 0) return 0;
  return aligned_bytes<uint16_t>(rounded_source(p).pixels() * p.C * parts_of(form));
}

void nhwc_bf16_conv(const ConvParams& p, Bf16Form form, const float* x, const uint32_t* packed, float* y, const ConvEpilogue& e,
                    void* scratch, ThreadPool* pool, bool emulated) {
  if (p.N <= 0 || p.M <= 0 || p.window.out_size() <= 0) return;
  auto* rounded = static_cast<uint16_t*>(scratch);
  const Shared shared(p, form, rounded, packed, emulated);
  const DirectPlan& plan = shared.plan;
  const int64_t items = plan.blocks * p.group * plan.panel_ranges;
  const int64_t macs =
      plan.block_lines * plan.line * depth_of(p) * terms_of(form) * plan.panels_per_range * plan.panels.lanes * (plan.panels.vectors + 1);
  for (int64_t image = 0; image < p.N; ++image) {
    round_padded(p, form, shared.source, x + image * p.window.in_size() * p.x_step(), rounded, pool);
    const int64_t pixel = image * p.window.out_size();
    Epilogue<float> epilogue;
    epilogue.bias = e.bias;
    epilogue.residual = e.residual != nullptr ? e.residual + pixel * p.M : nullptr, epilogue.residual_row = p.M;
    epilogue.activation = e.activation, epilogue.a = e.a, epilogue.b = e.b;
    const PhaseScope phase(KernelPhase::compute);
    parallel_for(pool, items, std::max<int64_t>(1, kMinMacsPerItem / std::max<int64_t>(1, macs)), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) shared.item(item, epilogue, y + pixel * p.y_step());
    });
  }
}

}  // namespace treadle::kernels
