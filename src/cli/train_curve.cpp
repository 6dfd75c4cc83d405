#include "cli/train_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "core/files/file.h"

namespace treadle::cli {
namespace {

constexpr double kWidth = 720, kHeight = 400, kLeft = 70, kRight = 20, kTop = 30, kBottom = 50;

/// Maps epochs and loss values to positions in the image.
struct CurveFrame {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  size_t epochs = 1;

  void include(double value) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  }
  void finish() {
    if (low > high) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
  }
  double x(size_t epoch) const {
    const double part = epochs > 1 ? static_cast<double>(epoch - 1) / static_cast<double>(epochs - 1) : 0.5;
    return kLeft + part * (kWidth - kLeft - kRight);
  }
  double y(double value) const { return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom); }
};

// Returns the SVG of one line, which is interrupted where values are not finite. Each point shows its value as a tooltip.
std::string line_of(const CurveFrame& frame, const std::vector<double>& values, std::string_view name, std::string_view color) {
  std::string path, points;
  bool drawing = false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      drawing = false;
      continue;
    }
    const double x = frame.x(i + 1), y = frame.y(values[i]);
    path += fmt::format("{}{:.1f} {:.1f} ", drawing ? "L" : "M", x, y);
    points += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"><title>epoch {}, {} {:.6g}</title></circle>\n", x, y, i + 1, name,
                          values[i]);
    drawing = true;
  }
  return fmt::format("<g class=\"{}\" fill=\"{}\">\n<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n{}</g>\n", name,
                     color, path, color, points);
}

std::string axes_of(const CurveFrame& frame) {
  constexpr int kTicks = 5;
  std::string text;
  for (int i = 0; i < kTicks; ++i) {
    const double value = frame.low + (frame.high - frame.low) * i / (kTicks - 1), y = frame.y(value);
    text += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft, kWidth - kRight, y, y);
    text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", kLeft - 8, y + 4, value);
  }
  const size_t step = std::max<size_t>((frame.epochs + 9) / 10, 1);
  for (size_t epoch = 1; epoch <= frame.epochs; epoch += step)
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", frame.x(epoch), kHeight - kBottom + 18, epoch);
  text += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">epoch</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 12);
  return text;
}

double number_in(std::string_view text) {
  double value = std::numeric_limits<double>::quiet_NaN();
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

CurvePoint point_of(const EpochReport& report) {
  CurvePoint point{.loss = report.loss};
  if (report.validation) point.validation_loss = report.validation->loss;
  return point;
}

std::string curve_to_text(const std::vector<CurvePoint>& points) {
  std::string text;
  for (const CurvePoint& point : points)
    text += point.validation_loss ? fmt::format("{},{};", point.loss, *point.validation_loss) : fmt::format("{};", point.loss);
  return text;
}

std::vector<CurvePoint> curve_from_text(std::string_view text) {
  std::vector<CurvePoint> points;
  for (size_t end = text.find(';'); end != std::string_view::npos; end = text.find(';')) {
    const std::string_view one = text.substr(0, end);
    const size_t comma = one.find(',');
    CurvePoint point{.loss = number_in(one.substr(0, comma))};
    if (comma != std::string_view::npos) point.validation_loss = number_in(one.substr(comma + 1));
    points.push_back(point);
    text.remove_prefix(end + 1);
  }
  return points;
}

void write_curve(const std::string& path, const std::vector<CurvePoint>& points) {
  constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
  CurveFrame frame{.epochs = std::max<size_t>(points.size(), 1)};
  std::vector<double> losses, validation;
  for (const CurvePoint& point : points) {
    losses.push_back(point.loss), validation.push_back(point.validation_loss.value_or(kMissing));
    frame.include(losses.back()), frame.include(validation.back());
  }
  frame.finish();
  const bool validated = std::any_of(points.begin(), points.end(), [](const CurvePoint& point) { return point.validation_loss; });
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += axes_of(frame) + line_of(frame, losses, "training", "#1f77b4");
  svg += fmt::format("<text x=\"{}\" y=\"18\" fill=\"#1f77b4\">training loss</text>\n", kLeft);
  if (validated) {
    svg += line_of(frame, validation, "validation", "#d62728");
    svg += fmt::format("<text x=\"{}\" y=\"18\" fill=\"#d62728\">validation loss</text>\n", kLeft + 110);
  }
  svg += "</svg>\n";
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(svg)));
  file.commit();
}

}  // namespace treadle::cli
