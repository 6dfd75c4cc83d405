// Draws the learning curve of `treadle train`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/train_report.h"

namespace treadle::cli {

/// The values of one epoch.
struct CurvePoint {
  double loss = 0;
  std::optional<double> validation_loss = std::nullopt;
};

CurvePoint point_of(const EpochReport& report);

/// Serialises the curve for a checkpoint, so that a resumed run's curve begins with the first epoch.
std::string curve_to_text(const std::vector<CurvePoint>& points);
/// Parses the text of curve_to_text(). Skips text that curve_to_text() does not write.
std::vector<CurvePoint> curve_from_text(std::string_view text);

/// Writes an SVG file with one line per loss. Values that are not finite leave a gap.
void write_curve(const std::string& path, const std::vector<CurvePoint>& points);

}  // namespace treadle::cli
