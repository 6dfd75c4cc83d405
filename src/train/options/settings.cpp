// Lists a trainer's settings, which checkpoints and artifacts contain.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "train/graph/lora.h"
#include "train/graph/loss_graph.h"
#include "train/graph/loss_scale.h"
#include "train/graph/losses.h"
#include "train/graph/optimizers.h"
#include "train/options/options.h"

namespace treadle::train {

using O = TrainerOptions;

std::vector<std::pair<std::string, std::string>> settings_of(const TrainerOptions& o) {
  std::vector<std::pair<std::string, std::string>> settings;
  auto add = [&](const char* name, const auto& value) { settings.emplace_back(name, fmt::format("{}", value)); };
  add("loss", name_of(o.loss)), add("output", o.output);
  add("class_axis", o.class_axis), add("int32_labels", o.int32_labels), add("label_smoothing", o.label_smoothing);
  add("ignore_index", o.ignore_index ? std::to_string(*o.ignore_index) : "none");
  add("class_weights", fmt::format("[{}]", fmt::join(o.class_weights, ", ")));
  if (o.loss == Loss::huber) add("huber_delta", o.huber_delta.value_or(1));
  if (o.loss == Loss::ctc) add("blank", o.blank.value_or(0));
  if (o.loss == Loss::graph) add("loss_model", loss_digest(o));
  add("optimizer", name_of(o.optimizer));
  for (const auto& [name, value] : hyperparameters(o)) add(name.c_str(), value);
  add("nesterov", o.nesterov), add("clip_value", o.clip_value), add("clip_norm", o.clip_norm);
  add("accumulation_steps", o.accumulation_steps);
  if (o.ema_decay > 0) add("ema_decay", o.ema_decay);
  if (o.ema_statistics) add("ema_statistics", true);
  const Schedule& s = o.schedule;
  add("schedule", name_of(s.kind));
  add("warmup_steps", s.warmup_steps), add("total_steps", s.total_steps), add("step_size", s.step_size);
  if (s.kind == Schedule::Kind::step) add("gamma", s.gamma.value_or(0.1));
  if (s.kind == Schedule::Kind::cosine || s.kind == Schedule::Kind::linear) add("final_factor", s.final_factor.value_or(0));
  for (const ParameterGroup& group : o.groups)
    add("group", fmt::format("{} rate_factor {} weight_decay {}", fmt::join(group.parameters, " "), group.rate_factor,
                             group.weight_decay ? fmt::format("{}", *group.weight_decay) : "none"));
  if (!o.lazy_updates.empty()) add("lazy_updates", fmt::format("[{}]", fmt::join(o.lazy_updates, ", ")));
  if (!o.session.precision.empty()) add("precision", o.session.precision);
  if (scales_loss(o)) std::ranges::copy(loss_scaling_settings(o), std::back_inserter(settings));
  if (o.lora.rank > 0)
    add("lora", fmt::format("rank {} alpha {} dropout {} targets [{}]", o.lora.rank, factor_of(o.lora) * static_cast<double>(o.lora.rank),
                            o.lora.dropout, fmt::join(o.lora.targets, ", ")));
  // Adds every other option that is not at its default, under its own name.
  const O defaults;
  constexpr std::string_view kNotByName[] = {"learning_rate", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"};
  for (const Option<O>& row : step_options()) {
    auto has_name = [&](const auto& setting) { return setting.first == row.name; };
    if (row.is_set(o, defaults) && std::ranges::none_of(settings, has_name) &&
        std::ranges::find(kNotByName, row.name) == std::end(kNotByName))
      settings.emplace_back(row.name, row.get(o));
  }
  return settings;
}

}  // namespace treadle::train
