// Implements GatherPacked (com.microsoft 1): gathers rows of a table whose numbers are stored in a quantized block format of ggml.
#include <algorithm>
#include <cstring>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/tensor/movement.h"

namespace treadle::ops {
namespace {

enum Input : int { kData, kIndices };

constexpr int kMostElements = 256;

/// A block format of ggml: a block has `elements` numbers in `bytes` bytes.
struct Format {
  int64_t id;
  int elements, bytes;
  void (*decode)(const uint8_t* block, float* numbers);
};

float half(const uint8_t* bytes) {
  Float16 value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<float>(value);
}

template <typename T>
void decode_float(const uint8_t* block, float* y) {
  T value;
  std::memcpy(&value, block, sizeof value);
  *y = static_cast<float>(value);
}

/// Returns the 4-bit code i of 32. The codes in the lower halves of the 16 bytes come first, then those in the upper halves.
int nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

void decode_q4_0(const uint8_t* block, float* y) {
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(nibble(block + 2, i) - 8) * half(block);
}

void decode_q5_0(const uint8_t* block, float* y) {
  for (int i = 0; i < 32; ++i) {
    const int fifth = block[2 + i / 8] >> (i % 8) & 1;
    y[i] = static_cast<float>((nibble(block + 6, i) | fifth << 4) - 16) * half(block);
  }
}

void decode_q8_0(const uint8_t* block, float* y) {
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * half(block);
}

/// Unpacks a 6-bit number from 12 bytes, which have 8 scales (i from 0 to 7) followed by 8 minima (i from 8 to 15).
int six_bits(const uint8_t* packed, int i) {
  const int part = i / 8, place = i % 8, four = place % 4;
  if (place < 4) return packed[4 * part + four] & 63;
  return (packed[8 + four] >> 4 * part & 15) | packed[4 * part + four] >> 6 << 4;
}

void decode_q5_k(const uint8_t* block, float* y) {
  const uint8_t *scales = block + 4, *high = block + 16, *low = block + 48;
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, place = i % 32;
    const int code = (low[group / 2 * 32 + place] >> 4 * (group % 2) & 15) | (high[place] >> group & 1) << 4;
    y[i] = half(block) * static_cast<float>(six_bits(scales, group)) * static_cast<float>(code) -
           half(block + 2) * static_cast<float>(six_bits(scales, 8 + group));
  }
}

void decode_q6_k(const uint8_t* block, float* y) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  for (int i = 0; i < 256; ++i) {
    const int part = i / 128, quarter = i % 128 / 32, place = i % 32;
    const int four = low[part * 64 + quarter % 2 * 32 + place] >> 4 * (quarter / 2) & 15;
    const int code = (four | (high[part * 32 + place] >> 2 * quarter & 3) << 4) - 32;
    y[i] = half(block + 208) * static_cast<float>(static_cast<int8_t>(scales[i / 16])) * static_cast<float>(code);
  }
}

/// The numbers that the 16 codes of the IQ4 formats represent.
constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void decode_iq4_nl(const uint8_t* block, float* y) {
  for (int i = 0; i < 32; ++i) y[i] = half(block) * static_cast<float>(kLevels[nibble(block + 2, i)]);
}

void decode_iq4_xs(const uint8_t* block, float* y) {
  const unsigned high = block[2] | static_cast<unsigned>(block[3]) << 8;
  for (int group = 0; group < 8; ++group) {
    const unsigned low = block[4 + group / 2] >> 4 * (group % 2) & 15U;
    const float scale = half(block) * static_cast<float>(static_cast<int>(low | (high >> 2 * group & 3U) << 4) - 32);
    for (int i = 0; i < 32; ++i) y[32 * group + i] = scale * static_cast<float>(kLevels[nibble(block + 8 + 16 * group, i)]);
  }
}

void decode_q2_0(const uint8_t* block, float* y) {
  for (int i = 0; i < 64; ++i) y[i] = half(block) * static_cast<float>((block[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
}

constexpr Format kFormats[] = {{0, 1, 4, decode_float<float>},     {1, 1, 2, decode_float<Float16>}, {2, 32, 18, decode_q4_0},
                               {6, 32, 22, decode_q5_0},           {8, 32, 34, decode_q8_0},         {13, 256, 176, decode_q5_k},
                               {14, 256, 210, decode_q6_k},        {20, 32, 18, decode_iq4_nl},      {23, 256, 136, decode_iq4_xs},
                               {30, 1, 2, decode_float<BFloat16>}, {42, 64, 18, decode_q2_0}};

template <typename Context>
const Format& format_of(const Context& c) {
  const int64_t id = c.get_int("packed_type"), width = c.get_int("K");
  for (const Format& format : kFormats) {
    if (format.id != id) continue;
    if (width < 1 || width % format.elements != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("K is {}; packed_type = {} has blocks of {}", width, id, format.elements));
    return format;
  }
  throw Error(ErrorCode::not_implemented, fmt::format("packed_type = {} is not implemented", id));
}

void infer(InferContext& c) {
  const Format& format = format_of(c);
  const int64_t width = c.get_int("K");
  const DType dtype = dtype_attribute(c.attributes(), "output_dtype", DType::bfloat16);
  if (c.has_rank(kData))
    unify(c.shape(kData)[1], Dim(checked_mul(width / format.elements, format.bytes)), "bytes of a row, and those of K numbers");
  if (!c.has_rank(kIndices)) return c.set_output_dtype(0, dtype);
  SymbolicShape shape = c.shape(kIndices);
  shape.push_back(Dim(width));
  c.set_output(0, dtype, std::move(shape));
}

struct GatherPacked {
  Format format;
  int64_t rows, row_bytes, count, width;
  DType index, dtype;

  static GatherPacked bind(BindContext& c) {
    const Shape& data = c.shape(kData);
    GatherPacked g{format_of(c), data[0], data[1], c.num_elements(kIndices), c.get_int("K"), c.dtype(kIndices), c.output_dtype(0)};
    check_equal(g.row_bytes, checked_mul(g.width / g.format.elements, g.format.bytes), "bytes of a row, and those of K numbers");
    if (g.rows == 0 && g.count > 0) throw Error(ErrorCode::invalid_argument, "data has no row to take");
    return g;
  }
  void run(RunContext& c) const {
    visit_dtype<TypeList<float, Float16, BFloat16>>(dtype, [&]<typename T>() {
      parallel_for(c.pool(), count, std::max<int64_t>(1, 4096 / width), [&](int64_t begin, int64_t end) {
        float numbers[kMostElements];
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = index == DType::int32 ? c.in<int32_t>(kIndices)[i] : c.in<int64_t>(kIndices)[i];
          // A row index that is out of range reads row 0.
          const uint8_t* block = c.in<uint8_t>(kData) + (row < 0 || row >= rows ? 0 : row) * row_bytes;
          T* y = c.out<T>(0) + i * width;
          for (int64_t j = 0; j < width; j += format.elements, block += format.bytes) {
            format.decode(block, numbers);
            for (int e = 0; e < format.elements; ++e) y[j + e] = static_cast<T>(numbers[e]);
          }
        }
      });
    });
  }
};

}  // namespace

std::vector<OpDef> microsoft_packed_rows_ops() {
  using Required = AttributeDef::Required;
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
  return {{.name = "GatherPacked",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {{"data", {DType::uint8}, "", Presence::required, of_rank(2)}, {"indices", {DType::int32, DType::int64}}},
           .outputs = {{"output", kTypes}},
           .attributes = {{"K", Required{}, at_least(1)},
                          {"output_dtype", static_cast<int64_t>(DType::bfloat16), dtype_among(kTypes)},
                          {"packed_type", Required{}}},
           .infer = infer,
           .kernels = {kernel<GatherPacked>()}}};
}

}  // namespace treadle::ops
