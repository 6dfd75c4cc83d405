// Which precision a model can be computed in: a value for SessionOptions::precision that keeps to a bound on the error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "treadle/quantize.h"
#include "treadle/session.h"

namespace treadle {

struct ChoosePrecisionOptions {
  /// Of the largest difference from float32's result over float32's largest value, over all floating-point outputs and samples. Outputs of
  /// other types (labels, tokens) must stay as they are.
  double bound = 1e-3;
  SessionOptions session;   ///< of all sessions that are tried; its precision is not looked at
  int64_t max_groups = 16;  ///< parts of the model whose share of the error is measured, a session each
  int64_t timed_runs = 9;   ///< of which the median counts, for each precision
};

/// One precision that was tried.
struct TriedPrecision {
  std::string precision;
  double error = 0;  ///< infinite where an output that is not of floats changed, or one became NaN
  double milliseconds = 0;
};

struct PrecisionChoice {
  std::string precision;  ///< "float32" where nothing faster keeps to the bound
  double error = 0;
  double speedup = 1;                 ///< over float32
  std::vector<TriedPrecision> tried;  ///< of the whole model, and of the mixture if there is one; float32 first
  /// A table.
  TREADLE_API std::string to_text() const;
};

/// Measures the precisions on samples of what the model sees in use. Where bfloat16 for all nodes leaves the bound, the nodes are cut into
/// groups, and as many of those that add least to the error get it as the bound allows.
/// @param samples  at least one; the first is the one that is timed
/// @throws Error(invalid_argument) for a bound that is not positive or without samples; what creating and running a session throws
TREADLE_API PrecisionChoice choose_precision(const Model& model, const CalibrationSource& samples,
                                             const ChoosePrecisionOptions& options = {});

}  // namespace treadle
