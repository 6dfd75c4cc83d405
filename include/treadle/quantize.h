// Quantization: converts a float32 model to one with 8- or 4-bit numbers, using operators that other runtimes support as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "treadle/datum.h"
#include "treadle/export.h"
#include "treadle/model.h"

namespace treadle {

enum class QuantizeMode : uint8_t {
  dynamic,  ///< matrix products only: int8 weights, activations quantized in each run (DynamicQuantizeLinear, MatMulInteger)
  qdq,      ///< int8 weights, and 8-bit activations with ranges from calibration (QuantizeLinear, DequantizeLinear)
  weights,  ///< weights of matrix products in 8 or 4 bits, in blocks with one scale each; activations stay float32
};
enum class CalibrationMethod : uint8_t {
  minmax,      ///< minimum and maximum of the values seen
  percentile,  ///< the range that contains QuantizeOptions::percentile of the values
  entropy,     ///< the range whose quantized histogram has the smallest Kullback-Leibler divergence from the true one
};
enum class WeightFormat : uint8_t {
  qdq,           ///< DequantizeLinear with block_size (opset 21) before MatMul: ONNX's own operators
  matmul_nbits,  ///< the operator MatMulNBits of the domain com.microsoft
};

struct QuantizeOptions {
  QuantizeMode mode = QuantizeMode::dynamic;
  /// Operators to quantize: Conv, Gemm, MatMul. If empty, all operators that the mode supports.
  std::vector<std::string> op_types;
  std::vector<std::string> include, exclude;  ///< shell patterns (* and ?) over node names; empty `include`: all
  int64_t skip_first = 0, skip_last = 0;      ///< numbers of selected nodes that stay float: the first ones, and the last ones
  int64_t min_weight_elements = 256;          ///< products with fewer weights stay float, since nothing is gained
  bool per_channel = true;                    ///< int8 weights: one scale per output channel; false: one per tensor
  bool reduce_range = false;                  ///< int8 weights use 7 bits, for machines whose 8-bit products saturate (AVX2 without VNNI)
  DType activation_dtype = DType::uint8;      ///< element type for qdq: uint8 or int8
  CalibrationMethod method = CalibrationMethod::minmax;
  double percentile = 99.999;  ///< percentage of the values that the range contains; the rest lies beyond its two ends
  int weight_bits = 4;         ///< mode weights: 4 or 8
  int64_t block_size = 32;     ///< mode weights: 16, 32, 64, 128 or 256 along the inner dimension
  bool symmetric = true;       ///< mode weights: true: weights have no zero points
  WeightFormat format = WeightFormat::matmul_nbits;  ///< used by the mode `weights`
  /// Folds constants and batch normalization first; mode qdq always does. False: nodes that are not quantized stay unchanged, unless the
  /// opset is too old for the result.
  bool preprocess = false;
  /// Number of calibration samples on which the results of both models are compared; 0: they are not compared.
  int64_t compared_samples = 4;
};

/// An operator that the mode could quantize.
struct QuantizedNode {
  std::string name, op_type, output;
  bool quantized = false;
  std::string reason;  ///< reason if it was not quantized
  /// 10 log10(signal / noise) of the stored weights, in dB; NaN if the node was not quantized.
  double weight_sqnr_db = std::numeric_limits<double>::quiet_NaN();
  /// Like weight_sqnr_db, for the node's output in the quantized model compared with the float model, over the compared samples. Includes
  /// the errors of all earlier nodes. NaN without samples.
  double output_sqnr_db = std::numeric_limits<double>::quiet_NaN();
};
struct QuantizedOutput {
  std::string name;
  /// Like QuantizedNode::output_sqnr_db. NaN if the output's extents differ from those of the float model.
  double sqnr_db = 0, largest_difference = 0, largest_value = 0;
};
struct QuantizeReport {
  std::vector<QuantizedNode> nodes;
  std::vector<QuantizedOutput> outputs;      ///< floating-point outputs, if there were samples
  size_t bytes_before = 0, bytes_after = 0;  ///< bytes of the weights
  int64_t calibration_samples = 0, compared_samples = 0;
  /// Returns sentences about a model that is unfit for use: outputs (or weights, if no outputs were compared) whose error exceeds a third
  /// of the signal (10 dB), and the node where the error begins.
  TREADLE_API std::vector<std::string> warnings() const;
  /// Returns a table, worst node first, and the warnings.
  TREADLE_API std::string to_text() const;
};

/// Writes the next sample into the map, by input names. Returns false at the end.
using CalibrationSource = std::function<bool(std::map<std::string, Datum>&)>;

struct QuantizeResult {
  Model model;
  QuantizeReport report;
};

/// Quantizes a model. @param calibration  samples, required for qdq; otherwise used only for the comparison
/// @throws Error(invalid_argument) for contradictory options, qdq without samples, or a calibration value that is not finite;
///   Error(not_implemented) for a model that this build cannot run
TREADLE_API QuantizeResult quantize(const Model& model, const QuantizeOptions& options, const CalibrationSource& calibration = {});

}  // namespace treadle
