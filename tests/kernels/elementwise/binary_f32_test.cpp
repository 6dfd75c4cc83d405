#include "kernels/elementwise/binary_f32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();

std::vector<float> apply(Binary op, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> y(a.size());
  binary_f32(op, a.data(), 1, b.data(), 1, y.data(), static_cast<int64_t>(a.size()));
  return y;
}

void expect_power(float base, float exponent, float actual) {
  const double truth = std::pow(double(base), double(exponent));
  if (std::isnan(truth)) {
    ASSERT_TRUE(std::isnan(actual)) << base << " ^ " << exponent << " = " << actual;
  } else if (std::isinf(static_cast<float>(truth))) {
    ASSERT_EQ(actual, static_cast<float>(truth)) << base << " ^ " << exponent;
  } else {
    ASSERT_LE(std::abs(double(actual) - truth), 6.5e-8 * std::abs(truth) + 1e-45) << base << " ^ " << exponent << " = " << actual;
    ASSERT_EQ(std::signbit(actual), std::signbit(truth)) << base << " ^ " << exponent;
  }
}

TEST(BinaryF32, PowersOverTheWholeRange) {
  test::Random random(71);
  std::vector<float> base, exponent;
  for (const auto& [widest_base, widest_exponent] : {std::pair{2.0, 3.0}, {40.0, 20.0}, {126.0, 1.0}, {1e-4, 1e5}}) {
    const auto logs = random.vector<double>(40'001, -widest_base, widest_base);
    for (double v : logs) base.push_back(static_cast<float>(std::exp2(v)));
    const auto y = random.vector(40'001, -widest_exponent, widest_exponent);
    exponent.insert(exponent.end(), y.begin(), y.end());
  }
  for (int i = -300; i <= 300; ++i)
    for (const float b : {-2.0f, -0.7f, -1.0f, 1.5f, 1e-42f, -3e-39f}) base.push_back(b), exponent.push_back(static_cast<float>(i) / 2);
  const auto y = apply(Binary::pow, base, exponent);
  for (size_t i = 0; i < y.size(); ++i) expect_power(base[i], exponent[i], y[i]);
}

TEST(BinaryF32, PowersAndRestsOfSpecialNumbers) {
  const float special[] = {0.0f,    -0.0f,  1,    -1,    2,           -2,   3,     -3,   0.5f,  -0.5f, 1e-45f,
                           -1e-45f, 1e-38f, kMax, -kMax, 16777216.0f, 1e9f, -1e9f, kInf, -kInf, NAN};
  std::vector<float> a, b;
  for (float x : special)
    for (float y : special) a.push_back(x), b.push_back(y);
  const auto power = apply(Binary::pow, a, b), rest = apply(Binary::fmod, a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    expect_power(a[i], b[i], power[i]);
    const float truth = std::fmod(a[i], b[i]);
    if (std::isnan(truth)) {
      ASSERT_TRUE(std::isnan(rest[i])) << a[i] << " mod " << b[i] << " = " << rest[i];
    } else {
      ASSERT_EQ(rest[i], truth) << a[i] << " mod " << b[i];
      ASSERT_EQ(std::signbit(rest[i]), std::signbit(truth)) << a[i] << " mod " << b[i];
    }
  }
}

TEST(BinaryF32, RestsAreExact) {
  test::Random random(72);
  for (const double widest : {1.0, 10.0, 30.0, 80.0}) {
    auto a = random.vector(20'003, -1, 1), b = random.vector(20'003, -1, 1);
    const auto scale = random.vector<double>(20'003, 0, widest);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(a[i] * std::exp2(scale[i]));
    // `a` is equal or next to a multiple of `b`.
    for (size_t i = 0; i < a.size(); i += 3) a[i] = b[i] * static_cast<float>(random.integer(-1000, 1000));
    const auto rest = apply(Binary::fmod, a, b);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(rest[i], std::fmod(a[i], b[i])) << a[i] << " mod " << b[i];
  }
}

TEST(BinaryF32, AnElementsValueDoesNotDependOnItsPlace) {
  test::Random random(73);
  const auto a = random.vector(67, 0, 3), b = random.vector(67, -3, 3);
  for (const Binary op : {Binary::add, Binary::pow, Binary::fmod}) {
    const auto whole = apply(op, a, b);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(apply(op, {a[i]}, {b[i]})[0], whole[i]);
    std::vector<float> y(67);
    binary_f32(op, a.data(), 0, b.data(), 1, y.data(), 67);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(y[i], apply(op, {a[0]}, {b[i]})[0]);
    binary_f32(op, a.data(), 1, b.data(), 0, y.data(), 67);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(y[i], apply(op, {a[i]}, {b[0]})[0]);
  }
}

}  // namespace
}  // namespace treadle::kernels
