// The states of the operators of ai.onnx.ml that look up values by keys. They are made when the session is created.
#pragma once

#include <utility>

#include "graph/kernel.h"
#include "ops/ml/lookup.h"

namespace treadle::ops {

/// Keys and the values they map to: the state of LabelEncoder and CategoryMapper nodes.
struct Mapping final : PackedState {
  Lookup keys;
  Tensor values, otherwise;

  Mapping(const Tensor& key_list, Tensor value_list, Tensor default_value, bool first = false)
      : keys(key_list, first), values(std::move(value_list)), otherwise(std::move(default_value)) {
    if (key_list.num_elements() != values.num_elements())
      throw Error(ErrorCode::invalid_model, fmt::format("{} keys for {} values", key_list.num_elements(), values.num_elements()));
  }
};

/// The state of a OneHotEncoder node.
struct CategoryLookup final : PackedState {
  Lookup lookup;
  explicit CategoryLookup(const Tensor& keys) : lookup(keys) {}
};

}  // namespace treadle::ops
