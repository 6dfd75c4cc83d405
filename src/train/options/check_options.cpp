// Refuses trainer options that are valid by themselves but have no effect or contradict each other.
#include <fmt/format.h>

#include <span>

#include "train/graph/loss_scale.h"
#include "train/graph/optimizers.h"
#include "train/graph/training_graph.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using O = TrainerOptions;

struct Setting {
  std::string_view name;
  bool (*is_given)(const O&);
};
constexpr Setting kClipNorm{"clip_norm", [](const O& o) { return o.clip_norm > 0; }};
constexpr Setting kAccumulation{"accumulation_steps", [](const O& o) { return o.accumulation_steps > 1; }};
constexpr Setting kFusedUpdate{"fused_update", [](const O& o) { return o.fused_update; }};
constexpr Setting kEarlyUpdates{"early_updates", [](const O& o) { return o.early_updates; }};
constexpr Setting kLazyUpdates{"lazy_updates", [](const O& o) { return !o.lazy_updates.empty(); }};
constexpr Setting kGroups{"groups", [](const O& o) { return !o.groups.empty(); }};
constexpr Setting kEmaDecay{"ema_decay", [](const O& o) { return o.ema_decay > 0; }};
constexpr Setting kEmaStatistics{"ema_statistics", [](const O& o) { return o.ema_statistics; }};
constexpr Setting kFloat16{"precision float16", scales_loss};
constexpr Setting kCommunicator{"a communicator", [](const O& o) { return o.communicator != nullptr; }};
constexpr Setting kShardOptimizer{"shard_optimizer", [](const O& o) { return o.shard_optimizer; }};
constexpr Setting kNesterov{"nesterov", [](const O& o) { return o.nesterov; }};
constexpr Setting kLoraRank{"lora_rank", [](const O& o) { return o.lora.rank > 0; }};

struct SettingPair {
  Setting first, second;
  std::string_view why;
};

constexpr std::string_view kAllGradients = "it needs all gradients first";
constexpr std::string_view kOneByOne = "it looks at parameters one by one";
constexpr SettingPair kClashes[] = {
    {kEarlyUpdates, kClipNorm, kAllGradients},
    {kEarlyUpdates, kFloat16, kAllGradients},
    {kEarlyUpdates, kAccumulation, kAllGradients},
    {kEarlyUpdates, kFusedUpdate, kAllGradients},
    {kEarlyUpdates, kCommunicator, kAllGradients},
    {kFusedUpdate, kGroups, kOneByOne},
    {kFusedUpdate, kAccumulation, kOneByOne},
    {kFusedUpdate, kClipNorm, kOneByOne},
    {kLazyUpdates, kAccumulation, "it has whole gradients"},
    {kLazyUpdates, kFusedUpdate, "it has whole gradients"},
    {kLazyUpdates, kCommunicator, "whole gradients are averaged"},
    {kShardOptimizer, kFusedUpdate, "it updates all parameters in one node"},
    {kShardOptimizer, kEmaDecay, "averages are used by all ranks"},
    {kShardOptimizer, kFloat16, "each process would see its own gradients overflow only"},
    {kEmaStatistics, kAccumulation, "statistics move with each step"},
};

constexpr std::string_view kNothingReduced = "nothing is reduced without one", kNotScaled = "the loss is not scaled otherwise",
                           kNoAdapters = "there are no adapters otherwise";
constexpr SettingPair kNeeds[] = {
    {{"reduction", [](const O& o) { return o.reduction != DType::float32; }}, kCommunicator, kNothingReduced},
    {{"bucket_bytes", [](const O& o) { return o.bucket_bytes != O().bucket_bytes; }}, kCommunicator, kNothingReduced},
    {{"communicator_deadline_s", [](const O& o) { return o.communicator_deadline_s != kDefaultCommunicatorDeadlineSeconds; }},
     kCommunicator,
     "there is nobody to wait for"},
    {kShardOptimizer, kCommunicator, "there is nobody to share with"},
    {kEmaStatistics, kEmaDecay, "nothing is averaged otherwise"},
    {kNesterov, {"a momentum above 0", [](const O& o) { return o.momentum.value_or(0) > 0; }}, "it looks ahead by it"},
    {{"init_scale", [](const O& o) { return o.loss_scaling.init_scale.has_value(); }}, kFloat16, kNotScaled},
    {{"growth_factor", [](const O& o) { return o.loss_scaling.growth_factor.has_value(); }}, kFloat16, kNotScaled},
    {{"backoff_factor", [](const O& o) { return o.loss_scaling.backoff_factor.has_value(); }}, kFloat16, kNotScaled},
    {{"growth_interval", [](const O& o) { return o.loss_scaling.growth_interval.has_value(); }}, kFloat16, kNotScaled},
    {{"lora_alpha", [](const O& o) { return o.lora.alpha.has_value(); }}, kLoraRank, kNoAdapters},
    {{"lora_dropout", [](const O& o) { return o.lora.dropout != 0; }}, kLoraRank, kNoAdapters},
    {{"lora_targets", [](const O& o) { return !o.lora.targets.empty(); }}, kLoraRank, kNoAdapters},
    {{"lora_seed", [](const O& o) { return o.lora.seed != 0; }}, kLoraRank, kNoAdapters},
    {{"initialization_seed", [](const O& o) { return o.initialization_seed != 0; }},
     {"initialize or head", [](const O& o) { return !o.initialization.empty() || o.head_classes > 0; }},
     "nothing begins with random numbers otherwise"},
    {{"the loss graph", [](const O& o) { return o.loss == Loss::graph; }},
     {"loss_model", [](const O& o) { return o.loss_model.has_value(); }},
     "or the path of an ONNX file in its place"},
};

// An option that only some losses, optimizers or schedules use.
struct Use {
  Setting option;
  uint32_t kinds;
};
template <typename... Kinds>
constexpr uint32_t of(Kinds... kinds) {
  return ((1U << static_cast<unsigned>(kinds)) | ...);
}

constexpr uint32_t kOfClasses = of(Loss::softmax_cross_entropy, Loss::negative_log_likelihood);
constexpr uint32_t kOfLabels = kOfClasses | of(Loss::ctc);
constexpr Use kOfLosses[] = {
    {{"huber_delta", [](const O& o) { return o.huber_delta.has_value(); }}, of(Loss::huber)},
    {{"blank", [](const O& o) { return o.blank.has_value(); }}, of(Loss::ctc)},
    {{"loss_model", [](const O& o) { return o.loss_model.has_value(); }}, of(Loss::graph)},
    {{"class_weights", [](const O& o) { return !o.class_weights.empty(); }}, kOfClasses},
    {{"label_smoothing", [](const O& o) { return o.label_smoothing != 0; }}, kOfClasses},
    {{"ignore_index", [](const O& o) { return o.ignore_index.has_value(); }}, kOfLabels},
    {{"class_axis", [](const O& o) { return o.class_axis != 1; }}, kOfLabels},
    {{"int32_labels", [](const O& o) { return o.int32_labels; }}, kOfLabels},
};

constexpr Use kOfOptimizers[] = {
    {kNesterov, of(Optimizer::sgd)},
    {kLazyUpdates, ~of(Optimizer::lamb)},  // LAMB's step depends on all of a parameter's elements
    {kFusedUpdate, ~of(Optimizer::lamb)},
};

using Kind = Schedule::Kind;
constexpr uint32_t kOfTotal = of(Kind::cosine, Kind::linear, Kind::one_cycle);
constexpr Use kOfSchedules[] = {
    {{"total_steps", [](const O& o) { return o.schedule.total_steps != 0; }}, kOfTotal},
    {{"step_size", [](const O& o) { return o.schedule.step_size != 0; }}, of(Kind::step)},
    {{"gamma", [](const O& o) { return o.schedule.gamma.has_value(); }}, of(Kind::step)},
    {{"final_factor", [](const O& o) { return o.schedule.final_factor.has_value(); }}, of(Kind::cosine, Kind::linear)},
    // one_cycle has a warm-up of its own.
    {{"warmup_steps", [](const O& o) { return o.schedule.warmup_steps != 0; }}, ~of(Kind::one_cycle)},
};

[[noreturn]] void refuse_options(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

template <typename T>
void check_uses(const O& o, std::span<const Use> uses, std::string_view of_what, T kind) {
  for (const Use& use : uses)
    if (use.option.is_given(o) && (use.kinds & of(kind)) == 0)
      refuse_options(fmt::format("the {} {} has no use for {}", of_what, name_of(kind), use.option.name));
}

void check_schedule(const Schedule& s) {
  if ((kOfTotal & of(s.kind)) != 0 && s.total_steps <= s.warmup_steps)
    refuse_options(fmt::format("the schedule has total_steps {}, warm-up of {} included", s.total_steps, s.warmup_steps));
  if (s.kind == Kind::step && s.step_size == 0) refuse_options("the schedule step needs step_size");
}

}  // namespace

void check_options(const TrainerOptions& o) {
  trainer_option_table().check(o);
  for (const ParameterGroup& group : o.groups) group_table().check(group);
  for (const Initialization& entry : o.initialization) initialization_table().check(entry);
  check_numbers(o);
  check_uses(o, kOfOptimizers, "optimizer", o.optimizer);
  check_uses(o, kOfLosses, "loss", o.loss);
  check_uses(o, kOfSchedules, "schedule", o.schedule.kind);
  check_schedule(o.schedule);
  for (const SettingPair& pair : kClashes)
    if (pair.first.is_given(o) && pair.second.is_given(o))
      refuse_options(fmt::format("{} does not go with {}: {}", pair.first.name, pair.second.name, pair.why));
  for (const SettingPair& pair : kNeeds)
    if (pair.first.is_given(o) && !pair.second.is_given(o))
      refuse_options(fmt::format("{} needs {}: {}", pair.first.name, pair.second.name, pair.why));
  if (scales_loss(o) && o.communicator && o.accumulation_steps > 1)
    refuse_options("precision float16 with accumulation_steps does not go with several processes: each would skip other steps");
}

}  // namespace treadle::train
