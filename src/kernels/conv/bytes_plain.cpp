// The micro-kernels of byte convolutions as plain loops, and the choice among those of the instruction sets.
#include <algorithm>
#include <cmath>

#include "kernels/conv/byte_tile.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kPanel = 64;

// Adds the offset. Sums wrap around as in the vector instructions.
int32_t total(uint32_t sum, const ByteEpilogue& e, int64_t column) {
  return static_cast<int32_t>(sum + static_cast<uint32_t>(e.offsets[column]));
}
int32_t rounded(float value) { return static_cast<int32_t>(std::nearbyint(std::min(1e6F, std::max(-1e6F, value)))); }
int32_t saturated(int32_t code, int32_t zero, bool is_signed) {
  return is_signed ? std::clamp(code, -128 - zero, 127 - zero) : std::clamp(code, -zero, 255 - zero);
}
uint8_t to_byte(uint32_t sum, const ByteEpilogue& e, int64_t column, int64_t place) {
  int32_t zero = e.zero;
  bool is_signed = e.is_signed;
  int32_t code = rounded(std::fma(static_cast<float>(total(sum, e, column)), e.scales[column], e.addends ? e.addends[column] : 0.0F));
  for (int i = 0; i < e.num_additions; ++i) {
    const ByteAddition& a = e.additions[i];
    float value = std::fma(static_cast<float>(saturated(code, zero, is_signed)), a.factor, a.addends ? a.addends[column] : 0.0F);
    if (a.residual) {
      const uint8_t byte = a.residual[place];
      const int32_t other = (a.residual_signed ? int32_t{static_cast<int8_t>(byte)} : int32_t{byte}) - a.residual_zero;
      value = std::fma(static_cast<float>(other), a.residual_factor, value);
    }
    code = rounded(value), zero = a.zero, is_signed = a.is_signed;
  }
  return static_cast<uint8_t>(saturated(code, zero, is_signed) + zero);
}

}  // namespace

void byte_conv_tile_plain(const ByteConvTile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    uint32_t sums[kPanel];
    std::fill_n(sums, kPanel, tile.row_offsets ? static_cast<uint32_t>(tile.row_offsets[r]) : 0);
    const int64_t width = 16 * tile.vectors;
    const int8_t* b = tile.B;
    for (int64_t segment = 0; segment < tile.segments; ++segment) {
      const uint8_t* a = tile.A + r * tile.lda + segment * tile.a_segment;
      for (int64_t k = 0; k < tile.quads; ++k, a += 4, b += 4 * width)
        for (int64_t n = 0; n < width; ++n)
          sums[n] += static_cast<uint32_t>(a[0] * b[4 * n] + a[1] * b[4 * n + 1] + a[2] * b[4 * n + 2] + a[3] * b[4 * n + 3]);
    }
    if (tile.sums) {
      for (int64_t n = 0; n < tile.columns; ++n) tile.sums[r * tile.ldy + n] = total(sums[n], tile.epilogue, tile.column + n);
      continue;
    }
    for (int64_t n = 0; n < tile.columns; ++n)
      tile.y[r * tile.ldy + n] = to_byte(sums[n], tile.epilogue, tile.column + n, tile.first + r * tile.ldy + n);
  }
}

void byte_group_row_plain(const ByteGroupRow& row) {
  const Window& w = *row.window;
  const int64_t channels = row.C / row.group, filters = row.M / row.group, quads = channels / 4, taps = w.kernel_size();
  for (int64_t ow = 0; ow < w.out[2]; ++ow)
    for (int64_t m = 0; m < row.M; ++m) {
      uint32_t sum = 0;
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t ih = row.oh * w.stride[1] - w.pad_begin[1] + t / w.kernel[2] * w.dilation[1];
        const int64_t iw = ow * w.stride[2] - w.pad_begin[2] + t % w.kernel[2] * w.dilation[2];
        const bool inside = ih >= 0 && ih < w.in[1] && iw >= 0 && iw < w.in[2];
        const uint8_t* x = (inside ? row.x + (ih * w.in[2] + iw) * row.C : row.pad) + m / filters * channels;
        const int8_t* weights = row.weights + m / 16 * byte_group_bytes(taps, channels) + static_cast<int64_t>(sizeof(ByteGroupHeader)) +
                                (t * quads * 16 + m % 16) * 4;
        for (int64_t c = 0; c < channels; ++c) sum += static_cast<uint32_t>((x[c] ^ row.flip) * weights[c / 4 * 64 + c % 4]);
      }
      const int64_t place = ow * row.M + m;
      if (row.sums)
        row.sums[place] = total(sum, row.epilogue, m);
      else
        row.y[place] = to_byte(sum, row.epilogue, m, row.first + place);
    }
}
void byte_group_row(const ByteGroupRow& row, ByteInstructions with) {
  with == ByteInstructions::avx512_vnni ? byte_group_row_avx512vnni(row) : byte_group_row_plain(row);
}
bool has_byte_groups(int64_t channels, int64_t filters) {
  // The channels of all groups that 16 filters belong to fill at most one vector.
  constexpr int64_t kVector = 64;
  const int64_t groups = 16 % filters == 0 ? 16 / filters : filters % 16 == 0 ? 1 : (16 + 2 * filters - 2) / filters;
  return channels % 4 == 0 && groups * channels <= kVector;
}

int64_t interleaved_channels(int64_t C) {
  const int64_t left = C % 64;
  return C - left + (left > 32 ? 64 : left > 16 ? 32 : left > 0 ? 16 : 0);
}
int64_t interleaved_place(int64_t C, int64_t channel) {
  const int64_t block = channel / 64 * 64, lanes = std::min<int64_t>(64, interleaved_channels(C) - block) / 16, i = channel - block;
  return block + (i % 16 / 4 * lanes + i / 16) * 4 + i % 4;
}

void byte_depthwise_row_plain(const ByteDepthwiseRow& row) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2]; ++ow) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t c = 0; c < row.C; ++c) {
      uint32_t sum = 0;
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const uint8_t byte = row.x[((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c];
          const int32_t x = row.x_signed ? static_cast<int8_t>(byte) : byte;
          sum += static_cast<uint32_t>((x - row.x_zero) * static_cast<int16_t>(row.weights[(i * w.kernel[2] + j) * row.C + c]));
        }
      if (row.sums)
        row.sums[ow * row.C + c] = total(sum, row.epilogue, c);
      else
        row.y[ow * row.C + c] = to_byte(sum, row.epilogue, c, row.first + ow * row.C + c);
    }
  }
}

void byte_max_row_plain(const ByteMaxRow& row) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2]; ++ow) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t c = 0; c < row.C; ++c) {
      uint8_t largest = 0;
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const int64_t at = ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
          largest = std::max<uint8_t>(largest, row.x[at] ^ row.flip);
        }
      row.y[ow * row.C + c] = largest ^ row.flip;
    }
  }
}

void byte_conv_tile(const ByteConvTile& tile, ByteInstructions with) {
  switch (with) {
    case ByteInstructions::avx512_vnni: return byte_conv_tile_avx512vnni(tile);
    case ByteInstructions::avx_vnni: return byte_conv_tile_avx2(tile, /*vnni=*/true);
    case ByteInstructions::avx2: return byte_conv_tile_avx2(tile, /*vnni=*/false);
    case ByteInstructions::plain: return byte_conv_tile_plain(tile);
  }
}
void byte_depthwise_row(const ByteDepthwiseRow& row, ByteInstructions with) {
  if (with == ByteInstructions::avx512_vnni) return byte_depthwise_row_avx512vnni(row);
  with == ByteInstructions::plain ? byte_depthwise_row_plain(row) : byte_depthwise_row_avx2(row);
}
void byte_max_row(const ByteMaxRow& row, ByteInstructions with) {
  if (with == ByteInstructions::avx512_vnni) return byte_max_row_avx512vnni(row);
  with == ByteInstructions::plain ? byte_max_row_plain(row) : byte_max_row_avx2(row);
}

void map_bytes_plain(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = table[x[i]];
}

}  // namespace treadle::kernels
