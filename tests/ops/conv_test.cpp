#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

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

// Computes a two-dimensional convolution by its definition, with zeros outside of the image.
struct Scalar2d {
  int64_t stride = 1, dilation = 1, group = 1, pad_top = 0, pad_left = 0;
  double operator()(const std::vector<double>& x, const Shape& xs, const std::vector<double>& w, const Shape& ws, int64_t n, int64_t m,
                    int64_t oh, int64_t ow) const {
    double sum = 0;
    for (int64_t c = 0; c < ws[1]; ++c)
      for (int64_t kh = 0; kh < ws[2]; ++kh)
        for (int64_t kw = 0; kw < ws[3]; ++kw) {
          const int64_t h = oh * stride + kh * dilation - pad_top, v = ow * stride + kw * dilation - pad_left;
          if (h < 0 || v < 0 || h >= xs[2] || v >= xs[3]) continue;
          const int64_t channel = m / (ws[0] / group) * ws[1] + c;
          sum += x[static_cast<size_t>(((n * xs[1] + channel) * xs[2] + h) * xs[3] + v)] *
                 w[static_cast<size_t>(((m * ws[1] + c) * ws[2] + kh) * ws[3] + kw)];
        }
    return sum;
  }
};

std::vector<double> wave(int64_t n, double step) {
  std::vector<double> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(std::sin(step * static_cast<double>(i)));
  return v;
}
template <typename T>
Tensor as(const Shape& shape, const std::vector<double>& v) {
  Tensor t(dtype_of<T>, shape);
  for (size_t i = 0; i < v.size(); ++i) t.data<T>()[i] = static_cast<T>(v[i]);
  return t;
}

template <typename T>
void check_conv(double tolerance) {
  const Shape xs{2, 4, 7, 6}, ws{6, 2, 3, 2};
  const std::vector<double> x = wave(xs.num_elements(), 0.7), w = wave(ws.num_elements(), 1.3), b = wave(6, 2.1);
  Attributes attributes{{"group", int64_t{2}}, {"strides", Ints{2, 2}}, {"dilations", Ints{2, 2}}, {"pads", Ints{2, 1, 1, 0}}};
  Tensor y = run_op({"Conv", 22, {as<T>(xs, x), as<T>(ws, w), as<T>({6}, b)}, attributes})[0];
  ASSERT_EQ(y.shape(), (Shape{2, 6, 3, 3}));
  const Scalar2d reference{.stride = 2, .dilation = 2, .group = 2, .pad_top = 2, .pad_left = 1};
  for (int64_t n = 0, i = 0; n < 2; ++n)
    for (int64_t m = 0; m < 6; ++m)
      for (int64_t oh = 0; oh < 3; ++oh)
        for (int64_t ow = 0; ow < 3; ++ow, ++i)
          EXPECT_NEAR(static_cast<double>(y.data<T>()[i]), reference(x, xs, w, ws, n, m, oh, ow) + b[static_cast<size_t>(m)], tolerance);
}

// The expected sums use only the part of the image that negative pads leave.
TEST(Conv, NegativePadsCutTheImage) {
  for (const int64_t group : {int64_t{1}, int64_t{2}, int64_t{4}}) {
    const Shape xs{1, 4, 8, 8}, ws{4, 4 / group, 3, 3};
    const std::vector<double> x = wave(xs.num_elements(), 0.7), w = wave(ws.num_elements(), 1.3);
    for (const Ints& pads : {Ints{-1, 0, 0, 0}, Ints{0, -1, 0, 0}, Ints{0, 0, -1, 0}, Ints{0, 0, 0, -1}, Ints{-1, 2, 1, -3}}) {
      const Tensor y = run_op({"Conv", 22, {as<float>(xs, x), as<float>(ws, w)}, {{"group", group}, {"pads", pads}}})[0];
      ASSERT_EQ(y.shape(), (Shape{1, 4, 6 + pads[0] + pads[2], 6 + pads[1] + pads[3]}));
      // The removed part must not be read: windows that begin after it must not use elements before it.
      const Scalar2d reference{.group = group, .pad_top = pads[0], .pad_left = pads[1]};
      for (int64_t m = 0, i = 0; m < 4; ++m)
        for (int64_t oh = 0; oh < y.shape()[2]; ++oh)
          for (int64_t ow = 0; ow < y.shape()[3]; ++ow, ++i)
            EXPECT_NEAR(static_cast<double>(y.data<float>()[i]), reference(x, xs, w, ws, 0, m, oh, ow), 1e-5);
    }
  }
}

TEST(Conv, OfEveryFloatTypeFollowsItsDefinition) {
  check_conv<float>(1e-5);
  check_conv<double>(1e-12);
  check_conv<Float16>(1e-2);
  check_conv<BFloat16>(6e-2);
}

TEST(Conv, PadsTheSameWayUpOrDown) {
  // A window of two over three elements needs one element of padding, before or behind.
  Tensor x = floats({1, 1, 3}, {1, 2, 3}), w = floats({1, 1, 2}, {1, 10});
  EXPECT_EQ(values<float>(run_op({"Conv", 11, {x, w}, {{"auto_pad", std::string("SAME_UPPER")}}})[0]), (std::vector<float>{21, 32, 3}));
  EXPECT_EQ(values<float>(run_op({"Conv", 11, {x, w}, {{"auto_pad", std::string("SAME_LOWER")}}})[0]), (std::vector<float>{10, 21, 32}));
  EXPECT_EQ(values<float>(run_op({"Conv", 11, {x, w}, {{"auto_pad", std::string("VALID")}}})[0]), (std::vector<float>{21, 32}));
}

TEST(Conv, NamesWhatDoesNotFit) {
  auto message = [](std::vector<Tensor> inputs, Attributes attributes) -> std::string {
    try {
      run_op({"Conv", 11, std::move(inputs), std::move(attributes)});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Tensor x = floats({1, 2, 2, 2}, std::vector<float>(8)), w = floats({1, 3, 1, 1}, {1, 1, 1});
  EXPECT_NE(message({x, w}, {}).find("W has 3 input channels, X has 2 (group=1)"), std::string::npos);
  Tensor wide = floats({1, 2, 3, 3}, std::vector<float>(18));
  EXPECT_NE(message({x, wide}, {}).find("a window that spans 3 does not fit into an extent of 2"), std::string::npos);
  EXPECT_NE(message({x, wide}, {{"strides", Ints{0, 1}}}).find("strides contains 0"), std::string::npos);
  EXPECT_NE(message({x, wide}, {{"pads", Ints{1, 1}}}).find("pads has 2 elements for 2 spatial axes"), std::string::npos);
}

// Compares with torch.nn.functional.conv_transpose2d(x, w, [.5, -.5], stride=(2, 1), padding=(1, 0), output_padding=(1, 0), groups=2,
// dilation=(1, 2)).
TEST(ConvTranspose, IsTheGradientOfAConvolution) {
  std::vector<double> x, w;
  for (int i = 0; i < 24; ++i) x.push_back(i / 7.0 - 1.5);
  for (int i = 0; i < 8; ++i) w.push_back(i / 3.0 - 1);
  const std::vector<double> first = {1,         0.9523810, 0.9047619, 0.5,       0.5,       1.571429,  1.428571, 2,         1.119048,
                                     1.02381,   0.8571429, 0.8095238, 0.7619048, 0.5,       0.5,       1.142857, 1,         1.285714,
                                     0.8333333, 0.7380952, 0.7142857, 0.6666667, 0.6190476, 0.5,       0.5,      0.7142857, 0.5714286,
                                     0.5714286, 0.547619,  0.452381,  0.5714286, 0.5238095, 0.4761905, 0.5,      0.5};
  Attributes attributes{{"group", int64_t{2}},
                        {"strides", Ints{2, 1}},
                        {"pads", Ints{1, 0, 1, 0}},
                        {"output_padding", Ints{1, 0}},
                        {"dilations", Ints{1, 2}}};
  Tensor y =
      run_op({"ConvTranspose", 11, {as<double>({1, 2, 4, 3}, x), as<double>({2, 1, 2, 2}, w), as<double>({2}, {.5, -.5})}, attributes})[0];
  Tensor z =
      run_op({"ConvTranspose", 11, {as<float>({1, 2, 4, 3}, x), as<float>({2, 1, 2, 2}, w), as<float>({2}, {.5, -.5})}, attributes})[0];
  ASSERT_EQ(y.shape(), (Shape{1, 2, 7, 5}));
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(y.data<double>()[i], first[i], 1e-6);
  for (int64_t i = 0; i < y.num_elements(); ++i) EXPECT_NEAR(z.data<float>()[i], y.data<double>()[i], 1e-5);
}

TEST(ConvTranspose, PadsToTheShapeThatIsAskedFor) {
  Tensor x = floats({1, 1, 2}, {1, 2}), w = floats({1, 1, 3}, {1, 1, 1});
  // Without pads, the result at stride 2 is 1 1 3 2 2.
  Attributes attributes{{"strides", Ints{2}}, {"output_shape", Ints{4}}};
  EXPECT_EQ(values<float>(run_op({"ConvTranspose", 11, {x, w}, attributes})[0]), (std::vector<float>{1, 3, 2, 2}));
  attributes.set("auto_pad", std::string("SAME_UPPER"));
  EXPECT_EQ(values<float>(run_op({"ConvTranspose", 11, {x, w}, attributes})[0]), (std::vector<float>{1, 1, 3, 2}));
}

TEST(MaxPool, CountsIndicesOverTheWholeTensor) {
  Tensor x = floats({1, 2, 2, 2}, {4, 3, 2, 1, 5, 6, 7, 8});
  auto y = run_op({"MaxPool", 12, {x}, {{"kernel_shape", Ints{2, 2}}}, 2});
  EXPECT_EQ(values<float>(y[0]), (std::vector<float>{4, 8}));
  EXPECT_EQ(values<int64_t>(y[1]), (Ints{0, 7}));
  auto columns =
      run_op({"MaxPool", 12, {floats({1, 1, 2, 3}, {1, 2, 9, 3, 4, 5})}, {{"kernel_shape", Ints{2, 3}}, {"storage_order", int64_t{1}}}, 2});
  EXPECT_EQ(values<int64_t>(columns[1]), (Ints{4}));  // the maximum is in row 0 and column 2, counted down the columns
}

TEST(MaxPool, RoundsUpWithoutWindowsThatStartOutside) {
  Tensor x = floats({1, 1, 4}, {1, 2, 3, 4});
  Attributes attributes{{"kernel_shape", Ints{1}}, {"strides", Ints{3}}, {"ceil_mode", int64_t{1}}};
  EXPECT_EQ(values<float>(run_op({"MaxPool", 12, {x}, attributes})[0]), (std::vector<float>{1, 4}));
  attributes = {{"kernel_shape", Ints{2}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}, {"ceil_mode", int64_t{1}}};
  EXPECT_EQ(values<float>(run_op({"MaxPool", 12, {x}, attributes})[0]), (std::vector<float>{1, 3, 4}));
  // A further window would begin behind the image and its padding.
  attributes = {{"kernel_shape", Ints{3}}, {"strides", Ints{4}}, {"pads", Ints{0, 3}}, {"ceil_mode", int64_t{1}}};
  EXPECT_EQ(run_op({"MaxPool", 12, {x}, attributes})[0].shape(), (Shape{1, 1, 1}));
}

// Pools as in PyTorch with ceil_mode: the size of the output is rounded up to one window, which is larger than the input.
TEST(Pools, RoundUpToAWindowThatIsLargerThanTheInput) {
  Attributes attributes{{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"ceil_mode", int64_t{1}}};
  Tensor x = floats({1, 1, 2}, {3, 5});
  EXPECT_EQ(values<float>(run_op({"MaxPool", 12, {x}, attributes})[0]), (std::vector<float>{5}));
  EXPECT_EQ(values<float>(run_op({"AveragePool", 19, {x}, attributes})[0]), (std::vector<float>{4}));
  EXPECT_EQ(values<float>(run_op({"LpPool", 18, {floats({1, 1, 2}, {3, 4})}, attributes})[0]), (std::vector<float>{5}));
  Attributes square{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"ceil_mode", int64_t{1}}};
  EXPECT_EQ(values<float>(run_op({"MaxPool", 12, {floats({1, 1, 3, 1}, {1, 2, 3})}, square})[0]), (std::vector<float>{2, 3}));
  EXPECT_THROW(
      run_op({"MaxPool", 12, {floats({1, 1, 1}, {3})}, {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"ceil_mode", int64_t{1}}}}),
      Error);
  EXPECT_THROW(
      run_op({"MaxPool", 12, {floats({1, 1, 0}, {})}, {{"kernel_shape", Ints{1}}, {"strides", Ints{2}}, {"ceil_mode", int64_t{1}}}}),
      Error);
  attributes.set("ceil_mode", int64_t{0});
  EXPECT_THROW(run_op({"MaxPool", 12, {x}, attributes}), Error);
}

TEST(AveragePool, CountsThePadsIfToldTo) {
  Tensor x = tensor<double>({1, 1, 3}, {3, 6, 9});
  Attributes attributes{{"kernel_shape", Ints{3}}, {"pads", Ints{1, 1}}};
  EXPECT_EQ(values<double>(run_op({"AveragePool", 19, {x}, attributes})[0]), (std::vector<double>{4.5, 6, 7.5}));
  attributes.set("count_include_pad", int64_t{1});
  EXPECT_EQ(values<double>(run_op({"AveragePool", 19, {x}, attributes})[0]), (std::vector<double>{3, 6, 5}));
}

TEST(LpPool, OfOpset1HasAFloatForItsOrder) {
  Tensor x = floats({1, 1, 1, 2}, {3, -4});
  EXPECT_FLOAT_EQ(values<float>(run_op({"LpPool", 1, {x}, {{"kernel_shape", Ints{1, 2}}, {"p", 2.0F}}})[0])[0], 5);
  EXPECT_FLOAT_EQ(values<float>(run_op({"GlobalLpPool", 1, {x}, {{"p", 1.0F}}})[0])[0], 7);
  EXPECT_FLOAT_EQ(values<float>(run_op({"GlobalLpPool", 2, {x}, {{"p", int64_t{3}}}})[0])[0], std::cbrt(91.0F));
}

TEST(GlobalPools, TakeAnyNumberOfSpatialAxes) {
  Tensor x = floats({1, 2, 2, 1, 2}, {1, 2, 3, 4, -5, -6, -7, -8});
  EXPECT_EQ(values<float>(run_op({"GlobalMaxPool", 22, {x}})[0]), (std::vector<float>{4, -5}));
  Tensor y = run_op({"GlobalAveragePool", 22, {x}})[0];
  EXPECT_EQ(y.shape(), (Shape{1, 2, 1, 1, 1}));
  EXPECT_EQ(values<float>(y), (std::vector<float>{2.5, -6.5}));
}

TEST(MaxUnpool, RefusesPlacesOutsideOfItsOutput) {
  Tensor x = floats({1, 1, 1}, {5});
  Attributes attributes{{"kernel_shape", Ints{2}}, {"strides", Ints{2}}};
  EXPECT_EQ(values<float>(run_op({"MaxUnpool", 11, {x, tensor<int64_t>({1, 1, 1}, {1})}, attributes})[0]), (std::vector<float>{0, 5}));
  EXPECT_THROW(run_op({"MaxUnpool", 11, {x, tensor<int64_t>({1, 1, 1}, {2})}, attributes}), Error);
  EXPECT_THROW(run_op({"MaxUnpool", 11, {x, tensor<int64_t>({1, 1, 1}, {-1})}, attributes}), Error);
}

// Expected values are those of PyTorch: max_pool2d(x, 2, 2, return_indices=True) of a 3 x 5 image, undone by max_unpool2d(…,
// output_size=(3, 5)).
TEST(MaxUnpool, PlacesCountInTheShapeThatIsAskedFor) {
  Attributes attributes{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  auto unpooled = [&](std::vector<int64_t> places, const Shape& shape) {
    const std::vector<int64_t> extents(shape.begin(), shape.end());
    return run_op({"MaxUnpool",
                   11,
                   {floats({1, 1, 1, 2}, {1, 2}), tensor<int64_t>({1, 1, 1, 2}, places), tensor<int64_t>({4}, extents)},
                   attributes})[0];
  };
  Tensor y = unpooled({5, 2}, {1, 1, 3, 5});
  EXPECT_EQ(y.shape(), (Shape{1, 1, 3, 5}));
  EXPECT_EQ(values<float>(y), (std::vector<float>{0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  // These are the indices of a pool that rounds up.
  EXPECT_EQ(values<float>(unpooled({0, 2}, {1, 1, 1, 3})), (std::vector<float>{1, 0, 2}));
  EXPECT_THROW(unpooled({0, 15}, {1, 1, 3, 5}), Error);
}

// With zero offsets this is a convolution. With offsets of one, the result is that of the shifted image.
TEST(DeformConv, LooksWhereItsOffsetsPoint) {
  const Shape xs{1, 2, 5, 4}, ws{4, 1, 2, 2};
  const std::vector<double> x = wave(xs.num_elements(), 0.9), w = wave(ws.num_elements(), 1.7);
  Tensor offset(DType::float32, {1, 16, 4, 3});
  Attributes attributes{{"group", int64_t{2}}, {"offset_group", int64_t{2}}};
  const Scalar2d reference{.group = 2};
  for (float shift : {0.0F, 1.0F}) {
    for (float& v : offset.span<float>()) v = 0;
    // Sets the row offsets of all taps, for both offset groups.
    for (int64_t tap = 0; tap < 8; ++tap)
      for (int64_t i = 0; i < 12; ++i) offset.data<float>()[tap * 24 + i] = shift;
    Tensor y = run_op({"DeformConv", 19, {as<float>(xs, x), as<float>(ws, w), offset}, attributes})[0];
    ASSERT_EQ(y.shape(), (Shape{1, 4, 4, 3}));
    for (int64_t m = 0; m < 4; ++m)
      for (int64_t oh = 0; oh < 4; ++oh)
        for (int64_t ow = 0; ow < 3; ++ow)
          EXPECT_NEAR(y.data<float>()[(m * 4 + oh) * 3 + ow], reference(x, xs, w, ws, 0, m, oh + static_cast<int64_t>(shift), ow), 1e-5);
  }
}

}  // namespace
}  // namespace treadle
