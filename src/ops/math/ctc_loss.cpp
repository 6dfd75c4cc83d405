// Implements CtcLoss and its gradient, operators of the treadle domain. The loss is minus the log of the probability that any alignment of
// the labels to the time steps occurs (Graves et al. 2006); a forward and a backward pass over states compute it. As in PyTorch, the mean
// divides each sample's loss by the number of its labels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/ctc.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kTypes{DType::float32, DType::float64};
constexpr double kNever = -std::numeric_limits<double>::infinity();

void check_shapes(InferContext& c, size_t scores) {
  if (c.has_rank(scores) && c.rank(scores) != 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("logarithms of probabilities are {}; [N, steps, classes] is expected", to_string(c.shape(scores))));
  if (c.has_rank(scores + 1) && c.rank(scores + 1) != 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("labels are {}; [N, length] is expected", to_string(c.shape(scores + 1))));
  if (c.has_rank(scores) && c.has_rank(scores + 1)) assume_equal(c.shape(scores)[0], c.shape(scores + 1)[0], "samples and their labels");
}

void infer_loss(InferContext& c) {
  check_shapes(c, 0);
  c.set_output(0, c.dtype(0), SymbolicShape{});
}

void infer_grad(InferContext& c) {
  check_shapes(c, 1);
  c.set_output(0, c.input(1));
}

double add_logarithms(double a, double b) {
  const double larger = std::max(a, b), smaller = std::min(a, b);
  return smaller == kNever ? larger : larger + std::log1p(std::exp(smaller - larger));
}

/// The alignments of one sample. L labels have 2 L + 1 states: the labels, with blanks before, between and after them.
template <typename T>
class Alignments {
 public:
  Alignments(const T* scores, std::vector<int64_t> states, int64_t steps, int64_t classes)
      : scores_(scores), states_(std::move(states)), steps_(steps), classes_(classes), count_(static_cast<int64_t>(states_.size())) {}

  /// Returns the logarithm of the summed probabilities of all alignments.
  double forward() {
    alpha_.assign(static_cast<size_t>(steps_ * count_), kNever);
    at(0, 0) = score(0, 0);
    if (count_ > 1) at(0, 1) = score(0, 1);
    for (int64_t t = 1; t < steps_; ++t)
      for (int64_t s = 0; s < count_; ++s) {
        double from = at(t - 1, s);
        if (s > 0) from = add_logarithms(from, at(t - 1, s - 1));
        if (skips(s)) from = add_logarithms(from, at(t - 1, s - 2));
        at(t, s) = from + score(t, s);
      }
    return count_ > 1 ? add_logarithms(at(steps_ - 1, count_ - 1), at(steps_ - 1, count_ - 2)) : at(steps_ - 1, 0);
  }

  /// Adds to `out`, for each step and class, `factor` times the probability of that class at that step. @pre forward() has run
  void add_occupancy(double total, double factor, T* out) {
    std::vector<double> beta(static_cast<size_t>(count_), kNever), next;
    beta.back() = 0;
    if (count_ > 1) beta[beta.size() - 2] = 0;
    for (int64_t t = steps_ - 1; t >= 0; --t) {
      for (int64_t s = 0; s < count_; ++s)
        out[t * classes_ + states_[static_cast<size_t>(s)]] +=
            static_cast<T>(factor * std::exp(at(t, s) + beta[static_cast<size_t>(s)] - total));
      if (t == 0) break;
      next.assign(beta.size(), kNever);
      for (int64_t s = 0; s < count_; ++s) {
        const double here = beta[static_cast<size_t>(s)] + score(t, s);
        for (int64_t back = 0; back <= std::min<int64_t>(s, skips(s) ? 2 : 1); ++back)
          next[static_cast<size_t>(s - back)] = add_logarithms(next[static_cast<size_t>(s - back)], here);
      }
      beta.swap(next);
    }
  }

 private:
  double& at(int64_t t, int64_t s) { return alpha_[static_cast<size_t>(t * count_ + s)]; }
  double score(int64_t t, int64_t s) const { return static_cast<double>(scores_[t * classes_ + states_[static_cast<size_t>(s)]]); }
  /// Returns true if a path may go to state s directly from state s - 2. It may skip a blank, but only between two different labels.
  bool skips(int64_t s) const { return s > 1 && s % 2 == 1 && states_[static_cast<size_t>(s)] != states_[static_cast<size_t>(s) - 2]; }

  const T* scores_;
  std::vector<int64_t> states_;
  int64_t steps_, classes_, count_;
  std::vector<double> alpha_;
};

struct Form {
  int64_t batch, steps, classes, length, blank, padding;
  bool pads, wide;

  static Form of(BindContext& c, size_t scores) {
    const Shape &shape = c.shape(scores), &labels = c.shape(scores + 1);
    Form form{shape[0],
              shape[1],
              shape[2],
              labels[1],
              c.get_int("blank", 0),
              c.get_int("ignore_index"),
              c.node().attributes.has("ignore_index"),
              c.dtype(scores + 1) == DType::int64};
    if (labels[0] != form.batch)
      throw Error(ErrorCode::invalid_argument, fmt::format("labels of {} samples for {}", labels[0], form.batch));
    if (form.blank < 0 || form.blank >= form.classes)
      throw Error(ErrorCode::invalid_argument, fmt::format("the blank is class {} of {}", form.blank, form.classes));
    return form;
  }

  /// Returns the CTC states of a sample: its labels with blanks before, between and after them. The list of labels ends before the first
  /// one that is negative or equals the padding value.
  std::vector<int64_t> states(RunContext& c, size_t input, int64_t n) const {
    std::vector<int64_t> found{blank};
    int64_t needed = 0;
    for (int64_t i = n * length; i < (n + 1) * length; ++i) {
      const int64_t label = wide ? c.in<int64_t>(input)[i] : c.in<int32_t>(input)[i];
      if (label < 0 || (pads && label == padding)) break;
      if (label >= classes || label == blank)
        throw Error(ErrorCode::invalid_argument, fmt::format("the label {} of sample {} is {}", label, n,
                                                             label == blank ? "the blank" : fmt::format("outside [0, {})", classes)));
      needed += 1 + (found.size() > 1 && found[found.size() - 2] == label);
      found.insert(found.end(), {label, blank});
    }
    if (needed > steps || steps == 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the labels of sample {} need {} steps, and there are {}; equal neighbours need a blank between them", n,
                              std::max<int64_t>(needed, 1), steps));
    return found;
  }
  static double labels_of(const std::vector<int64_t>& states) { return std::max(1.0, static_cast<double>(states.size() / 2)); }
};

template <typename T>
struct CtcLoss {
  Form form;

  static CtcLoss bind(BindContext& c) { return {Form::of(c, 0)}; }

  void run(RunContext& c) const {
    double sum = 0;
    for (int64_t n = 0; n < form.batch; ++n) {
      std::vector<int64_t> states = form.states(c, 1, n);
      const double labels = Form::labels_of(states);
      Alignments<T> alignments(c.in<T>(0) + n * form.steps * form.classes, std::move(states), form.steps, form.classes);
      sum -= alignments.forward() / labels;
    }
    *c.out<T>(0) = static_cast<T>(sum / static_cast<double>(form.batch));
  }
};

// Computes d loss / d log-probability[n, t, class], which is -(probability of the class at step t) / (number of labels * number of
// samples).
template <typename T>
struct CtcLossGrad {
  Form form;

  static CtcLossGrad bind(BindContext& c) { return {Form::of(c, 1)}; }

  void run(RunContext& c) const {
    const double flow = -static_cast<double>(*c.in<T>(0)) / static_cast<double>(form.batch);
    const int64_t size = form.steps * form.classes;
    parallel_for(c.pool(), form.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* out = c.out<T>(0) + n * size;
        std::fill_n(out, size, T{0});
        std::vector<int64_t> states = form.states(c, 2, n);
        const double labels = Form::labels_of(states);
        Alignments<T> alignments(c.in<T>(1) + n * size, std::move(states), form.steps, form.classes);
        const double total = alignments.forward();
        alignments.add_occupancy(total, flow / labels, out);
      }
    });
  }
};

Gradients gradient(GradientContext& g) {
  return {g.op("CtcLossGrad", {g.grad_output(0), g.input(0), g.input(1)}, g.attributes(), "treadle")};
}

Cost cost(const ShapeContext& c) {
  const double elements = static_cast<double>(c.num_elements(0)) + static_cast<double>(c.num_elements(1));
  return {20 * elements, 8 * elements};
}

}  // namespace

std::vector<OpDef> ctc_ops() {
  return {{.name = "CtcLoss",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"log_probabilities", kTypes, "T"}, {"labels", kInt32Or64}},
           .outputs = {{"loss", kTypes, "T"}},
           .attributes = {{"blank", int64_t{0}}, {"ignore_index"}},
           .infer = infer_loss,
           .cost = cost,
           .kernels = typed<CtcLoss, float, double>(),
           .gradient = gradient},
          {.name = "CtcLossGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dloss", kTypes, "T"}, {"log_probabilities", kTypes, "T"}, {"labels", kInt32Or64}},
           .outputs = {{"dlog_probabilities", kTypes, "T"}},
           .attributes = {{"blank", int64_t{0}}, {"ignore_index"}},
           .infer = infer_grad,
           .cost = cost,
           .kernels = typed<CtcLossGrad, float, double>()}};
}

}  // namespace treadle::ops
