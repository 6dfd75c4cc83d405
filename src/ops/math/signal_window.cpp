// Implements HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix (opset 17).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/math/signal.h"
#include "treadle/error.h"

namespace treadle::ops {

CosineWindowPlan CosineWindowPlan::bind(const BindContext& c) {
  const int64_t size = c.output_shape(0)[0], period = c.get_int("periodic", 1) != 0 ? size : size - 1;
  if (c.node().op_type == "HannWindow") return {size, period, 0.5, 0.5, 0};
  if (c.node().op_type == "BlackmanWindow") return {size, period, 0.42, 0.5, 0.08};
  return {size, period, 25.0 / 46.0, 21.0 / 46.0, 0};  // HammingWindow, with the exact optimum instead of the usual 0.54 and 0.46
}

namespace {

DType output_dtype(const Attributes& attributes) {
  const DType dtype = dtype_attribute(attributes, "output_datatype", DType::float32);
  if (!kNumeric.has(dtype))
    throw Error(ErrorCode::invalid_model, fmt::format("output_datatype = {} is no numeric type", static_cast<int>(dtype)));
  return dtype;
}

int64_t checked_size(int64_t size, std::string_view what) {
  if (size < 0) throw Error(ErrorCode::invalid_argument, fmt::format("{} = {}; expected a size", what, size));
  return size;
}

struct CosineWindow : CosineWindowPlan {
  DType dtype;

  static CosineWindow bind(BindContext& c) { return {CosineWindowPlan::bind(c), c.output_dtype(0)}; }
  void run(RunContext& c) const {
    visit_dtype<NumericTypes>(dtype, [&]<typename T>() {
      T* y = c.out<T>(0);
      for (int64_t n = 0; n < size; ++n) {
        // A symmetric window of one point has N = 0; its point is the center of the cosine.
        double angle = period == 0 ? std::numbers::pi : 2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(period);
        y[n] = static_cast<T>(a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle));
      }
    });
  }
};

void infer_window(InferContext& c) {
  check_one_element(c, 0, "size");
  auto size = c.known(0);
  if (size && size->size() == 1 && (*size)[0].is_const()) checked_size((*size)[0].value(), "size");
  c.set_output(0, output_dtype(c.attributes()), {size && size->size() == 1 ? (*size)[0] : c.data_dependent_dim("size")});
}

// Computes triangular filters, whose corners are equally spaced on the mel scale. Each filter has its peak, 1, at one bin of the spectrum.
struct MelWeightMatrix {
  int64_t num_bins, num_mels, dft_length, sample_rate;
  DType edge_dtype, dtype;

  static MelWeightMatrix bind(BindContext& c) {
    for (int i = 0; i < 5; ++i) check_equal(c.num_elements(i), 1, "elements of an operand of a mel matrix");
    return {c.output_shape(0)[0], c.output_shape(0)[1], c.value_at(1, 0), c.value_at(2, 0), c.dtype(3), c.output_dtype(0)};
  }

  double edge(RunContext& c, int input) const {
    return visit_dtype<FloatTypes>(edge_dtype,
                                   [&]<typename T>() { return static_cast<double>(static_cast<ToDouble<T>>(*c.in<T>(input))); });
  }
  template <typename T>
  using ToDouble = std::conditional_t<std::is_same_v<T, double>, double, float>;

  int64_t corner(double low_mel, double mel_step, int64_t i) const {
    double hertz = 700 * std::expm1((low_mel + mel_step * static_cast<double>(i)) / 2595 * std::numbers::ln10);
    double bin = std::floor((static_cast<double>(dft_length) + 1) * hertz / static_cast<double>(sample_rate));
    if (!(bin >= 0 && bin < static_cast<double>(num_bins)))
      throw Error(ErrorCode::invalid_argument, fmt::format("a band of {} Hz needs the bin {}, there are {}", hertz, bin, num_bins));
    return static_cast<int64_t>(bin);
  }

  void run(RunContext& c) const {
    auto mel = [](double hertz) { return 2595 * std::log1p(hertz / 700) / std::numbers::ln10; };
    double low = mel(edge(c, 3)), step = (mel(edge(c, 4)) - low) / (static_cast<double>(num_mels) + 2);
    if (sample_rate <= 0) throw Error(ErrorCode::invalid_argument, fmt::format("sample_rate = {}", sample_rate));
    visit_dtype<NumericTypes>(dtype, [&]<typename T>() {
      T* y = c.out<T>(0);
      std::fill_n(y, num_bins * num_mels, static_cast<T>(0));
      for (int64_t i = 0; i < num_mels; ++i) {
        int64_t left = corner(low, step, i), center = corner(low, step, i + 1), right = corner(low, step, i + 2);
        auto set = [&](int64_t bin, int64_t part, int64_t whole) {
          y[bin * num_mels + i] = static_cast<T>(static_cast<double>(part) / static_cast<double>(whole));
        };
        if (left == center)
          set(center, 1, 1);
        else
          for (int64_t bin = left; bin <= center; ++bin) set(bin, bin - left, center - left);
        for (int64_t bin = center; bin < right; ++bin) set(bin, right - bin, right - center);
      }
    });
  }
};

void infer_mel(InferContext& c) {
  constexpr std::string_view kNames[] = {"num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"};
  for (int i = 0; i < 5; ++i) check_one_element(c, i, kNames[i]);
  auto mels = c.known(0), length = c.known(1);
  Dim columns = mels && mels->size() == 1 ? (*mels)[0] : c.data_dependent_dim("mels");
  Dim rows = length && length->size() == 1 ? floor_div((*length)[0], 2) + Dim(1) : c.data_dependent_dim("bins");
  if (columns.is_const()) checked_size(columns.value(), "num_mel_bins");
  if (length && length->size() == 1 && (*length)[0].is_const()) checked_size((*length)[0].value(), "dft_length");
  c.set_output(0, output_dtype(c.attributes()), {rows, columns});
}

OpDef window(std::string_view name) {
  return {.name = name,
          .since = {17},
          .inputs = {{"size", kInt32Or64}},
          .outputs = {{"output", kNumeric}},
          .attributes = {{"output_datatype", int64_t{1}}, {"periodic", int64_t{1}}},
          .infer = infer_window,
          .kernels = {kernel<CosineWindow>()},
          .value_inputs = {0}};
}

}  // namespace

std::vector<OpDef> signal_window_ops() {
  return {
      window("HannWindow"),
      window("HammingWindow"),
      window("BlackmanWindow"),
      {.name = "MelWeightMatrix",
       .since = {17},
       .inputs = {{"num_mel_bins", kInt32Or64},
                  {"dft_length", kInt32Or64},
                  {"sample_rate", kInt32Or64},
                  {"lower_edge_hertz", kFloats, "T2"},
                  {"upper_edge_hertz", kFloats, "T2"}},
       .outputs = {{"output", kNumeric}},
       .attributes = {{"output_datatype", int64_t{1}}},
       .infer = infer_mel,
       .kernels = {kernel<MelWeightMatrix>()},
       .value_inputs = {0, 1, 2}},
  };
}

}  // namespace treadle::ops
