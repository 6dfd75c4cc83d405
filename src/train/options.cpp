// Options of trainers by name, from text.
#include <fmt/format.h>

#include <charconv>
#include <functional>

#include "core/nearest.h"
#include "treadle/error.h"
#include "treadle/train.h"

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

void set_loss(TrainerOptions& options, const std::string& value) {
  const bool is_file = value.find_first_of("./") != std::string::npos;
  options.loss_model = is_file ? std::optional(Model::load(value)) : std::nullopt;
  options.loss = is_file ? Loss::graph : loss_named(value);
}

struct TextOption {
  std::string name;
  std::function<void(TrainerOptions&, const std::string& value)> set;
};

std::vector<TextOption> make_text_options() {
  using O = TrainerOptions;
  using S = Schedule;
  std::vector<TextOption> all;
  auto number = [&]<typename T>(const char* name, T O::*member) {
    all.push_back({name, [=](O& o, const std::string& value) { o.*member = trainer_number<T>(name, value); }});
  };
  auto maybe = [&]<typename T>(const char* name, std::optional<T> O::*member) {
    all.push_back({name, [=](O& o, const std::string& value) { o.*member = trainer_number<T>(name, value); }});
  };
  auto flag = [&](const char* name, bool O::*member) {
    all.push_back({name, [=](O& o, const std::string& value) { o.*member = trainer_flag(name, value); }});
  };
  auto list = [&](const char* name, std::vector<std::string> O::*member) {
    all.push_back({name, [=](O& o, const std::string& value) {
                     for (std::string& part : parts_of(value, ',')) (o.*member).push_back(std::move(part));
                   }});
  };
  all.push_back({"output", [](O& o, const std::string& value) { o.output = value; }});
  all.push_back({"loss", [](O& o, const std::string& value) { set_loss(o, value); }});
  all.push_back({"optimizer", [](O& o, const std::string& value) { o.optimizer = optimizer_named(value); }});
  all.push_back({"schedule", [](O& o, const std::string& value) { o.schedule.kind = schedule_named(value); }});
  for (const auto& [name, member] :
       {std::pair{"warmup_steps", &S::warmup_steps}, std::pair{"total_steps", &S::total_steps}, std::pair{"step_size", &S::step_size}})
    all.push_back({name, [name = name, member = member](O& o, const std::string& value) {
                     o.schedule.*member = trainer_number<int64_t>(name, value);
                   }});
  for (const auto& [name, member] : {std::pair{"gamma", &S::gamma}, std::pair{"final_factor", &S::final_factor}})
    all.push_back({name, [name = name, member = member](O& o, const std::string& value) {
                     o.schedule.*member = trainer_number<double>(name, value);
                   }});
  all.push_back({"class_weights", [](O& o, const std::string& value) {
                   o.class_weights.clear();
                   for (const std::string& part : parts_of(value, ','))
                     o.class_weights.push_back(trainer_number<float>("class_weights", part));
                 }});
  all.push_back({"group", [](O& o, const std::string& value) { o.groups.push_back(parse_group(value)); }});
  all.push_back({"initialize", [](O& o, const std::string& value) { o.initialization.push_back(parse_initialization(value)); }});
  number("initialization_seed", &O::initialization_seed), number("head", &O::head_classes);
  all.push_back({"lora_rank", [](O& o, const std::string& value) { o.lora.rank = trainer_number<int64_t>("lora_rank", value); }});
  all.push_back({"lora_alpha", [](O& o, const std::string& value) { o.lora.alpha = trainer_number<double>("lora_alpha", value); }});
  all.push_back({"lora_dropout", [](O& o, const std::string& value) { o.lora.dropout = trainer_number<double>("lora_dropout", value); }});
  all.push_back({"lora_seed", [](O& o, const std::string& value) { o.lora.seed = trainer_number<uint64_t>("lora_seed", value); }});
  all.push_back({"lora_targets", [](O& o, const std::string& value) {
                   for (std::string& part : parts_of(value, ',')) o.lora.targets.push_back(std::move(part));
                 }});
  auto scaling = [&]<typename T>(const char* name, std::optional<T> LossScaling::*member) {
    all.push_back({name, [=](O& o, const std::string& value) { o.loss_scaling.*member = trainer_number<T>(name, value); }});
  };
  scaling("init_scale", &LossScaling::init_scale), scaling("growth_factor", &LossScaling::growth_factor);
  scaling("backoff_factor", &LossScaling::backoff_factor), scaling("growth_interval", &LossScaling::growth_interval);
  flag("int32_labels", &O::int32_labels), flag("nesterov", &O::nesterov), flag("fused_update", &O::fused_update);
  flag("early_updates", &O::early_updates);
  flag("dynamic_batch", &O::dynamic_batch), flag("ema_statistics", &O::ema_statistics);
  all.push_back({"communicator", [](O& o, const std::string& value) { o.communicator_name = value; }});
  all.push_back({"reduction", [](O& o, const std::string& value) {
                   o.reduction = dtype_from_name(value);
                   if (o.reduction == DType::undefined) throw_bad_value("reduction", value, "float32 or bfloat16");
                 }});
  number("communicator_deadline_s", &O::communicator_deadline_s), number("bucket_bytes", &O::bucket_bytes);
  flag("shard_optimizer", &O::shard_optimizer);
  number("class_axis", &O::class_axis), number("accumulation_steps", &O::accumulation_steps);
  number("label_smoothing", &O::label_smoothing), number("learning_rate", &O::learning_rate);
  number("clip_value", &O::clip_value), number("clip_norm", &O::clip_norm), number("ema_decay", &O::ema_decay);
  for (const char* name : {"memory_fraction", "recompute_fraction"})
    all.push_back({name, [name](O& o, const std::string& value) { treadle::set_option(o.session, name, value); }});
  maybe("ignore_index", &O::ignore_index), maybe("huber_delta", &O::huber_delta), maybe("blank", &O::blank),
      maybe("momentum", &O::momentum);
  maybe("weight_decay", &O::weight_decay), maybe("beta1", &O::beta1), maybe("beta2", &O::beta2);
  maybe("epsilon", &O::epsilon), maybe("smoothing", &O::smoothing);
  list("parameters", &O::parameters), list("frozen", &O::frozen), list("untied", &O::untied), list("lazy_updates", &O::lazy_updates);
  return all;
}

[[noreturn]] void throw_no_option(std::string_view who, std::string_view name, const std::vector<std::string>& names) {
  throw Error(ErrorCode::not_found, fmt::format("{} has no option \"{}\"; the nearest: {}", who, name, nearest_names(name, names)));
}

constexpr std::string_view kOfSession = "session.";

}  // namespace

void set_option(TrainerOptions& options, std::string_view name, const std::string& value) {
  static const std::vector<TextOption> all = make_text_options();
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  for (const TextOption& option : all)
    if (option.name == name) return option.set(options, value);
  std::vector<std::string> names;
  for (const TextOption& option : all) names.push_back(option.name);
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
