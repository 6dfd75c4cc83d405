// A trainer's position (its counts of steps and updates), and the scalars that its steps read, such as the learning rate.
#pragma once

#include <fmt/format.h>

#include <string>

#include "train/graph/loss_scale.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {

class Progress {
 public:
  /// @param options  the trainer's options; its learning_rate may change between steps
  /// @param scaler   supplies the loss scale, which steps then also read; null: the loss is not scaled
  Progress(const TrainerOptions& options, const LossScaler* scaler) : options_(options), scaler_(scaler) {}

  const TrainerPosition& position() const { return position_; }
  /// Sets the position. @throws Error(invalid_argument) for a position that a trainer with these options cannot reach
  void move_to(const TrainerPosition& position) {
    if (position.num_updates < 0 || position.accumulated_steps < 0 || position.accumulated_steps >= options_.accumulation_steps)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} updates and {} accumulated steps of {}: a trainer is never there",
                                                           position.num_updates, position.accumulated_steps, options_.accumulation_steps));
    position_ = position;
  }
  /// Returns the learning rate of the next update.
  double rate() const { return options_.learning_rate * options_.schedule.factor(position_.num_updates); }
  /// Returns true if the next step updates the parameters, false if it only accumulates gradients.
  bool updates_next() const { return position_.accumulated_steps + 1 == options_.accumulation_steps; }

  /// Returns the scalars that steps read, by input name. Allocates them at the first call, which happens while the trainer is being made.
  const NamedTensors& scalars() {
    if (scalars_.empty()) {
      scalars_.emplace(kLearningRate, Tensor::scalar(static_cast<float>(options_.learning_rate)));
      scalars_.emplace(kUpdateCount, Tensor::scalar<int64_t>(1));
      if (scaler_) scalars_.emplace(kLossScale, scaler_->scalar());
    }
    return scalars_;
  }
  /// Must be called before a step: sets the scalars for this step.
  void begin_step() {
    *scalars_.at(std::string(kLearningRate)).data<float>() = static_cast<float>(rate());
    *scalars_.at(std::string(kUpdateCount)).data<int64_t>() = position_.num_updates + 1;
  }
  /// Must be called after a step that has succeeded: advances the position.
  void end_step() {
    const bool updated = updates_next();
    ++position_.num_steps;
    position_.num_updates += updated;
    position_.accumulated_steps = updated ? 0 : position_.accumulated_steps + 1;
  }

 private:
  const TrainerOptions& options_;
  const LossScaler* const scaler_;
  TrainerPosition position_;
  NamedTensors scalars_;
};

}  // namespace treadle::train
