// Products of bfloat16 matrices by AMX: tiles of 16 rows of 64 bytes, whose product takes the processor sixteen cycles where vectors take
// two hundred and fifty-six.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Up to kAmxRows rows of A, or pixels of an image, times one panel, as Bf16Tile has them.
struct AmxBlock {
  const uint16_t* A;        ///< of the first row
  int64_t a_row;            ///< elements from row to row, unless there are
  const int64_t* pixels;    ///< their places, in elements from A; or null
  const int64_t* segments;  ///< where a row's runs begin
  int64_t num_segments;
  int64_t pairs;      ///< of a run
  const uint32_t* B;  ///< the panel: num_segments * pairs rows of 16 * vectors words
  int64_t vectors;
  int64_t rows;
  float* sums;    ///< rows of 16 * vectors; those of kAmxRows are there
  int64_t ahead;  ///< bytes from each row of the panel to what is fetched into L2 meanwhile; 0 for nothing
};
constexpr int64_t kAmxRows = 32;

/// Pairs of k that a tile holds when runs of `pairs` are cut evenly; 0 where they cannot be: a last tile of another width would cost more
/// than it brings.
int64_t amx_depth(int64_t pairs);
/// The least number of pairs, not below this one, that amx_depth() cuts evenly.
int64_t amx_even_pairs(int64_t pairs);

/// Sets the calling thread's tiles up while it lives.
/// @pre cpu_info().features.amx_bf16
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void multiply(const AmxBlock& block);

 private:
  void configure(int64_t rows, int64_t depth);
  int64_t rows_ = 0, depth_ = 0;
};

}  // namespace treadle::kernels
