#include "kernels/elementwise/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace treadle::kernels {
namespace {

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-3, 3);
  std::vector<float> values(n);
  for (float& x : values) x = uniform(generator);
  return values;
}

// Computes relu((x + y) * 0.5 - y / x) for every length near the block size, with and without threads.
TEST(Chain, ComputesTheFormulaForEveryLength) {
  ChainProgram program;
  program.inputs = {DType::float32, DType::float32, DType::float32};
  constexpr uint8_t kSlot = kMaxChainInputs;
  program.steps = {{ChainOp::load, 1}, {ChainOp::div, 0}, {ChainOp::keep, kSlot}, {ChainOp::load, 0},
                   {ChainOp::add, 1},  {ChainOp::mul, 2}, {ChainOp::sub, kSlot},  {ChainOp::unary, 0, 0, Unary::relu}};
  ThreadPool pool(2);
  for (int64_t n : {0, 1, 7, 8, 63, 64, 127, 128, 129, 1000, 40'000}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(n), 1), y = random_floats(static_cast<size_t>(n), 2), half{0.5F};
    ChainPlan plan;
    plan.size = n;
    const int64_t dims[] = {n};
    for (int i : {0, 1}) plan.inputs[i] = plan_chain_input(dims, dims);
    plan.inputs[2] = plan_chain_input(dims, {});
    const void* inputs[] = {x.data(), y.data(), half.data()};
    for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
      std::vector<float> result(static_cast<size_t>(n) + 8, 77.0F);
      run_chain(program, plan, inputs, result.data(), threads);
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = std::max(0.0F, (x[i] + y[i]) * 0.5F - y[i] / x[i]);
        ASSERT_NEAR(result[i], expected, 1e-6F * std::max(1.0F, std::fabs(expected))) << i << " of " << n;
      }
      for (size_t i = x.size(); i < result.size(); ++i) ASSERT_EQ(result[i], 77.0F) << "written past the end";
    }
  }
}

TEST(Chain, InputsBroadcastAsInNumPy) {
  using Shapes = std::vector<std::vector<int64_t>>;
  for (const auto& [out, shapes] : std::vector<std::pair<std::vector<int64_t>, Shapes>>{
           {{3, 4, 37}, {{3, 4, 37}, {37}, {4, 1}, {3, 1, 37}, {1}, {3, 1, 1}}},
           {{3, 401, 3}, {{3, 401, 3}, {3}, {401, 1}, {3, 1, 3}, {1}, {3, 401, 1}}},
       })
    for (const auto& shape : shapes) {
      size_t count = 1;
      for (int64_t extent : shape) count *= static_cast<size_t>(extent);
      const std::vector<float> x = random_floats(count, 5);
      ChainProgram program;
      program.inputs = {DType::float32};
      program.steps = {{ChainOp::load, 0}, {ChainOp::unary, 0, 0, Unary::neg}};
      ChainPlan plan;
      plan.size = out[0] * out[1] * out[2];
      plan.inputs[0] = plan_chain_input(out, shape);
      std::vector<float> result(static_cast<size_t>(plan.size));
      const void* inputs[] = {x.data()};
      run_chain(program, plan, inputs, result.data(), nullptr);
      for (int64_t i = 0; i < plan.size; ++i) {
        const int64_t index[3] = {i / (out[1] * out[2]), i / out[2] % out[1], i % out[2]};
        int64_t at = 0;
        for (size_t k = 0; k < shape.size(); ++k) at = at * shape[k] + (shape[k] == 1 ? 0 : index[3 - shape.size() + k]);
        ASSERT_EQ(result[static_cast<size_t>(i)], -x[static_cast<size_t>(at)]);
      }
    }
}

TEST(Chain, NaNStaysInMaxAndBecomesTheLowestCodeInQuantize) {
  ChainProgram program;
  program.inputs = {DType::float32, DType::float32};
  program.steps = {{ChainOp::load, 0}, {ChainOp::max, 1}};
  ChainPlan plan;
  plan.size = 4;
  const int64_t dims[] = {4};
  plan.inputs[0] = plan.inputs[1] = plan_chain_input(dims, dims);
  const float a[] = {NAN, 1, 2, -INFINITY}, b[] = {1, NAN, 1, 3};
  const void* inputs[] = {a, b};
  float result[4];
  run_chain(program, plan, inputs, result, nullptr);
  EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
  EXPECT_EQ(result[2], 2);
  EXPECT_EQ(result[3], 3);

  const uint8_t zero = 10;
  program.inputs = {DType::float32, DType::uint8};
  program.output = DType::uint8;
  program.steps = {{ChainOp::load, 0}, {ChainOp::quantize, 1, 0, Unary::none, 0, 255}};
  plan.inputs[1] = plan_chain_input(dims, {});
  const float x[] = {NAN, 2.5F, 1e30F, -1e30F};
  const void* codes[] = {x, &zero};
  uint8_t quantized[4];
  run_chain(program, plan, codes, quantized, nullptr);
  EXPECT_EQ(quantized[0], 0);
  EXPECT_EQ(quantized[1], 12);  // 12.5 is a tie, which rounds to even
  EXPECT_EQ(quantized[2], 255);
  EXPECT_EQ(quantized[3], 0);
}

// Computes quantize(dequantize(a) + dequantize(b)) for every zero point of both dtypes, at lengths near the block size: once with steps
// that are fused (load, sub, mul and div, quantize), and once with steps that are not, because b is an operand of add.
template <typename T>
void check_quantized_sums(DType dtype) {
  constexpr uint8_t kSlot = kMaxChainInputs;
  constexpr int kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  const ChainStep quantize{ChainOp::quantize, 2, 0, Unary::none, static_cast<float>(kLow), static_cast<float>(kHigh)};
  ChainProgram apart, together;
  apart.inputs = together.inputs = {dtype, dtype, dtype, DType::float32};
  apart.output = together.output = dtype;
  together.steps = {{ChainOp::load, 0}, {ChainOp::sub, 2}, {ChainOp::mul, 3},     {ChainOp::keep, kSlot}, {ChainOp::load, 1},
                    {ChainOp::sub, 2},  {ChainOp::mul, 3}, {ChainOp::add, kSlot}, {ChainOp::div, 3},      quantize};
  apart.steps = {{ChainOp::load, 0}, {ChainOp::add, 1}, {ChainOp::sub, 2}, {ChainOp::sub, 2}, quantize};
  std::mt19937 generator(3);
  std::uniform_int_distribution<int> codes(kLow, kHigh);
  for (int zero = kLow; zero <= kHigh; ++zero) {
    const size_t n = 1 + static_cast<size_t>(zero - kLow) * 3 % 300;
    std::vector<T> a(n), b(n), y(n + 8, T{77});
    for (size_t i = 0; i < n; ++i) a[i] = static_cast<T>(codes(generator)), b[i] = static_cast<T>(codes(generator));
    const T zero_point = static_cast<T>(zero);
    const float scale = 0.05F + 0.001F * static_cast<float>(zero - kLow);
    ChainPlan plan;
    plan.size = static_cast<int64_t>(n);
    const int64_t dims[] = {plan.size};
    for (int i : {0, 1}) plan.inputs[i] = plan_chain_input(dims, dims);
    for (int i : {2, 3}) plan.inputs[i] = plan_chain_input(dims, {});
    const void* inputs[] = {a.data(), b.data(), &zero_point, &scale};
    const auto expected = [&](float sum) {
      const auto z = static_cast<float>(zero);
      return std::nearbyint(std::clamp(sum, static_cast<float>(kLow) - z, static_cast<float>(kHigh) - z)) + z;
    };
    for (const ChainProgram* program : {&together, &apart}) {
      run_chain(*program, plan, inputs, y.data(), nullptr);
      for (size_t i = 0; i < n; ++i) {
        const float x0 = static_cast<float>(a[i] - zero), x1 = static_cast<float>(b[i] - zero);
        const float sum = program == &together ? (x1 * scale + x0 * scale) / scale : x0 + x1;
        ASSERT_EQ(static_cast<float>(y[i]), expected(sum)) << "zero point " << zero << ", element " << i << " of " << n;
      }
      for (size_t i = n; i < y.size(); ++i) ASSERT_EQ(y[i], T{77}) << "written past the end";
    }
  }
}
TEST(Chain, QuantizedSumsAreThoseOfTheFormula) {
  check_quantized_sums<uint8_t>(DType::uint8);
  check_quantized_sums<int8_t>(DType::int8);
}

// Numbers outside of the codes' range must become the lowest or the highest code, at every position of a block.
template <typename T>
void check_extremes(DType dtype) {
  constexpr int kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  const float numbers[] = {NAN,   INFINITY, -INFINITY, 3e38F,    -3e38F,  2147483648.0F, -2147483648.0F, 2147483520.0F, 1.5e9F,
                           -1e9F, 32767.5F, -32768.5F, 65535.5F, -300.5F, 254.5F,        -127.5F,        2.5F};
  ChainProgram program;
  program.inputs = {DType::float32, dtype, DType::float32};
  program.output = dtype;
  const ChainStep quantize{ChainOp::quantize, 1, 0, Unary::none, static_cast<float>(kLow), static_cast<float>(kHigh)};
  for (const float scale : {1.0F, 0.5F})
    for (const int zero : {kLow, (kLow + kHigh) / 2, kHigh}) {
      program.steps = {{ChainOp::load, 0}, {ChainOp::div, 2}, quantize};
      std::vector<float> x;
      for (int i = 0; i < 300; ++i) x.push_back(numbers[static_cast<size_t>(i) % std::size(numbers)]);
      ChainPlan plan;
      plan.size = static_cast<int64_t>(x.size());
      const int64_t dims[] = {plan.size};
      plan.inputs[0] = plan_chain_input(dims, dims);
      plan.inputs[1] = plan.inputs[2] = plan_chain_input(dims, {});
      const T zero_point = static_cast<T>(zero);
      const void* inputs[] = {x.data(), &zero_point, &scale};
      std::vector<T> y(x.size());
      run_chain(program, plan, inputs, y.data(), nullptr);
      for (size_t i = 0; i < x.size(); ++i) {
        const double code =
            std::isnan(x[i]) ? kLow : std::clamp(std::nearbyint(double{x[i]} / double{scale}) + zero, double{kLow}, double{kHigh});
        ASSERT_EQ(static_cast<double>(y[i]), code) << x[i] << " by " << scale << ", zero point " << zero << ", at " << i;
      }
    }
}
TEST(Chain, ExtremesBecomeTheCodesAtTheEnds) {
  check_extremes<uint8_t>(DType::uint8);
  check_extremes<int8_t>(DType::int8);
}

#if defined(__x86_64__)
// Returns true if upper halves of vector registers are in use, according to the state that the processor would have to save; nullopt if
// unknown.
std::optional<bool> upper_halves_are_in_use() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTells = 1U << 2;
  if (!__get_cpuid_count(0xD, 1, &a, &b, &c, &d) || (a & kTells) == 0) return std::nullopt;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  constexpr unsigned kUpperOfYmm = 1U << 2, kUpperOfZmm = 1U << 6;
  return (a & (kUpperOfYmm | kUpperOfZmm)) != 0;
}

// While upper halves are in use, SSE instructions are slow. A chain must clear them, so that later code is not slowed down.
TEST(Chain, LeavesNoUpperHalvesInUse) {
  ChainProgram program;
  program.inputs = {DType::float32};
  program.steps = {{ChainOp::load, 0}, {ChainOp::unary, 0, 0, Unary::relu}};
  for (const int64_t n : {int64_t{1}, int64_t{64}, int64_t{1000}}) {
    const std::vector<float> x(static_cast<size_t>(n), -1.0F);
    std::vector<float> y(x.size());
    ChainPlan plan;
    plan.size = n;
    plan.inputs[0] = plan_chain_input({&n, 1}, {&n, 1});
    const void* inputs[] = {x.data()};
    run_chain(program, plan, inputs, y.data(), nullptr);
    const std::optional<bool> in_use = upper_halves_are_in_use();
    if (!in_use) GTEST_SKIP() << "this processor does not tell";
    EXPECT_FALSE(*in_use) << n << " elements";
  }
}
#endif

TEST(Chain, TruthValuesAreBytes) {
  ChainProgram program;
  program.inputs = {DType::float32, DType::boolean};
  program.output = DType::boolean;
  program.steps = {{ChainOp::load, 0}, {ChainOp::greater, 0},     {ChainOp::keep, kMaxChainInputs},
                   {ChainOp::load, 1}, {ChainOp::logical_not, 0}, {ChainOp::logical_or, kMaxChainInputs}};
  for (size_t n : {1, 31, 64, 65, 1000}) {
    std::vector<float> x = random_floats(n, 4);
    std::vector<uint8_t> truth(n), y(n);
    for (size_t i = 0; i < n; ++i) truth[i] = x[i] > 1 ? 1 : 0;
    ChainPlan plan;
    plan.size = static_cast<int64_t>(n);
    const int64_t dims[] = {plan.size};
    for (int i : {0, 1}) plan.inputs[i] = plan_chain_input(dims, dims);
    const void* inputs[] = {x.data(), truth.data()};
    run_chain(program, plan, inputs, y.data(), nullptr);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 1 - truth[i]) << i << " of " << n;
  }
}

// Computes (x - mean[c]) * factor[c] + bias[c] in place, in pieces that begin anywhere. Short periods are stored several times in a row,
// long ones are not.
TEST(Chain, PiecesOfPeriodicOperandsInPlace) {
  ChainProgram program;
  program.inputs = {DType::float32, DType::float32, DType::float32, DType::float32};
  program.steps = {{ChainOp::load, 0}, {ChainOp::sub, 1}, {ChainOp::mul, 2}, {ChainOp::add, 3}};
  for (const int64_t C : {2, 3, 16, 24, 127, 128, 144, 1000, 5000}) {
    const int64_t rows = 20'000 / C + 2;
    const std::vector<int64_t> dims{rows, C}, channels{C};
    std::vector<float> x = random_floats(static_cast<size_t>(rows * C), 1);
    const std::vector<float> mean = random_floats(static_cast<size_t>(C), 2), factor = random_floats(static_cast<size_t>(C), 3),
                             bias = random_floats(static_cast<size_t>(C), 4), before = x;
    ChainPlan plan;
    plan.size = rows * C;
    plan.inputs[0] = plan_chain_input(dims, dims);
    for (int i : {1, 2, 3}) plan.inputs[i] = plan_chain_input(dims, channels);
    const void* inputs[] = {x.data(), mean.data(), factor.data(), bias.data()};
    const int64_t middle = (rows / 2) * C + C / 2;
    run_chain(program, plan, inputs, 0, middle, x.data());
    run_chain(program, plan, inputs, middle, plan.size, x.data() + middle);
    for (int64_t i = 0; i < plan.size; ++i) {
      const auto c = static_cast<size_t>(i % C), at = static_cast<size_t>(i);
      ASSERT_EQ(x[at], (before[at] - mean[c]) * factor[c] + bias[c]) << i << " of " << rows << " rows of " << C;
    }
  }
}

// An operand that is one number takes other steps than an array of copies of this number, but must give the same bits. The test includes
// infinities, NaN and both zeros.
TEST(Chain, AnOperandOfOneNumberGivesTheBitsOfItsCopies) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> special{0.0F, -0.0F, 1.5F, -2.0F, kInf, -kInf, kNaN, 1e-40F};
  std::vector<float> x = random_floats(300, 9);
  for (size_t i = 0; i < 4 * special.size(); ++i) x[7 * i] = special[i % special.size()];
  ChainPlan plan;
  plan.size = static_cast<int64_t>(x.size());
  const int64_t dims[] = {plan.size};
  for (ChainOp op : {ChainOp::add, ChainOp::sub, ChainOp::reverse_sub, ChainOp::mul, ChainOp::div, ChainOp::reverse_div, ChainOp::max,
                     ChainOp::min, ChainOp::less, ChainOp::equal}) {
    ChainProgram program;
    program.inputs = {DType::float32, DType::float32};
    program.steps = {{ChainOp::load, 0}, {op, 1}};
    for (float number : special) {
      std::vector<float> results[2];
      const std::vector<float> copies(x.size(), number);
      for (int scalar : {0, 1}) {
        plan.inputs[0] = plan_chain_input(dims, dims);
        plan.inputs[1] = plan_chain_input(dims, scalar != 0 ? std::span<const int64_t>() : dims);
        const void* inputs[] = {x.data(), copies.data()};
        results[scalar].resize(x.size());
        run_chain(program, plan, inputs, results[scalar].data(), nullptr);
      }
      EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), x.size() * sizeof(float)), 0) << static_cast<int>(op) << ' ' << number;
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
