// Implements DFT (opsets 17 and 20) and STFT (opset 17).
#include "ops/math/signal.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "core/values/float_types.h"
#include "graph/infer.h"
#include "kernels/scratch_slots.h"
#include "kernels/signal/fft.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int signal_axis(int64_t axis, int rank) {
  int result = normalize_axis(axis, rank);
  if (result == rank - 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("axis = {} is the last one, which holds real and imaginary parts", axis));
  return result;
}

}  // namespace

DftPlan DftPlan::bind(const BindContext& c) {
  const Shape &x = c.shape(0), &y = c.output_shape(0);
  if (x.back() != 1 && x.back() != 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("the last axis has {} elements, not 1 (real) or 2 (complex)", x.back()));
  for (int i : {1, 2})
    if (c.has_input(i)) check_equal(c.num_elements(i), 1, i == 1 ? "elements of dft_length" : "elements of axis");
  int axis = signal_axis(c.has_input(2) ? c.value_at(2, 0) : -2, x.rank());
  DftPlan plan{.before = x.product(0, axis),
               .extent = x[axis],
               .after = x.product(axis + 1, x.rank() - 1),
               .length = 0,
               .out_extent = y[axis],
               .parts = static_cast<int>(x.back()),
               .out_parts = static_cast<int>(y.back()),
               .inverse = c.get_int("inverse") != 0,
               .onesided = c.get_int("onesided") != 0};
  plan.length = c.has_input(1) ? c.value_at(1, 0) : plan.hermitian() ? 2 * (plan.extent - 1) : plan.extent;
  if (plan.length < 1) throw Error(ErrorCode::invalid_argument, fmt::format("a transform of {} elements", plan.length));
  return plan;
}

StftPlan StftPlan::bind(const BindContext& c) {
  const Shape &x = c.shape(0), &y = c.output_shape(0);
  for (int i : {1, 3})
    if (c.has_input(i)) check_equal(c.num_elements(i), 1, i == 1 ? "elements of frame_step" : "elements of frame_length");
  const StftPlan plan{.batch = x[0],
                      .signal = x[1],
                      .frames = y[1],
                      .bins = y[2],
                      .step = c.value_at(1, 0),
                      .length = c.has_input(3)   ? c.value_at(3, 0)
                                : c.has_input(2) ? c.shape(2)[0]
                                                 : x[1],
                      .parts = x.rank() == 2 ? 1 : static_cast<int>(x.back())};
  if (c.has_input(2) && c.shape(2)[0] != plan.length)
    throw Error(ErrorCode::invalid_argument, fmt::format("the window has {} elements, frame_length is {}", c.shape(2)[0], plan.length));
  return plan;
}

namespace {

using kernels::Fft;
using kernels::ScratchSlots;

template <typename X>
using ComputeType = std::conditional_t<std::is_same_v<X, double>, double, float>;

/// A Fourier transform, and its scratch memory: a table, then for each concurrent thread one line (a 1-D signal) and working memory.
template <typename T>
struct Transform {
  using Complex = std::complex<T>;
  Fft<T> fft;
  int slots;

  static Transform bind(BindContext& c, int64_t length, bool inverse, int64_t num_lines, int64_t lines_per_task) {
    Transform t{Fft<T>(length, inverse), 1};
    t.slots = ScratchSlots::count(c.max_threads(), ceil_div(std::max<int64_t>(num_lines, 1), lines_per_task));
    int64_t elements = checked_add(t.table_elements(), checked_mul(t.slot_elements(), t.slots));
    c.request_scratch(static_cast<size_t>(checked_mul(elements, sizeof(Complex))));
    return t;
  }
  int64_t table_elements() const { return static_cast<int64_t>(align_up(static_cast<size_t>(fft.table_size()), 8)); }
  int64_t slot_elements() const { return static_cast<int64_t>(align_up(static_cast<size_t>(fft.length() + fft.work_size()), 8)); }

  /// For each line i, calls load(i, line), transforms the line, and calls store(i, line).
  template <typename Load, typename Store>
  void run(RunContext& c, int64_t num_lines, int64_t lines_per_task, Load load, Store store) const {
    auto* table = c.scratch<Complex>();
    Complex* pieces = table + table_elements();
    fft.prepare(table, pieces + fft.length());
    ScratchSlots free(pieces, static_cast<size_t>(slot_elements()) * sizeof(Complex), slots);
    parallel_for(c.pool(), num_lines, lines_per_task, [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(free);
      auto* line = reinterpret_cast<Complex*>(lease.data());
      for (int64_t i = begin; i < end; ++i) {
        load(i, line);
        fft.run(table, line, line + fft.length());
        store(i, line);
      }
    });
  }
};

int64_t lines_per_task(int64_t length) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(length, 1)); }

template <typename T, typename X>
T load(X value) {
  return static_cast<T>(value);
}

template <typename X>
struct Dft : DftPlan {
  using T = ComputeType<X>;
  using Complex = std::complex<T>;
  Transform<T> transform;

  static Dft bind(BindContext& c) {
    const DftPlan plan = DftPlan::bind(c);
    return {plan, Transform<T>::bind(c, plan.length, plan.inverse, plan.before * plan.after, lines_per_task(plan.length))};
  }

  void run(RunContext& c) const {
    const X* x = c.in<X>(0);
    X* y = c.out<X>(0);
    T scale = inverse ? static_cast<T>(1.0 / static_cast<double>(length)) : T{1};
    const bool mirrored = hermitian();
    transform.run(
        c, before * after, lines_per_task(length),
        [&](int64_t i, Complex* line) {
          const X* source = x + ((i / after) * extent * after + i % after) * parts;
          int64_t given = std::min(extent, mirrored ? length / 2 + 1 : length), step = after * parts;
          for (int64_t k = 0; k < given; ++k) line[k] = {load<T>(source[k * step]), parts == 2 ? load<T>(source[k * step + 1]) : T{0}};
          std::fill(line + given, line + length, Complex{});
          if (!mirrored) return;
          // A real signal has a conjugate-symmetric spectrum. The imaginary parts at the frequencies 0 and length / 2 are ignored.
          line[0] = {line[0].real(), 0};
          if (length % 2 == 0) line[length / 2] = {line[length / 2].real(), 0};
          for (int64_t k = 1; k < (length + 1) / 2; ++k) line[length - k] = std::conj(line[k]);
        },
        [&](int64_t i, const Complex* line) {
          X* target = y + ((i / after) * out_extent * after + i % after) * out_parts;
          int64_t step = after * out_parts;
          for (int64_t k = 0; k < out_extent; ++k) {
            target[k * step] = static_cast<X>(line[k].real() * scale);
            if (out_parts == 2) target[k * step + 1] = static_cast<X>(line[k].imag() * scale);
          }
        });
  }
};

void check_parts(const Dim& parts) {
  if (parts.is_const() && parts.value() != 1 && parts.value() != 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("the last axis has {} elements; expected 1 (real) or 2 (complex)", parts.value()));
}

/// Returns the first element of an integer input; nullopt if it is unknown before the run.
std::optional<Dim> known_scalar(const InferContext& c, int input) {
  auto values = c.known(input);
  if (!values || values->empty()) return std::nullopt;
  return values->front();
}

void infer_dft(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape shape = c.shape(0);
  if (shape.size() < 2)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input has {} axes; expected at least a signal's and that of its parts", shape.size()));
  check_parts(shape.back());
  bool inverse = c.get_int("inverse") != 0, onesided = c.get_int("onesided") != 0;
  auto axis = c.has_input(2) ? known_scalar(c, 2) : Dim(-2);
  shape.back() = inverse && onesided ? 1 : 2;
  if (!axis || !axis->is_const()) {
    for (size_t i = 0; i + 1 < shape.size(); ++i) shape[i] = c.data_dependent_dim("frequencies");
    return c.set_output(0, c.dtype(0), std::move(shape));
  }
  Dim& extent = shape[static_cast<size_t>(signal_axis(axis->value(), c.rank(0)))];
  std::optional<Dim> length = c.has_input(1) ? known_scalar(c, 1) : inverse && onesided ? Dim(2) * (extent - Dim(1)) : extent;
  if (length && length->is_const() && length->value() < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("a transform of {} elements", length->value()));
  if (!length)
    extent = c.data_dependent_dim("frequencies");
  else
    extent = onesided && !inverse ? floor_div(*length, 2) + Dim(1) : *length;
  c.set_output(0, c.dtype(0), std::move(shape));
}

// Before opset 20, the axis was an attribute. This upgrade makes it an input.
void upgrade_dft_17(Graph& graph, NodeId id) {
  ValueId axis = graph.add_constant("axis", Tensor::scalar(graph.node(id).attributes.get_int("axis", 1)));
  graph.node(id).attributes.erase("axis");
  graph.resize_inputs(id, 3);
  graph.set_input(id, 2, axis);
}

template <typename X>
struct Stft : StftPlan {
  using T = ComputeType<X>;
  using Complex = std::complex<T>;
  Transform<T> transform;

  static Stft bind(BindContext& c) {
    const StftPlan plan = StftPlan::bind(c);
    return {plan, Transform<T>::bind(c, plan.length, false, plan.batch * plan.frames, lines_per_task(plan.length))};
  }

  void run(RunContext& c) const {
    const X *x = c.in<X>(0), *window = c.in<X>(2);
    X* y = c.out<X>(0);
    transform.run(
        c, batch * frames, lines_per_task(length),
        [&](int64_t i, Complex* line) {
          const X* source = x + ((i / frames) * signal + (i % frames) * step) * parts;
          for (int64_t k = 0; k < length; ++k) {
            T weight = window ? load<T>(window[k]) : T{1};
            line[k] = {load<T>(source[k * parts]) * weight, parts == 2 ? load<T>(source[k * parts + 1]) * weight : T{0}};
          }
        },
        [&](int64_t i, const Complex* line) {
          X* target = y + i * bins * 2;
          for (int64_t k = 0; k < bins; ++k) {
            target[2 * k] = static_cast<X>(line[k].real());
            target[2 * k + 1] = static_cast<X>(line[k].imag());
          }
        });
  }
};

void infer_stft(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape shape = c.shape(0);
  if (shape.size() != 2 && shape.size() != 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the signal is {}; expected [batch, length] or [batch, length, 1 or 2]", to_string(shape)));
  if (shape.size() == 3) check_parts(shape.back());
  std::optional<Dim> step = known_scalar(c, 1), length = shape[1];
  if (c.has_input(3))
    length = known_scalar(c, 3);
  else if (c.has_input(2))
    length = c.has_rank(2) && c.rank(2) == 1 ? std::optional<Dim>(c.shape(2)[0]) : std::nullopt;
  if (step && step->is_const() && step->value() < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("frame_step = {}; expected at least 1", step->value()));
  if (length && length->is_const() && shape[1].is_const() && (length->value() < 1 || length->value() > shape[1].value()))
    throw Error(ErrorCode::invalid_argument, fmt::format("frame_length = {} for a signal of {}", length->value(), shape[1].value()));
  Dim frames = step && length ? floor_div(shape[1] - *length, *step) + Dim(1) : c.data_dependent_dim("frames");
  Dim bins = !length ? c.data_dependent_dim("bins") : c.get_int("onesided", 1) != 0 ? floor_div(*length, 2) + Dim(1) : *length;
  c.set_output(0, c.dtype(0), {shape[0], frames, bins, 2});
}

Cost cost(const ShapeContext& c) {
  auto n = static_cast<double>(c.output_shape(0).num_elements());
  return {.flops = 2.5 * n * 10, .bytes = c.size_bytes(0) + n * static_cast<double>(bits_of(c.dtype(0))) / 8};
}

ValueId extent_of(GradientContext& g, ValueId x, int64_t axis) { return g.op("Gather", {g.shape_of(x), g.ints({axis})}); }

/// Drops the imaginary parts of `complex` if `operand` is real. Whether it is real may be known only during the run.
ValueId parts_like(GradientContext& g, ValueId complex, ValueId operand) {
  const Type type = g.type(operand);
  if (type.has_rank() && type.shape->back().is_const(2)) return complex;
  return g.op("Slice", {complex, g.ints({0}), extent_of(g, operand, -1), g.ints({-1})});
}

// The adjoint of a DFT is the inverse DFT times N. The adjoint of an inverse DFT is the DFT divided by N.
Gradients dft_gradient(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const bool inverse = g.attributes().get_int("inverse", 0) != 0, onesided = g.attributes().get_int("onesided", 0) != 0;
  if (inverse && onesided) throw Error(ErrorCode::not_implemented, "an inverse DFT of one side has no gradient");
  const int rank = rank_of(g, x);
  int64_t axis = -2;
  if (g.input(2) != kNoValue) {
    const Tensor* constant = g.graph().constant_tensor(g.input(2));
    if (!constant) throw Error(ErrorCode::not_implemented, "the gradient of a DFT needs a constant axis");
    axis = *constant->data<int64_t>();
  }
  axis = normalize_axis(axis, rank);
  const ValueId places = g.constant(Tensor::scalar<int64_t>(axis)), own = extent_of(g, x, axis);
  ValueId length = own;
  if (g.input(1) != kNoValue)
    length = g.op("Reshape", {g.op("Cast", {g.input(1)}, {{"to", static_cast<int64_t>(DType::int64)}}), g.ints({1})});
  ValueId flow = g.op("DFT", {dy, g.op("Squeeze", {length}), places}, {{"inverse", int64_t{inverse ? 0 : 1}}});
  const ValueId count = g.op("Cast", {g.op("Squeeze", {length})}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  flow = parts_like(g, inverse ? g.div(flow, count) : g.mul(flow, count), x);
  if (g.input(1) == kNoValue) return {flow};
  // The DFT cuts or pads the signal to `length`. Samples that it cut off get the gradient 0, and the gradients of padding are dropped.
  const ValueId pads = g.op("Concat", {g.ints({0}), g.sub(own, length)}, {{"axis", int64_t{0}}});
  return {g.op("Pad", {flow, pads, kNoValue, g.ints({axis})})};
}

// Differentiates STFT as a composition of three operators: a Gather of frames, a product with the window, and a DFT of each frame.
Gradients stft_gradient(GradientContext& g) {
  const ValueId signal = g.input(0), window = g.input(2), dy = g.grad_output(0);
  const bool flat = rank_of(g, signal) == 2;
  const ValueId samples = flat ? g.op("Unsqueeze", {signal, g.ints({2})}) : signal;
  auto as_long = [&](ValueId value) {
    return g.op("Reshape", {g.op("Cast", {value}, {{"to", static_cast<int64_t>(DType::int64)}}), g.ints({})});
  };
  const ValueId length = g.input(3) != kNoValue ? as_long(g.input(3)) : g.op("Squeeze", {extent_of(g, window, 0)});
  auto range = [&](ValueId end) {
    return g.op("Range", {g.constant(Tensor::scalar<int64_t>(0)), end, g.constant(Tensor::scalar<int64_t>(1))});
  };
  const ValueId starts = g.mul(range(g.op("Squeeze", {extent_of(g, dy, 1)})), as_long(g.input(1)));
  const ValueId places = g.add(g.op("Unsqueeze", {starts, g.ints({1})}), range(length));
  const ValueId count = g.op("Cast", {length}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  const ValueId axis = g.constant(Tensor::scalar<int64_t>(2));
  const ValueId flow = parts_like(g, g.mul(g.op("DFT", {dy, length, axis}, {{"inverse", int64_t{1}}}), count), samples);
  const ValueId factors = window == kNoValue ? kNoValue : g.op("Unsqueeze", {window, g.ints({1})});
  const ValueId frames = factors == kNoValue ? flow : g.mul(flow, factors);
  ValueId dsignal = g.op("GatherGrad", {frames, places, g.shape_of(samples)}, {{"axis", int64_t{1}}}, "treadle");
  Gradients result{flat ? g.reshape_like(dsignal, signal) : dsignal, kNoValue, kNoValue};
  if (g.wants(2)) {
    const ValueId taken = g.op("Gather", {samples, places}, {{"axis", int64_t{1}}});
    result[2] = g.reduce_sum(g.mul(flow, taken), {0, 1, 3}, /*keepdims=*/false);
  }
  return result;
}

}  // namespace

std::vector<OpDef> signal_ops() {
  return {
      {.name = "DFT",
       .since = {17, 20},
       .upgrade = {{17, upgrade_dft_17}},
       .inputs = {{"input", kFloats, "T1"}, {"dft_length", kInt32Or64, "", Presence::optional}, {"axis", kInt64, "", Presence::optional}},
       .outputs = {{"output", kFloats, "T1"}},
       .attributes = {{"inverse", int64_t{0}}, {"onesided", int64_t{0}}},
       .infer = infer_dft,
       .cost = cost,
       .kernels = typed<Dft, float, double, Float16, BFloat16>(),
       .gradient = dft_gradient,
       .value_inputs = {1, 2}},
      {.name = "STFT",
       .since = {17},
       .inputs = {{"signal", kFloats, "T1"},
                  {"frame_step", kInt32Or64},
                  {"window", kFloats, "T1", Presence::optional},
                  {"frame_length", kInt32Or64, "", Presence::optional}},
       .outputs = {{"output", kFloats, "T1"}},
       .attributes = {{"onesided", int64_t{1}}},
       .infer = infer_stft,
       .cost = cost,
       .kernels = typed<Stft, float, double, Float16, BFloat16>(),
       .gradient = stft_gradient,
       .value_inputs = {1, 3}},
  };
}

}  // namespace treadle::ops
