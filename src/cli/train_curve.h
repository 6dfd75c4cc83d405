// Draws the learning curve of `treadle train`: losses over epochs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/train_report.h"

namespace treadle::cli {

/// The losses of one epoch.
struct CurvePoint {
  double loss = 0;
  std::optional<double> validation_loss = std::nullopt;
};

CurvePoint point_of(const EpochReport& report);

/// Converts the curve to text for a checkpoint, so that the curve of a resumed run still begins with the first epoch.
std::string curve_to_text(const std::vector<CurvePoint>& points);
/// Parses a text of curve_to_text(). Skips parts that curve_to_text() does not write.
std::vector<CurvePoint> curve_from_text(std::string_view text);

/// Writes an SVG file with one line per loss. Values that are not finite leave a gap.
void write_curve(const std::string& path, const std::vector<CurvePoint>& points);

}  // namespace treadle::cli
