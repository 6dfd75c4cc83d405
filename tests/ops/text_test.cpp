#include <gtest/gtest.h>

#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::run_op;
using testing::tensor;
using testing::values;

struct Pool {
  std::vector<int64_t> tokens, starts, columns;
  std::vector<float> weights;
};

std::vector<float> vectorized(const Pool& pool, std::string mode, const std::vector<int64_t>& row, int64_t longest) {
  Attributes a;
  a.set("pool_int64s", pool.tokens), a.set("ngram_counts", pool.starts), a.set("ngram_indexes", pool.columns);
  a.set("weights", pool.weights), a.set("mode", std::move(mode));
  a.set("min_gram_length", int64_t{1}), a.set("max_gram_length", longest), a.set("max_skip_count", int64_t{0});
  return values<float>(run_op({"TfIdfVectorizer", 9, {tensor<int64_t>({static_cast<int64_t>(row.size())}, row)}, a})[0]);
}

// The specification says: "The i-th element in weights is the weight of the i-th n-gram in pool."
TEST(TfIdfVectorizer, WeightsBelongToTheNGramsOfThePool) {
  const std::vector<int64_t> row{5, 5, 7};
  const Pool in_order{{5, 7}, {0}, {0, 1}, {2, 4}}, permuted{{5, 7}, {0}, {1, 0}, {2, 4}}, with_gaps{{5, 7}, {0}, {3, 1}, {2, 4}};
  EXPECT_EQ(vectorized(in_order, "TFIDF", row, 1), (std::vector<float>{4, 4}));
  EXPECT_EQ(vectorized(permuted, "TFIDF", row, 1), (std::vector<float>{4, 4}));
  EXPECT_EQ(vectorized(permuted, "IDF", row, 1), (std::vector<float>{4, 2}));
  EXPECT_EQ(vectorized(permuted, "TF", row, 1), (std::vector<float>{1, 2}));
  EXPECT_EQ(vectorized(with_gaps, "TFIDF", row, 1), (std::vector<float>{0, 4, 0, 4}));
  EXPECT_EQ(vectorized(with_gaps, "IDF", {5, 5, 5}, 1), (std::vector<float>{0, 0, 0, 2}));
  const Pool pairs{{1, 2, 1, 2, 2, 1}, {0, 2}, {2, 0, 3, 1}, {1, 10, 100, 1000}};
  EXPECT_EQ(vectorized(pairs, "TFIDF", {1, 2, 1}, 2), (std::vector<float>{10, 1000, 2, 100}));
}

TEST(TfIdfVectorizer, NGramsOfOneColumnAreWeightedEachByItself) {
  const Pool shared{{5, 7}, {0}, {1, 1}, {2, 10}};
  EXPECT_EQ(vectorized(shared, "TFIDF", {5, 5, 7}, 1), (std::vector<float>{0, 14}));
  EXPECT_EQ(vectorized(shared, "IDF", {5, 5, 7}, 1), (std::vector<float>{0, 12}));
  EXPECT_EQ(vectorized(shared, "IDF", {5, 5, 5}, 1), (std::vector<float>{0, 2}));
}

TEST(TfIdfVectorizer, RefusesWeightsOfAnotherNumberThanNGrams) {
  EXPECT_THROW(vectorized({{5, 7}, {0}, {3, 1}, {1, 2, 3, 4}}, "IDF", {5}, 1), Error);
  EXPECT_THROW(vectorized({{5, 7}, {0}, {0, 1}, {1}}, "IDF", {5}, 1), Error);
}

}  // namespace
}  // namespace treadle
