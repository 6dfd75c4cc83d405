// Products of bfloat16 matrices, of bytes, and of split float32 matrices by AMX. A tile has 16 rows of 64 bytes; a product of two tiles
// takes 16 cycles; vector instructions take 256.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile_split.h"

namespace treadle::kernels {

/// A product of up to kAmxRows rows of A (or pixels of an image) by one panel of B. K consists of segments with `pairs` 32-bit words each.
/// A word contains two bfloat16 numbers or, in multiply_bytes(), four bytes (unsigned in A, signed in B), whose sums are int32. A step
/// multiplies as many words as a tile is deep, so that a segment has pairs / amx_depth(pairs) steps. The block computes the steps
/// [first_step, last_step), counted over all segments.
struct AmxBlock {
  const uint16_t* A;        ///< address of the first row
  int64_t a_row;            ///< row stride in elements, if `pixels` is null
  const int64_t* pixels;    ///< offset of each row in elements, or null; at most 16 rows
  bool tiled;               ///< A is stored as tiles
  const int64_t* segments;  ///< offsets of a row's segments in elements; if tiled: of the first 16 rows' tiles
  int64_t a_below;          ///< if tiled: number of elements from the tiles of the first 16 rows to those of the next 16
  int64_t b_segments;       ///< number of segments of B: segment s of A is multiplied by segment s % b_segments of B
  int64_t pairs;            ///< number of words of a segment
  int64_t first_step, last_step;
  const uint32_t* B;  ///< the whole panel: rows of 16 * vectors words
  int64_t vectors;
  int64_t rows;
  float* sums;  ///< rows of 16 * vectors sums; there must be memory for kAmxRows rows
  bool adds;    ///< true: the products are added to `sums`; false: they overwrite it
  /// Says which lines of B this block prefetches into L2: of the lines `fetch_distance` bytes after those that it reads, share number
  /// `fetch_share` of `fetch_shares` equal shares.
  int64_t fetch_distance = 0, fetch_share = 0, fetch_shares = 0;
};
constexpr int64_t kAmxRows = 32;
// Minimum number of rows of a product; for fewer, vectors are as fast, as memory bandwidth limits both.
constexpr int64_t kLeastAmxRows = 8;

/// Returns the number of pairs of k per tile such that tiles of equal depth divide a segment of `pairs` pairs. Returns 0 if no depth does,
/// as a narrower last tile would cost more than AMX gains.
int64_t amx_depth(int64_t pairs);
/// Returns the smallest number of pairs, at least `pairs`, that amx_depth() can divide evenly.
int64_t amx_even_pairs(int64_t pairs);

/// A tile takes 16 rows of kAmxPitch elements in memory; it uses the first 2 * depth of each row. Tiles of the same 16 rows are contiguous.
constexpr int64_t kAmxPitch = 32, kAmxTile = 16 * kAmxPitch;

/// Configures the calling thread's tile registers; the destructor releases them.
/// @pre cpu_info().features.amx_bf16
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void multiply(const AmxBlock& block);
  /// Multiplies matrices of bytes. @pre cpu_info().features.amx_int8; rows are evenly spaced
  void multiply_bytes(const AmxBlock& block);
  /// Multiplies float32 matrices whose numbers are split into bfloat16 parts (tile_split.h). @pre has_split_tiles()
  void multiply_split(const SplitBlock& block);

 private:
  void configure(int64_t rows, int64_t depth, bool apart);
  int64_t rows_ = 0, depth_ = 0;
  bool apart_ = false;
};

/// Returns true if the CPU supports amx_byte_sums() and the product is faster with it.
bool uses_amx_bytes(int64_t rows, int64_t quads);
/// Computes sums (rows of 16 * vectors) = A (rows of 4 * quads bytes, lda apart) times a panel with four rows interleaved. @param lda  must
/// be even
void amx_byte_sums(const uint8_t* A, int64_t lda, const int8_t* B, int64_t quads, int64_t vectors, int64_t rows, int32_t* sums);

}  // namespace treadle::kernels
