// Weight-only quantization: rewrites MatMul(x, W) as MatMulNBits(x, codes), or as MatMul(x, DequantizeLinear(codes)). Each block along the
// inner dimension has a scale.
#include <fmt/format.h>

#include <cstring>

#include "core/base/checked.h"
#include "quantize/codes.h"
#include "quantize/plan.h"

namespace treadle::quantization {
namespace {

struct StoredBlocks {
  std::string codes, scales, zeros;  // names of initializers; zeros: empty if the zero point is the middle code
  int64_t K = 0, N = 0;
  double sqnr_db = 0;
};

template <typename T>
Tensor transposed(const std::vector<T>& values, int64_t rows, int64_t columns) {
  Tensor result(dtype_of<T>, Shape{columns, rows});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) result.data<T>()[c * rows + r] = values[static_cast<size_t>(r * columns + c)];
  return result;
}

/// Transposes codes or zero points to the form that DequantizeLinear expects, [K, N] or [blocks, N]. They become signed if symmetric.
Tensor onnx_codes(const std::vector<uint8_t>& codes, int64_t rows, int64_t columns, int bits, bool symmetric) {
  const Tensor bytes = transposed(codes, rows, columns);
  uint8_t* values = bytes.data<uint8_t>();
  // Flips the top bits, which converts unsigned codes to signed ones: with 4 bits, 8 .. 15 become 0 .. 7, and 0 .. 7 become -8 .. -1.
  if (symmetric)
    for (int64_t i = 0; i < bytes.num_elements(); ++i) values[i] ^= static_cast<uint8_t>(1U << (bits - 1));
  if (bits == 8) return Tensor(symmetric ? DType::int8 : DType::uint8, bytes.shape(), bytes.storage());
  const Tensor packed = packed_rows(values, 1, bytes.num_elements(), bytes.num_elements(), bits, 0);
  return Tensor(symmetric ? DType::int4 : DType::uint4, bytes.shape(), packed.storage());
}

StoredBlocks add_blocks(Plan& plan, const onnx::NodeDef& node) {
  const QuantizeOptions& o = plan.options;
  const Tensor matrix = product_weights(plan.editor, node, true);
  const int64_t N = matrix.shape()[0], K = matrix.shape()[1];
  BlockedWeights w = blocked_weights(matrix.data<float>(), N, K, o.weight_bits, o.block_size, o.symmetric);
  const std::string& name = node.inputs[1];
  const std::string kind = fmt::format("{}_Q{}", name, w.bits);
  StoredBlocks stored{{}, {}, {}, K, N, w.sqnr_db};
  if (o.format == WeightFormat::matmul_nbits) {
    const auto middle = static_cast<uint8_t>(1U << (w.bits - 1));
    const Tensor rows = packed_rows(w.codes.data(), N, K, w.blocks * w.block_size, w.bits, middle);
    stored.codes = plan.editor.add(kind, rows.reshaped(Shape{N, w.blocks, w.block_size * w.bits / 8}));
    stored.scales = plan.editor.add(name + "_scales", Tensor::vector<float>(w.scales));
    if (!o.symmetric) {
      const Tensor zeros = packed_rows(w.zeros.data(), N, w.blocks, w.blocks, w.bits, middle);
      stored.zeros = plan.editor.add(name + "_zero_points", zeros.reshaped(Shape{zeros.num_elements()}));
    }
    return stored;
  }
  stored.codes = plan.editor.add(kind, onnx_codes(w.codes, N, K, w.bits, o.symmetric));
  stored.scales = plan.editor.add(name + "_scales", transposed(w.scales, N, w.blocks));
  if (!o.symmetric) stored.zeros = plan.editor.add(name + "_zero_points", onnx_codes(w.zeros, N, w.blocks, w.bits, false));
  return stored;
}

}  // namespace

void quantize_weights(Plan& plan) {
  Editor& editor = plan.editor;
  const QuantizeOptions& o = plan.options;
  std::map<std::string, StoredBlocks> weights;
  replace_nodes(plan, [&](const onnx::NodeDef& node, QuantizedNode& entry, std::vector<onnx::NodeDef>& result) {
    auto [at, is_new] = weights.try_emplace(weights_key(node));
    if (is_new) at->second = add_blocks(plan, node);
    const StoredBlocks& w = at->second;
    entry.weight_sqnr_db = w.sqnr_db;
    const std::string product = product_name(editor, node);
    std::vector<std::string> codes{w.codes, w.scales};
    if (!w.zeros.empty()) codes.push_back(w.zeros);
    if (o.format == WeightFormat::matmul_nbits) {
      codes.insert(codes.begin(), node.inputs[0]);
      result.push_back(make_node("MatMulNBits", std::move(codes), {product}, node.name, "com.microsoft"));
      set_attribute(result.back(), "K", w.K);
      set_attribute(result.back(), "N", w.N);
      set_attribute(result.back(), "bits", o.weight_bits);
      set_attribute(result.back(), "block_size", o.block_size);
    } else {
      const std::string dequantized = editor.unique(node.inputs[1] + "_dequantized");
      result.push_back(make_node("DequantizeLinear", std::move(codes), {dequantized}, editor.unique(entry.name + "_DequantizeLinear")));
      set_attribute(result.back(), "axis", 0);
      set_attribute(result.back(), "block_size", o.block_size);
      result.push_back(make_node("MatMul", {node.inputs[0], dequantized}, {product}, node.name));
    }
    add_gemm_bias(editor, node, product, result);
  });
  if (o.format == WeightFormat::matmul_nbits)
    editor.require_opset("com.microsoft", 1);
  else
    editor.require_opset("", 21);
}

}  // namespace treadle::quantization
