// Tests cases of normalisation, resizing, sampling, recurrent layers and attention that ONNX's own tests leave out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/values/float_types.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

using Ints = std::vector<int64_t>;

void expect_near(const Tensor& actual, const std::vector<float>& expected, double tolerance = 1e-5) {
  ASSERT_EQ(actual.num_elements(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual.data<float>()[i], expected[i], tolerance) << i;
}

// Compares with torch.nn.BatchNorm1d(2, momentum=0.25, eps=1e-3) in training. ONNX uses the biased variance, and 1 - momentum as the weight
// of the batch.
TEST(BatchNormalization, LearnsRunningStatisticsInTraining) {
  Tensor x = floats({2, 2, 3}, {1, 2, 3, 4, 6, 8, 5, 5, 5, 0, 1, 2});
  auto y = run_op({"BatchNormalization",
                   15,
                   {x, floats({2}, {1, 1}), floats({2}, {0, 0}), floats({2}, {1, 2}), floats({2}, {0.5F, 4})},
                   {{"training_mode", int64_t{1}}, {"momentum", 0.75F}, {"epsilon", 1e-3F}},
                   3});
  expect_near(y[0], {-1.555127F, -0.9330759F, -0.3110253F, 0.1776935F, 0.8884673F, 1.599241F, 0.933076F, 0.933076F, 0.933076F, -1.243854F,
                     -0.8884672F, -0.5330803F});
  expect_near(y[1], {1.625F, 2.375F});
  expect_near(y[2], {1.020833F, 4.979167F});
}

TEST(BatchNormalization, OfOldOpsetsMayHaveParametersForEveryActivation) {
  Tensor x = floats({2, 1, 2}, {1, 2, 3, 4}), zero = floats({1, 2}, {0, 0}), scale = floats({1, 2}, {1, 10}), var = floats({1, 2}, {1, 4});
  Tensor y = run_op({"BatchNormalization", 7, {x, scale, zero, zero, var}, {{"spatial", int64_t{0}}, {"epsilon", 0.0F}}})[0];
  EXPECT_EQ(y.shape(), (Shape{2, 1, 2}));
  expect_near(y, {1, 10, 3, 20});
}

TEST(BatchNormalization, MixesFloatTypes) {
  Tensor x = tensor<Float16>({1, 1, 2}, {Float16(1.0F), Float16(3.0F)}), one = floats({1}, {1}), zero = floats({1}, {0}),
         four = tensor<double>({1}, {4});
  Tensor mean = tensor<double>({1}, {1});
  Tensor y = run_op({"BatchNormalization", 15, {x, one, zero, mean, four}, {{"epsilon", 0.0F}}})[0];
  EXPECT_EQ(static_cast<float>(y.data<Float16>()[1]), 1);
}

TEST(GroupNormalization, OfOpset18HasParametersForGroups) {
  Tensor x = floats({1, 4, 1}, {1, 3, 10, 14});
  Tensor y =
      run_op({"GroupNormalization", 18, {x, floats({2}, {1, 2}), floats({2}, {0, 5})}, {{"num_groups", int64_t{2}}, {"epsilon", 0.0F}}})[0];
  expect_near(y, {-1, 1, 3, 7});
  Tensor z = run_op({"GroupNormalization",
                     21,
                     {x, floats({4}, {1, 1, 2, 3}), floats({4}, {0, 0, 5, 6})},
                     {{"num_groups", int64_t{2}}, {"epsilon", 0.0F}}})[0];
  expect_near(z, {-1, 1, 3, 9});
}

TEST(LayerNormalization, GivesItsStatisticsInTheStashType) {
  Tensor x = tensor<double>({2, 2}, {1, 3, 2, 8}), scale = tensor<double>({1}, {2}), bias = tensor<double>({2}, {0, 1});
  auto y = run_op({"LayerNormalization", 17, {x, scale, bias}, {{"epsilon", 0.0F}}, 3});
  EXPECT_EQ(values<double>(y[0]), (std::vector<double>{-2, 3, -2, 3}));
  EXPECT_EQ(y[1].shape(), (Shape{2, 1}));
  EXPECT_EQ(values<float>(y[1]), (std::vector<float>{2, 5}));
  expect_near(y[2], {1, 1.0F / 3});
  auto narrow = run_op({"LayerNormalization", 17, {floats({1, 2}, {1, 3}), floats({2}, {1, 1})}, {{"stash_type", int64_t{16}}}, 2});
  EXPECT_EQ(narrow[1].dtype(), DType::bfloat16);
  EXPECT_EQ(static_cast<float>(narrow[1].data<BFloat16>()[0]), 2);
}

TEST(RMSNormalization, TakesAScaleOfAnotherType) {
  Tensor x = floats({1, 2}, {3, 4}), scale = tensor<Float16>({2}, {Float16(1.0F), Float16(2.0F)});
  Tensor y = run_op({"RMSNormalization", 23, {x, scale}, {{"epsilon", 0.0F}}})[0];
  EXPECT_EQ(y.dtype(), DType::float16);
  EXPECT_NEAR(static_cast<float>(y.data<Float16>()[1]), 8 / std::sqrt(12.5F), 2e-3);
}

TEST(LRN, SumsMoreChannelsBehindThanBeforeIfTheSizeIsEven) {
  Tensor x = floats({1, 3, 1}, {1, 2, 3});
  // With the size 2, a window has a channel and the next one. y = x / (1 + sum of squares).
  Tensor y = run_op({"LRN", 13, {x}, {{"size", int64_t{2}}, {"alpha", 2.0F}, {"beta", 1.0F}, {"bias", 1.0F}}})[0];
  expect_near(y, {1.0F / 6, 2.0F / 14, 3.0F / 10});
}

// With exclude_outside, the expected values are those of torch.nn.functional.interpolate(..., antialias=True); without, those of
// onnx.reference.
TEST(Resize, FiltersMoreWhereItShrinks) {
  std::vector<float> image;
  for (int i = 0; i < 24; ++i) image.push_back(std::cos(static_cast<float>(i)));
  Tensor x = floats({1, 1, 4, 6}, image);
  auto resize = [&](const char* mode, std::vector<int64_t> sizes, int64_t exclude_outside) {
    Attributes attributes{{"mode", std::string(mode)},
                          {"antialias", int64_t{1}},
                          {"axes", Ints{2, 3}},
                          {"cubic_coeff_a", -0.5F},
                          {"exclude_outside", exclude_outside}};
    return run_op({"Resize", 19, {x, Tensor(), Tensor(), tensor<int64_t>({2}, std::move(sizes))}, attributes})[0];
  };
  expect_near(resize("linear", {2, 3}, 1), {0.6733689F, -0.4407058F, -0.4286361F, 0.7598791F, -0.1839794F, -0.6577116F});
  expect_near(resize("cubic", {3, 2}, 1), {0.2600265F, -0.5224172F, 0.4502811F, -0.6150838F, 0.5818057F, -0.6275252F});
  expect_near(resize("linear", {2, 3}, 0), {0.7019406F, -0.4533013F, -0.3473491F, 0.7612847F, -0.1677038F, -0.6300997F});
  expect_near(resize("cubic", {3, 2}, 0), {0.3139088F, -0.4846094F, 0.4917803F, -0.5989133F, 0.6040382F, -0.6333097F});
}

TEST(Resize, OfOldOpsetsHasNoOffsets) {
  Tensor x = floats({1, 1, 1, 2}, {1, 3}), scales = floats({4}, {1, 1, 1, 2});
  EXPECT_EQ(values<float>(run_op({"Resize", 10, {x, scales}, {{"mode", std::string("linear")}}})[0]), (std::vector<float>{1, 2, 3, 3}));
  EXPECT_EQ(values<float>(run_op({"Upsample", 9, {x, scales}})[0]), (std::vector<float>{1, 1, 3, 3}));
  EXPECT_EQ(values<float>(run_op({"Upsample", 7, {x}, {{"scales", std::vector<float>{1, 1, 2, 1}}}})[0]), (std::vector<float>{1, 3, 1, 3}));
  EXPECT_EQ(values<float>(run_op({"Upsample", 1, {x}, {{"height_scale", 1.0F}, {"width_scale", 2.0F}}})[0]),
            (std::vector<float>{1, 1, 3, 3}));
}

TEST(Resize, PicksElementsOfAnyType) {
  Tensor x = Tensor::strings({2}, std::vector<std::string>{"a", "b"});
  Tensor y = run_op({"Resize",
                     19,
                     {x, Tensor(), floats({1}, {2})},
                     {{"coordinate_transformation_mode", std::string("asymmetric")}, {"nearest_mode", std::string("floor")}}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"a", "a", "b", "b"}));
  Tensor bools = run_op({"Resize", 19, {tensor<bool>({2}, {true, false}), Tensor(), Tensor(), tensor<int64_t>({1}, {3})}})[0];
  EXPECT_EQ(values<bool>(bools), (std::vector<bool>{true, true, false}));
}

TEST(Resize, LooksNowhereForARegionThatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    const Attributes attributes{
        {"mode", std::string(mode)}, {"coordinate_transformation_mode", std::string("tf_crop_and_resize")}, {"extrapolation_value", 7.0F}};
    const Tensor y =
        run_op({"Resize", 19, {floats({2}, {1, 2}), floats({2}, {nan, 1}), Tensor(), tensor<int64_t>({1}, {3})}, attributes})[0];
    EXPECT_EQ(values<float>(y), (std::vector<float>{7, 7, 7})) << mode;
  }
}

TEST(Resize, MayLeaveNothing) {
  const Tensor x = floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6});
  for (const char* mode : {"linear", "cubic"}) {
    const Attributes antialias{{"mode", std::string(mode)}, {"antialias", int64_t{1}}};
    EXPECT_EQ(run_op({"Resize", 19, {x, Tensor(), Tensor(), tensor<int64_t>({4}, {1, 1, 0, 2})}, antialias})[0].shape(),
              Shape({1, 1, 0, 2}));
    EXPECT_EQ(run_op({"Resize", 19, {x, Tensor(), floats({4}, {1, 1, 1e-30F, 1})}, antialias})[0].shape(), Shape({1, 1, 0, 3}));
  }
}

TEST(Resize, RefusesWhatItCannotDo) {
  Tensor x = floats({2}, {1, 2});
  EXPECT_THROW(run_op({"Resize", 19, {x, Tensor(), floats({1}, {-1})}}), Error);
  EXPECT_THROW(run_op({"Resize", 19, {x, Tensor(), floats({2}, {1, 1})}}), Error);
  EXPECT_THROW(run_op({"Resize", 19, {x}}), Error);
  EXPECT_THROW(run_op({"Resize", 19, {floats({0}, {}), Tensor(), Tensor(), tensor<int64_t>({1}, {2})}}), Error);
}

// Compares with torch.nn.functional.grid_sample(..., mode="bicubic", align_corners=False).
TEST(GridSample, LooksBeyondTheBorderCubically) {
  std::vector<float> image;
  for (int i = 0; i < 12; ++i) image.push_back(std::sin(static_cast<float>(i)));
  Tensor x = floats({1, 1, 3, 4}, image), grid = floats({1, 1, 3, 2}, {-1.3F, 0.2F, 0.4F, -0.9F, 1.1F, 1.2F});
  auto sample = [&](const char* padding) {
    return run_op({"GridSample", 20, {x, grid}, {{"mode", std::string("cubic")}, {"padding_mode", std::string(padding)}}})[0];
  };
  expect_near(sample("zeros"), {0.0186085F, 0.5419374F, -0.06556942F});
  expect_near(sample("border"), {-0.3530618F, 0.7740659F, -1.062881F});
}

TEST(GridSample, StaysDefinedFarOutside) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), huge = 1e30F;
  Tensor x = floats({1, 1, 2, 2}, {1, 2, 3, 4}), grid = floats({1, 1, 2, 2}, {nan, huge, -huge, nan});
  for (const char* padding : {"zeros", "border", "reflection"})
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      Tensor y = run_op({"GridSample", 20, {x, grid}, {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}}})[0];
      for (float v : values<float>(y)) EXPECT_TRUE(std::isfinite(v)) << mode << " " << padding;
    }
}

TEST(RoiAlign, RefusesImagesThatAreNotThere) {
  Tensor x = floats({1, 1, 2, 2}, {1, 2, 3, 4}), rois = floats({1, 4}, {0, 0, 2, 2});
  EXPECT_EQ(values<float>(run_op({"RoiAlign", 16, {x, rois, tensor<int64_t>({1}, {0})}})[0]), (std::vector<float>{2.5F}));
  EXPECT_THROW(run_op({"RoiAlign", 16, {x, rois, tensor<int64_t>({1}, {1})}}), Error);
  EXPECT_THROW(run_op({"RoiAlign", 16, {x, floats({1, 4}, {0, 0, 1e30F, 1e30F}), tensor<int64_t>({1}, {0})}}), Error);
}

// Pools by ONNX's definition, one sample after the other. Samples far outside of the image count as 0.
double pooled_by_samples(const std::vector<float>& x, int64_t extent, const std::vector<float>& roi, int64_t ratio, bool maximum) {
  const double top = roi[1] - 0.5, left = roi[0] - 0.5, height = roi[3] - roi[1], width = roi[2] - roi[0];
  const auto along = [&](double size) { return ratio > 0 ? ratio : static_cast<int64_t>(std::ceil(size)); };
  const int64_t rows = along(height), columns = along(width);
  double sum = 0, largest = -1e30;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < columns; ++k) {
      const double h = top + (static_cast<double>(i) + 0.5) * height / static_cast<double>(rows);
      const double w = left + (static_cast<double>(k) + 0.5) * width / static_cast<double>(columns), end = static_cast<double>(extent);
      const bool inside = h >= -1 && h <= end && w >= -1 && w <= end;
      const double y = std::clamp(h, 0.0, end - 1), z = std::clamp(w, 0.0, end - 1);
      if (y == std::floor(y) || z == std::floor(z)) largest = std::max(largest, 0.0);  // two of the sample's four neighbours have weight 0
      for (int64_t r = 0; r < extent; ++r) {
        for (int64_t c = 0; c < extent; ++c) {
          const double weight =
              std::max(0.0, 1 - std::abs(y - static_cast<double>(r))) * std::max(0.0, 1 - std::abs(z - static_cast<double>(c)));
          const double part = inside ? weight * x[static_cast<size_t>(r * extent + c)] : 0;
          sum += part;
          if (weight > 0 || !inside) largest = std::max(largest, part);
        }
      }
    }
  }
  return maximum ? largest : sum / static_cast<double>(rows * columns);
}

TEST(RoiAlign, CountsSamplesOutsideOfTheImageAsZeros) {
  const std::vector<float> x{-1, -2, -3, -4, -5, -6, -7, -8, -9.5F};
  const std::vector<std::vector<float>> regions{{0, 0, 3, 3},         {-40.25F, -17, 60, 44.5F}, {1.25F, 0.5F, 90, 2.75F},
                                                {-70, -90, -20, -30}, {20, 1, 23.5F, 80},        {0.75F, 1.5F, 2.25F, 2}};
  for (const auto& roi : regions) {
    for (int64_t ratio : {0, 1, 7, 50}) {
      for (const char* mode : {"avg", "max"}) {
        SCOPED_TRACE(std::string(mode) + ", sampling_ratio " + std::to_string(ratio) + ", left " + std::to_string(roi[0]));
        Tensor y = run_op({"RoiAlign",
                           16,
                           {floats({1, 1, 3, 3}, x), floats({1, 4}, roi), tensor<int64_t>({1}, {0})},
                           {{"sampling_ratio", ratio}, {"mode", std::string(mode)}}})[0];
        EXPECT_NEAR(y.data<float>()[0], pooled_by_samples(x, 3, roi, ratio, mode == std::string("max")), 1e-5);
      }
    }
  }
}

// The region has 10^10 samples. A run that computed each of them would not end.
TEST(RoiAlign, ARegionFarLargerThanTheImageCostsNoMoreThanTheImage) {
  Tensor y =
      run_op({"RoiAlign",
              16,
              {floats({1, 1, 2, 2}, {1, 1, 1, 1}), floats({1, 4}, {-50'000, -50'000, 49'999, 49'999}), tensor<int64_t>({1}, {0})}})[0];
  EXPECT_NEAR(y.data<float>()[0], 9e-10, 1e-9);
}

// Compares with torch.nn.LSTM and torch.nn.GRU, whose gates are in the order i f g o and r z n.
TEST(LSTM, EqualsPyTorchs) {
  Tensor x = floats({2, 1, 2}, {0.5F, -1, 1, 0.25F});
  Tensor w = floats({1, 8, 2}, {.1F, .2F, -.3F, .4F, .6F, .1F, -.5F, .4F, .5F, -.6F, .7F, .8F, -.1F, .3F, .2F, -.2F});
  Tensor r = floats({1, 8, 2}, {.2F, -.1F, .3F, .1F, .1F, .1F, .3F, -.6F, -.4F, .2F, .1F, .5F, .6F, -.3F, -.2F, .4F});
  auto y = run_op({"LSTM", 14, {x, w, r}, {{"hidden_size", int64_t{2}}}, 3});
  EXPECT_EQ(y[0].shape(), (Shape{2, 1, 1, 2}));
  expect_near(y[0], {-0.08486888F, 0.03641834F, -0.08976864F, 0.06029604F}, 1e-6);
  expect_near(y[1], {-0.08976864F, 0.06029604F}, 1e-6);
  expect_near(y[2], {-0.13893886F, 0.15585500F}, 1e-6);
  // Computes the same values with the batch as the first axis, and then in float16.
  Tensor turned =
      run_op({"LSTM", 14, {floats({1, 2, 2}, values<float>(x)), w, r}, {{"hidden_size", int64_t{2}}, {"layout", int64_t{1}}}})[0];
  EXPECT_EQ(turned.shape(), (Shape{1, 2, 1, 2}));
  expect_near(turned, values<float>(y[0]), 1e-6);
  auto narrow = [](const Tensor& t) {
    Tensor n(DType::float16, t.shape());
    for (int64_t i = 0; i < t.num_elements(); ++i) n.data<Float16>()[i] = Float16(t.data<float>()[i]);
    return n;
  };
  Tensor half = run_op({"LSTM", 14, {narrow(x), narrow(w), narrow(r)}, {{"hidden_size", int64_t{2}}}})[0];
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<float>(half.data<Float16>()[i]), y[0].data<float>()[i], 2e-3);
}

TEST(GRU, EqualsPyTorchsWithALinearStepBeforeTheReset) {
  Tensor x = floats({2, 1, 2}, {0.5F, -1, 1, 0.25F});
  Tensor w = floats({1, 6, 2}, {.5F, -.6F, .7F, .8F, .1F, .2F, -.3F, .4F, -.1F, .3F, .2F, -.2F});
  Tensor r = floats({1, 6, 2}, {-.4F, .2F, .1F, .5F, .2F, -.1F, .3F, .1F, .6F, -.3F, -.2F, .4F});
  Tensor b = floats({1, 12}, {.2F, -.2F, .1F, -.1F, .3F, -.3F, -.25F, .35F, .05F, .15F, .45F, -.55F});
  Tensor y = run_op({"GRU", 14, {x, w, r, b}, {{"hidden_size", int64_t{2}}, {"linear_before_reset", int64_t{1}}}})[0];
  expect_near(y, {0.05370731F, -0.11759617F, 0.25689822F, -0.19557638F}, 1e-6);
}

TEST(RNN, TakesItsActivationsParametersInOrder) {
  Tensor x = floats({1, 1, 1}, {-2}), w = floats({2, 1, 1}, {1, 1}), r = floats({2, 1, 1}, {0, 0});
  // LeakyRelu has only an alpha, and Affine an alpha and a beta.
  Attributes attributes{{"hidden_size", int64_t{1}},
                        {"direction", std::string("bidirectional")},
                        {"activations", std::vector<std::string>{"LeakyRelu", "Affine"}},
                        {"activation_alpha", std::vector<float>{0.5F, 3}},
                        {"activation_beta", std::vector<float>{0.25F}}};
  expect_near(run_op({"RNN", 14, {x, w, r}, attributes})[0], {-1, -5.75F});
  attributes.set("activations", std::vector<std::string>{"LeakyRelu", "Wavelet"});
  EXPECT_THROW(run_op({"RNN", 14, {x, w, r}, attributes}), Error);
}

// Compares with torch.nn.functional.scaled_dot_product_attention(..., enable_gqa=True) and the mask tril(2, 3).
TEST(Attention, SharesKeysBetweenHeads) {
  auto line = [](const Shape& shape, float first, float last) {
    Tensor t(DType::float32, shape);
    const int64_t n = t.num_elements();
    for (int64_t i = 0; i < n; ++i) t.data<float>()[i] = first + (last - first) * static_cast<float>(i) / static_cast<float>(n - 1);
    return t;
  };
  Tensor q = line({1, 4, 2, 3}, -1, 1), k = line({1, 2, 3, 3}, 0.5F, -0.7F), v = line({1, 2, 3, 2}, -2, 2);
  // tril(2, 3) shows key 0, then keys 0 and 1.
  Tensor mask = tensor<bool>({2, 3}, {true, false, false, true, true, false});
  Tensor masked = run_op({"Attention", 24, {q, k, v, mask}})[0],
         causal = run_op({"Attention", 24, {q, k, v}, {{"is_causal", int64_t{1}}}})[0];
  expect_near(masked, {-2, -1.6363636F, -1.5930774F, -1.2294409F, -2, -1.6363636F, -1.6276667F, -1.2640305F, 0.18181825F, 0.5454545F,
                       0.5194038F, 0.88304F, 0.18181825F, 0.5454545F, 0.4851278F, 0.84876406F});
  expect_near(causal, values<float>(masked), 1e-6);
  Tensor short_mask = tensor<bool>({2, 2}, {true, false, true, true});
  expect_near(run_op({"Attention", 24, {q, k, v, short_mask}})[0], values<float>(masked), 1e-6);
  // The first query sees only the first key, so its result is the first value.
  EXPECT_NEAR(masked.data<float>()[0], -2, 1e-6);
}

TEST(Attention, AMaskOfOneColumnSaysNothingOfFurtherKeys) {
  const Tensor q = floats({1, 1, 2, 2}, {1, 2, 3, 4}), k = floats({1, 1, 3, 2}, {1, 0, 0, 1, 1, 1}), v = floats({1, 1, 3, 1}, {5, 7, 9});
  for (const Tensor& mask : {floats({1}, {0.5F}), floats({2, 1}, {0.5F, -3}), floats({1, 1, 1, 1}, {0})})
    EXPECT_EQ(values<float>(run_op({"Attention", 25, {q, k, v, mask}})[0]), (std::vector<float>{5, 5}));
}

TEST(Attention, AWindowMayBeLargerThanEveryLength) {
  const Tensor q = floats({1, 1, 2, 2}, {0, 0, 0, 0}), k = floats({1, 1, 3, 2}, {1, 0, 0, 1, 1, 1}), v = floats({1, 1, 3, 1}, {5, 7, 9});
  for (const int64_t large : {int64_t{INT32_MAX}, INT64_MAX}) {
    expect_near(run_op({"Attention", 25, {q, k, v}, {{"left_window_size", int64_t{0}}, {"right_window_size", large}}})[0], {7, 8});
    expect_near(run_op({"Attention", 25, {q, k, v}, {{"left_window_size", large}, {"right_window_size", int64_t{0}}}})[0], {5, 6});
  }
}

TEST(Attention, OfManyQueriesEqualsItsDefinition) {
  // Tests more than one tile of queries, operands with three axes, and a past.
  const int64_t L = 70, P = 5, H = 2, D = 4, S = L + P;
  Tensor q(DType::float32, {1, L, H * D}), k(DType::float32, {1, L, H * D}), v(DType::float32, {1, L, H * D}),
      pk(DType::float32, {1, H, P, D}), pv(DType::float32, {1, H, P, D});
  int64_t at = 0;
  for (Tensor* t : {&q, &k, &v, &pk, &pv})
    for (float& x : t->span<float>()) x = std::sin(0.37F * static_cast<float>(at++));
  auto y = run_op({"Attention", 24, {q, k, v, Tensor(), pk, pv}, {{"is_causal", int64_t{1}}, {"q_num_heads", H}, {"kv_num_heads", H}}, 3});
  ASSERT_EQ(y[1].shape(), (Shape{1, H, S, D}));
  for (int64_t h = 0; h < H; ++h)
    for (int64_t i = 0; i < L; ++i) {
      const float* query = q.data<float>() + (i * H + h) * D;
      std::vector<double> weights;
      double sum = 0;
      for (int64_t s = 0; s <= i + P; ++s) {
        double score = 0;
        for (int64_t d = 0; d < D; ++d)
          score += static_cast<double>(query[d]) * static_cast<double>(y[1].data<float>()[(h * S + s) * D + d]);
        weights.push_back(std::exp(score / 2));
        sum += weights.back();
      }
      for (int64_t d = 0; d < D; ++d) {
        double expected = 0;
        for (size_t s = 0; s < weights.size(); ++s)
          expected += weights[s] / sum * static_cast<double>(y[2].data<float>()[(h * S + static_cast<int64_t>(s)) * D + d]);
        ASSERT_NEAR(y[0].data<float>()[(i * H + h) * D + d], expected, 1e-5) << h << " " << i;
      }
    }
  // In the output, the past comes first.
  EXPECT_EQ(y[1].data<float>()[0], pk.data<float>()[0]);
  EXPECT_EQ(y[1].data<float>()[P * D], k.data<float>()[0]);
}

TEST(Attention, NamesWhatDoesNotFit) {
  Tensor q = floats({1, 1, 1, 2}, {1, 2}), k = floats({1, 1, 1, 3}, {1, 2, 3});
  EXPECT_THROW(run_op({"Attention", 24, {q, k, k}}), Error);
  EXPECT_THROW(run_op({"Attention", 24, {q, q, q, floats({4, 1}, {0, 0, 0, 0})}}), Error);
  EXPECT_THROW(run_op({"Attention", 24, {floats({1, 1, 2}, {1, 2}), q, q}}), Error);
  EXPECT_THROW(run_op({"Attention", 24, {q, q, q, Tensor(), Tensor(), Tensor(), tensor<int64_t>({1}, {7})}}), Error);
}

TEST(RotaryEmbedding, RefusesPositionsOutsideOfItsCaches) {
  Tensor x = floats({1, 1, 1, 2}, {1, 0}), cos = floats({2, 1}, {1, 0}), sin = floats({2, 1}, {0, 1});
  expect_near(run_op({"RotaryEmbedding", 23, {x, cos, sin, tensor<int64_t>({1, 1}, {1})}})[0], {0, 1});
  EXPECT_THROW(run_op({"RotaryEmbedding", 23, {x, cos, sin, tensor<int64_t>({1, 1}, {2})}}), Error);
  EXPECT_THROW(run_op({"RotaryEmbedding", 23, {x, cos, sin, tensor<int64_t>({1, 1}, {-1})}}), Error);
}

}  // namespace
}  // namespace treadle
