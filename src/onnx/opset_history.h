// The schemas of each version of each ONNX operator: attributes, operands and types. Generated from the onnx package, and used to find the
// lowest opset in which a graph can be written.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace treadle::onnx {

struct SchemaVersion {
  std::string_view domain, name;
  int16_t since;
  int8_t num_inputs, num_outputs;
  bool variadic_inputs, variadic_outputs;  // true if the last input or output may be repeated
  uint8_t inputs[16], outputs[16];         // index for type_mask() of each input and output
  std::string_view attributes;             // names of the attributes, separated by spaces
};

/// Returns all schema versions, sorted by domain, name and version. For ai.onnx, it omits versions that ended before opset 11.
std::span<const SchemaVersion> schema_history();

/// Returns the accepted types as a mask: bit d for tensors of DType d; bits 40 to 43 for sequences, optionals, maps and sparse tensors.
uint64_t type_mask(int index);

}  // namespace treadle::onnx
