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
  /// Largest allowed difference from float32's result, divided by float32's largest value, over all floating-point outputs and samples.
  /// Outputs of other types (labels, tokens) must not change.
  double bound = 1e-3;
  SessionOptions session;   ///< options of all sessions that are tried; its precision is ignored
  int64_t max_groups = 16;  ///< parts of the model to measure separately, with a session each
  int64_t timed_runs = 9;   ///< runs of each precision; the median counts
};

/// One precision that was tried.
struct TriedPrecision {
  std::string precision;
  double error = 0;  ///< infinite if an output that is not of floats changed, or one became NaN
  double milliseconds = 0;
};

struct PrecisionChoice {
  std::string precision;  ///< "float32" if nothing faster keeps the bound
  double error = 0;
  double speedup = 1;                 ///< over float32
  std::vector<TriedPrecision> tried;  ///< of the whole model, and of the mixture if there is one; float32 first
  /// A table.
  TREADLE_API std::string to_text() const;
};

/// Measures the precisions on samples of what the model sees in use. If bfloat16 for all nodes exceeds the bound, the nodes are cut into
/// groups. Those that add least to the error get bfloat16, as many as the bound allows.
/// @param samples  at least one; the first is the one that is timed
/// @throws Error(invalid_argument) for a bound that is not positive or without samples; what creating and running a session throws
TREADLE_API PrecisionChoice choose_precision(const Model& model, const CalibrationSource& samples,
                                             const ChoosePrecisionOptions& options = {});

}  // namespace treadle
