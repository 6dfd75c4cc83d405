// What a trainer's steps are fed, for those who read data for it.
#include <algorithm>
#include <iterator>

#include "train/data/samples.h"
#include "treadle/data.h"

namespace treadle::train {

LabelForm label_form(const TrainerOptions& options, const Model& model) {
  if (options.loss == Loss::output) return {.dtype = DType::undefined};
  if (options.loss == Loss::softmax_cross_entropy || options.loss == Loss::negative_log_likelihood || options.loss == Loss::ctc)
    return {.dtype = options.int32_labels ? DType::int32 : DType::int64};
  if (options.loss == Loss::graph) {
    const std::optional<ValueInfo> labels = loss_inputs(model, options).labels;
    if (!labels) return {.dtype = DType::undefined};
    return {.dtype = labels->dtype, .extents = labels->has_rank ? std::optional(sample_extents(*labels)) : std::nullopt};
  }
  const std::vector<ValueInfo> outputs = model.outputs();
  const auto output = std::find_if(outputs.begin(), outputs.end(),
                                   [&](const ValueInfo& info) { return options.output.empty() || info.name == options.output; });
  if (output == outputs.end() || !output->has_rank) return {.dtype = DType::float32};
  return {.dtype = output->dtype, .extents = sample_extents(*output)};
}

std::vector<ValueInfo> fed_inputs(const TrainerOptions& options, const Model& model) {
  std::vector<ValueInfo> inputs = model.inputs();
  std::ranges::copy(loss_inputs(model, options).feeds, std::back_inserter(inputs));
  return inputs;
}

}  // namespace treadle::train
