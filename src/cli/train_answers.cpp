#include "cli/train_answers.h"

namespace treadle::cli {

using train::Loss;

bool has_classes(Loss loss) { return loss == Loss::softmax_cross_entropy || loss == Loss::negative_log_likelihood; }

namespace {

template <typename T>
int64_t label_at(const Tensor& labels, int64_t i) {
  return static_cast<int64_t>(labels.data<T>()[i]);
}

RightAnswers count_classes(const Tensor& scores, const Tensor& labels, const train::TrainerOptions& options) {
  const int rank = scores.shape().rank(), axis = options.class_axis < 0 ? options.class_axis + rank : options.class_axis;
  const int64_t classes = scores.shape()[axis], outer = scores.shape().product(0, axis), inner = scores.shape().product(axis + 1, rank);
  RightAnswers answers;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      const int64_t at = o * inner + i;
      const int64_t label = labels.dtype() == DType::int32 ? label_at<int32_t>(labels, at) : label_at<int64_t>(labels, at);
      if (options.ignore_index && label == *options.ignore_index) continue;
      const float* first = scores.data<float>() + o * classes * inner + i;
      int64_t best = 0;
      for (int64_t c = 1; c < classes; ++c)
        if (first[c * inner] > first[best * inner]) best = c;
      answers.right += best == label, ++answers.all;
    }
  return answers;
}

}  // namespace

RightAnswers count_right(const Tensor& scores, const Tensor& labels, const train::TrainerOptions& options) {
  if (scores.dtype() != DType::float32) return {};
  if (has_classes(options.loss)) return count_classes(scores.contiguous(), labels.contiguous(), options);
  if (options.loss != Loss::binary_cross_entropy_with_logits) return {};
  RightAnswers answers{.all = scores.num_elements()};
  const Tensor dense = scores.contiguous();
  for (int64_t i = 0; i < answers.all; ++i) answers.right += (dense.data<float>()[i] > 0) == (labels.data<float>()[i] > 0.5F);
  return answers;
}

}  // namespace treadle::cli
