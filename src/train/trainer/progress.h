// The position of a trainer in its training, and the numbers that its steps read.
#pragma once

#include <fmt/format.h>

#include <string>

#include "train/graph/loss_scale.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {

class Progress {
 public:
  /// @param options  the trainer's options, of which learning_rate may change between steps
  /// @param scaler   null, or its scale is one of the numbers
  Progress(const TrainerOptions& options, const LossScaler* scaler) : options_(options), scaler_(scaler) {}

  const TrainerPosition& position() const { return position_; }
  /// Sets the position. @throws Error(invalid_argument) for a position that no trainer with these options reaches
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

  /// Returns the numbers as tensors, by the names of the steps' inputs. The first call allocates them, while the client is being made.
  const NamedTensors& scalars() {
    if (scalars_.empty()) {
      scalars_.emplace(kLearningRate, Tensor::scalar(static_cast<float>(options_.learning_rate)));
      scalars_.emplace(kUpdateCount, Tensor::scalar<int64_t>(1));
      if (scaler_) scalars_.emplace(kLossScale, scaler_->scalar());
    }
    return scalars_;
  }
  /// Must be called before a step: writes the scalars.
  void begin_step() {
    *scalars_.at(std::string(kLearningRate)).data<float>() = static_cast<float>(rate());
    *scalars_.at(std::string(kUpdateCount)).data<int64_t>() = position_.num_updates + 1;
  }
  /// Must be called after a step that has succeeded.
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
