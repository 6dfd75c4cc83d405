#include "kernels/elementwise/unary_f32.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  Unary op;
  float a, b;
  std::function<double(double)> truth;
  double low, high;     // range of the arguments
  double relative;      // allowed error, relative to the result
  double absolute = 0;  // allowed absolute error, for results of terms that cancel
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {Unary::none, 0, 0, [](double x) { return x; }, -5, 5, 0},
      {Unary::relu, 0, 0, [](double x) { return std::max(x, 0.0); }, -5, 5, 0},
      {Unary::clip, -1, 2, [](double x) { return std::min(std::max(x, -1.0), 2.0); }, -5, 5, 0},
      {Unary::leaky_relu, 0.25f, 0, [](double x) { return x < 0 ? 0.25 * x : x; }, -5, 5, 1e-7},
      {Unary::thresholded_relu, 1, 0, [](double x) { return x > 1 ? x : 0; }, -5, 5, 0},
      {Unary::sigmoid, 0, 0, sigmoid, -80, 30, 3e-7},
      {Unary::hard_sigmoid, 0.25f, 0.5f, [](double x) { return std::max(0.0, std::min(1.0, 0.25 * x + 0.5)); }, -5, 5, 1e-6, 1e-7},
      {Unary::tanh, 0, 0, [](double x) { return std::tanh(x); }, -12, 12, 3e-7},
      {Unary::scaled_tanh, 2, 0.5f, [](double x) { return 2 * std::tanh(0.5 * x); }, -12, 12, 3e-7},
      {Unary::elu, 1.5f, 0, [](double x) { return x < 0 ? 1.5 * std::expm1(x) : x; }, -10, 10, 6e-7},
      {Unary::selu, 1.5f, 1.25f, [](double x) { return 1.25 * (x < 0 ? 1.5 * std::expm1(x) : x); }, -10, 10, 6e-7},
      {Unary::celu, 2, 0, [](double x) { return std::max(x, 0.0) + std::min(0.0, 2 * std::expm1(x / 2)); }, -10, 10, 6e-7},
      {Unary::softplus, 0, 0, softplus, -80, 80, 4e-7},
      {Unary::softsign, 0, 0, [](double x) { return x / (1 + std::abs(x)); }, -10, 10, 2e-7},
      {Unary::affine, 3, 1, [](double x) { return 3 * x + 1; }, -10, 10, 1e-6, 1e-6},
      {Unary::gelu, 0, 0, [](double x) { return x * 0.5 * (1 + std::erf(x * std::sqrt(0.5))); }, -10, 10, 6e-7, 1.2e-6},
      {Unary::gelu_tanh, 0, 0, [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, -10,
       10, 1e-6, 7e-7},
      {Unary::gelu_slope, 0, 0,
       [](double x) { return 0.5 * (1 + std::erf(x * std::sqrt(0.5))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }, -12, 12, 1e-7,
       2.5e-7},
      {Unary::silu, 1, 0, [](double x) { return x * sigmoid(x); }, -80, 30, 4e-7},
      {Unary::scaled_hard_swish, 0.7f, -0.4f, [](double x) { return 0.7 * x * std::max(0.0, std::min(1.0, x / 6 + 0.5)) - 0.4; }, -5, 5,
       1e-6, 2e-6},
      {Unary::hard_swish, 0, 0, [](double x) { return x * std::max(0.0, std::min(1.0, x / 6 + 0.5)); }, -5, 5, 1e-6, 2e-6},
      {Unary::mish, 0, 0, [](double x) { return x * std::tanh(softplus(x)); }, -50, 30, 1e-6},
      {Unary::exp, 0, 0, [](double x) { return std::exp(x); }, -87, 88.7, 1.2e-7},
      {Unary::log, 0, 0, [](double x) { return std::log(x); }, 1e-30, 20, 1.2e-7},
      {Unary::erf, 0, 0, [](double x) { return std::erf(x); }, -5, 5, 4e-7},
      {Unary::sqrt, 0, 0, [](double x) { return std::sqrt(x); }, 0, 100, 6e-8},
      {Unary::reciprocal, 0, 0, [](double x) { return 1 / x; }, 0.1, 100, 6e-8},
      {Unary::rsqrt, 0, 0, [](double x) { return 1 / std::sqrt(x); }, 0.1, 100, 1.2e-7},
      {Unary::abs, 0, 0, [](double x) { return std::abs(x); }, -5, 5, 0},
      {Unary::neg, 0, 0, [](double x) { return -x; }, -5, 5, 0},
      {Unary::sin, 0, 0, [](double x) { return std::sin(x); }, -10, 10, 1.6e-7},
      {Unary::cos, 0, 0, [](double x) { return std::cos(x); }, -10, 10, 1.6e-7},
      {Unary::sin, 0, 0, [](double x) { return std::sin(x); }, -6500, 6500, 1.6e-7},
      {Unary::cos, 0, 0, [](double x) { return std::cos(x); }, -6500, 6500, 1.6e-7},
      {Unary::sin, 0, 0, [](double x) { return std::sin(x); }, -1e30, 1e30, 1.6e-7},
      {Unary::tan, 0, 0, [](double x) { return std::tan(x); }, -10, 10, 2.5e-7},
      {Unary::tan, 0, 0, [](double x) { return std::tan(x); }, -6500, 6500, 2.5e-7},
      {Unary::asin, 0, 0, [](double x) { return std::asin(x); }, -1, 1, 1.6e-7},
      {Unary::acos, 0, 0, [](double x) { return std::acos(x); }, -1, 1, 1.6e-7},
      {Unary::atan, 0, 0, [](double x) { return std::atan(x); }, -5, 5, 1.6e-7},
      {Unary::atan, 0, 0, [](double x) { return std::atan(x); }, -1e6, 1e6, 1.6e-7},
      {Unary::sinh, 0, 0, [](double x) { return std::sinh(x); }, -89.4, 89.4, 2e-7},
      {Unary::cosh, 0, 0, [](double x) { return std::cosh(x); }, -89.4, 89.4, 2e-7},
      {Unary::sinh, 0, 0, [](double x) { return std::sinh(x); }, -2, 2, 2e-7},
      {Unary::cosh, 0, 0, [](double x) { return std::cosh(x); }, -2, 2, 2e-7},
      {Unary::asinh, 0, 0, [](double x) { return std::asinh(x); }, -3, 3, 2.5e-7},
      {Unary::asinh, 0, 0, [](double x) { return std::asinh(x); }, -1e12, 1e12, 2.5e-7},
      {Unary::acosh, 0, 0, [](double x) { return std::acosh(x); }, 1, 3, 2.5e-7},
      {Unary::acosh, 0, 0, [](double x) { return std::acosh(x); }, 1, 1e12, 2.5e-7},
      {Unary::atanh, 0, 0, [](double x) { return std::atanh(x); }, -1, 1, 2.5e-7},
      {Unary::square, 0, 0, [](double x) { return x * x; }, -5, 5, 6e-8},
  };
  return all;
}

TEST(UnaryF32, StaysWithinItsErrorBound) {
  test::Random random(2);
  for (const Case& c : cases()) {
    auto x = random.vector(20000, c.low, c.high);
    const auto near_zero = random.vector(2000, std::max(c.low, -1e-3), std::min(c.high, std::max(c.low, 0.0) + 1e-3));
    x.insert(x.end(), near_zero.begin(), near_zero.end());
    std::vector<float> y(x.size());
    unary_f32(c.op, c.a, c.b, x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double truth = c.truth(double(x[i]));
      ASSERT_LE(std::abs(double(y[i]) - truth), c.relative * std::abs(truth) + c.absolute)
          << "function " << int(c.op) << " at " << x[i] << ": " << y[i] << " instead of " << truth;
    }
  }
}

// The results of these functions must stay within [-1, 1]. Otherwise a root of 1 - y^2 or an arc sine would be NaN.
TEST(UnaryF32, FunctionsWithinOneStayThere) {
  std::vector<float> x;
  for (int i = -12000; i <= 12000; ++i) x.push_back(static_cast<float>(i) / 1000);
  std::vector<float> y(x.size());
  for (const Unary op : {Unary::tanh, Unary::erf, Unary::sigmoid, Unary::softsign, Unary::sin, Unary::cos}) {
    unary_f32(op, 0, 0, x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(y[i]), 1) << "function " << int(op) << " at " << x[i];
  }
  unary_f32(Unary::gelu, 0, 0, x.data(), y.data(), 12000);
  for (size_t i = 0; i < 12000; ++i) ASSERT_LE(y[i], 0) << "gelu at " << x[i];
}

TEST(UnaryF32, AnElementsValueDoesNotDependOnItsPlace) {
  test::Random random(4);
  for (const Case& c : cases()) {
    const auto x = random.vector(67, c.low, c.high);
    std::vector<float> whole(x.size()), one(1);
    unary_f32(c.op, c.a, c.b, x.data(), whole.data(), 67);
    for (size_t i = 0; i < x.size(); ++i) {
      unary_f32(c.op, c.a, c.b, &x[i], one.data(), 1);
      ASSERT_EQ(one[0], whole[i]);
    }
    std::vector<float> in_place = x;
    unary_f32(c.op, c.a, c.b, in_place.data(), in_place.data(), 67);
    ASSERT_EQ(in_place, whole);
    unary_f32(c.op, c.a, c.b, nullptr, nullptr, 0);
  }
}

TEST(UnaryF32, NaNStaysNaN) {
  for (const Case& c : cases()) {
    if (c.op == Unary::thresholded_relu) continue;  // NaN is not above the threshold, so the result is 0
    const float x = NAN;
    float y = 0;
    unary_f32(c.op, c.a, c.b, &x, &y, 1);
    EXPECT_TRUE(std::isnan(y)) << "function " << int(c.op);
  }
}

// Tests every 1031st bit pattern: subnormal to infinite numbers of both signs, and NaN.
TEST(UnaryF32, InverseAndHyperbolicFunctionsFollowTheCLibraryEverywhere) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1031) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const float v : {0.0f, 0.4142f, 0.5f, 1.0f, 2.4142f, 89.4f, 1e10f, kInf})
    for (const float sign : {1.0f, -1.0f})
      for (const float w : {v, std::nextafter(v, kInf), std::nextafter(v, 0.0f)}) x.push_back(sign * w);
  std::vector<float> y(x.size());
  const std::tuple<Unary, double (*)(double), double> functions[] = {
      {Unary::tan, std::tan, 2.5e-7},     {Unary::asin, std::asin, 1.6e-7},   {Unary::acos, std::acos, 1.6e-7},
      {Unary::atan, std::atan, 1.6e-7},   {Unary::sinh, std::sinh, 2e-7},     {Unary::cosh, std::cosh, 2e-7},
      {Unary::asinh, std::asinh, 2.5e-7}, {Unary::acosh, std::acosh, 2.5e-7}, {Unary::atanh, std::atanh, 2.5e-7}};
  for (const auto& [op, function, relative] : functions) {
    unary_f32(op, 0, 0, x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double truth = function(double(x[i]));
      if (std::isnan(truth)) {
        ASSERT_TRUE(std::isnan(y[i])) << "function " << int(op) << " at " << x[i] << ": " << y[i];
      } else if (std::abs(truth) > std::numeric_limits<float>::max()) {
        ASSERT_EQ(y[i], static_cast<float>(truth)) << "function " << int(op) << " at " << x[i];
      } else {
        ASSERT_LE(std::abs(double(y[i]) - truth), relative * std::abs(truth) + 1.5e-45) << "function " << int(op) << " at " << x[i];
        if (truth == 0) {
          ASSERT_EQ(std::signbit(y[i]), std::signbit(truth)) << "function " << int(op) << " at " << x[i];
        }
      }
    }
  }
}

TEST(UnaryF32, SinesNextToMultiplesOfPiOverTwoKeepTheirRelativeError) {
  std::vector<float> x, y;
  for (int n = 0; n < 4000; ++n)
    for (const float sign : {1.0f, -1.0f}) {
      const auto nearest = static_cast<float>(sign * n * M_PI_2);
      for (const float v : {nearest, std::nextafter(nearest, kInf), std::nextafter(nearest, -kInf)}) x.push_back(v);
    }
  y.resize(x.size());
  for (const bool cosine : {false, true}) {
    unary_f32(cosine ? Unary::cos : Unary::sin, 0, 0, x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double truth = cosine ? std::cos(double(x[i])) : std::sin(double(x[i]));
      ASSERT_LE(std::abs(double(y[i]) - truth), 1.6e-7 * std::abs(truth)) << (cosine ? "cos" : "sin") << " at " << x[i];
    }
  }
}

TEST(UnaryF32, ExtremeArgumentsGiveTheLimits) {
  auto at = [](Unary op, float x) {
    float y;
    unary_f32(op, 1, 1, &x, &y, 1);
    return y;
  };
  EXPECT_TRUE(std::isnan(at(Unary::sin, kInf)));
  EXPECT_TRUE(std::isnan(at(Unary::cos, -kInf)));
  EXPECT_TRUE(std::signbit(at(Unary::sin, -0.0f)));
  EXPECT_EQ(at(Unary::exp, kInf), kInf);
  EXPECT_EQ(at(Unary::exp, 89.5f), kInf);
  EXPECT_EQ(at(Unary::exp, -kInf), 0);
  EXPECT_EQ(at(Unary::exp, 0), 1);
  EXPECT_FLOAT_EQ(at(Unary::exp, -100), std::exp(-100.0f));  // the result is subnormal
  EXPECT_EQ(at(Unary::log, 0), -kInf);
  EXPECT_EQ(at(Unary::log, kInf), kInf);
  EXPECT_TRUE(std::isnan(at(Unary::log, -1)));
  EXPECT_EQ(at(Unary::log, 1), 0);
  EXPECT_FLOAT_EQ(at(Unary::log, 1e-40f), std::log(1e-40f));
  EXPECT_EQ(at(Unary::tanh, kInf), 1);
  EXPECT_EQ(at(Unary::tanh, -kInf), -1);
  EXPECT_EQ(at(Unary::erf, kInf), 1);
  EXPECT_EQ(at(Unary::erf, -40), -1);
  EXPECT_EQ(at(Unary::sigmoid, kInf), 1);
  EXPECT_EQ(at(Unary::sigmoid, -kInf), 0);
  EXPECT_EQ(at(Unary::softplus, kInf), kInf);
  EXPECT_EQ(at(Unary::softplus, -kInf), 0);
  EXPECT_EQ(at(Unary::gelu, kInf), kInf);
  EXPECT_EQ(at(Unary::gelu_slope, kInf), 1);
  EXPECT_NEAR(at(Unary::gelu_slope, -kInf), 0, 1e-7);
  EXPECT_EQ(at(Unary::gelu_slope, 0), 0.5F);
  EXPECT_EQ(at(Unary::elu, -kInf), -1);
}

}  // namespace
}  // namespace treadle::kernels
