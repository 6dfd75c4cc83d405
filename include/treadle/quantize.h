// Quantisation: a model of float32 into a model file of 8- or 4-bit numbers, in operators that other runtimes take as well.
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
  dynamic,  ///< products only: int8 weights, activations quantised in every run (DynamicQuantizeLinear, MatMulInteger)
  qdq,      ///< int8 weights and 8-bit activations with ranges from calibration data (QuantizeLinear, DequantizeLinear)
  weights,  ///< weights of products in 8 or 4 bits, in blocks with a scale each; activations stay float32
};
enum class CalibrationMethod : uint8_t {
  minmax,      ///< the least and the largest value seen
  percentile,  ///< what is left when QuantizeOptions::percentile of the values are to stay inside
  entropy,     ///< the range whose quantised histogram tells least from the true one (Kullback and Leibler's divergence)
};
enum class WeightFormat : uint8_t {
  qdq,           ///< DequantizeLinear with block_size (opset 21) before MatMul: ONNX's own operators
  matmul_nbits,  ///< com.microsoft's MatMulNBits
};

struct QuantizeOptions {
  QuantizeMode mode = QuantizeMode::dynamic;
  /// Which operators: of Conv, Gemm, MatMul. Empty: all that the mode can.
  std::vector<std::string> op_types;
  std::vector<std::string> include, exclude;  ///< shell patterns (* and ?) over names of nodes; no `include`: all
  int64_t skip_first = 0, skip_last = 0;      ///< so many of the nodes that would be taken stay float
  int64_t min_weight_elements = 256;          ///< products with smaller weights stay float: nothing is gained
  bool per_channel = true;                    ///< int8 weights: a scale for each output channel; false: one for each tensor
  bool reduce_range = false;                  ///< int8 weights of 7 bits, for machines whose 8-bit products saturate (AVX2 without VNNI)
  DType activation_dtype = DType::uint8;      ///< qdq: uint8 or int8
  CalibrationMethod method = CalibrationMethod::minmax;
  double percentile = 99.999;                        ///< of the values, both tails together
  int weight_bits = 4;                               ///< weights: 4 or 8
  int64_t block_size = 32;                           ///< weights: 16, 32, 64, 128 or 256 along the inner dimension
  bool symmetric = true;                             ///< weights: no zero points
  WeightFormat format = WeightFormat::matmul_nbits;  ///< weights
  /// Folds constants and batch normalisation before anything is quantised, always so with qdq. False: the file's nodes stay as they are,
  /// unless its opset is too old for the result.
  bool preprocess = false;
  /// So many of the calibration samples are kept to compare the results of the two models; 0: no comparison.
  int64_t compared_samples = 4;
};

/// One operator that the mode could quantise.
struct QuantizedNode {
  std::string name, op_type, output;
  bool quantized = false;
  std::string reason;  ///< why not
  /// 10 log10(signal / noise) of the stored weights, in dB; NaN where the node was left alone.
  double weight_sqnr_db = std::numeric_limits<double>::quiet_NaN();
  /// The same of its output in the quantised model against the float model, over the compared samples: what all nodes before it did is
  /// part of it. NaN without samples.
  double output_sqnr_db = std::numeric_limits<double>::quiet_NaN();
};
struct QuantizedOutput {
  std::string name;
  /// As QuantizedNode::output_sqnr_db. NaN: the output has other extents than the float model's.
  double sqnr_db = 0, largest_difference = 0, largest_value = 0;
};
struct QuantizeReport {
  std::vector<QuantizedNode> nodes;
  std::vector<QuantizedOutput> outputs;      ///< float ones, if there were samples
  size_t bytes_before = 0, bytes_after = 0;  ///< of the weights
  int64_t calibration_samples = 0, compared_samples = 0;
  /// What makes the new model unfit for use, a sentence each: outputs, or if none were compared weights, whose error exceeds a third of the
  /// signal (10 dB), and the node where it begins.
  TREADLE_API std::vector<std::string> warnings() const;
  /// A table, worst node first, and the warnings.
  TREADLE_API std::string to_text() const;
};

/// Gives the next sample by the names of the inputs; false at the end.
using CalibrationSource = std::function<bool(std::map<std::string, Datum>&)>;

struct QuantizeResult {
  Model model;
  QuantizeReport report;
};

/// @param calibration  needed for qdq; in the other modes its samples only serve the comparison.
/// @throws Error(invalid_argument) for options that contradict, qdq without samples, or a calibration value that is not finite;
///   Error(not_implemented) for a model that this build cannot run.
TREADLE_API QuantizeResult quantize(const Model& model, const QuantizeOptions& options, const CalibrationSource& calibration = {});

}  // namespace treadle
