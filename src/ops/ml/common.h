// Helpers for the operators of ai.onnx.ml: inputs, rows and columns of a batch, class labels.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::ops {

inline constexpr TypeSet kMlNumbers{DType::float32, DType::float64, DType::int32, DType::int64};
inline constexpr TypeSet kLabels{DType::int64, DType::string};
inline constexpr std::string_view kMlDomain = "ai.onnx.ml";

/// Returns the numbers of rows and columns of X [N, C]. A vector X is one row.
inline std::pair<int64_t, int64_t> rows_and_columns(const Shape& shape) {
  if (shape.rank() == 1) return {1, shape[0]};
  if (shape.rank() == 2) return {shape[0], shape[1]};
  throw Error(ErrorCode::invalid_argument, fmt::format("X has the shape {}; expected [N, C] or [C]", to_string(shape)));
}

/// Returns the extent N of X [N, C].
inline Dim num_rows(InferContext& c) {
  if (!c.has_rank(0)) return c.data_dependent_dim("rows");
  if (c.rank(0) == 1) return Dim(1);
  if (c.rank(0) == 2) return c.shape(0)[0];
  throw Error(ErrorCode::invalid_argument, fmt::format("X has the shape {}; expected [N, C] or [C]", to_string(c.shape(0))));
}

/// Sets the shape of output `i`, for X [N, C], to [N] or, if `columns` is given, to [N, columns].
inline void set_row_output(InferContext& c, int i, DType dtype, std::optional<Dim> columns = std::nullopt) {
  const Dim rows = num_rows(c);
  c.set_output(i, dtype, columns ? SymbolicShape{rows, *columns} : SymbolicShape{rows});
}

/// The labels of a classifier: integers or strings. If the model has neither, the labels are the class indices.
struct ClassLabels {
  std::vector<int64_t> ints;
  std::vector<std::string> strings;

  static ClassLabels of(const Attributes& attributes, std::string_view ints_name) {
    ClassLabels labels{attributes.get_ints(ints_name), attributes.get_strings("classlabels_strings")};
    if (!labels.ints.empty() && !labels.strings.empty())
      throw Error(ErrorCode::invalid_model, fmt::format("both {} and classlabels_strings are given", ints_name));
    return labels;
  }
  int64_t count() const { return static_cast<int64_t>(std::max(ints.size(), strings.size())); }
  DType dtype() const { return strings.empty() ? DType::int64 : DType::string; }

  void write(RunContext& c, int output, int64_t row, int64_t index) const {
    auto i = static_cast<size_t>(index);
    if (!strings.empty())
      c.out<std::string>(output)[row] = i < strings.size() ? strings[i] : std::string();
    else
      c.out<int64_t>(output)[row] = i < ints.size() ? ints[i] : index;
  }
};

}  // namespace treadle::ops
