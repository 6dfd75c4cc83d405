// Products of bfloat16 matrices, of bytes, and of float32 matrices in parts, by AMX: tiles of 16 rows of 64 bytes, whose product takes the
// processor sixteen cycles where vectors take two hundred and fifty-six.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile_split.h"

namespace treadle::kernels {

/// Up to kAmxRows rows of A, or pixels of an image, times one panel, as Bf16Tile has them; of the depth the steps [first_step, last_step),
/// where each run has pairs / amx_depth(pairs) steps.
/// Products of bytes, A's without a sign and B's with one, are blocks as well: a word is four bytes of K then, sums are int32.
struct AmxBlock {
  const uint16_t* A;        ///< of the first row
  int64_t a_row;            ///< elements from row to row, unless there are
  const int64_t* pixels;    ///< their places, in elements from A; or null. Then no more than 16 rows
  bool tiled;               ///< A lies in tiles instead
  const int64_t* segments;  ///< where a row's runs begin; in tiles: the tiles of the upper 16 rows
  int64_t a_below;          ///< in tiles: elements from the tiles of the upper 16 rows to those of the others
  int64_t b_segments;       ///< runs that B has: run s of a row meets run s % b_segments
  int64_t pairs;            ///< of a run
  int64_t first_step, last_step;
  const uint32_t* B;  ///< the whole panel: rows of 16 * vectors words
  int64_t vectors;
  int64_t rows;
  float* sums;  ///< rows of 16 * vectors; those of kAmxRows are there
  bool adds;    ///< to what is in `sums`
  /// Lines of B to fetch into L2 meanwhile: `fetch_distance` bytes from each that is read, in `fetch_shares` such blocks.
  int64_t fetch_distance = 0, fetch_share = 0, fetch_shares = 0;
};
constexpr int64_t kAmxRows = 32;
constexpr int64_t kLeastAmxRows = 8;  // of a product: fewer are read from memory as fast by vectors

/// Pairs of k that a tile holds when runs of `pairs` are cut evenly; 0 where they cannot be: a last tile of another width would cost more
/// than it brings.
int64_t amx_depth(int64_t pairs);
/// The least number of pairs, not below this one, that amx_depth() cuts evenly.
int64_t amx_even_pairs(int64_t pairs);

/// A matrix in tiles: those of 16 rows side by side, each with rows of kAmxPitch elements, of which the first 2 * depth count.
constexpr int64_t kAmxPitch = 32, kAmxTile = 16 * kAmxPitch;

/// Sets the calling thread's tiles up while it lives.
/// @pre cpu_info().features.amx_bf16
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void multiply(const AmxBlock& block);
  /// @pre cpu_info().features.amx_int8; rows evenly spaced
  void multiply_bytes(const AmxBlock& block);
  /// @pre has_split_tiles()
  void multiply_split(const SplitBlock& block);

 private:
  void configure(int64_t rows, int64_t depth, bool apart);
  int64_t rows_ = 0, depth_ = 0;
  bool apart_ = false;
};

/// Whether amx_byte_sums() can be asked: this machine has it, and it is worth while.
bool uses_amx_bytes(int64_t rows, int64_t quads);
/// sums (rows of 16 * vectors) = A (rows of 4 * quads bytes, lda apart) times a panel with four rows interleaved.
/// @param lda  even
void amx_byte_sums(const uint8_t* A, int64_t lda, const int8_t* B, int64_t quads, int64_t vectors, int64_t rows, int32_t* sums);

}  // namespace treadle::kernels
