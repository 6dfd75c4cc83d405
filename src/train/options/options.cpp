#include "train/options/options.h"

#include <fmt/format.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "core/base/nearest.h"
#include "session/options.h"
#include "train/graph/initialization.h"
#include "train/graph/losses.h"
#include "train/graph/optimizers.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using O = TrainerOptions;
using Rows = std::vector<Option<O>>;

constexpr double kMostNumber = 1e30, kMostLoraRank = 1 << 16;
constexpr double kLeastScale = 1e-37, kMostScale = 1e37;  // bounds for which the scale and its inverse are float32 numbers
constexpr std::string_view kPatterns = "names or patterns (* and ?), separated by \",\"";

// Returns an accessor for a member of the options, also for one of a nested struct, as in part<&O::schedule, &Schedule::gamma>().
template <auto... Path>
constexpr auto part() {
  using T = std::remove_reference_t<decltype((std::declval<O&>().*....*Path))>;
  return PartMember<O, T>{[](O& o) -> T& { return (o.*....*Path); }};
}

std::string no_text(const O&) { return {}; }

// Describes a trainer option that has the name and range of a session option, but its own text.
OptionInfo of_session(std::string_view name, OptionText text) {
  for (const Option<SessionOptions>& row : session_option_table().rows())
    if (row.name == name) return {.name = row.name, .text = text, .least = row.least, .most = row.most, .also = row.also};
  throw Error(ErrorCode::internal, fmt::format("there is no option {}", name));
}

Rows loss_rows() {
  static const std::string kText = [] {
    std::string names;
    for (const LossRow& row : all_losses())
      if (row.labels != LossLabels::of_model) names += std::string(row.name) + ", ";
    return "loss: " + names + "or an ONNX file: a graph of the loss, whose first input takes the scores and the next the labels";
  }();
  return {
      {{.name = "loss", .type = "name or path", .text = kText.c_str()},
       TextMember<O>{[](const O& o) { return std::string(name_of(o.loss)); }, set_loss}},
      {{.name = "output", .text = "output, or another value, to compute the loss from; the first output if not given"}, part<&O::output>()},
      {{.name = "int32_labels", .text = "labels are int32"}, part<&O::int32_labels>()},
      {{.name = "class_axis", .text = "axis of the classes in the scores; -1 for language models"}, part<&O::class_axis>()},
      {{.name = "ignore_index", .text = "label that does not count"}, part<&O::ignore_index>()},
      {{.name = "class_weights", .text = "a weight for each class; 1 each if not given", .least = 0, .most = kMostNumber},
       part<&O::class_weights>()},
      {{.name = "label_smoothing", .text = "label smoothing", .least = 0, .most = 1}, part<&O::label_smoothing>()},
      {{.name = "huber_delta",
        .text = "distance at which huber changes from squared to absolute; 1 if not given",
        .least = 0,
        .most = kMostNumber},
       part<&O::huber_delta>()},
      {{.name = "blank", .text = "class that is no label, of ctc; 0 if not given", .least = 0}, part<&O::blank>()},
  };
}

Rows optimizer_rows() {
  static const std::string kNames = optimizer_names();
  return {
      {{.name = "optimizer", .type = kNames, .text = "optimizer, with PyTorch's formulas"},
       TextMember<O>{[](const O& o) { return std::string(name_of(o.optimizer)); },
                     [](O& o, const std::string& name) { o.optimizer = optimizer_named(name); }}},
      {{.name = "learning_rate", .text = "learning rate, before the schedule", .least = 0, .most = kMostNumber}, part<&O::learning_rate>()},
      {{.name = "momentum", .text = "momentum of sgd and rmsprop; 0 if not given", .least = 0, .most = kMostNumber}, part<&O::momentum>()},
      {{.name = "weight_decay", .text = "weight decay; if not given 0, for adamw 0.01", .least = 0, .most = kMostNumber},
       part<&O::weight_decay>()},
      {{.name = "nesterov", .text = "Nesterov momentum, for sgd"}, part<&O::nesterov>()},
      {{.name = "beta1", .text = "first beta of adam, adamw, lion and lamb; 0.9 if not given", .least = 0, .most = 1, .below_most = true},
       part<&O::beta1>()},
      {{.name = "beta2",
        .text = "second beta of adam, adamw, lion and lamb; if not given 0.999, for lion 0.99",
        .least = 0,
        .most = 1,
        .below_most = true},
       part<&O::beta2>()},
      {{.name = "epsilon",
        .text = "epsilon of adam, adamw, adagrad, rmsprop and lamb; if not given 1e-8, for adagrad 1e-10, for lamb 1e-6",
        .least = 0,
        .most = kMostNumber},
       part<&O::epsilon>()},
      {{.name = "smoothing", .text = "smoothing of rmsprop (PyTorch's alpha); 0.99 if not given", .least = 0, .most = 1},
       part<&O::smoothing>()},
  };
}

Rows gradient_rows() {
  using L = LossScaling;
  return {
      {{.name = "init_scale",
        .text = "first scale of the loss, with float16 in the session's precision; 65536 if not given",
        .least = kLeastScale,
        .most = kMostScale},
       part<&O::loss_scaling, &L::init_scale>()},
      {{.name = "growth_factor", .text = "factor by which that scale grows; 2 if not given", .least = 1, .most = kMostScale},
       part<&O::loss_scaling, &L::growth_factor>()},
      {{.name = "backoff_factor",
        .text = "factor of the scale after a step with an infinite or NaN gradient, which is skipped; 0.5 if not given",
        .least = kLeastScale,
        .most = 1},
       part<&O::loss_scaling, &L::backoff_factor>()},
      {{.name = "growth_interval", .text = "updates without such a step before the scale grows; 2000 if not given", .least = 1},
       part<&O::loss_scaling, &L::growth_interval>()},
      {{.name = "clip_value", .text = "clip each gradient to -VALUE..VALUE; 0: not", .least = 0, .most = kMostNumber},
       part<&O::clip_value>()},
      {{.name = "clip_norm", .text = "scale all gradients together down to this norm; 0: not", .least = 0, .most = kMostNumber},
       part<&O::clip_norm>()},
      {{.name = "accumulation_steps", .text = "number of steps that make one update, by the mean of their gradients", .least = 1},
       part<&O::accumulation_steps>()},
      {{.name = "ema_decay",
        .text = "decay of an exponential average of the parameters, which is then validated and saved; 0: none is kept",
        .least = 0,
        .most = 1,
        .below_most = true},
       part<&O::ema_decay>()},
      {{.name = "ema_statistics", .text = "average running statistics as well (PyTorch's use_buffers)"}, part<&O::ema_statistics>()},
      {{.name = "lazy_updates", .type = kPatterns, .text = "tables of which an update touches only the rows that were read"},
       part<&O::lazy_updates>()},
  };
}

Rows schedule_rows() {
  using S = Schedule;
  static const std::string kNames = schedule_names();
  return {
      {{.name = "schedule", .type = kNames, .text = "schedule of the learning rate"},
       TextMember<O>{[](const O& o) { return std::string(name_of(o.schedule.kind)); },
                     [](O& o, const std::string& name) { o.schedule.kind = schedule_named(name); }}},
      {{.name = "warmup_steps", .text = "updates during which the rate rises", .least = 0}, part<&O::schedule, &S::warmup_steps>()},
      {{.name = "total_steps",
        .text = "updates of cosine, linear and one_cycle; on the command line all of --epochs if not given",
        .least = 0},
       part<&O::schedule, &S::total_steps>()},
      {{.name = "step_size", .text = "updates between two reductions by the schedule step", .least = 0},
       part<&O::schedule, &S::step_size>()},
      {{.name = "gamma", .text = "factor of each reduction by the schedule step; 0.1 if not given", .least = 0, .most = kMostNumber},
       part<&O::schedule, &S::gamma>()},
      {{.name = "final_factor", .text = "final factor of cosine and linear; 0 if not given", .least = 0, .most = kMostNumber},
       part<&O::schedule, &S::final_factor>()},
  };
}

Rows parameter_rows() {
  return {
      {{.name = "lora_seed", .text = "seed of the adapters' first values", .least = 0}, part<&O::lora, &LoraOptions::seed>()},
      {{.name = "group", .python = "groups", .type = kGroupForm, .text = "settings for these parameters; may be repeated"},
       TextMember<O>{no_text, add_group}},
      {{.name = "parameters", .type = kPatterns, .text = "initializers to train; all if not given"}, part<&O::parameters>()},
      {{.name = "frozen", .type = kPatterns, .text = "initializers not to train"}, part<&O::frozen>()},
      {{.name = "untied", .type = kPatterns, .text = "initializers that an exporter merged: each node that reads one gets its own"},
       part<&O::untied>()},
      {{.name = "initialize",
        .type = kInitializeForm,
        .text = "parameters that begin with random values (zeros, ones, normal, uniform, xavier_normal, xavier_uniform, kaiming_normal, "
                "kaiming_uniform); may be repeated"},
       TextMember<O>{no_text, add_initialization}},
      {{.name = "initialization_seed", .text = "seed of these values, and of head", .least = 0}, part<&O::initialization_seed>()},
      {{.name = "dynamic_batch", .text = "let a model that states one batch size take any; so does the saved one"},
       part<&O::dynamic_batch>()},
      {{.name = "head",
        .text = "replace the last layer by a new one of this many classes, which begins with random values; 0: not",
        .least = 0},
       part<&O::head_classes>()},
  };
}

Rows lora_rows() {
  using L = LoraOptions;
  return {
      {{.name = "lora_rank",
        .text = "train adapters of this rank beside frozen weights; the output has them merged; 0: none",
        .least = 0,
        .most = kMostLoraRank},
       part<&O::lora, &L::rank>()},
      {{.name = "lora_alpha",
        .text = "factor of the adapters, divided by the rank; the rank if not given",
        .least = -kMostNumber,
        .most = kMostNumber},
       part<&O::lora, &L::alpha>()},
      {{.name = "lora_dropout", .text = "dropout of what the adapters read", .least = 0, .most = 1, .below_most = true},
       part<&O::lora, &L::dropout>()},
      {{.name = "lora_targets", .type = kPatterns, .text = "weights, or nodes that read them; all of MatMul and Gemm if not given"},
       part<&O::lora, &L::targets>()},
  };
}

Rows memory_rows() {
  return {
      {of_session("memory_fraction",
                  "share of what a step's activations take otherwise; steps compute values twice or write them to a file; 0: no limit"),
       part<&O::session, &SessionOptions::memory_fraction>()},
      {of_session("recompute_fraction",
                  "share of a step's time, as estimated, that may go into values which are computed twice, for less memory; -1: up to 0.1, "
                  "as far as it pays"),
       part<&O::session, &SessionOptions::recompute_fraction>()},
      {{.name = "fused_update", .text = "update all parameters, which then lie one after the other, in one node; the same bits"},
       part<&O::fused_update>()},
      {{.name = "early_updates", .text = "update each parameter as soon as its gradient is there"}, part<&O::early_updates>()},
  };
}

constexpr OptionChoice kReductions[] = {{"float32", static_cast<int>(DType::float32)}, {"bfloat16", static_cast<int>(DType::bfloat16)}};

Rows rank_rows() {
  return {
      {{.name = "communicator",
        .text = "how processes that train together find each other: a name that a plugin has registered, such as mpi"},
       part<&O::communicator_name>()},
      {{.name = "communicator_deadline_s", .text = "seconds after which a process that does not answer ends the others", .least = 0},
       part<&O::communicator_deadline_s>()},
      {{.name = "bucket_bytes",
        .text = "size of the parts in which gradients are reduced, while the next are computed",
        .least = 1,
        .form = OptionForm::bytes},
       part<&O::bucket_bytes>()},
      {{.name = "reduction", .text = "dtype in which gradients travel and are added", .choices = kReductions},
       choice_member<&O::reduction, O>()},
      {{.name = "shard_optimizer", .text = "each process keeps the optimizer's state of its share of the parameters (ZeRO 1)"},
       part<&O::shard_optimizer>()},
  };
}

Rows joined(std::initializer_list<Rows (*)()> parts) {
  Rows rows;
  for (auto part : parts)
    for (Option<O>& row : part()) rows.push_back(std::move(row));
  return rows;
}

Rows step_rows() { return joined({loss_rows, optimizer_rows, gradient_rows, schedule_rows, lora_rows}); }

}  // namespace

const OptionTable<TrainerOptions>& trainer_option_table() {
  static const OptionTable<TrainerOptions> table(joined({step_rows, parameter_rows, memory_rows, rank_rows}));
  return table;
}

std::span<const Option<TrainerOptions>> step_options() {
  static const size_t count = step_rows().size();
  return trainer_option_table().rows().first(count);
}

const OptionTable<ParameterGroup>& group_table() {
  using G = ParameterGroup;
  static const OptionTable<G> table({
      {{.name = "rate_factor", .text = "factor of the learning rate", .least = 0, .most = kMostNumber}, &G::rate_factor},
      {{.name = "weight_decay", .text = "weight decay; the trainer's if not given", .least = 0, .most = kMostNumber}, &G::weight_decay},
  });
  return table;
}

const OptionTable<Initialization>& initialization_table() {
  using I = Initialization;
  static const OptionTable<I> table({
      {{.name = "initializer", .text = "name of the distribution"},
       TextMember<I>{[](const I& i) { return std::string(name_of(i.initializer)); },
                     [](I& to, const std::string& name) { to.initializer = initializer_named(name); }}},
      {{.name = "scale", .text = "factor of it", .least = -kMostNumber, .most = kMostNumber}, &I::scale},
  });
  return table;
}

std::string trainer_options_markdown() { return trainer_option_table().markdown(TrainerOptions()); }

}  // namespace treadle::train
