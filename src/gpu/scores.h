// Computes the results of ai.onnx.ml's classifiers and regressors from scores.
#pragma once

#include <vector>

#include "gpu/device_data.h"
#include "gpu/launch.h"
#include "kernels/classical/scores.h"
#include "ops/ml/common.h"

namespace treadle::gpu {

/// The shader scores.comp for one node, with the constants that it reads.
struct ScoreShader {
  enum class Kind : uint32_t { regression, trees, linear };  // kinds of models, with their numbers in scores.comp
  enum Flag : uint32_t { has_y = 1, wide_y = 2, has_labels = 4, probabilities = 8, only_first = 16, only_second = 32 };

  const vulkan::Shader* shader = nullptr;
  DType numbers = DType::float32;  ///< float32 or float64
  uint32_t flags = 0;              ///< the flags of the shader, except has_y
  size_t base = 0, labels = 0;     ///< offsets in the node's device data
  int64_t num_base = 0, num_labels = 0;

  ScoreShader() = default;
  /// Adds the labels to the device data.
  ScoreShader(Kind kind, DType dtype, kernels::PostTransform transform, const ops::ClassLabels& classes, DeviceData& data);

  /// Rows of scores. @param scores  memory with the shape [rows, stride]. The first `count` columns are given, the first `columns` are the
  /// results, and the contents are overwritten
  struct Rows {
    void* scores;
    int64_t rows, stride, count, columns;
  };
  void dispatch(const Rows& rows, const std::byte* data, void* y, void* labels) const;
};

/// Returns the type in which a node computes: float64 if X has it, otherwise float32.
inline DType numbers_of(DType x) { return x == DType::float64 ? DType::float64 : DType::float32; }

/// Returns true for types that convert_elements() can convert to float32 and float64.
inline bool is_ml_number(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::int32 || dtype == DType::int64;
}

}  // namespace treadle::gpu
