#include "kernels/elementwise/broadcast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/elementwise/binary_f32.h"
#include "tests/kernels/index.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::count;
using test::Dims;
using test::place;

// Returns a shape that can be broadcast to `out`: some axes are 1, and some leading ones are missing.
Dims random_operand(test::Random& random, const Dims& out) {
  Dims dims(out.begin() + random.integer(0, static_cast<int64_t>(out.size())), out.end());
  for (int64_t& d : dims) {
    if (random.integer(0, 2) == 0) d = 1;
  }
  return dims;
}

Dims random_shape(test::Random& random) {
  Dims out(static_cast<size_t>(random.integer(0, 5)));
  for (int64_t& d : out) d = random.integer(0, 20) == 0 ? 0 : random.integer(1, 6);
  if (!out.empty() && random.coin()) out.back() *= 9;
  return out;
}

TEST(Broadcast, LoopsOverTwoFollowNumPy) {
  test::Random random(11);
  for (int round = 0; round < 300; ++round) {
    const Dims out = random_shape(random);
    const Dims sa = random_operand(random, out), sb = random_operand(random, out);
    const auto a = random.integers<int32_t>(count(sa), -99, 99);
    const auto b = random.integers<int64_t>(count(sb), -99, 99);
    std::vector<int64_t> products(count(out));
    broadcast_binary(plan_broadcast<2>(out, {sa, sb}), a.data(), b.data(), products.data(), nullptr,
                     [](int32_t x, int64_t y) { return x * y; });
    for (int64_t i = 0; i < count(out); ++i) {
      const Dims at = test::coordinates(out, i);
      ASSERT_EQ(products[i], a[place(sa, at)] * b[place(sb, at)]);
    }
  }
}

TEST(Broadcast, PlansCollapseToTheFewestLoops) {
  const int64_t out[] = {2, 3, 4, 5}, channel[] = {3, 1, 1}, scalar[] = {1};
  EXPECT_EQ((plan_broadcast<2>(out, {out, out}).rank), 1);
  EXPECT_EQ((plan_broadcast<2>(out, {out, scalar}).rank), 1);
  EXPECT_EQ((plan_broadcast<2>(out, {out, channel}).rank), 3);
  EXPECT_EQ((plan_broadcast<2>(out, {out, channel}).inner()), 20);
}

TEST(Broadcast, ShapesThatDoNotFitAreRefused) {
  const int64_t out[] = {2, 3}, bad[] = {2}, deep[] = {1, 2, 3};
  EXPECT_THROW((plan_broadcast<1>(out, {bad})), Error);
  EXPECT_THROW((plan_broadcast<1>(out, {deep})), Error);
}

TEST(Broadcast, ARunCanStartAnywhere) {
  const Dims out = {3, 4, 5}, in = {4, 1};
  const auto plan = plan_broadcast<1>(out, {in});
  for (int64_t begin = 0; begin <= 60; ++begin) {
    for (int64_t end = begin; end <= 60; ++end) {
      int64_t next = begin;
      for_each_run(plan, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
        ASSERT_EQ(first, next);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(at[0] + i * plan.inner_stride(0), (first + i) / 5 % 4);
        next += n;
      });
      ASSERT_EQ(next, end);
    }
  }
}

TEST(BinaryF32, EqualsTheScalarOperators) {
  test::Random random(12);
  for (int round = 0; round < 200; ++round) {
    const Dims out = random_shape(random);
    const Dims sa = random_operand(random, out), sb = random_operand(random, out);
    auto a = random.vector(count(sa)), b = random.vector(count(sb));
    if (!a.empty() && random.integer(0, 3) == 0) a[random.integer(0, count(sa) - 1)] = NAN;
    if (!b.empty() && random.integer(0, 3) == 0) b[random.integer(0, count(sb) - 1)] = NAN;
    const auto plan = plan_broadcast<2>(out, {sa, sb});
    for (Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::div, Binary::max, Binary::min}) {
      std::vector<float> c(count(out)), expected(c.size());
      binary_f32(op, plan, a.data(), b.data(), c.data(), nullptr);
      for (int64_t i = 0; i < count(out); ++i) {
        const Dims at = test::coordinates(out, i);
        const float x = a[place(sa, at)], y = b[place(sb, at)];
        const float extreme = std::isnan(x) || std::isnan(y) ? NAN : op == Binary::max ? std::max(x, y) : std::min(x, y);
        expected[i] = op == Binary::add   ? x + y
                      : op == Binary::sub ? x - y
                      : op == Binary::mul ? x * y
                      : op == Binary::div ? x / y
                                          : extreme;
      }
      test::expect_near(c, expected, 0);
    }
  }
}

TEST(BinaryF32, ShortRunsOfArraysOfManyBlocks) {
  test::Random random(13);
  ThreadPool pool(2);
  const Dims out = {7, 1131, 3};  // threads begin their chunks in the middle of runs
  for (const Dims& sa : {out, Dims{1131, 3}, Dims{7, 1131, 1}}) {
    for (const Dims& sb : {Dims{7, 1131, 1}, Dims{1131, 1}, Dims{3}, Dims{7, 1, 1}, Dims{1}, Dims{7, 1, 3}}) {
      std::vector<float> a = random.vector(count(sa)), c(static_cast<size_t>(count(out))), expected(c.size());
      const std::vector<float> b = random.vector(count(sb));
      for (int64_t i = 0; i < count(out); ++i) {
        const Dims at = test::coordinates(out, i);
        expected[static_cast<size_t>(i)] = a[place(sa, at)] - b[place(sb, at)];
      }
      const bool in_place = sa == out;
      binary_f32(Binary::sub, plan_broadcast<2>(out, {sa, sb}), a.data(), b.data(), in_place ? a.data() : c.data(), &pool);
      test::expect_near(in_place ? a : c, expected, 0);
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
