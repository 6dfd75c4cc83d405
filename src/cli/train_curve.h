// The learning curve of `treadle train` as a picture.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/train_report.h"

namespace treadle::cli {

/// Of an epoch.
struct CurvePoint {
  double loss = 0;
  std::optional<double> validation_loss = std::nullopt;
};

CurvePoint point_of(const EpochReport& report);

/// As a checkpoint keeps it, so that a resumed run's curve begins with the first epoch.
std::string curve_to_text(const std::vector<CurvePoint>& points);
/// Of curve_to_text(); what it would not have written is left out.
std::vector<CurvePoint> curve_from_text(std::string_view text);

/// Writes an SVG file with a line for each loss. Values that are not finite leave a gap.
void write_curve(const std::string& path, const std::vector<CurvePoint>& points);

}  // namespace treadle::cli
