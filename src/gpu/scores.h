// Computes the results of classifiers and regressors of ai.onnx.ml from their scores.
#pragma once

#include <vector>

#include "gpu/device_data.h"
#include "gpu/launch.h"
#include "kernels/classical/scores.h"
#include "ops/ml/common.h"

namespace treadle::gpu {

/// The shader scores.comp as compiled for one node, with the parameters that it reads.
struct ScoreShader {
  enum class Kind : uint32_t { regression, trees, linear };  // kinds of models, with their numbers in scores.comp
  enum Flag : uint32_t { has_y = 1, wide_y = 2, has_labels = 4, probabilities = 8, only_first = 16, only_second = 32 };

  const vulkan::Shader* shader = nullptr;
  DType numbers = DType::float32;  ///< dtype in which scores are computed: float32 or float64
  uint32_t flags = 0;              ///< the flags of the shader, except has_y
  size_t base = 0, labels = 0;     ///< offsets of the base values and labels in the device data
  int64_t num_base = 0, num_labels = 0;

  ScoreShader() = default;
  /// Also adds the labels of the classes to the device data.
  ScoreShader(Kind kind, DType dtype, kernels::PostTransform transform, const ops::ClassLabels& classes, DeviceData& data);

  /// Rows of scores, in memory of the shape [rows, stride], which is overwritten. Of each row, the first `count` scores are given, and the
  /// first `columns` become the results.
  struct Rows {
    void* scores;
    int64_t rows, stride, count, columns;
  };
  void dispatch(const Rows& rows, const std::byte* data, void* y, void* labels) const;
};

/// Returns the dtype in which a node computes: float64 if X is float64, otherwise float32.
inline DType numbers_of(DType x) { return x == DType::float64 ? DType::float64 : DType::float32; }

/// Returns true for the dtypes that convert_elements() can convert to float32 and float64.
inline bool is_ml_number(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::int32 || dtype == DType::int64;
}

}  // namespace treadle::gpu
