#include "graph/dim.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "graph/dim_bounds.h"
#include "treadle/error.h"

namespace treadle {
namespace {

class DimTest : public ::testing::Test {
 protected:
  // Returns the value of `dim` for a = 7, b = 5, c = 3.
  int64_t value(const Dim& dim) {
    std::vector<int64_t> values(table.size(), 0);
    std::vector<int32_t> all;
    for (size_t i = 0; i < table.size(); ++i) all.push_back(static_cast<int32_t>(i));
    values[static_cast<size_t>(a.expr()->index)] = 7;
    values[static_cast<size_t>(b.expr()->index)] = 5;
    values[static_cast<size_t>(c.expr()->index)] = 3;
    table.evaluate(all, values);
    return evaluate(dim, values);
  }

  SymbolTable table;
  Dim a = table.symbol("a"), b = table.symbol("b"), c = table.symbol("c");
};

TEST_F(DimTest, EqualNamesAreOneSymbol) {
  EXPECT_EQ(table.symbol("a"), a);
  EXPECT_NE(a, b);
  EXPECT_NE(table.fresh_symbol("a", false), table.fresh_symbol("a", false));
  // A model may use a name that inference would give to a new symbol.
  for (const bool data_dependent : {false, true}) {
    const std::string name = "n#" + std::to_string(table.size() + 1);
    const Dim named = table.symbol(name), fresh = table.fresh_symbol("n", data_dependent);
    EXPECT_EQ(to_string(fresh), name);
    EXPECT_NE(named, fresh);
    const std::string later = "n#" + std::to_string(table.size());
    const Dim first = table.fresh_symbol("n", data_dependent);
    EXPECT_EQ(to_string(first), later);
    EXPECT_NE(table.symbol(later), first);
    EXPECT_EQ(table.symbol(later), table.symbol(later));
    // A copy of the symbol with a bound of 0 is spelled as the symbol is, but is another expression.
    EXPECT_NE(Dim(table.intern(Expr(*fresh.expr()))), Dim(table.intern(Expr(*fresh.expr()))));
  }
}

TEST_F(DimTest, SumsAndProductsAreEqualWhateverTheOrder) {
  EXPECT_EQ(a + b, b + a);
  EXPECT_EQ((a + b) + c, a + (c + b));
  EXPECT_EQ(a * b, b * a);
  EXPECT_EQ((a + b) * c, a * c + b * c);
  EXPECT_EQ((a + Dim(1)) * (a - Dim(1)), a * a - Dim(1));
  EXPECT_EQ(a + a, Dim(2) * a);
}

TEST_F(DimTest, WhatCancelsIsGone) {
  EXPECT_EQ(a - a, Dim(0));
  EXPECT_EQ(a + b - b, a);
  EXPECT_EQ(a * Dim(0), Dim(0));
  EXPECT_EQ(a * Dim(1), a);
  EXPECT_TRUE((a - a + Dim(3)).is_const(3));
}

TEST_F(DimTest, ExactQuotientsAreSimplified) {
  EXPECT_EQ(floor_div(Dim(64) * a, Dim(64)), a);
  EXPECT_EQ(floor_div(Dim(64) * a, Dim(16)), Dim(4) * a);
  EXPECT_EQ(floor_div(a * b * c, b), a * c);
  EXPECT_EQ(floor_div(a * b + Dim(2) * b, b), a + Dim(2));
  EXPECT_EQ(floor_div(a, a), Dim(1));
  EXPECT_EQ(floor_div(a, Dim(1)), a);
}

TEST_F(DimTest, MultiplesOfADivisorComeOutOfAQuotient) {
  EXPECT_EQ(floor_div(Dim(4) * a + Dim(3), Dim(2)), Dim(2) * a + Dim(1));
  EXPECT_EQ(floor_div(Dim(2) * a + b, Dim(2)), a + floor_div(b, Dim(2)));
  EXPECT_NE(floor_div(a, Dim(2)) * Dim(2), a);
  EXPECT_EQ(value(floor_div(a, Dim(2)) * Dim(2)), 6);
}

TEST_F(DimTest, DivisionRoundsDownAndCeilingUp) {
  EXPECT_EQ(floor_div(Dim(-7), Dim(2)).value(), -4);
  EXPECT_EQ(floor_div(Dim(7), Dim(-2)).value(), -4);
  EXPECT_EQ(ceil_div(Dim(7), Dim(2)).value(), 4);
  EXPECT_EQ(value(ceil_div(a, Dim(2))), 4);
  EXPECT_EQ(modulo(Dim(-7), Dim(4)).value(), 1);
  EXPECT_EQ(value(modulo(a, c)), 1);
}

TEST_F(DimTest, BroadcastingTakesTheOtherOfAOne) {
  EXPECT_EQ(broadcast(a, Dim(1)), a);
  EXPECT_EQ(broadcast(Dim(1), a), a);
  EXPECT_EQ(broadcast(a, a), a);
  EXPECT_EQ(broadcast(a, Dim(4)), Dim(4));  // in every run that succeeds, a is 4 or 1
  EXPECT_EQ(broadcast(a, b), broadcast(b, a));
  EXPECT_EQ(broadcast(broadcast(a, b), a), broadcast(a, b));  // broadcasting again changes nothing
  EXPECT_EQ(broadcast(b, broadcast(a, b)), broadcast(a, b));
  EXPECT_THROW(broadcast(Dim(3), Dim(4)), Error);
}

TEST_F(DimTest, EvaluationRefusesExtentsThatDoNotBroadcast) {
  Dim both = broadcast(a, b);
  EXPECT_THROW(value(both), Error);
}

TEST_F(DimTest, ExtremaOfKnownAndEqualValuesAreKnown) {
  EXPECT_EQ(maximum(Dim(3), Dim(4)), Dim(4));
  EXPECT_EQ(minimum(Dim(3), Dim(4)), Dim(3));
  EXPECT_EQ(maximum(a, a), a);
  EXPECT_EQ(maximum(a, b), maximum(b, a));
  EXPECT_EQ(value(maximum(a, b) - minimum(a, b)), 2);
}

TEST_F(DimTest, SignsAreToldWhereTheyCanBe) {
  EXPECT_TRUE(is_nonnegative(a));
  EXPECT_TRUE(is_nonnegative(a * b + Dim(2)));
  EXPECT_TRUE(is_nonnegative(floor_div(a + Dim(1), Dim(2))));
  EXPECT_TRUE(is_nonnegative(maximum(a - b, Dim(0))));
  EXPECT_FALSE(is_nonnegative(a - b));
  EXPECT_FALSE(is_nonnegative(Dim(-1)));
}

TEST_F(DimTest, OverflowIsAnError) {
  Dim large(INT64_MAX);
  EXPECT_THROW(large + Dim(1), Error);
  EXPECT_THROW(large * a + large * a, Error);
  EXPECT_THROW(floor_div(a, Dim(0)), Error);
}

TEST_F(DimTest, DataDependenceSpreads) {
  Dim found = table.fresh_symbol("found", true);
  EXPECT_TRUE(found.data_dependent());
  EXPECT_TRUE((a * found + Dim(1)).data_dependent());
  EXPECT_TRUE(floor_div(found, Dim(2)).data_dependent());
  EXPECT_FALSE((a + b).data_dependent());
}

TEST_F(DimTest, TextReadsLikeArithmetic) {
  EXPECT_EQ(to_string(a + b), "a + b");
  EXPECT_EQ(to_string(a * Dim(2) + Dim(1)), "2*a + 1");
  EXPECT_EQ(to_string(a - b - Dim(3)), "a - b - 3");
  EXPECT_EQ(to_string(floor_div(a - Dim(1), Dim(2)) + Dim(1)), "floor_div(a + 1, 2)");
  EXPECT_EQ(to_string(Dim(64)), "64");
}

// Each expression reads the expression before twice. Written as a tree, the last one has exponentially many parts.
TEST_F(DimTest, ExpressionsThatShareTheirOperandsAreLookedIntoForALimitedTime) {
  Dim shared = a, repeated = broadcast(a, b);
  for (int i = 0; i < 300; ++i) {
    shared = maximum(floor_div(shared, Dim(2)), minimum(shared, b + Dim(i)));
    repeated =
        broadcast(broadcast(repeated, table.symbol("n" + std::to_string(i))), broadcast(repeated, table.symbol("m" + std::to_string(i))));
  }
  EXPECT_LT(to_string(shared).size(), 5000U);
  EXPECT_LT(to_string(repeated).size(), 5000U);
  EXPECT_TRUE(is_nonnegative(minimum(a, b)));
  is_nonnegative(shared);
  is_zero_with(shared, a);
  broadcast(repeated, c);
}

TEST_F(DimTest, SumsOfManyExtentsTakeLittleEach) {
  constexpr int64_t kCount = 2000;
  Dim sum = 0;
  std::vector<Dim> extents;
  for (int64_t i = 0; i < kCount; ++i) sum = sum + extents.emplace_back(table.symbol("n" + std::to_string(i)));
  size_t terms = 0;
  for (size_t i = 0; i < table.size(); ++i) terms += table[i].terms.size();
  EXPECT_LT(terms, 200U * kCount);
  std::vector<int64_t> values(table.size(), 0);
  std::vector<int32_t> all(table.size());
  std::iota(all.begin(), all.end(), 0);
  int64_t expected = 0;
  for (int64_t i = 0; i < kCount; ++i) expected += values[static_cast<size_t>(extents[static_cast<size_t>(i)].expr()->index)] = i % 7;
  table.evaluate(all, values);
  EXPECT_EQ(evaluate(sum, values), expected);
  EXPECT_TRUE(is_nonnegative(extents[0] + extents[1]));
}

TEST_F(DimTest, BoundsOfDeepExpressionsAreFound) {
  Dim deep = a;
  for (int i = 0; i < 300'000; ++i) deep = maximum(floor_div(deep, Dim(2)), b);
  std::vector<int64_t> values(table.size(), 0);
  values[static_cast<size_t>(a.expr()->index)] = 1000, values[static_cast<size_t>(b.expr()->index)] = 3;
  EXPECT_EQ(UpperBounds(values).of(deep), 3);
}

// Compares random expressions with plain arithmetic: simplification must not change an expression's value.
TEST_F(DimTest, SimplifiedExpressionsKeepTheirValues) {
  std::mt19937 random(5);
  std::vector<std::pair<Dim, int64_t>> pool = {{a, 7}, {b, 5}, {c, 3}, {Dim(2), 2}, {Dim(1), 1}, {Dim(12), 12}};
  auto down = [](int64_t x, int64_t y) { return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0); };
  for (int i = 0; i < 3000; ++i) {
    auto [x, xv] = pool[random() % pool.size()];
    auto [y, yv] = pool[random() % pool.size()];
    std::pair<Dim, int64_t> made;
    switch (random() % 6) {
      case 0: made = {x + y, xv + yv}; break;
      case 1: made = {x - y, xv - yv}; break;
      case 2: made = {x * y, xv * yv}; break;
      case 3:
        if (yv == 0 || y.is_const(0)) continue;
        made = {floor_div(x, y), down(xv, yv)};
        break;
      case 4: made = {maximum(x, y), std::max(xv, yv)}; break;
      default: made = {minimum(x, y), std::min(xv, yv)}; break;
    }
    if (std::abs(made.second) > 100000 || to_string(made.first).size() > 300) continue;
    ASSERT_EQ(value(made.first), made.second) << to_string(made.first);
    if (pool.size() < 300)
      pool.push_back(made);
    else
      pool[3 + random() % (pool.size() - 3)] = made;
  }
}

}  // namespace
}  // namespace treadle
