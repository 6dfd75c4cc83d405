#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/movement/copy.h"
#include "kernels/movement/gather.h"
#include "kernels/movement/pad.h"
#include "tests/kernels/index.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::coordinates;
using test::count;
using test::Dims;
using test::place;

Dims random_shape(test::Random& random, int64_t max_rank, int64_t max_extent) {
  Dims dims(static_cast<size_t>(random.integer(0, max_rank)));
  for (int64_t& d : dims) d = random.integer(1, max_extent);
  return dims;
}

// Returns element i of an array with `bytes` bytes per element, as a string of bytes.
std::string element(const std::vector<char>& data, size_t bytes, int64_t i) { return std::string(data.data() + i * bytes, bytes); }

TEST(Copy, TransposesAnyRankAndElement) {
  test::Random random(21);
  for (int round = 0; round < 300; ++round) {
    Dims dims = random_shape(random, 5, 7);
    if (!dims.empty()) dims[random.integer(0, dims.size() - 1)] *= random.integer(1, 12);
    if (random.integer(0, 30) == 0 && !dims.empty()) dims[0] = 0;
    Dims perm(dims.size()), out(dims.size());
    std::iota(perm.begin(), perm.end(), 0);
    for (size_t i = perm.size(); i > 1; --i) std::swap(perm[i - 1], perm[random.integer(0, i - 1)]);
    for (size_t i = 0; i < dims.size(); ++i) out[i] = dims[perm[i]];
    const size_t bytes = size_t{1} << random.integer(0, 4);
    const auto src = random.integers<char>(count(dims) * bytes, -128, 127);
    std::vector<char> dst(src.size());
    strided_copy(plan_transpose(dims, perm), bytes, src.data(), dst.data(), nullptr);
    for (int64_t i = 0; i < count(out); ++i) {
      const Dims at = coordinates(out, i);
      Dims from(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) from[perm[d]] = at[d];
      int64_t offset = 0;
      for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + from[d];
      ASSERT_EQ(element(dst, bytes, i), element(src, bytes, offset));
    }
  }
}

TEST(Copy, LargePlanesTranspose) {
  test::Random random(28);
  for (const size_t bytes : {2, 4, 8})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{301, 157}, {8, 9}, {7, 100}, {100, 7}, {63, 3025}}) {
      const int64_t dims[] = {rows, columns}, perm[] = {1, 0};
      const auto src = random.integers<char>(rows * columns * static_cast<int64_t>(bytes), -128, 127);
      std::vector<char> dst(src.size());
      strided_copy(plan_transpose(dims, perm), bytes, src.data(), dst.data(), nullptr);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) ASSERT_EQ(element(dst, bytes, c * rows + r), element(src, bytes, r * columns + c));
    }
}

TEST(Copy, FewPlanesInterleaveAndBack) {
  test::Random random(22);
  for (const size_t bytes : {1, 2, 4, 8})
    for (const int64_t planes : {2, 3, 4, 5})
      for (const int64_t pixels : {1, 5, 63, 500, 4096, 9001}) {
        const int64_t apart[] = {2, planes, pixels}, joined[] = {2, pixels, planes}, perm[] = {0, 2, 1};
        const auto src = random.integers<char>(2 * planes * pixels * static_cast<int64_t>(bytes), -128, 127);
        std::vector<char> dst(src.size()), back(src.size());
        strided_copy(plan_transpose(apart, perm), bytes, src.data(), dst.data(), nullptr);
        for (int64_t n = 0; n < 2; ++n)
          for (int64_t i = 0; i < pixels; ++i)
            for (int64_t c = 0; c < planes; ++c)
              ASSERT_EQ(element(dst, bytes, (n * pixels + i) * planes + c), element(src, bytes, (n * planes + c) * pixels + i)) << pixels;
        strided_copy(plan_transpose(joined, perm), bytes, dst.data(), back.data(), nullptr);
        ASSERT_EQ(back, src) << planes << " planes of " << pixels;
      }
}

TEST(Copy, LargeRepeatsOnOneThreadAndSeveral) {
  test::Random random(28);
  ThreadPool pool(3);
  for (const auto& [dims, repeats] :
       {std::pair{Dims{40, 7, 9}, Dims{1, 3, 5}}, {Dims{1, 1, 300}, Dims{70, 11, 1}}, {Dims{2, 500}, Dims{3, 20}}}) {
    Dims tiled(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) tiled[d] = dims[d] * repeats[d];
    const auto src = random.integers<int32_t>(count(dims), -1000, 1000);
    std::vector<int32_t> dst(count(tiled)), many = dst;
    strided_copy(plan_tile(dims, repeats), 4, src.data(), dst.data(), nullptr);
    strided_copy(plan_tile(dims, repeats), 4, src.data(), many.data(), &pool);
    ASSERT_EQ(dst, many);
    for (int64_t i = 0; i < count(tiled); ++i) {
      const Dims at = coordinates(tiled, i);
      int64_t offset = 0;
      for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + at[d] % dims[d];
      ASSERT_EQ(dst[i], src[offset]);
    }
  }
}

TEST(Copy, SlicesWithAnyStep) {
  test::Random random(22);
  for (int round = 0; round < 200; ++round) {
    const Dims dims = random_shape(random, 4, 9);
    Dims starts(dims.size()), steps(dims.size()), counts(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) {
      starts[d] = random.integer(0, dims[d] - 1);
      steps[d] = random.integer(1, 3) * (random.coin() ? 1 : -1);
      const int64_t most = steps[d] > 0 ? (dims[d] - 1 - starts[d]) / steps[d] + 1 : starts[d] / -steps[d] + 1;
      counts[d] = random.integer(0, most);
    }
    const auto src = random.integers<int32_t>(count(dims), -1000, 1000);
    std::vector<int32_t> dst(count(counts));
    strided_copy(plan_slice(dims, starts, steps, counts), 4, src.data() + slice_offset(dims, starts), dst.data(), nullptr);
    for (int64_t i = 0; i < count(counts); ++i) {
      Dims at = coordinates(counts, i);
      for (size_t d = 0; d < dims.size(); ++d) at[d] = starts[d] + at[d] * steps[d];
      int64_t offset = 0;
      for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + at[d];
      ASSERT_EQ(dst[i], src[offset]);
    }
  }
}

TEST(Copy, ExpandsAndTiles) {
  test::Random random(23);
  for (int round = 0; round < 200; ++round) {
    const Dims dims = random_shape(random, 4, 5);
    Dims repeats(dims.size()), tiled(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) repeats[d] = random.integer(0, 3), tiled[d] = dims[d] * repeats[d];
    const auto src = random.integers<int64_t>(count(dims), -1000, 1000);
    std::vector<int64_t> dst(count(tiled));
    strided_copy(plan_tile(dims, repeats), 8, src.data(), dst.data(), nullptr);
    for (int64_t i = 0; i < count(tiled); ++i) {
      const Dims at = coordinates(tiled, i);
      int64_t offset = 0;
      for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + at[d] % dims[d];
      ASSERT_EQ(dst[i], src[offset]);
    }

    Dims in(dims.begin() + random.integer(0, dims.size()), dims.end());
    for (int64_t& d : in) d = random.coin() ? 1 : d;
    std::vector<int64_t> expanded(count(dims));
    strided_copy(plan_expand(in, dims), 8, src.data(), expanded.data(), nullptr);
    for (int64_t i = 0; i < count(dims); ++i) ASSERT_EQ(expanded[i], src[place(in, coordinates(dims, i))]);
  }
  const int64_t two[] = {2}, three[] = {3};
  EXPECT_THROW(plan_expand(two, three), Error);
}

TEST(Copy, BlocksMakeAConcatenation) {
  const int a[] = {1, 2, 3, 4}, b[] = {5, 6};  // 2 x 2 and 2 x 1
  int c[6];
  copy_blocks(2, 8, a, 8, c, 12, nullptr);
  copy_blocks(2, 4, b, 4, c + 2, 12, nullptr);
  EXPECT_EQ(std::vector<int>(c, c + 6), (std::vector<int>{1, 2, 5, 3, 4, 6}));
  copy_blocks(0, 8, nullptr, 8, nullptr, 8, nullptr);
  const double value = 2.5;
  double filled[3];
  fill(8, &value, filled, 3, nullptr);
  for (double v : filled) EXPECT_EQ(v, 2.5);
  EXPECT_THROW(fill(3, &value, filled, 1, nullptr), Error);
}

// Each of the three heads of a cache grows by one row, so that all rows move within one block of memory. The copy must also be right if
// several threads share it.
TEST(Copy, BlocksThatMoveDownMayOverlap) {
  ThreadPool pool(2);
  constexpr int64_t kBlock = 100'000, kRow = 8, kCount = 3;
  std::vector<uint8_t> memory(kCount * (kBlock + kRow)), before(kCount * kBlock);
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<uint8_t>(i * 2654435761U >> 13U);
  std::copy(before.begin(), before.end(), memory.begin() + kCount * kRow);
  copy_blocks(kCount, kBlock, memory.data() + kCount * kRow, kBlock, memory.data(), kBlock + kRow, &pool);
  for (int64_t i = 0; i < kCount; ++i)
    EXPECT_TRUE(std::equal(before.begin() + i * kBlock, before.begin() + (i + 1) * kBlock, memory.begin() + i * (kBlock + kRow))) << i;
  copy_blocks(1, 2 * kBlock, memory.data() + kRow, 2 * kBlock, memory.data(), 2 * kBlock, &pool);
  EXPECT_TRUE(std::equal(before.begin() + kRow, before.begin() + kBlock, memory.begin()));
}

// Returns the source index by the definition of numpy.pad, for an array that negative pads have cut before.
int64_t pad_source(PadMode mode, int64_t i, int64_t n) {
  if (mode == PadMode::edge) return std::clamp<int64_t>(i, 0, n - 1);
  if (mode == PadMode::wrap) {
    while (i < 0) i += n;
    while (i >= n) i -= n;
    return i;
  }
  while (mode == PadMode::reflect && (i < 0 || i >= n)) {
    if (n == 1) return 0;
    if (i < 0) i = -i;
    if (i >= n) i = 2 * (n - 1) - i;
  }
  return i;
}

TEST(Pad, FollowsNumPyInEveryMode) {
  test::Random random(24);
  for (int round = 0; round < 400; ++round) {
    const Dims dims = random_shape(random, 4, 6);
    const auto mode = static_cast<PadMode>(random.integer(0, 3));
    Dims before(dims.size()), after(dims.size()), out(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) {
      if (random.coin()) {
        before[d] = random.integer(-dims[d] / 2, 8);
        after[d] = random.integer(-dims[d] / 2, 8);
      }
      out[d] = dims[d] + before[d] + after[d];
    }
    const auto src = random.integers<int16_t>(count(dims), -1000, 1000);
    const int16_t value = 4321;
    std::vector<int16_t> dst(count(out));
    pad(plan_pad(mode, dims, before, after), 2, src.data(), &value, dst.data(), nullptr);
    for (int64_t i = 0; i < count(out); ++i) {
      const Dims at = coordinates(out, i);
      int64_t offset = 0;
      bool outside = false;
      for (size_t d = 0; d < dims.size(); ++d) {
        const int64_t first = std::max<int64_t>(-before[d], 0), kept = dims[d] - first - std::max<int64_t>(-after[d], 0);
        const int64_t from = mode == PadMode::constant ? at[d] - before[d] : first + pad_source(mode, at[d] - before[d] - first, kept);
        outside |= from < 0 || from >= dims[d];
        offset = offset * dims[d] + from;
      }
      ASSERT_EQ(dst[i], outside ? value : src[offset]);
    }
  }
}

TEST(Pad, ImpossiblePadsAreRefused) {
  const int64_t two[] = {2}, none[] = {0}, minus[] = {-3}, one[] = {1};
  EXPECT_THROW(plan_pad(PadMode::constant, two, minus, none), Error);
  EXPECT_THROW(plan_pad(PadMode::edge, none, one, none), Error);
  EXPECT_THROW(plan_pad(PadMode::wrap, two, minus, two), Error);
  const int64_t least[] = {INT64_MIN}, most[] = {INT64_MAX};
  EXPECT_THROW(plan_pad(PadMode::wrap, two, least, most), Error);
  plan_pad(PadMode::constant, none, one, none);
}

TEST(Gather, TakesBlocksAlongAnAxis) {
  const float src[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // 2 x 3 x 2
  const int64_t indices[] = {2, -3, 2};
  std::vector<float> dst(12);
  gather(2, 3, 8, src, indices, 3, dst.data(), nullptr);
  EXPECT_EQ(dst, (std::vector<float>{4, 5, 0, 1, 4, 5, 10, 11, 6, 7, 10, 11}));
  const int32_t outside[] = {3};
  EXPECT_THROW(gather(2, 3, 8, src, outside, 1, dst.data(), nullptr), Error);
  gather(2, 3, 8, src, indices, 0, dst.data(), nullptr);
}

TEST(Gather, SingleElementsOfManyRows) {
  test::Random random(29);
  ThreadPool pool(3);
  const int64_t rows = 5000, extent = 13, taken = 7;
  const auto src = random.integers<int16_t>(rows * extent, -1000, 1000);
  const auto indices = random.integers<int32_t>(taken, -extent, extent - 1);
  for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    std::vector<int16_t> dst(rows * taken);
    gather(rows, extent, 2, src.data(), indices.data(), taken, dst.data(), threads);
    for (int64_t i = 0; i < rows * taken; ++i) ASSERT_EQ(dst[i], src[i / taken * extent + (indices[i % taken] + extent) % extent]);
  }
  std::vector<int16_t> dst(rows * taken);
  auto outside = indices;
  outside[3] = extent;
  EXPECT_THROW(gather(rows, extent, 2, src.data(), outside.data(), taken, dst.data(), nullptr), Error);
}

TEST(Gather, ElementsAreTakenAndScatteredAlongAnAxis) {
  test::Random random(25);
  for (int round = 0; round < 200; ++round) {
    Dims dims = random_shape(random, 4, 6);
    if (dims.empty()) dims = {3};
    const int64_t axis = random.integer(0, dims.size() - 1);
    Dims index_dims = dims;
    for (size_t d = 0; d < dims.size(); ++d) index_dims[d] = random.integer(0, static_cast<int64_t>(d) == axis ? 8 : dims[d]);
    const auto indices = random.integers<int32_t>(count(index_dims), -dims[axis], dims[axis] - 1);
    const auto src = random.vector<double>(count(dims));
    const auto updates = random.vector<double>(count(index_dims));
    std::vector<double> dst(count(index_dims)), scattered = src, expected_scatter = src;
    const auto plan = plan_elements(dims, index_dims, axis);
    gather_elements(plan, src.data(), indices.data(), dst.data(), nullptr);
    scatter_elements(plan, updates.data(), indices.data(), scattered.data(), [](double a, double b) { return a + b; });
    for (int64_t i = 0; i < count(index_dims); ++i) {
      Dims at = coordinates(index_dims, i);
      at[axis] = indices[i] < 0 ? indices[i] + dims[axis] : indices[i];
      int64_t offset = 0;
      for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + at[d];
      ASSERT_EQ(dst[i], src[offset]);
      expected_scatter[offset] += updates[i];
    }
    ASSERT_EQ(scattered, expected_scatter);
  }
}

TEST(Gather, TuplesTakeAndScatterSlices) {
  test::Random random(26);
  for (int round = 0; round < 200; ++round) {
    Dims dims = random_shape(random, 4, 4);
    if (dims.empty()) dims = {3};
    const int64_t batch = random.integer(0, dims.size() - 1), depth = random.integer(0, dims.size() - batch);
    Dims index_dims(dims.begin(), dims.begin() + batch);
    const Dims middle = random_shape(random, 2, 4);
    index_dims.insert(index_dims.end(), middle.begin(), middle.end());
    index_dims.push_back(depth);
    const int64_t tuples = count(middle), batches = count(Dims(dims.begin(), dims.begin() + batch));
    const int64_t slice = count(Dims(dims.begin() + batch + depth, dims.end()));
    std::vector<int64_t> indices;
    for (int64_t t = 0; t < batches * tuples; ++t) {
      for (int64_t d = 0; d < depth; ++d) indices.push_back(random.integer(-dims[batch + d], dims[batch + d] - 1));
    }
    indices.push_back(0);  // the list is never empty
    const auto src = random.integers<int32_t>(count(dims), -1000, 1000);
    const auto updates = random.integers<int32_t>(batches * tuples * slice, -1000, 1000);
    std::vector<int32_t> dst(batches * tuples * slice), expected(dst.size()), scattered = src, expected_scatter = src;
    const auto plan = plan_tuples(dims, index_dims, batch);
    gather_nd(plan, 4, src.data(), indices.data(), dst.data(), nullptr);
    scatter_nd(plan, updates.data(), indices.data(), scattered.data(), [](int32_t, int32_t b) { return b; });
    for (int64_t t = 0; t < batches * tuples; ++t) {
      int64_t offset = t / tuples;
      for (int64_t d = 0; d < depth; ++d) {
        const int64_t index = indices[t * depth + d], n = dims[batch + d];
        offset = offset * n + (index < 0 ? index + n : index);
      }
      for (int64_t i = 0; i < slice; ++i) {
        expected[t * slice + i] = src[offset * slice + i];
        expected_scatter[offset * slice + i] = updates[t * slice + i];
      }
    }
    ASSERT_EQ(dst, expected);
    ASSERT_EQ(scattered, expected_scatter);
  }
  const int64_t data[] = {2, 2}, tuple[] = {3};
  EXPECT_THROW(plan_tuples(data, tuple, 0), Error);
}

}  // namespace
}  // namespace treadle::kernels
