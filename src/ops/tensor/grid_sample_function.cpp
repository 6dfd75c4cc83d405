#include "ops/tensor/grid_sample_function.h"

#include <string>
#include <utility>
#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {
namespace {

// Writes GridSampleGrad as ONNX nodes that compute, for all points at once, what kernels/image/grid_sample.cpp computes point by point.
// Values per point are [N, points], samples [N, C, points].
class GridSampleParts {
 public:
  explicit GridSampleParts(FunctionBody& b)
      : b_(b),
        spatial_(b.rank(0) - 2),
        mode_(b.attributes().get_string("mode", "linear")),
        padding_(b.attributes().get_string("padding_mode", "zeros")),
        aligned_(b.attributes().get_int("align_corners") != 0),
        shape_(op("Shape", {b.in(0)})),
        zero_(number(0)),
        one_(number(1)) {}

  void write() {
    const std::string x = op("Reshape", {b_.in(0), b_.ints({0, 0, -1})});
    dy_ = op("Reshape", {b_.in(2), b_.ints({0, 0, -1})});
    for (int64_t axis = 0; axis < spatial_; ++axis) axes_.push_back(axis_of(axis));
    std::string dx = zeros_like(x);
    std::vector<size_t> taps(axes_.size());
    do {
      add_corner(x, taps, dx);
    } while (advance(taps));
    b_.give(0, op("Reshape", {dx, shape_}));
    if (b_.num_outputs() < 2) return;
    std::vector<std::string> columns;  // column 0 of the grid is for the last axis
    for (size_t i = axes_.size(); i-- > 0;) {
      const Axis& axis = axes_[i];
      columns.push_back(op("Unsqueeze", {axis.flow.empty() ? zeros_like(axis.place) : mul(axis.flow, axis.speed), b_.ints({-1})}));
    }
    b_.give(1, op("Reshape", {op("Concat", columns, {{"axis", int64_t{-1}}}), op("Shape", {b_.in(1)})}));
  }

 private:
  struct Tap {
    std::string index;          // index along the axis, int64, clamped to the image
    std::string valid;          // 1 inside the image, 0 outside; empty: always inside
    std::string weight, slope;  // `slope`: derivative of `weight` with respect to the position; empty: 0
  };
  struct Axis {
    std::string place, speed;  // position in elements; its derivative with respect to the grid's number
    std::string stride, flow;
    std::vector<Tap> taps;
  };

  std::string op(std::string_view type, std::vector<std::string> inputs, Attributes attributes = {}) {
    return b_.op(type, std::move(inputs), std::move(attributes));
  }
  std::string number(float value) { return op("CastLike", {b_.number(value), b_.in(0)}); }
  std::string add(const std::string& a, const std::string& b) { return op("Add", {a, b}); }
  std::string sub(const std::string& a, const std::string& b) { return op("Sub", {a, b}); }
  std::string mul(const std::string& a, const std::string& b) { return op("Mul", {a, b}); }
  std::string div(const std::string& a, const std::string& b) { return op("Div", {a, b}); }
  std::string where(const std::string& condition, const std::string& a, const std::string& b) { return op("Where", {condition, a, b}); }
  std::string zeros_like(const std::string& x) { return op("CastLike", {op("ConstantOfShape", {op("Shape", {x})}), b_.in(0)}); }
  std::string scalar(int64_t value) { return b_.constant(Tensor::scalar<int64_t>(value)); }
  std::string within(const std::string& x, const std::string& last) { return op("Min", {op("Max", {x, zero_}), last}); }

  struct Borders {
    std::string low, high, last;
  };
  std::string outside(const std::string& x, const Borders& at) { return op("Or", {op("Less", {x, at.low}), op("Greater", {x, at.high})}); }
  // Reflects positions outside the borders into the image. @param slope  if not null, receives the derivative of the new position
  std::string reflected(const std::string& x, const Borders& at, std::string* slope = nullptr) {
    const std::string below = op("Less", {x, at.low}), range = op("Max", {sub(at.high, at.low), number(1e-6F)});
    const std::string distance = where(below, sub(at.low, x), sub(x, at.high)), times = op("Floor", {div(distance, range)});
    const std::string rest = sub(distance, mul(times, range)), half = mul(times, number(0.5F));
    const std::string even = op("Equal", {op("Floor", {half}), half}), same = op("Equal", {below, even});
    const std::string out = outside(x, at);
    if (slope) *slope = where(op("And", {out, op("Equal", {same, below})}), number(-1), one_);
    return where(out, where(same, add(at.low, rest), sub(at.high, rest)), x);
  }

  Axis axis_of(int64_t axis) {
    Axis made;
    const std::string extent = op("CastLike", {op("Gather", {shape_, scalar(2 + axis)}), b_.in(0)}), last = sub(extent, one_);
    const std::string given =
        op("Reshape", {op("Gather", {b_.in(1), scalar(spatial_ - 1 - axis)}, {{"axis", int64_t{-1}}}), b_.ints({0, -1})});
    const std::string two = number(2), from_border = add(given, one_);
    std::string x = aligned_ ? mul(div(from_border, two), last) : div(sub(mul(from_border, extent), one_), two);
    made.speed = div(aligned_ ? last : extent, two);
    const Borders borders{aligned_ ? zero_ : number(-0.5F), aligned_ ? last : sub(extent, number(0.5F)), last};
    if (mode_ == "nearest") x = op("Round", {x});
    if (mode_ != "cubic" && padding_ == "border") {
      const std::string out = outside(x, borders);
      made.speed = mul(made.speed, where(out, zero_, one_));
      x = where(out, within(x, last), x);
    } else if (mode_ != "cubic" && padding_ == "reflection") {
      std::string slope;
      x = reflected(x, borders, &slope);
      made.speed = mul(made.speed, slope);
    }
    made.place = x;
    made.stride = scalar(1);
    for (int64_t later = axis + 1; later < spatial_; ++later) made.stride = mul(made.stride, op("Gather", {shape_, scalar(2 + later)}));
    add_taps(made, borders);
    return made;
  }

  void add_taps(Axis& axis, const Borders& borders) {
    const std::string floor = op("Floor", {axis.place});
    auto tap = [&](float offset, std::string weight, std::string slope) {
      std::string i = add(floor, number(offset)), valid;
      if (padding_ == "zeros")
        valid = where(op("And", {op("GreaterOrEqual", {i, zero_}), op("LessOrEqual", {i, borders.last})}), one_, zero_);
      if (padding_ == "reflection") i = op("Floor", {reflected(i, borders)});
      const std::string index = op("Cast", {within(i, borders.last)}, {{"to", static_cast<int64_t>(DType::int64)}});
      axis.taps.push_back({index, std::move(valid), std::move(weight), std::move(slope)});
    };
    if (mode_ == "nearest") return tap(0, one_, "");
    const std::string t = sub(axis.place, floor), rest = sub(one_, t);
    if (mode_ == "linear") {
      tap(0, rest, number(-1));
      return tap(1, t, one_);
    }
    // Cubic convolution (Keys 1981) with a = -3/4: the weights are polynomials of the distance, evaluated by Horner's rule; so are their
    // derivatives.
    auto polynomial = [&](const std::vector<float>& factors, const std::string& d) {
      std::string sum = number(factors[0]);
      for (size_t i = 1; i < factors.size(); ++i) sum = add(mul(sum, d), number(factors[i]));
      return sum;
    };
    constexpr float a = -0.75F;
    const std::vector<float> far{a, -5 * a, 8 * a, -4 * a}, near{a + 2, -(a + 3), 0, 1}, far_slope{3 * a, -10 * a, 8 * a},
        near_slope{3 * (a + 2), -2 * (a + 3), 0};
    const std::string before = add(t, one_), after = add(rest, one_);
    tap(-1, polynomial(far, before), polynomial(far_slope, before));
    tap(0, polynomial(near, t), polynomial(near_slope, t));
    tap(1, polynomial(near, rest), op("Neg", {polynomial(near_slope, rest)}));
    tap(2, polynomial(far, after), op("Neg", {polynomial(far_slope, after)}));
  }

  // Adds the contribution of one pixel per point to dx and to the grid's gradient. The pixel is given by one tap (neighbor) of each axis.
  void add_corner(const std::string& x, const std::vector<size_t>& taps, std::string& dx) {
    std::string index, weight = one_;
    std::vector<std::string> slopes(axes_.size(), one_);
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Tap& tap = axes_[i].taps[taps[i]];
      const std::string step = mul(tap.index, axes_[i].stride);
      index = index.empty() ? step : add(index, step);
      for (size_t k = 0; k < axes_.size(); ++k)
        slopes[k] = slopes[k].empty() ? "" : factor(slopes[k], k == i ? tap.slope : tap.weight, tap);
      weight = factor(weight, tap.weight, tap);
    }
    const std::string places = op("Expand", {op("Unsqueeze", {index, b_.ints({1})}), op("Shape", {dy_})});
    const bool whole = mode_ == "nearest" && padding_ != "zeros";
    const std::string share = whole ? dy_ : mul(dy_, op("Unsqueeze", {weight, b_.ints({1})}));
    dx = op("ScatterElements", {dx, places, share}, {{"axis", int64_t{2}}, {"reduction", std::string("add")}});
    const std::string sampled = op("GatherElements", {x, places}, {{"axis", int64_t{2}}});
    const std::string meets = op("ReduceSum", {mul(dy_, sampled), b_.ints({1})}, {{"keepdims", int64_t{0}}});
    for (size_t k = 0; k < axes_.size(); ++k) {
      if (slopes[k].empty()) continue;
      const std::string part = mul(meets, slopes[k]);
      axes_[k].flow = axes_[k].flow.empty() ? part : add(axes_[k].flow, part);
    }
  }
  // Returns product * by, and 0 outside the image; an empty string if `by` is empty, which represents a derivative of 0.
  std::string factor(const std::string& product, const std::string& by, const Tap& tap) {
    if (by.empty()) return by;
    const std::string made = mul(product, by);
    return tap.valid.empty() ? made : mul(made, tap.valid);
  }
  bool advance(std::vector<size_t>& taps) const {
    for (size_t i = 0; i < taps.size(); ++i) {
      if (++taps[i] < axes_[i].taps.size()) return true;
      taps[i] = 0;
    }
    return false;
  }

  FunctionBody& b_;
  const int64_t spatial_;
  const std::string mode_, padding_;
  const bool aligned_;
  std::string shape_, zero_, one_, dy_;
  std::vector<Axis> axes_;
};

}  // namespace

void write_grid_sample_grad(FunctionBody& body) { GridSampleParts(body).write(); }

}  // namespace treadle::ops
