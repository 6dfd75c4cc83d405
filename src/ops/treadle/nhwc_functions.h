// Implements OpDef::write_function and OpDef::function_opset for operators with channels last.
#pragma once

namespace treadle {
struct Node;
class FunctionBody;
}  // namespace treadle

namespace treadle::ops {

/// Returns the opset that the attribute "activation" needs.
int activation_opset(const Node& node);
int average_pool_opset(const Node& node);
int reduce_mean_opset(const Node& node);
void write_nhwc_conv(FunctionBody& body);
void write_nhwc_conv_transpose(FunctionBody& body);
void write_nhwc_max_pool(FunctionBody& body);
void write_nhwc_average_pool(FunctionBody& body);
void write_nhwc_global_average_pool(FunctionBody& body);
void write_nhwc_affine(FunctionBody& body);

}  // namespace treadle::ops
