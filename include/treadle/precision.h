// Chooses the precision of a model: a value for SessionOptions::precision that keeps the error within a bound.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "treadle/quantize.h"
#include "treadle/session.h"

namespace treadle {

struct ChoosePrecisionOptions {
  /// Largest allowed difference from the float32 result, relative to its largest value, over all floating-point outputs and samples.
  /// Outputs of other types (labels, tokens) must not change.
  double bound = 1e-3;
  SessionOptions session;   ///< options of all sessions that are tried; its precision is ignored
  int64_t max_groups = 16;  ///< number of parts of the model whose effect is measured separately, each with its own session
  int64_t timed_runs = 9;   ///< runs per precision; their median time counts
};

/// A precision that was tried.
struct TriedPrecision {
  std::string precision;
  double error = 0;  ///< infinite if an output that is not floating-point changed, or a number became NaN
  double milliseconds = 0;
};

struct PrecisionChoice {
  std::string precision;  ///< "float32" if nothing faster keeps the bound
  double error = 0;
  double speedup = 1;                 ///< how many times faster than float32 it is
  std::vector<TriedPrecision> tried;  ///< results of each precision for the whole model, float32 first, and for a mixture if one was tried
  /// Returns a table of the tried precisions.
  TREADLE_API std::string to_text() const;
};

/// Measures precisions on representative samples. If bfloat16 for all nodes exceeds the bound, the nodes are divided into groups, and
/// bfloat16 is used for those that contribute least to the error, as far as the bound allows.
/// @param samples  at least one; the first is used for timing
/// @throws Error(invalid_argument) if the bound is not positive or there are no samples; errors of creating and running a session
TREADLE_API PrecisionChoice choose_precision(const Model& model, const CalibrationSource& samples,
                                             const ChoosePrecisionOptions& options = {});

}  // namespace treadle
