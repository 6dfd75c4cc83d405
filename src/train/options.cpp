#include "train/options.h"

#include <fmt/format.h>

#include <charconv>
#include <type_traits>
#include <utility>

#include "core/nearest.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

[[noreturn]] void throw_bad_value(std::string_view name, const std::string& value, std::string_view wanted) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is \"{}\"; {} is expected", name, value, wanted));
}

template <typename T>
T trainer_number(std::string_view name, const std::string& value) {
  T number{};
  const char* const last = value.data() + value.size();
  const auto [end, failure] = std::from_chars(value.data(), last, number);
  if (failure != std::errc() || end != last) throw_bad_value(name, value, std::is_integral_v<T> ? "an integer" : "a number");
  return number;
}

bool trainer_flag(std::string_view name, const std::string& value) {
  if (value == "1" || value == "true") return true;
  if (value == "0" || value == "false") return false;
  throw_bad_value(name, value, "0, 1, true or false");
}

std::vector<std::string> parts_of(const std::string& value, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find(separator, at), value.size());
    if (end > at) parts.push_back(value.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

ParameterGroup parse_group(const std::string& value) {
  const std::vector<std::string> parts = parts_of(value, ';');
  ParameterGroup group;
  if (!parts.empty()) group.parameters = parts_of(parts[0], ',');
  if (group.parameters.empty()) throw_bad_value("group", value, "PATTERN,PATTERN;rate_factor=F;weight_decay=W");
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string name = parts[i].substr(0, equals), number = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    if (name == "rate_factor")
      group.rate_factor = trainer_number<double>(name, number);
    else if (name == "weight_decay")
      group.weight_decay = trainer_number<double>(name, number);
    else
      throw_bad_value("group", value, "PATTERN,PATTERN;rate_factor=F;weight_decay=W");
  }
  return group;
}

Initialization parse_initialization(const std::string& value) {
  constexpr std::string_view kForm = "PATTERN,PATTERN;initializer=NAME;scale=F";
  const std::vector<std::string> parts = parts_of(value, ';');
  Initialization made;
  bool is_named = false;
  if (!parts.empty()) made.parameters = parts_of(parts[0], ',');
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string name = parts[i].substr(0, equals), given = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    if (name == "initializer")
      made.initializer = initializer_named(given), is_named = true;
    else if (name == "scale")
      made.scale = trainer_number<double>(name, given);
    else
      throw_bad_value("initialize", value, kForm);
  }
  if (made.parameters.empty() || !is_named) throw_bad_value("initialize", value, kForm);
  return made;
}

void set_loss(std::string_view /*name*/, TrainerOptions& options, const std::string& value) {
  const bool is_file = value.find_first_of("./") != std::string::npos;
  options.loss_model = is_file ? std::optional(Model::load(value)) : std::nullopt;
  options.loss = is_file ? Loss::graph : loss_named(value);
}

using O = TrainerOptions;

// Makes rows of members. `sub` leads to the struct that the member is of.
struct TrainerRows {
  std::vector<TrainerOptionInfo> all;

  void add(std::string_view name, OptionText text, void (*write)(std::string_view, O&, const std::string&)) {
    all.push_back({name, text, write});
  }
  template <auto Member, typename Sub>
  void add_of(std::string_view name, OptionText text, Sub) {
    all.push_back({name, text, [](std::string_view own, O& o, const std::string& value) { set_member(own, Sub()(o).*Member, value); }});
    using T = std::remove_cvref_t<decltype(Sub()(std::declval<O&>()).*Member)>;
    all.back().is_flag = std::is_same_v<T, bool>;
  }
  template <auto Member>
  void add(std::string_view name, OptionText text) {
    add_of<Member>(name, text, [](O& o) -> O& { return o; });
  }

  template <typename T>
  static void set_member(std::string_view name, T& member, const std::string& value) {
    if constexpr (std::is_same_v<T, bool>) {
      member = trainer_flag(name, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      member = value;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      for (std::string& part : parts_of(value, ',')) member.push_back(std::move(part));
    } else if constexpr (requires { member.value(); }) {
      member = trainer_number<typename T::value_type>(name, value);
    } else {
      member = trainer_number<T>(name, value);
    }
  }
};

void loss_rows(TrainerRows& rows) {
  rows.add("loss",
           "softmax_cross_entropy (default), negative_log_likelihood, mean_squared_error, l1, huber, "
           "binary_cross_entropy_with_logits, kl_divergence, ctc, output, or an ONNX file: a graph of the loss, "
           "whose first input takes the scores and the next the labels",
           set_loss);
  rows.add<&O::output>("output", "Output, or another value, to compute the loss from; the first output if not given");
  rows.all.back().argument = "--loss-of";
  rows.add<&O::int32_labels>("int32_labels", "Labels are int32");
  rows.all.back().argument = "";
  rows.add<&O::class_axis>("class_axis", "Axis of the classes in the scores; -1 for language models");
  rows.add<&O::ignore_index>("ignore_index", "Label that does not count");
  rows.add("class_weights", "A weight for each class, separated by commas", [](std::string_view, O& o, const std::string& value) {
    o.class_weights.clear();
    for (const std::string& part : parts_of(value, ',')) o.class_weights.push_back(trainer_number<float>("class_weights", part));
  });
  rows.add<&O::label_smoothing>("label_smoothing", "Label smoothing, from 0 to 1");
  rows.add<&O::huber_delta>("huber_delta", "Distance at which huber changes from squared to absolute");
  rows.add<&O::blank>("blank", "Class that is no label, of ctc; default 0");
}

void optimizer_rows(TrainerRows& rows) {
  constexpr auto kScaling = [](O& o) -> LossScaling& { return o.loss_scaling; };
  rows.add("optimizer", "Optimizer: sgd (default), adam, adamw, adagrad, rmsprop, lion or lamb",
           [](std::string_view, O& o, const std::string& value) { o.optimizer = optimizer_named(value); });
  rows.add<&O::learning_rate>("learning_rate", "Learning rate; default 0.01");
  rows.add<&O::momentum>("momentum", "Momentum of sgd and rmsprop");
  rows.add<&O::weight_decay>("weight_decay", "Weight decay; default 0, for adamw 0.01");
  rows.add<&O::nesterov>("nesterov", "Nesterov momentum, for sgd");
  rows.add<&O::beta1>("beta1", "First beta of adam, adamw, lion and lamb");
  rows.add<&O::beta2>("beta2", "Second beta of adam, adamw, lion and lamb");
  rows.add<&O::epsilon>("epsilon", "Epsilon of adam, adamw, adagrad, rmsprop and lamb");
  rows.add<&O::smoothing>("smoothing", "Smoothing of rmsprop (PyTorch's alpha)");
  rows.add_of<&LossScaling::init_scale>("init_scale", "First scale of the loss, with --option precision=float16; default 65536", kScaling);
  rows.add_of<&LossScaling::growth_factor>("growth_factor", "Factor by which that scale grows; default 2", kScaling);
  rows.add_of<&LossScaling::backoff_factor>(
      "backoff_factor", "Factor of the scale after a step with an infinite or NaN gradient, which is skipped; default 0.5", kScaling);
  rows.add_of<&LossScaling::growth_interval>("growth_interval", "Updates without such a step before the scale grows; default 2000",
                                             kScaling);
  rows.add<&O::clip_value>("clip_value", "Clip each gradient to -VALUE..VALUE");
  rows.add<&O::clip_norm>("clip_norm", "Scale all gradients together down to this norm");
  rows.add<&O::accumulation_steps>("accumulation_steps", "Number of steps that make one update");
  rows.add<&O::ema_decay>("ema_decay",
                          "Decay, from 0 to 1, of an exponential average of the parameters, which is then validated and saved");
  rows.add<&O::ema_statistics>("ema_statistics", "Average running statistics as well");
}

void schedule_rows(TrainerRows& rows) {
  using S = Schedule;
  constexpr auto kSchedule = [](O& o) -> S& { return o.schedule; };
  rows.add("schedule", "Schedule of the learning rate: constant (default), step, cosine, linear, one_cycle",
           [](std::string_view, O& o, const std::string& value) { o.schedule.kind = schedule_named(value); });
  rows.add_of<&S::warmup_steps>("warmup_steps", "Updates during which the rate rises", kSchedule);
  rows.add_of<&S::total_steps>("total_steps", "Updates of cosine, linear and one_cycle; all of --epochs if not given", kSchedule);
  rows.add_of<&S::step_size>("step_size", "Updates between two reductions by the schedule step", kSchedule);
  rows.add_of<&S::gamma>("gamma", "Factor of each reduction by the schedule step", kSchedule);
  rows.add_of<&S::final_factor>("final_factor", "Final factor of cosine and linear", kSchedule);
}

void parameter_rows(TrainerRows& rows) {
  constexpr auto kLora = [](O& o) -> LoraOptions& { return o.lora; };
  rows.add("group", "PATTERN,PATTERN;rate_factor=F;weight_decay=W: settings for these parameters; may be repeated",
           [](std::string_view, O& o, const std::string& value) { o.groups.push_back(parse_group(value)); });
  rows.add<&O::parameters>("parameters", "Names or patterns of initializers to train, separated by commas; all if not given");
  rows.add<&O::frozen>("frozen", "Names or patterns of initializers not to train");
  rows.add<&O::untied>("untied", "Names or patterns of initializers that an exporter merged: each node that reads one gets its own");
  rows.add(
      "initialize",
      "PATTERN,PATTERN;initializer=NAME;scale=F: parameters that begin with random values (zeros, ones, normal, uniform, xavier_normal, "
      "xavier_uniform, kaiming_normal, kaiming_uniform); may be repeated",
      [](std::string_view, O& o, const std::string& value) { o.initialization.push_back(parse_initialization(value)); });
  rows.add<&O::initialization_seed>("initialization_seed", "Seed of these values");
  rows.add<&O::dynamic_batch>("dynamic_batch", "Let a model that states one batch size take any");
  rows.add<&O::head_classes>(
      "head", "Replace the last layer by a new one of this many classes, which begins with random values (--initialization-seed)");
  rows.add_of<&LoraOptions::rank>("lora_rank", "Train adapters of this rank beside frozen weights; the output has them merged", kLora);
  rows.add_of<&LoraOptions::alpha>("lora_alpha", "Factor of the adapters, divided by the rank; the rank by default", kLora);
  rows.add_of<&LoraOptions::dropout>("lora_dropout", "Dropout of what the adapters read", kLora);
  rows.add_of<&LoraOptions::targets>(
      "lora_targets", "Names or patterns of weights, or of nodes that read them, separated by commas; by default all of MatMul and Gemm",
      kLora);
  rows.add_of<&LoraOptions::seed>("lora_seed", "Seed of the adapters' first values", kLora);
}

void step_rows(TrainerRows& rows) {
  rows.add<&O::lazy_updates>("lazy_updates",
                             "Tables of which an update touches only the rows that were read: names or patterns, separated by commas");
  rows.add("memory_fraction",
           "Share, up to 1, of what a step's activations take otherwise; steps compute values twice or write them to a file",
           [](std::string_view, O& o, const std::string& value) { treadle::set_option(o.session, "memory_fraction", value); });
  rows.add(
      "recompute_fraction",
      "Share, up to 1, of a step's time, as estimated, that may go into values which are computed twice, for less memory; by default up "
      "to 0.1, as far as it pays",
      [](std::string_view, O& o, const std::string& value) { treadle::set_option(o.session, "recompute_fraction", value); });
  rows.add<&O::fused_update>("fused_update", "Update all parameters in one node");
  rows.add<&O::early_updates>("early_updates", "Update each parameter as soon as its gradient is there");
}

// Commands have arguments of their own for them: they find out whether there are several processes.
void rank_rows(TrainerRows& rows) {
  const size_t first = rows.all.size();
  rows.add<&O::communicator_name>("communicator", "How processes that train together find each other");
  rows.add<&O::communicator_deadline_s>("communicator_deadline_s", "Seconds after which a process that does not answer ends the others");
  rows.add<&O::bucket_bytes>("bucket_bytes", "Size of the parts in which gradients are reduced");
  rows.add("reduction", "Dtype in which gradients travel and are added: float32 (default) or bfloat16",
           [](std::string_view, O& o, const std::string& value) {
             o.reduction = dtype_from_name(value);
             if (o.reduction == DType::undefined) throw_bad_value("reduction", value, "float32 or bfloat16");
           });
  rows.add<&O::shard_optimizer>("shard_optimizer", "Each process keeps the optimizer's state of its share of the parameters");
  for (size_t i = first; i < rows.all.size(); ++i) rows.all[i].argument = "";
}

std::vector<TrainerOptionInfo> make_trainer_rows() {
  TrainerRows rows;
  for (auto add : {loss_rows, optimizer_rows, schedule_rows, parameter_rows, step_rows, rank_rows}) add(rows);
  return std::move(rows.all);
}

[[noreturn]] void throw_no_option(std::string_view who, std::string_view name, const std::vector<std::string>& names) {
  throw Error(ErrorCode::not_found, fmt::format("{} has no option \"{}\"; the nearest: {}", who, name, nearest_names(name, names)));
}

constexpr std::string_view kOfSession = "session.";

}  // namespace

std::span<const TrainerOptionInfo> trainer_option_table() {
  static const std::vector<TrainerOptionInfo> rows = make_trainer_rows();
  return rows;
}

void set_option(TrainerOptions& options, std::string_view name, const std::string& value) {
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  std::vector<std::string> names;
  for (const TrainerOptionInfo& option : trainer_option_table()) {
    if (option.name == name) return option.set(options, value);
    names.emplace_back(option.name);
  }
  throw_no_option("a trainer", name, names);
}

void set_option(JointOptions& options, std::string_view name, const std::string& value) {
  using O = JointOptions;
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  if (name == "zero_gradients") return void(options.zero_gradients = trainer_flag(name, value));
  static const std::vector<std::pair<std::string, std::vector<std::string> O::*>> lists = {{"outputs", &O::outputs},
                                                                                           {"inputs", &O::inputs},
                                                                                           {"parameters", &O::parameters},
                                                                                           {"frozen", &O::frozen},
                                                                                           {"plain_outputs", &O::plain_outputs},
                                                                                           {"sparse_gradients", &O::sparse_gradients}};
  std::vector<std::string> names{"zero_gradients"};
  for (const auto& [each, member] : lists) {
    names.push_back(each);
    if (each != name) continue;
    for (std::string& part : parts_of(value, ',')) (options.*member).push_back(std::move(part));
    return;
  }
  throw_no_option("a joint module", name, names);
}

}  // namespace treadle::train
