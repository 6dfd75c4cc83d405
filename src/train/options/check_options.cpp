// Refuses trainer options that are valid by themselves, but have no effect or contradict each other.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "train/graph/loss_scale.h"
#include "train/graph/losses.h"
#include "train/graph/optimizers.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using O = TrainerOptions;

// A condition on the options: either that the option `name` of the table is given, or any other condition that `is_given` tests.
struct Setting {
  constexpr Setting(const char* option) : name(option) {}
  constexpr Setting(const char* own_name, bool (*is_given_there)(const O&)) : name(own_name), is_given(is_given_there) {}

  std::string_view name;
  bool (*is_given)(const O&) = nullptr;  // null: the option counts as given if it differs from its default
};
constexpr Setting kGroups{"groups", [](const O& o) { return !o.groups.empty(); }};
constexpr Setting kFloat16{"precision float16", scales_loss};
constexpr Setting kCommunicator{"a communicator", [](const O& o) { return o.communicator != nullptr; }};
constexpr Setting kMomentum{"a momentum above 0", [](const O& o) { return o.momentum.value_or(0) > 0; }};
constexpr Setting kInitialize{"initialize or head", [](const O& o) { return !o.initialization.empty() || o.head_classes > 0; }};
constexpr Setting kLossModel{"loss_model", [](const O& o) { return o.loss_model.has_value(); }};
constexpr Setting kLossGraph{"the loss graph", [](const O& o) { return o.loss == Loss::graph; }};

struct SettingPair {
  Setting first, second;
  std::string_view why;
};

constexpr std::string_view kAllGradients = "it needs all gradients first";
constexpr std::string_view kOneByOne = "it looks at parameters one by one";
constexpr SettingPair kClashes[] = {
    {"early_updates", "clip_norm", kAllGradients},
    {"early_updates", kFloat16, kAllGradients},
    {"early_updates", "accumulation_steps", kAllGradients},
    {"early_updates", "fused_update", kAllGradients},
    {"early_updates", kCommunicator, kAllGradients},
    {"fused_update", kGroups, kOneByOne},
    {"fused_update", "accumulation_steps", kOneByOne},
    {"fused_update", "clip_norm", kOneByOne},
    {"lazy_updates", "accumulation_steps", "it has whole gradients"},
    {"lazy_updates", "fused_update", "it has whole gradients"},
    {"lazy_updates", kCommunicator, "whole gradients are averaged"},
    {"shard_optimizer", "fused_update", "it updates all parameters in one node"},
    {"shard_optimizer", "ema_decay", "averages are used by all ranks"},
    {"shard_optimizer", kFloat16, "each process would see its own gradients overflow only"},
    {"ema_statistics", "accumulation_steps", "statistics move with each step"},
};

constexpr std::string_view kNothingReduced = "nothing is reduced without one", kNotScaled = "the loss is not scaled otherwise",
                           kNoAdapters = "there are no adapters otherwise";
constexpr SettingPair kNeeds[] = {
    {"reduction", kCommunicator, kNothingReduced},
    {"bucket_bytes", kCommunicator, kNothingReduced},
    {"communicator_deadline_s", kCommunicator, "there is nobody to wait for"},
    {"shard_optimizer", kCommunicator, "there is nobody to share with"},
    {"ema_statistics", "ema_decay", "nothing is averaged otherwise"},
    {"nesterov", kMomentum, "it looks ahead by it"},
    {"init_scale", kFloat16, kNotScaled},
    {"growth_factor", kFloat16, kNotScaled},
    {"backoff_factor", kFloat16, kNotScaled},
    {"growth_interval", kFloat16, kNotScaled},
    {"lora_alpha", "lora_rank", kNoAdapters},
    {"lora_dropout", "lora_rank", kNoAdapters},
    {"lora_targets", "lora_rank", kNoAdapters},
    {"lora_seed", "lora_rank", kNoAdapters},
    {"initialization_seed", kInitialize, "nothing begins with random numbers otherwise"},
    {kLossGraph, kLossModel, "or the path of an ONNX file in its place"},
};

// Says which optimizers (or schedules) use an option, as a bit mask. For losses, LossRow::options says this.
struct Use {
  std::string_view option;
  uint32_t kinds;
};
template <typename... Kinds>
constexpr uint32_t of(Kinds... kinds) {
  return ((1U << static_cast<unsigned>(kinds)) | ...);
}

constexpr Use kOfOptimizers[] = {
    {"nesterov", of(Optimizer::sgd)},
    {"lazy_updates", ~of(Optimizer::lamb)},  // all except LAMB, whose step depends on all elements of a parameter
    {"fused_update", ~of(Optimizer::lamb)},
};

using Kind = Schedule::Kind;
constexpr uint32_t kOfTotal = of(Kind::cosine, Kind::linear, Kind::one_cycle);
constexpr Use kOfSchedules[] = {
    {"total_steps", kOfTotal},
    {"step_size", of(Kind::step)},
    {"gamma", of(Kind::step)},
    {"final_factor", of(Kind::cosine, Kind::linear)},
    {"warmup_steps", ~of(Kind::one_cycle)},  // all except one_cycle, which includes a warm-up
};

[[noreturn]] void refuse_options(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

class Given {
 public:
  explicit Given(const O& options) : options_(options) {
    const O defaults;
    for (const Option<O>& row : trainer_option_table().rows())
      if (row.is_set(options, defaults)) names_.insert(row.name);
  }

  bool contains(const Setting& setting) const { return setting.is_given ? setting.is_given(options_) : names_.contains(setting.name); }

  template <typename T>
  void check_uses(std::span<const Use> uses, std::string_view of_what, T kind) const {
    for (const Use& use : uses)
      if ((use.kinds & of(kind)) == 0) refuse(use.option, of_what, name_of(kind));
  }
  void check_loss() const {
    const LossRow& loss = row_of(options_.loss);
    for (const LossRow& other : all_losses())
      for (const std::string_view option : other.options)
        if (std::ranges::find(loss.options, option) == loss.options.end()) refuse(option, "loss", loss.name);
    if (options_.loss_model && options_.loss != Loss::graph)
      refuse_options(fmt::format("the loss {} has no use for loss_model", loss.name));
  }

 private:
  void refuse(std::string_view option, std::string_view of_what, std::string_view kind) const {
    if (names_.contains(option)) refuse_options(fmt::format("the {} {} has no use for {}", of_what, kind, option));
  }

  const O& options_;
  std::set<std::string_view> names_;  // names of the table's options that differ from their defaults
};

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
  const Given given(o);
  given.check_uses(kOfOptimizers, "optimizer", o.optimizer);
  given.check_loss();
  given.check_uses(kOfSchedules, "schedule", o.schedule.kind);
  check_schedule(o.schedule);
  for (const SettingPair& pair : kClashes)
    if (given.contains(pair.first) && given.contains(pair.second))
      refuse_options(fmt::format("{} does not go with {}: {}", pair.first.name, pair.second.name, pair.why));
  for (const SettingPair& pair : kNeeds)
    if (given.contains(pair.first) && !given.contains(pair.second))
      refuse_options(fmt::format("{} needs {}: {}", pair.first.name, pair.second.name, pair.why));
  if (scales_loss(o) && o.communicator && o.accumulation_steps > 1)
    refuse_options("precision float16 with accumulation_steps does not go with several processes: each would skip other steps");
}

}  // namespace treadle::train
