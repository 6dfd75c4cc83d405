// Compares tensors as their dtypes allow, and reads recorded values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "treadle/model.h"
#include "treadle/tensor.h"

namespace treadle::cli {

struct Tolerance {
  double rtol = 1e-3, atol = 1e-5;
  double step = 0;  ///< a quantisation step of the value; 0: it has none
};

struct Difference {
  bool comparable = false;    ///< false: another dtype or shape
  bool within = true;         ///< all elements are within the tolerance
  double largest = 0;         ///< largest |a - b|; infinite if only one of them is finite
  double magnitude = 0;       ///< the largest finite |b|
  int64_t num_different = 0;  ///< elements beyond the tolerance
  std::string example = {};   ///< of strings: the first that differ
};

/// Compares element by element. Allows atol + rtol * |b|, and one unit in the last place of the dtype, or one quantisation step. Integers
/// without a step and strings must be equal.
Difference difference_of(const Tensor& a, const Tensor& b, const Tolerance& tolerance);

/// Returns the quantisation step of each value that is quantised: 1 for codes of 8 and 16 bits, and the scale for what is dequantised.
/// Includes what nodes that only move or select elements make of them.
std::map<std::string, double> quantization_steps(const Model& model);

/// True for a .npz or .npy file, or a folder: what run_recorded() reads.
bool is_recording(const std::string& path);
/// Reads values by name: of a .npz, of a .npy (named as the file), or of all .npy and .pb files in a folder (named by their paths in it).
/// The prefix "out:" of names is dropped, and values with "in:" are left out. @throws Error if there are none
std::vector<std::pair<std::string, Tensor>> read_recording(const std::string& path);

}  // namespace treadle::cli
