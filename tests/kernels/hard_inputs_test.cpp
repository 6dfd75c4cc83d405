// Kernels with unusual inputs: extents of zero and one or no multiple of any tile, rows far apart, unaligned arrays that end at the end of
// readable memory, NaN, infinities, subnormal and huge numbers. A table lists the kernels with their definitions in double; one test runs
// each with all of these.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/threads/float_mode.h"
#include "kernels/attention/attention.h"
#include "kernels/conv/conv_depthwise.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/nhwc_bf16.h"
#include "kernels/conv/pool_nhwc.h"
#include "kernels/conv/scaled_pointwise.h"
#include "kernels/elementwise/chain.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_blocked.h"
#include "kernels/gemm/gemm_int8_weights.h"
#include "kernels/image/grid_sample.h"
#include "kernels/image/resize.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/normalization/norm.h"
#include "kernels/normalization/softmax.h"
#include "kernels/reduce/reduce.h"
#include "kernels/rnn/rnn.h"
#include "tests/kernels/bf16_reference.h"
#include "tests/kernels/conv/reference.h"
#include "tests/kernels/guarded.h"

namespace treadle::kernels {
namespace {

using test::Guarded;
using test::Random;

enum class Numbers : uint8_t { ordinary, nan, infinity, both, denormal, huge };
constexpr Numbers kAllNumbers[] = {Numbers::ordinary, Numbers::nan, Numbers::infinity, Numbers::both, Numbers::denormal, Numbers::huge};
constexpr const char* kNames[] = {"ordinary", "NaN", "infinities", "NaN and infinities", "denormal", "huge"};

/// The result of a case, and the expected result.
struct Outcome {
  std::vector<float> y;
  std::vector<double> expected;
  double largest = 0;  // the scale of errors if sums may cancel
};

/// Makes the arrays of one run.
class Inputs {
 public:
  Inputs(Random& random, Numbers numbers, float huge) : random(random), numbers_(numbers), huge_(huge) {}

  /// Returns the kernel's main input, with the special numbers of the run.
  const Guarded<float>& floats(int64_t n) {
    std::vector<float> values = random.vector(n);
    const float scale = numbers_ == Numbers::denormal ? 1e-39F : numbers_ == Numbers::huge ? huge_ : 1.0F;
    for (float& v : values) v *= scale;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (int64_t i = random.integer(0, 3); n > 0 && i > 0; --i) {
      float& v = values[static_cast<size_t>(random.integer(0, n - 1))];
      const bool positive = random.coin();
      if (numbers_ == Numbers::nan || (numbers_ == Numbers::both && random.coin()))
        v = std::numeric_limits<float>::quiet_NaN();
      else if (numbers_ == Numbers::infinity || numbers_ == Numbers::both)
        v = positive ? kInfinity : -kInfinity;
    }
    return arrays_.emplace_back(values);
  }
  /// Returns weights or similar operands: ordinary numbers, some of which are zero.
  const Guarded<float>& weights(int64_t n) {
    std::vector<float> values = random.vector(n);
    for (float& v : values)
      if (random.integer(0, 9) == 0) v = 0;
    return arrays_.emplace_back(values);
  }
  const Guarded<float>& output(int64_t n) { return arrays_.emplace_back(std::vector<float>(static_cast<size_t>(n), 77.0F)); }
  /// Returns memory filled with NaN, aligned as kernels require for packed weights and scratch.
  template <typename T = float>
  T* aligned(int64_t bytes) {
    auto& room = rooms_.emplace_back(static_cast<size_t>(bytes) / 4 + 32, std::numeric_limits<float>::quiet_NaN());
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
  }
  /// Returns a random extent: sometimes 1, otherwise any up to `high`.
  int64_t extent(int64_t high) { return random.integer(0, 4) == 0 ? 1 : random.integer(1, high); }

  Random& random;

 private:
  Numbers numbers_;
  float huge_;
  std::deque<Guarded<float>> arrays_;
  std::deque<std::vector<float>> rooms_;
};

struct Case {
  const char* name;
  std::function<Outcome(Inputs&)> run;
  double tolerance = 3e-6;  ///< relative to the largest finite expected element
  float huge = 1e36F;       ///< magnitude of huge numbers, small enough that the definition does not overflow
  bool takes_denormals = true;
};

std::vector<double> doubles(const Guarded<float>& x) { return {x.data(), x.data() + x.size()}; }

// ---- products of matrices ----

Outcome product(Inputs& in) {
  const int64_t M = in.extent(20), N = in.extent(90), K = in.random.integer(0, 9) == 0 ? 0 : in.extent(90);
  const int64_t far = in.random.coin() ? 0 : in.random.integer(1, 20'000), lda = K + far, ldc = N + in.random.integer(0, 5);
  const auto& a = in.floats((M - 1) * lda + K);
  const auto& b = in.weights(K * N);
  const auto& bias = in.weights(N);
  const auto& c = in.output(M * ldc);
  const PackedB<float> packed = pack_b(b.data(), K, N, N, false, in.aligned(packed_b_size<float>(K, N) * 4));
  gemm<float>(M, {a.data(), lda, 1}, packed, c.data(), ldc, {.bias = bias.data(), .activation = Unary::relu}, nullptr);
  Outcome o;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = bias[n];
      for (int64_t k = 0; k < K; ++k) sum += double{a[m * lda + k]} * b[k * N + n];
      o.expected.push_back(sum < 0 ? 0 : sum), o.y.push_back(c[m * ldc + n]);
    }
  return o;
}

Outcome unpacked_product(Inputs& in) {
  const bool transposed = in.random.coin();
  GemmShape s{.M = in.extent(20), .N = in.extent(70), .K = in.extent(70)};
  const bool a_transposed = in.random.coin();
  const int64_t far = in.random.coin() ? 0 : in.random.integer(1, 5'000);
  s.a_row = a_transposed ? 1 : s.K + far, s.a_col = a_transposed ? s.M + far : 1;
  s.b_transposed = transposed, s.ldb = transposed ? s.K : s.N, s.ldc = s.N;
  const auto& a = in.floats((s.M - 1) * s.a_row + (s.K - 1) * s.a_col + 1);
  const auto& b = in.weights(s.K * s.N);
  const auto& c = in.output(s.M * s.N);
  gemm_batched<float>(s, {}, a.data(), b.data(), c.data(), {}, in.aligned<void>(gemm_scratch_bytes<float>(s, 1)), 1, nullptr);
  Outcome o{c.values(), {}};
  for (int64_t m = 0; m < s.M; ++m)
    for (int64_t n = 0; n < s.N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < s.K; ++k) sum += double{a[m * s.a_row + k * s.a_col]} * b[transposed ? n * s.K + k : k * s.N + n];
      o.expected.push_back(sum);
    }
  return o;
}

Outcome blocked_product(Inputs& in) {
  BlockedShape s;
  s.bits = in.random.coin() ? 8 : 4, s.K = in.extent(90), s.N = in.extent(90), s.block_size = 16;
  const int64_t M = in.extent(12);
  std::vector<uint32_t> words(blocked_code_words(s));
  const std::vector<float> scales(blocked_scale_count(s), 0.125F);
  std::vector<double> weights;
  for (int64_t k = 0; k < s.K; ++k)
    for (int64_t n = 0; n < s.N; ++n) {
      const auto code = static_cast<int32_t>(in.random.integer(-7, 7));
      pack_blocked_code(s, k, n, code, words.data());
      weights.push_back(0.125 * code);
    }
  const auto& a = in.floats(M * s.K);
  const auto& c = in.output(M * s.N);
  gemm_blocked(M, a.data(), {s, words.data(), scales.data(), nullptr}, c.data(),
               in.aligned<void>(static_cast<int64_t>(gemm_blocked_scratch(M, s))), nullptr);
  Outcome o{c.values(), {}};
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < s.N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < s.K; ++k) sum += a[m * s.K + k] * weights[static_cast<size_t>(k * s.N + n)];
      o.expected.push_back(sum);
    }
  return o;
}

Outcome int8_weights_product(Inputs& in) {
  const int64_t M = in.extent(12), N = in.extent(90), K = in.extent(90);
  std::vector<float> b;
  // These numbers are exact when packed.
  for (int64_t i = 0; i < K * N; ++i) b.push_back(i < N ? 127.0F : static_cast<float>(in.random.integer(-127, 127)));
  const auto& a = in.floats(M * K);
  const auto& c = in.output(M * N);
  std::vector<float> scales(static_cast<size_t>(packed_int8_scales(N)));
  const auto packed = pack_int8_weights(b.data(), K, N, N, false, in.aligned<int8_t>(packed_int8_size(K, N)), scales.data());
  gemm_int8_weights(M, a.data(), K, packed, c.data(), N, {}, nullptr);
  Outcome o{c.values(), {}};
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += double{a[m * K + k]} * b[static_cast<size_t>(k * N + n)];
      o.expected.push_back(sum);
    }
  return o;
}

// ---- convolutions ----

/// The arrays of a convolution with a bias, whose channels are outermost.
struct ConvRun {
  ConvParams p;
  const Guarded<float>&x, &weights, &bias;
  ConvRun(Inputs& in, const ConvParams& params)
      : p(params),
        x(in.floats(p.N * p.C * p.window.in_size())),
        weights(in.weights(p.M * (p.C / p.group) * p.window.kernel_size())),
        bias(in.weights(p.M)) {}
  std::vector<double> expected() const {
    auto y = test::reference_conv<float, double>(p, x.values(), weights.values());
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i / static_cast<size_t>(p.window.out_size()) % static_cast<size_t>(p.M)];
    return y;
  }
};

ConvParams random_conv(Inputs& in) {
  ConvParams p;
  p.window = test::random_window(in.random, static_cast<int>(in.random.integer(1, 2)), 13);
  p.group = in.random.coin() ? 1 : in.random.integer(1, 4);
  p.N = in.random.integer(0, 2), p.C = p.group * in.extent(9), p.M = p.group * in.extent(40);
  return p;
}
ConvParams random_depthwise(Inputs& in) {
  ConvParams p = random_conv(in);
  p.C = p.M = p.group = in.random.integer(2, 40);
  const int64_t extents[] = {in.random.integer(1, 9), in.random.integer(1, 20)};
  if (in.random.coin()) p.window = test::random_window_over(in.random, extents);
  return p;
}
ConvParams random_3x3(Inputs& in) {
  ConvParams p{.N = in.random.integer(0, 2), .C = in.random.integer(8, 40), .M = in.random.integer(8, 40)};
  const int64_t size[] = {in.random.integer(1, 15), in.random.integer(1, 15)}, three[] = {3, 3}, pads[] = {1, 1, 1, 1};
  p.window = make_window(size, size, three, {}, pads, {});
  return p;
}

Outcome conv_of(Inputs& in, const ConvParams& p) {
  const ConvRun run(in, p);
  const auto& y = in.output(p.N * p.M * p.window.out_size());
  conv(p, run.x.data(), run.weights.data(), y.data(), {.bias = run.bias.data()},
       in.aligned<void>(static_cast<int64_t>(conv_scratch_bytes(p, 1))), 1, nullptr);
  return {y.values(), run.expected()};
}

Outcome nhwc_of(Inputs& in, const ConvParams& p, NhwcMethod method) {
  const ConvRun run(in, p);
  const Guarded<float> x(test::channels_last(run.x.values(), p.N, p.C));
  const auto& y = in.output(p.N * p.M * p.window.out_size());
  auto* packed = in.aligned(nhwc_packed_size(p, method) * 4);
  nhwc_pack(p, method, run.weights.data(), packed);
  nhwc_conv(p, method, x.data(), run.weights.data(), packed, y.data(), {.bias = run.bias.data()},
            in.aligned<void>(static_cast<int64_t>(nhwc_scratch_bytes(p, method, 1))), 1, nullptr);
  return {y.values(), test::channels_last(run.expected(), p.N, p.M)};
}

Outcome nhwc_bf16_of(Inputs& in, const ConvParams& p) {
  ConvRun run(in, p);
  // These numbers are exact in bfloat16.
  for (size_t i = 0; i < run.weights.size(); ++i) run.weights[i] = std::round(run.weights[i] * 64) / 64;
  for (size_t i = 0; i < run.x.size(); ++i) run.x[i] = test::nearest_bf16(run.x[i]);
  const Guarded<float> x(test::channels_last(run.x.values(), p.N, p.C));
  const auto& y = in.output(p.N * p.M * p.window.out_size());
  auto* packed = in.aligned<uint32_t>(nhwc_bf16_packed_size(p, Bf16Form::one) * 4);
  nhwc_bf16_pack(p, Bf16Form::one, run.weights.data(), packed);
  nhwc_bf16_conv(p, Bf16Form::one, x.data(), packed, y.data(), {.bias = run.bias.data()},
                 in.aligned<void>(static_cast<int64_t>(nhwc_bf16_scratch_bytes(p, Bf16Form::one))), nullptr);
  return {y.values(), test::channels_last(run.expected(), p.N, p.M)};
}

Outcome conv_transpose_of(Inputs& in) {
  ConvParams p = random_conv(in);  // describes the convolution from y to x
  const ConvRun run(in, p);
  const int64_t from = p.window.out_size(), to = p.window.in_size(), taps = p.window.kernel_size();
  const auto& x = in.floats(p.N * p.C * from);
  const auto& weights = in.weights(p.C * (p.M / p.group) * taps);
  const auto& y = in.output(p.N * p.M * to);
  conv_transpose(p, x.data(), weights.data(), y.data(), {.bias = run.bias.data()},
                 in.aligned<void>(static_cast<int64_t>(conv_transpose_scratch_bytes(p, 1))), 1, nullptr);
  Outcome o{y.values(), {}};
  o.expected.resize(o.y.size());
  const int64_t inputs = p.C / p.group, outputs = p.M / p.group;
  for (int64_t n = 0; n < p.N; ++n)
    for (int64_t m = 0; m < p.M; ++m) {
      double* plane = o.expected.data() + (n * p.M + m) * to;
      std::fill_n(plane, to, double{run.bias[static_cast<size_t>(m)]});
      for (int64_t c = m / outputs * inputs; c < (m / outputs + 1) * inputs; ++c)
        test::for_each_tap(p.window, [&](int64_t at, int64_t tap, int64_t place) {
          if (place >= 0) plane[place] += double{x[(n * p.C + c) * from + at]} * weights[(c * outputs + m % outputs) * taps + tap];
        });
    }
  return o;
}

Outcome scaled_pointwise_of(Inputs& in) {
  const int64_t extent[] = {in.extent(6), in.extent(6)}, one[] = {1, 1};
  ConvParams p{.N = in.random.integer(0, 2), .C = in.extent(30), .M = in.extent(60)};
  p.window = make_window(extent, extent, one, {}, {}, {});
  const int64_t pixels = p.window.out_size();
  const auto& x = in.floats(p.N * pixels * p.C);
  const auto& scale = in.weights(p.N * p.C);
  const auto& weights = in.weights(p.M * p.C);
  const auto& y = in.output(p.N * pixels * p.M);
  auto* packed = in.aligned(nhwc_packed_size(p, NhwcMethod::direct) * 4);
  nhwc_pack(p, NhwcMethod::direct, weights.data(), packed);
  scaled_pointwise(p, x.data(), scale.data(), packed, y.data(), {},
                   in.aligned<void>(static_cast<int64_t>(scaled_pointwise_scratch_bytes(p))), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < p.N * pixels * p.M; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < p.C; ++c) sum += double{x[i / p.M * p.C + c]} * scale[i / p.M / pixels * p.C + c] * weights[i % p.M * p.C + c];
    o.expected.push_back(sum);
  }
  return o;
}

Outcome conv_depthwise_of(Inputs& in) {
  ConvParams second = random_depthwise(in), first{.N = second.N, .C = in.extent(12), .M = second.C};
  const int64_t extent[] = {in.random.integer(1, 9), in.random.integer(1, 9)}, one[] = {1, 1};
  first.window = in.random.coin() ? make_window(extent, extent, one, {}, {}, {}) : test::random_window_over(in.random, extent);
  second.window = test::random_window_over(in.random, std::span(first.window.out).subspan(1));
  const ConvRun run(in, first);
  const Guarded<float> x(test::channels_last(run.x.values(), first.N, first.C));
  const auto& depthwise = in.weights(second.M * second.window.kernel_size());
  const auto& y = in.output(second.N * second.M * second.window.out_size());
  auto *packed = in.aligned(nhwc_packed_size(first, NhwcMethod::direct) * 4),
       *packed_depthwise = in.aligned(nhwc_packed_size(second, NhwcMethod::depthwise) * 4);
  nhwc_pack(first, NhwcMethod::direct, run.weights.data(), packed);
  nhwc_pack(second, NhwcMethod::depthwise, depthwise.data(), packed_depthwise);
  const ConvDepthwise params{first, second, 1};
  conv_depthwise(params, x.data(), {packed, {.bias = run.bias.data()}}, {packed_depthwise, {}}, y.data(),
                 in.aligned<void>(static_cast<int64_t>(conv_depthwise_scratch_bytes(params))), nullptr);
  const std::vector<double> between = run.expected(), taps = doubles(depthwise);
  return {y.values(), test::channels_last(test::reference_conv<double, double>(second, between, taps), second.N, second.M)};
}

// ---- pools ----

double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

template <bool kMax>
std::vector<double> reference_pool(const Window& w, int64_t planes, const Guarded<float>& x) {
  std::vector<double> y(static_cast<size_t>(planes * w.out_size()), kMax ? -INFINITY : 0.0);
  for (int64_t plane = 0; plane < planes; ++plane) {
    std::vector<double> counts(static_cast<size_t>(w.out_size()));
    double* to = y.data() + plane * w.out_size();
    test::for_each_tap(w, [&](int64_t o, int64_t, int64_t i) {
      if (i < 0) return;
      const double v = x[plane * w.in_size() + i];
      to[o] = kMax ? larger(v, to[o]) : to[o] + v, ++counts[o];
    });
    for (int64_t o = 0; !kMax && o < w.out_size(); ++o) to[o] /= counts[o];
  }
  return y;
}

template <bool kMax, bool kNhwc>
Outcome pool_of(Inputs& in) {
  const Window w = test::random_window(in.random, 2, kNhwc ? 15 : 60);  // the rows consist of several vectors
  const int64_t N = in.random.integer(0, 2), C = in.extent(40);
  const auto& x = in.floats(N * C * w.in_size());
  const auto& y = in.output(N * C * w.out_size());
  std::vector<double> expected = reference_pool<kMax>(w, N * C, x);
  if constexpr (kNhwc) {
    const Guarded<float> inner(test::channels_last(x.values(), N, C));
    pool_nhwc(kMax ? NhwcPool::max : NhwcPool::average, w, N, C, false, {C, C}, inner.data(), y.data(), nullptr);
    expected = test::channels_last(expected, N, C);
  } else if (kMax) {
    max_pool(w, N * C, x.data(), y.data(), nullptr, false, nullptr);
  } else {
    average_pool(w, N * C, x.data(), y.data(), false, nullptr);
  }
  return {y.values(), expected};
}

Outcome mean_of(Inputs& in) {
  const int64_t N = in.random.integer(0, 2), pixels = in.extent(30), C = in.extent(90), step = C + in.random.integer(0, 9);
  const auto& x = in.floats(N == 0 ? 0 : (N * pixels - 1) * step + C);
  const auto& y = in.output(N * C);
  auto& scratch = in.output(static_cast<int64_t>(mean_nhwc_scratch_bytes(N, pixels, 4, C) / sizeof(float)));
  mean_nhwc(N, pixels, 4, C, step, x.data(), y.data(), scratch.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < N * C; ++i) {
    double sum = 0;
    for (int64_t p = 0; p < pixels; ++p) sum += x[(i / C * pixels + p) * step + i % C];
    o.expected.push_back(sum / static_cast<double>(pixels));
  }
  return o;
}

Outcome affine_of(Inputs& in) {
  const int64_t rows = in.random.integer(0, 9), C = in.extent(40);
  const auto& x = in.floats(rows * C);
  const auto& scale = in.weights(C);
  const auto& shift = in.weights(C);
  const auto& y = in.output(rows * C);
  affine_nhwc(rows, C, {C, C}, x.data(), scale.data(), shift.data(), 0.0F, y.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < rows * C; ++i) {
    const double v = double{x[i]} * scale[i % C] + shift[i % C];
    o.expected.push_back(v < 0 ? 0 : v);
  }
  return o;
}

// ---- functions of rows ----

template <bool kLog>
Outcome softmax_of(Inputs& in) {
  const int64_t outer = in.random.integer(0, 20), length = in.extent(70), inner = in.random.coin() ? 1 : in.extent(20);
  const auto& x = in.floats(outer * length * inner);
  const auto& y = in.output(outer * length * inner);
  (kLog ? log_softmax<float> : softmax<float>)(outer, length, inner, x.data(), y.data(), nullptr);
  Outcome o{y.values(), std::vector<double>(x.size())};
  for (int64_t r = 0; r < outer * inner; ++r) {
    const int64_t at = r / inner * length * inner + r % inner;
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < length; ++i) top = larger(x[at + i * inner], top);
    for (int64_t i = 0; i < length; ++i) sum += std::exp(x[at + i * inner] - top);
    for (int64_t i = 0; i < length; ++i) {
      const double a = x[at + i * inner] - top;
      o.expected[static_cast<size_t>(at + i * inner)] = kLog ? a - std::log(sum) : std::exp(a) / sum;
    }
  }
  return o;
}

template <bool kRms>
Outcome norm_of(Inputs& in) {
  const int64_t rows = in.random.integer(0, 9), length = in.extent(70);
  const auto& x = in.floats(rows * length);
  const auto& scale = in.weights(length);
  const auto& bias = in.weights(length);
  const auto& y = in.output(rows * length);
  constexpr float kEpsilon = 1e-5F;
  if (kRms)
    rms_norm(rows, length, x.data(), scale.data(), kEpsilon, y.data(), nullptr);
  else
    layer_norm<float>(rows, length, x.data(), scale.data(), bias.data(), kEpsilon, y.data(), nullptr, nullptr, nullptr);
  Outcome o{y.values(), {}};
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < length && !kRms; ++i) mean += double{x[r * length + i]} / static_cast<double>(length);
    for (int64_t i = 0; i < length; ++i) variance += std::pow(x[r * length + i] - mean, 2) / static_cast<double>(length);
    for (int64_t i = 0; i < length; ++i)
      o.expected.push_back((x[r * length + i] - mean) / std::sqrt(variance + kEpsilon) * scale[i] + (kRms ? 0 : bias[i]));
  }
  return o;
}

Outcome group_norm_of(Inputs& in) {
  const int64_t N = in.random.integer(0, 2), groups = in.extent(4), C = groups * in.extent(4), inner = in.extent(30),
                row = C / groups * inner;
  const auto& x = in.floats(N * C * inner);
  const auto& scale = in.weights(C);
  const auto& bias = in.weights(C);
  const auto& y = in.output(N * C * inner);
  group_norm(N, C, groups, inner, x.data(), scale.data(), bias.data(), 1e-5F, y.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < N * C * inner; ++i) {
    const float* from = x.data() + i / row * row;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < row; ++j) mean += double{from[j]} / static_cast<double>(row);
    for (int64_t j = 0; j < row; ++j) variance += std::pow(from[j] - mean, 2) / static_cast<double>(row);
    const int64_t c = i / inner % C;
    o.expected.push_back((x[i] - mean) / std::sqrt(variance + 1e-5F) * scale[c] + bias[c]);
  }
  return o;
}

Outcome batch_norm_of(Inputs& in) {
  const int64_t N = in.random.integer(0, 2), C = in.extent(9), inner = in.extent(40);
  const auto& x = in.floats(N * C * inner);
  const auto& scale = in.weights(C);
  const auto& bias = in.weights(C);
  const auto& mean = in.weights(C);
  const auto& variance = in.weights(C);
  for (int64_t c = 0; c < C; ++c) variance[c] = std::abs(variance[c]) + 0.5F;
  const auto& y = in.output(N * C * inner);
  batch_norm(N, C, inner, x.data(), scale.data(), bias.data(), mean.data(), variance.data(), 1e-5F, y.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < N * C * inner; ++i) {
    const int64_t c = i / inner % C;
    const double factor = scale[c] / std::sqrt(double{variance[c]} + 1e-5F);
    o.expected.push_back(x[i] * factor + (bias[c] - mean[c] * factor));
  }
  return o;
}

template <Reduce kOp>
Outcome reduce_of(Inputs& in) {
  const int64_t dims[] = {in.random.integer(0, 6), in.extent(20), in.extent(20)};
  const auto axes = static_cast<uint32_t>(in.random.integer(1, 7));
  const ReducePlan plan = plan_reduce(dims, axes);
  const auto& x = in.floats(dims[0] * dims[1] * dims[2]);
  const auto& y = in.output(plan.kept.size);
  reduce(kOp, plan, x.data(), y.data(), nullptr);
  constexpr bool kMax = kOp == Reduce::max;
  Outcome o{y.values(), std::vector<double>(y.size(), kMax ? -INFINITY : 0.0)};
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t at[] = {i / (dims[1] * dims[2]), i / dims[2] % dims[1], i % dims[2]};
    int64_t to = 0;
    for (int a = 0; a < 3; ++a)
      if ((axes >> a & 1) == 0) to = to * dims[a] + at[a];
    double& total = o.expected[static_cast<size_t>(to)];
    const double v = x[i];
    total = kMax ? larger(v, total) : total + (kOp == Reduce::l1 ? std::abs(v) : v);
    if (std::isfinite(v)) o.largest = std::max(o.largest, std::abs(v));
  }
  return o;
}

Outcome attention_of(Inputs& in) {
  AttentionParams p;
  p.q_heads = p.kv_heads = in.extent(3);
  p.q_length = in.random.integer(0, 9), p.kv_length = in.extent(40), p.head_size = in.extent(20), p.v_head_size = in.extent(20);
  p.scale = 0.3, p.mask_length = p.kv_length;
  auto strides = [&](int64_t length, int64_t size) { return HeadStrides{p.q_heads * length * size, length * size, size}; };
  p.q = strides(p.q_length, p.head_size), p.k = strides(p.kv_length, p.head_size);
  p.v = strides(p.kv_length, p.v_head_size), p.y = strides(p.q_length, p.v_head_size);
  const auto& q = in.weights(p.q_heads * p.q_length * p.head_size);
  const auto& k = in.weights(p.q_heads * p.kv_length * p.head_size);
  const auto& v = in.floats(p.q_heads * p.kv_length * p.v_head_size);
  const auto& y = in.output(p.q_heads * p.q_length * p.v_head_size);
  attention<float>(p, {.q = q.data(), .k = k.data(), .v = v.data(), .y = y.data()},
                   in.aligned<void>(static_cast<int64_t>(attention_scratch_bytes<float>(p, 1))), 1, nullptr);
  Outcome o{y.values(), {}};
  for (int64_t h = 0; h < p.q_heads; ++h)
    for (int64_t i = 0; i < p.q_length; ++i) {
      std::vector<double> scores;
      for (int64_t j = 0; j < p.kv_length; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < p.head_size; ++e)
          dot += double{q[h * p.q.head + i * p.head_size + e]} * k[h * p.k.head + j * p.head_size + e];
        scores.push_back(std::exp(dot * p.scale));
      }
      const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
      for (int64_t e = 0; e < p.v_head_size; ++e) {
        double value = 0;
        for (int64_t j = 0; j < p.kv_length; ++j) value += scores[static_cast<size_t>(j)] / sum * v[h * p.v.head + j * p.v_head_size + e];
        o.expected.push_back(value);
      }
    }
  return o;
}

Outcome lstm_of(Inputs& in) {
  RnnParams p;
  p.kind = RnnKind::lstm;
  p.steps = in.random.integer(0, 5), p.batch = in.extent(3), p.input = in.extent(9), p.hidden = in.extent(20);
  p.set_default_activations();
  const int64_t G = 4 * p.hidden;
  const auto& x = in.floats(p.steps * p.batch * p.input);
  const auto& W = in.weights(G * p.input);
  const auto& R = in.weights(G * p.hidden);
  const auto& y = in.output(p.steps * p.batch * p.hidden);
  auto* packed = in.aligned(packed_rnn_size(p) * 4);
  pack_rnn(p, {.W = W.data(), .R = R.data()}, packed);
  rnn(p, packed, {.X = x.data(), .Y = y.data()}, in.aligned<void>(static_cast<int64_t>(rnn_scratch_bytes(p))), nullptr);
  Outcome o{y.values(), std::vector<double>(y.size())};
  auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (int64_t n = 0; n < p.batch; ++n) {
    std::vector<double> h(static_cast<size_t>(p.hidden)), c(h);
    for (int64_t t = 0; t < p.steps; ++t) {
      std::vector<double> gates;
      for (int64_t g = 0; g < G; ++g) {
        double sum = 0;
        for (int64_t i = 0; i < p.input; ++i) sum += double{W[g * p.input + i]} * x[(t * p.batch + n) * p.input + i];
        for (int64_t i = 0; i < p.hidden; ++i) sum += R[g * p.hidden + i] * h[static_cast<size_t>(i)];
        gates.push_back(sum);
      }
      for (int64_t j = 0; j < p.hidden; ++j) {
        auto gate = [&](int64_t g) { return gates[static_cast<size_t>(g * p.hidden + j)]; };
        double& cell = c[static_cast<size_t>(j)];
        cell = sigmoid(gate(2)) * cell + sigmoid(gate(0)) * std::tanh(gate(3));
        h[static_cast<size_t>(j)] = sigmoid(gate(1)) * std::tanh(cell);
        o.expected[static_cast<size_t>((t * p.batch + n) * p.hidden + j)] = h[static_cast<size_t>(j)];
      }
    }
  }
  return o;
}

// ---- functions of elements, and of places ----

Outcome chain_of(Inputs& in) {  // computes clip(relu(x * w + w), -1, 2)
  const int64_t n = in.random.integer(0, 700);
  const auto& x = in.floats(n);
  const auto& w = in.weights(n);
  const auto& y = in.output(n);
  ChainProgram program;
  program.inputs = {DType::float32, DType::float32};
  program.steps = {{.op = ChainOp::load, .x = 0},
                   {.op = ChainOp::mul, .x = 1},
                   {.op = ChainOp::add, .x = 1},
                   {.op = ChainOp::unary, .function = Unary::relu},
                   {.op = ChainOp::unary, .function = Unary::clip, .a = -1, .b = 2}};
  ChainPlan plan;
  plan.size = n;
  const void* inputs[] = {x.data(), w.data()};
  run_chain(program, plan, inputs, y.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < n; ++i) {
    const double v = double{x[i]} * w[i] + w[i];
    o.expected.push_back(v < 0 ? 0 : v > 2 ? 2 : v);
  }
  return o;
}

template <Unary kOp>
Outcome unary_of(Inputs& in) {
  const int64_t n = in.random.integer(0, 300);
  const auto& x = in.floats(n);
  const auto& y = in.output(n);
  unary_f32(kOp, 0.25F, 0.5F, x.data(), y.data(), n);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    o.expected.push_back(kOp == Unary::sigmoid ? 1 / (1 + std::exp(-v)) : kOp == Unary::leaky_relu ? (v < 0 ? 0.25 * v : v) : std::tanh(v));
  }
  return o;
}

Outcome transposed(Inputs& in) {
  const int64_t rows = in.random.integer(0, 40), columns = in.extent(40), from = columns + in.random.integer(0, 5'000);
  const auto& x = in.floats(rows == 0 ? 0 : (rows - 1) * from + columns);
  const auto& y = in.output(rows * columns);
  transpose_plane(rows, columns, x.data(), from, y.data(), rows);
  Outcome o{y.values(), {}};
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) o.expected.push_back(x[r * from + c]);
  return o;
}

Outcome resized(Inputs& in) {
  ResizeAxis axis{.in = in.extent(9), .out = in.extent(20)};
  axis.scale = static_cast<double>(axis.out) / static_cast<double>(axis.in);
  const ResizeOptions options{.filter = Filter::linear};
  const int64_t outer = in.random.integer(0, 4), inner = in.extent(20), taps = resize_taps(axis, options);
  std::vector<int64_t> index(static_cast<size_t>(axis.out * taps));
  std::vector<float> weights(index.size());
  resize_filter_table(axis, options, index.data(), weights.data());
  const auto& x = in.floats(outer * axis.in * inner);
  const auto& y = in.output(outer * axis.out * inner);
  resize_axis(outer, axis, inner, taps, index.data(), weights.data(), 0.0F, x.data(), y.data(), nullptr);
  Outcome o{y.values(), {}};
  for (int64_t i = 0; i < outer * axis.out * inner; ++i) {
    const int64_t at = i / inner % axis.out;
    double sum = 0;
    for (int64_t t = 0; t < taps; ++t)
      sum += double{weights[static_cast<size_t>(at * taps + t)]} *
             x[(i / inner / axis.out * axis.in + index[static_cast<size_t>(at * taps + t)]) * inner + i % inner];
    o.expected.push_back(sum);
  }
  return o;
}

const Case kCases[] = {
    {"gemm", product},
    {"gemm_batched", unpacked_product},
    {"gemm_blocked", blocked_product, 1e-5, 1e34F},
    {"gemm_int8_weights", int8_weights_product, 1e-5, 1e32F},
    {"conv", [](Inputs& in) { return conv_of(in, random_conv(in)); }},
    {"conv, depthwise", [](Inputs& in) { return conv_of(in, random_depthwise(in)); }},
    {"conv_transpose", conv_transpose_of},
    {"nhwc_conv, direct", [](Inputs& in) { return nhwc_of(in, random_conv(in), NhwcMethod::direct); }},
    {"nhwc_conv, depthwise", [](Inputs& in) { return nhwc_of(in, random_depthwise(in), NhwcMethod::depthwise); }},
    {"nhwc_conv, F(4,3)", [](Inputs& in) { return nhwc_of(in, random_3x3(in), NhwcMethod::winograd4); }},
    {"nhwc_conv, F(2,3)", [](Inputs& in) { return nhwc_of(in, random_3x3(in), NhwcMethod::winograd2); }},
    {"nhwc_bf16_conv",
     [](Inputs& in) {
       ConvParams p = random_conv(in);
       p.C *= 2;
       return nhwc_bf16_of(in, p);
     },
     3e-6, 1e30F, /*takes_denormals=*/false},
    {"scaled_pointwise", scaled_pointwise_of},
    {"pointwise_depthwise", conv_depthwise_of, 3e-6, 1e35F},
    {"pool_nhwc, max", pool_of<true, true>},
    {"pool_nhwc, average", pool_of<false, true>},
    {"max_pool", pool_of<true, false>},
    {"average_pool", pool_of<false, false>},
    {"mean_nhwc", mean_of},
    {"affine_nhwc", affine_of},
    {"softmax", softmax_of<false>},
    {"log_softmax", softmax_of<true>},
    {"layer_norm", norm_of<false>, 1e-5, 1e15F},
    {"rms_norm", norm_of<true>, 1e-5, 1e15F},
    {"group_norm", group_norm_of, 1e-5, 1e15F},
    {"batch_norm", batch_norm_of},
    {"reduce, sum", reduce_of<Reduce::sum>, 3e-6, 1e34F},
    {"reduce, l1", reduce_of<Reduce::l1>, 3e-6, 1e34F},
    {"reduce, max", reduce_of<Reduce::max>, 0},
    {"attention", attention_of, 1e-5},
    {"lstm", lstm_of, 1e-5},
    {"run_chain", chain_of},
    {"unary_f32, tanh", unary_of<Unary::tanh>},
    {"unary_f32, sigmoid", unary_of<Unary::sigmoid>},
    {"unary_f32, leaky_relu", unary_of<Unary::leaky_relu>},
    {"transpose_plane", transposed, 0},
    {"resize_axis", resized},
};

/// @param lost  absolute error that is always allowed: half of the smallest subnormal number for each of a few sums
void expect_as_defined(const Outcome& o, double tolerance, double lost = 3e-43) {
  ASSERT_EQ(o.y.size(), o.expected.size());
  constexpr double kLargestFloat = std::numeric_limits<float>::max();
  double largest = o.largest;
  for (double v : o.expected)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < o.y.size(); ++i) {
    const double y = o.y[i], e = o.expected[i];
    if (std::isnan(e)) {
      ASSERT_TRUE(std::isnan(y)) << "element " << i << " is " << y << " instead of NaN";
    } else if (std::isinf(e)) {
      ASSERT_EQ(y, e) << "element " << i;
    } else {
      ASSERT_LT(std::abs(e), kLargestFloat) << "the case's numbers are too large for what it computes";
      ASSERT_NEAR(y, e, tolerance * largest + lost) << "element " << i << " of " << o.y.size();
    }
  }
}

class HardInputs : public ::testing::TestWithParam<Case> {};

TEST_P(HardInputs, GiveWhatTheDefinitionGives) {
  const Case& c = GetParam();
  Random random(97);
  for (Numbers numbers : kAllNumbers) {
    if (numbers == Numbers::denormal && !c.takes_denormals) continue;
    for (int round = 0; round < 30; ++round) {
      SCOPED_TRACE(std::string(c.name) + ", " + kNames[static_cast<int>(numbers)] + ", round " + std::to_string(round));
      Inputs in(random, numbers, c.huge);
      expect_as_defined(c.run(in), c.tolerance);
      if (HasFatalFailure()) return;
    }
  }
}

// With flush-to-zero, subnormal numbers become zero, and nothing else may change.
TEST_P(HardInputs, GiveTheSameWithDenormalNumbersTakenForZero) {
  const Case& c = GetParam();
  Random random(98);
  for (Numbers numbers : {Numbers::ordinary, Numbers::both, Numbers::denormal}) {
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(std::string(c.name) + ", " + kNames[static_cast<int>(numbers)] + ", round " + std::to_string(round));
      Inputs in(random, numbers, c.huge);
      Outcome o;
      {
        DenormalsAsZero mode;
        o = c.run(in);
      }
      expect_as_defined(o, c.tolerance, 1e-35);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, HardInputs, ::testing::ValuesIn(kCases), [](const auto& test) {
  std::string name;
  for (const char* p = test.param.name; *p; ++p)
    if (std::isalnum(static_cast<unsigned char>(*p))) name += *p;
  return name;
});

}  // namespace
}  // namespace treadle::kernels
