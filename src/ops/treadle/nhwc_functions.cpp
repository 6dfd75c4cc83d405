// Writes operators with channels last as ONNX operators between two Transposes, for files.
#include "ops/treadle/nhwc_functions.h"

#include "graph/function_body.h"
#include "graph/op_def.h"

namespace treadle::ops {
namespace {

std::string channels_first(FunctionBody& b, size_t i) {
  std::vector<int64_t> perm{0, b.rank(i) - 1};
  for (int64_t axis = 1; axis + 1 < b.rank(i); ++axis) perm.push_back(axis);
  return b.op("Transpose", {b.in(i)}, {{"perm", std::move(perm)}});
}
std::string channels_last(FunctionBody& b, const std::string& y) {
  std::vector<int64_t> perm{0};
  for (int64_t axis = 2; axis < b.rank(0); ++axis) perm.push_back(axis);
  perm.push_back(1);
  return b.op("Transpose", {y}, {{"perm", std::move(perm)}});
}

const ScalarFunction* activation_of(const Node& node) { return find_function(node.attributes.get_string("activation", "none")); }
std::string write_activation(FunctionBody& b, const std::string& x) {
  const ScalarFunction* function = activation_of(b.node());
  return function ? b.function(*function, x, b.attributes().get_float("alpha"), b.attributes().get_float("beta")) : x;
}

void write_nhwc_pool(FunctionBody& b, std::string_view op_type) {
  const std::string y = b.op(op_type, {channels_first(b, 0)},
                             b.own({"auto_pad", "dilations", "kernel_shape", "pads", "strides", "ceil_mode", "count_include_pad"}));
  b.give(0, channels_last(b, y));
}

}  // namespace

int activation_opset(const Node& node) { return function_opset(activation_of(node)); }

void write_nhwc_conv(FunctionBody& b) {
  const bool planes = b.attributes().get_int("planes", 0) != 0;
  std::string y = b.op("Conv", {planes ? b.in(0) : channels_first(b, 0), b.in(1), b.in(2)},
                       b.own({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}));
  y = channels_last(b, y);
  if (b.has(3)) y = b.op("Add", {y, b.in(3)});
  b.give(0, write_activation(b, y));
}

// The layout pass creates this operator only for windows that do not overlap, so the strides equal the extents of the window.
void write_nhwc_conv_transpose(FunctionBody& b) {
  const Shape kernel = b.shape(1);
  std::vector<int64_t> strides(kernel.begin() + 2, kernel.end());
  const std::string y = b.op("ConvTranspose", {channels_first(b, 0), b.in(1), b.in(2)}, {{"strides", std::move(strides)}});
  b.give(0, write_activation(b, channels_last(b, y)));
}

void write_nhwc_max_pool(FunctionBody& b) { write_nhwc_pool(b, "MaxPool"); }
void write_nhwc_average_pool(FunctionBody& b) { write_nhwc_pool(b, "AveragePool"); }
// Returns the opset that a pool needs: 19 if it has dilations, which AveragePool has since then; otherwise 1.
int average_pool_opset(const Node& node) {
  const std::vector<int64_t>& dilations = node.attributes.get_ints("dilations");
  return dilations.empty() ? 1 : 19;
}

void write_nhwc_global_average_pool(FunctionBody& b) {
  std::vector<int64_t> axes;
  for (int64_t axis = 1; axis + 1 < b.rank(0); ++axis) axes.push_back(axis);
  b.give(0, b.op("ReduceMean", {b.in(0), b.ints(std::move(axes))}, {{"keepdims", b.attributes().get_int("keepdims", 1)}}));
}
int reduce_mean_opset(const Node&) { return 18; }  // 18, because axes are an input since then

void write_nhwc_affine(FunctionBody& b) {
  const std::string y = b.op("Add", {b.op("Mul", {b.in(0), b.in(1)}), b.in(2)});
  b.give(0, b.attributes().get_int("relu") != 0 ? b.op("Relu", {y}) : y);
}

}  // namespace treadle::ops
