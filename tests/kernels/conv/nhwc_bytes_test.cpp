#include "kernels/conv/nhwc_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/cpu_info.h"
#include "kernels/conv/byte_tile.h"
#include "kernels/gemm/gemm_bytes.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::Random;

std::vector<uint8_t> random_bytes(Random& random, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.integer(0, 255));
  return bytes;
}

int32_t quantized(float value, int32_t zero, bool is_signed) {
  const double rounded = std::nearbyint(double{value}) + zero;
  return static_cast<int32_t>(std::min(std::max(rounded, is_signed ? -128.0 : 0.0), is_signed ? 127.0 : 255.0));
}

/// Convolves by the definition, one sum at a time, from x[N, in, C] to y[N, out, M].
std::vector<uint8_t> reference(const ConvParams& p, const ByteConv& conv, const std::vector<int8_t>& weights,
                               std::vector<int32_t>* all_sums = nullptr) {
  const int64_t channels = p.C / p.group, filters = p.M / p.group, taps = p.window.kernel_size(), out = p.window.out_size();
  std::vector<uint8_t> y(static_cast<size_t>(p.N * out * p.M));
  const auto* x = static_cast<const uint8_t*>(conv.x);
  if (all_sums) all_sums->resize(y.size());
  for (int64_t n = 0; n < p.N; ++n)
    for (int64_t m = 0; m < p.M; ++m) {
      std::vector<int32_t> sums(static_cast<size_t>(out), conv.bias ? conv.bias[m] : 0);
      test::for_each_tap(p.window, [&](int64_t o, int64_t tap, int64_t in) {
        if (in < 0) return;
        for (int64_t c = 0; c < channels; ++c) {
          const uint8_t byte = x[(n * p.window.in_size() + in) * p.C + m / filters * channels + c];
          const int32_t value = (conv.x_signed ? static_cast<int8_t>(byte) : int32_t{byte}) - conv.x_zero;
          sums[static_cast<size_t>(o)] += value * weights[static_cast<size_t>((m * channels + c) * taps + tap)];
        }
      });
      for (int64_t o = 0; o < out; ++o) {
        if (all_sums) (*all_sums)[static_cast<size_t>((n * out + o) * p.M + m)] = sums[static_cast<size_t>(o)];
        const float scaled = static_cast<float>(sums[static_cast<size_t>(o)]) * conv.scales[m];
        int32_t code = quantized(scaled, conv.y_zero, conv.y_signed), zero = conv.y_zero;
        const auto place = static_cast<size_t>((n * out + o) * p.M + m);
        for (int i = 0; i < conv.num_additions; ++i) {
          const ByteAddition& a = conv.additions[i];
          const int32_t other = (a.residual_signed ? static_cast<int8_t>(a.residual[place]) : int32_t{a.residual[place]}) - a.residual_zero;
          const float value = std::fma(static_cast<float>(other), a.residual_factor, static_cast<float>(code - zero) * a.factor);
          code = quantized(value, a.zero, a.is_signed), zero = a.zero;
        }
        const auto byte = static_cast<uint8_t>(code);
        y[place] = conv.table ? conv.table[byte] : byte;
      }
    }
  return y;
}

void check(const ConvParams& p, Random& random) {
  ByteConv conv;
  conv.x_signed = random.coin(), conv.y_signed = random.coin();
  conv.x_zero = static_cast<int32_t>(conv.x_signed ? random.integer(-128, 127) : random.integer(0, 255));
  conv.y_zero = static_cast<int32_t>(conv.y_signed ? random.integer(-128, 127) : random.integer(0, 255));
  const int64_t depth = p.C / p.group * p.window.kernel_size();
  // The arrays have exactly as many bytes as the kernel may read, so that the address sanitizer finds reads beyond them.
  const std::vector<uint8_t> x = random_bytes(random, p.N * p.window.in_size() * p.C), table = random_bytes(random, 256);
  std::vector<int8_t> weights;
  for (uint8_t byte : random_bytes(random, p.M * depth)) weights.push_back(static_cast<int8_t>(byte));
  std::vector<int32_t> bias, sums(static_cast<size_t>(p.M));
  std::vector<float> scales;
  for (int64_t m = 0; m < p.M; ++m) {
    bias.push_back(static_cast<int32_t>(random.integer(-20'000, 20'000)));
    scales.push_back(static_cast<float>(random.integer(1, 1000)) * 2e-5F / std::sqrt(static_cast<float>(depth)));
  }
  conv.x = x.data(), conv.scales = scales.data();
  if (random.coin()) conv.bias = bias.data();
  if (random.coin()) conv.table = table.data();
  const std::vector<uint8_t> residual = random_bytes(random, p.N * p.window.out_size() * p.M);
  ByteAddition addition{.factor = 0.7F, .residual = residual.data(), .residual_factor = 0.4F};
  addition.residual_signed = random.coin(), addition.is_signed = random.coin();
  addition.residual_zero = static_cast<int32_t>(random.integer(0, 100)), addition.zero = static_cast<int32_t>(random.integer(0, 100));
  if (random.integer(0, 3) == 0) conv.additions = &addition, conv.num_additions = 1;
  std::vector<int8_t> packed(static_cast<size_t>(nhwc_bytes_packed_size(p)));
  nhwc_bytes_pack(p, weights.data(), packed.data(), sums.data());
  const std::vector<uint8_t> expected = reference(p, conv, weights);
  std::vector<int32_t> expected_sums;
  reference(p, conv, weights, &expected_sums);
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<char> room(nhwc_bytes_scratch_bytes(p, threads) + 64);
    char* scratch = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    std::vector<uint8_t> y(expected.size(), 77);
    nhwc_bytes(p, conv, packed.data(), sums.data(), y.data(), scratch, threads, &pool);
    ByteConv plain = conv;
    plain.sums_only = true, plain.scales = nullptr, plain.table = nullptr;
    std::vector<int32_t> totals(expected.size(), 77);
    nhwc_bytes(p, plain, packed.data(), sums.data(), totals.data(), scratch, threads, &pool);
    ASSERT_EQ(totals, expected_sums);
    ASSERT_EQ(y, expected) << "N " << p.N << " C " << p.C << " M " << p.M << " group " << p.group << " threads " << threads;
  }
}

TEST(NhwcBytes, ConvolutionsEqualTheDefinition) {
  Random random(61);
  for (int round = 0; round < 300; ++round) {
    ConvParams p;
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 2)), random.coin() ? 8 : 20);
    p.N = random.integer(0, 2), p.C = random.integer(1, random.coin() ? 8 : 70), p.M = random.integer(1, random.coin() ? 40 : 150);
    check(p, random);
    if (HasFatalFailure()) return;
  }
}

TEST(NhwcBytes, PointwiseOnesEqualTheDefinition) {
  Random random(62);
  for (int round = 0; round < 100; ++round) {
    const std::vector<int64_t> image{random.integer(1, 20), random.integer(1, 20)}, one{1, 1};
    ConvParams p;
    p.window = make_window(image, image, one, {}, {}, {});
    p.N = random.integer(1, 2), p.C = random.integer(1, 90), p.M = random.integer(1, 150);
    if (random.coin()) p.C *= 4;
    check(p, random);
    if (HasFatalFailure()) return;
  }
}

TEST(NhwcBytes, DepthwiseOnesEqualTheDefinition) {
  Random random(63);
  for (int round = 0; round < 200; ++round) {
    ConvParams p;
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 2)), 12);
    p.N = random.integer(1, 2), p.C = p.M = p.group = random.integer(2, 150);
    check(p, random);
    if (HasFatalFailure()) return;
  }
}

TEST(NhwcBytes, GroupsOfFewChannelsEqualTheDefinition) {
  if (!has_byte_instructions(ByteInstructions::avx512_vnni)) GTEST_SKIP() << "groups of several channels are for AVX512-VNNI";
  Random random(66);
  for (int round = 0; round < 200; ++round) {
    ConvParams p;
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 2)), 12);
    const int64_t channels = 4 * random.integer(1, 8), filters = random.integer(1, 40);
    p.N = random.integer(1, 2), p.group = random.integer(2, 9), p.C = p.group * channels, p.M = p.group * filters;
    if (!has_nhwc_bytes(p)) continue;
    check(p, random);
    if (HasFatalFailure()) return;
  }
  EXPECT_FALSE(has_byte_groups(6, 6));
  EXPECT_FALSE(has_byte_groups(64, 8));
  EXPECT_TRUE(has_byte_groups(8, 8) && has_byte_groups(24, 24) && has_byte_groups(64, 64) && has_byte_groups(4, 1));
  const int64_t wide[] = {16, 8, 9, 9}, usual[] = {16, 8, 3, 3};
  EXPECT_FALSE(has_nhwc_bytes(wide, 2)) << "too many taps";
  EXPECT_TRUE(has_nhwc_bytes(usual, 2));
}

// The kernels for other instruction sets, which other machines use, must give the same bits.
TEST(NhwcBytes, KernelsOfEveryInstructionSetGiveTheSame) {
  int tested = 0;
  for (ByteInstructions with : {ByteInstructions::avx2, ByteInstructions::avx_vnni, ByteInstructions::avx512_vnni}) {
    if (!has_byte_instructions(with)) continue;
    SCOPED_TRACE(static_cast<int>(with));
    ++tested;
    Random random(64);
    for (int vectors = 1; vectors <= 4; ++vectors)
      for (int64_t rows : {1, 5, 13, 29}) {
        const int64_t quads = random.integer(1, 30), width = 16 * vectors, columns = width - random.integer(0, 15);
        std::vector<uint8_t> a = random_bytes(random, rows * 4 * quads), b = random_bytes(random, width * 4 * quads);
        // The largest bytes: the sum of two such products does not fit into 16 bits.
        if (rows % 8 == 5 && vectors > 1) std::fill(a.begin(), a.end(), 255), std::fill(b.begin(), b.end(), rows == 5 ? 127 : 128);
        std::vector<int32_t> offsets(static_cast<size_t>(width), -321);
        std::vector<float> scales(static_cast<size_t>(width), 1e-3F);
        std::vector<uint8_t> fast(static_cast<size_t>(rows * columns), 1), plain(fast.size(), 2);
        const std::vector<uint8_t> residual = random_bytes(random, rows * columns);
        std::vector<float> addends(static_cast<size_t>(width), -2.25F);
        const ByteAddition additions[] = {{.factor = 0.8F, .addends = addends.data(), .zero = 9, .is_signed = true},
                                          {.factor = 0.5F,
                                           .residual = residual.data(),
                                           .residual_factor = 0.6F,
                                           .residual_zero = 3,
                                           .residual_signed = quads % 2 == 0,
                                           .zero = 20,
                                           .is_signed = quads % 3 == 0}};
        std::vector<int32_t> row_offsets;
        for (int64_t r = 0; r < rows; ++r) row_offsets.push_back(static_cast<int32_t>(random.integer(-5000, 5000)));
        ByteConvTile tile{a.data(),    4 * quads, reinterpret_cast<const int8_t*>(b.data()),
                          quads,       vectors,   {offsets.data(), scales.data(), 7, rows > 5},
                          fast.data(), columns,   columns,
                          rows};
        if (rows != 13) tile.row_offsets = row_offsets.data(), tile.epilogue.addends = addends.data();
        if (rows > 1) tile.epilogue.additions = additions, tile.epilogue.num_additions = 2;
        byte_conv_tile(tile, with);
        tile.y = plain.data();
        byte_conv_tile_plain(tile);
        EXPECT_EQ(fast, plain);
        std::vector<int32_t> fast_sums(fast.size(), 1), plain_sums(fast.size(), 2);
        tile.sums = fast_sums.data();
        byte_conv_tile(tile, with);
        tile.sums = plain_sums.data();
        byte_conv_tile_plain(tile);
        EXPECT_EQ(fast_sums, plain_sums);
      }
    for (int round = 0; round < 30; ++round) {
      const Window w = test::random_window(random, 2, 9);
      const int64_t C = random.integer(1, 100);
      const std::vector<uint8_t> x = random_bytes(random, w.in_size() * C);
      std::vector<int32_t> weights, offsets(static_cast<size_t>(C + 15), 5);
      for (uint8_t byte : random_bytes(random, w.kernel_size() * C)) weights.push_back(static_cast<uint16_t>(static_cast<int8_t>(byte)));
      std::vector<float> scales(static_cast<size_t>(C + 15), 4e-3F);
      std::vector<uint8_t> fast(static_cast<size_t>(w.out[2] * C), 1), plain(fast.size(), 2);
      ByteDepthwiseRow row{&w,
                           C,
                           random.integer(0, w.out[1] - 1),
                           x.data(),
                           random.coin(),
                           3,
                           weights.data(),
                           {offsets.data(), scales.data(), 9, random.coin()},
                           fast.data()};
      byte_depthwise_row(row, with);
      row.y = plain.data();
      byte_depthwise_row_plain(row);
      EXPECT_EQ(fast, plain);
      std::vector<int32_t> fast_sums(fast.size(), 1), plain_sums(fast.size(), 2);
      row.sums = fast_sums.data();
      byte_depthwise_row(row, with);
      row.sums = plain_sums.data();
      byte_depthwise_row_plain(row);
      EXPECT_EQ(fast_sums, plain_sums);
      ByteMaxRow largest{&w, C, row.oh, x.data(), static_cast<uint8_t>(random.coin() ? 0x80 : 0), fast.data()};
      byte_max_row(largest, with);
      largest.y = plain.data();
      byte_max_row_plain(largest);
      EXPECT_EQ(fast, plain);
    }
  }
  if (tested == 0) GTEST_SKIP() << "no AVX2 here: the tests above have run the plain ones";
}

TEST(NhwcBytes, MaxPoolsAndTablesEqualTheDefinition) {
  Random random(65);
  for (int round = 0; round < 60; ++round) {
    const Window w = test::random_window(random, static_cast<int>(random.integer(1, 2)), 12, true);
    const int64_t N = random.integer(1, 2), C = random.integer(1, 70);
    const bool is_signed = random.coin();
    const std::vector<uint8_t> x = random_bytes(random, N * w.in_size() * C), table = random_bytes(random, 256);
    std::vector<uint8_t> y(static_cast<size_t>(N * w.out_size() * C)), expected(y.size()), mapped(y.size());
    for (int64_t n = 0; n < N; ++n)
      for (int64_t c = 0; c < C; ++c) {
        std::vector<int> largest(static_cast<size_t>(w.out_size()), is_signed ? -128 : 0);
        test::for_each_tap(w, [&](int64_t o, int64_t, int64_t in) {
          if (in < 0) return;
          const uint8_t byte = x[static_cast<size_t>((n * w.in_size() + in) * C + c)];
          int& best = largest[static_cast<size_t>(o)];
          best = std::max(best, is_signed ? int{static_cast<int8_t>(byte)} : int{byte});
        });
        for (int64_t o = 0; o < w.out_size(); ++o)
          expected[static_cast<size_t>((n * w.out_size() + o) * C + c)] = static_cast<uint8_t>(largest[static_cast<size_t>(o)]);
      }
    ThreadPool pool(2);
    max_pool_bytes(w, N, C, is_signed, x.data(), y.data(), &pool);
    ASSERT_EQ(y, expected);
    map_bytes(static_cast<int64_t>(y.size()), table.data(), y.data(), mapped.data(), &pool);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(mapped[i], table[y[i]]);
    std::vector<uint8_t> in_place = y;
    const auto map_in_place = cpu_info().features.avx2 ? map_bytes_avx2 : map_bytes_plain;
    map_in_place(static_cast<int64_t>(y.size()), table.data(), in_place.data(), in_place.data());
    map_bytes_plain(static_cast<int64_t>(y.size()), table.data(), y.data(), y.data());
    ASSERT_EQ(y, mapped);
    ASSERT_EQ(in_place, mapped);
  }
}

}  // namespace
}  // namespace treadle::kernels
