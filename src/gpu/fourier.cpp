// Computes DFT and STFT of any length, and window functions. A prime factor r of the length costs r multiplications per element.
#include <algorithm>
#include <string>

#include "gpu/code_writer.h"
#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/math/signal.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

struct FourierState final : PackedState {
  const vulkan::Shader *roots = nullptr, *load = nullptr, *pass = nullptr, *store = nullptr;
};

/// The location of the lines (1-D signals) of complex numbers in an operand. The members correspond to the push constants of fourier.comp.
struct Lines {
  int64_t within = 1, outer_step = 0, inner_step = 0, step = 1, parts = 1, extent = 0;
};

struct Fourier {
  static constexpr int64_t kLargestRadix = 16, kMaxPasses = 32, kLongest = int64_t{1} << 28;
  int64_t lines = 0, length = 0;
  bool inverse = false, mirrored = false;
  Lines in, out;
  int num_passes = 0;
  int64_t radices[kMaxPasses] = {};
  ConvertedOperand x, window, y;
  int64_t roots = 0, buffers[2] = {};  // offsets in scratch memory, in bytes

  static Fourier bind(BindContext& c) {
    Fourier k = c.node().op_type == "DFT" ? of_dft(c) : of_stft(c);
    if (k.length > kLongest) throw Error(ErrorCode::not_implemented, "a Fourier transform of more than 2^28 elements, on the GPU");
    k.choose_radices();
    const DType given = c.dtype(0), computed = wide_type(given);
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, given, computed, c.num_elements(0));
    k.y = ConvertedOperand::reserve(layout, given, computed, c.output_shape(0).num_elements());
    if (k.has_window(c)) k.window = ConvertedOperand::reserve(layout, given, computed, c.num_elements(2));
    const size_t complex = bits_of(computed) / 4;
    k.roots = layout.take(static_cast<size_t>(k.length) * complex);
    for (int64_t& buffer : k.buffers) buffer = layout.take(static_cast<size_t>(count32(k.lines * k.length)) * complex);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<FourierState>();
    const void* const given = x.read(c, 0);
    const bool windowed = window.count > 0;
    const void* const factors = windowed ? window.read(c, 2) : nullptr;
    const int64_t count = lines * length;
    if (count == 0) return;
    dispatch(c, *state.roots, length, scratch(c, roots), nullptr, {}, nullptr, nullptr, 1, 1);
    dispatch(c, *state.load, count, scratch(c, buffers[0]), nullptr, in, given, factors, 1, 1);
    int64_t done = 1;
    for (int i = 0; i < num_passes; ++i) {
      dispatch(c, *state.pass, count, scratch(c, buffers[(i + 1) % 2]), scratch(c, buffers[i % 2]), {}, nullptr, nullptr, radices[i], done);
      done *= radices[i];
    }
    dispatch(c, *state.store, lines * out.extent, nullptr, scratch(c, buffers[num_passes % 2]), out, y.result(c, 0), nullptr, 1, 1);
    y.store(c, 0);
  }

 private:
  static Fourier of_dft(const BindContext& c) {
    const ops::DftPlan plan = ops::DftPlan::bind(c);
    Fourier k;
    k.lines = plan.before * plan.after, k.length = plan.length;
    k.inverse = plan.inverse, k.mirrored = plan.hermitian();
    const int64_t after = std::max<int64_t>(plan.after, 1);
    const auto lines_of = [&](int64_t extent, int64_t parts, int64_t used) {
      return Lines{after, extent * after * parts, parts, after * parts, parts, used};
    };
    k.in = lines_of(plan.extent, plan.parts, std::min(plan.extent, k.mirrored ? plan.length / 2 + 1 : plan.length));
    k.out = lines_of(plan.out_extent, plan.out_parts, plan.out_extent);
    return k;
  }
  static Fourier of_stft(const BindContext& c) {
    const ops::StftPlan plan = ops::StftPlan::bind(c);
    Fourier k;
    k.lines = plan.batch * plan.frames, k.length = plan.length;
    k.in = {std::max<int64_t>(plan.frames, 1), plan.signal * plan.parts, plan.step * plan.parts, plan.parts, plan.parts, plan.length};
    k.out = {1, plan.bins * 2, 0, 2, 2, plan.bins};
    return k;
  }
  static bool has_window(const BindContext& c) { return c.node().op_type == "STFT" && c.has_input(2); }

  // Combines small prime factors into larger ones, so that fewer passes are needed.
  void choose_radices() {
    int64_t rest = length;
    for (int64_t radix = kLargestRadix; radix > 1; --radix)
      while (rest % radix == 0) radices[num_passes++] = radix, rest /= radix;
    for (int64_t factor = kLargestRadix + 1; rest > 1; ++factor) {
      if (factor * factor > rest) factor = rest;
      while (rest % factor == 0) radices[num_passes++] = factor, rest /= factor;
    }
  }
  static void* scratch(RunContext& c, int64_t offset) { return ops::scratch_at(c, offset); }

  void dispatch(RunContext& c, const vulkan::Shader& shader, int64_t count, void* to, const void* from, const Lines& memory,
                const void* elements, const void* factors, int64_t radix, int64_t done) const {
    Push push;
    push.pointer(to).pointer(from).pointer(scratch(c, roots)).pointer(elements).pointer(factors);
    push_sizes(push, {count, length, memory.within, memory.outer_step, memory.inner_step, memory.step, memory.parts});
    push.word(uint32_t{factors != nullptr}).word(static_cast<uint32_t>(memory.extent)).word(uint32_t{mirrored});
    push_sizes(push, {radix, length / radix / done, done});
    push.word(uint32_t{inverse});
    for (int i = 0; i < 3; ++i) push.word(0.0F);
    stream().dispatch(shader, push.bytes(), groups_over(count32(count)));
  }
};

/// Computes the operators HannWindow, HammingWindow and BlackmanWindow.
struct CosineWindow : ops::CosineWindowPlan {
  ConvertedOperand y;

  static CosineWindow bind(BindContext& c) {
    CosineWindow k{CosineWindowPlan::bind(c), {}};
    if (k.size > Fourier::kLongest) throw Error(ErrorCode::not_implemented, "a window of more than 2^28 elements, on the GPU");
    ops::ScratchLayout layout;
    k.y = ConvertedOperand::reserve(layout, c.output_dtype(0), DType::float32, k.size);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(nullptr).pointer(nullptr).pointer(nullptr).pointer(y.result(c, 0)).pointer(nullptr);
    push_sizes(push, {y.count, period, 1, 0, 0, 1, 1, 0, y.count, 0, 1, 1, 1, 0});
    for (const double factor : {a0, -a1, a2}) push.word(static_cast<float>(factor));
    stream().dispatch(*c.packed<FourierState>().load, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }
};

DeviceKernel find_window(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<CosineWindow>("gpu");
  Arithmetic result{};
  // The host computes windows of other dtypes, in float64.
  if (!arithmetic_of(graph.type(node.outputs[0]).dtype, result) || result != Arithmetic::f32) return {};
  auto state = std::make_shared<FourierState>();
  const uint32_t stage[] = {4};
  state->load = find_shader("fourier", DType::float32, stage);
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_fourier(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Fourier>("gpu");
  if (node.domain.empty() && node.op_type.ends_with("Window")) return find_window(graph, node);
  if (!node.is("DFT", "") && !node.is("STFT", "")) return {};
  const DType computed = wide_type(graph.type(node.inputs[0]).dtype);
  auto state = std::make_shared<FourierState>();
  const uint32_t stages[] = {0, 1, 2, 3};
  const auto stage = [&](size_t i) { return find_shader("fourier", computed, std::span(stages).subspan(i, 1)); };
  state->roots = stage(0), state->load = stage(1), state->pass = stage(2), state->store = stage(3);
  return state->roots ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
