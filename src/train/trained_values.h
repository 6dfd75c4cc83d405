// What training changes: parameters and running statistics, and who may read and write them when.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "exec/program/variables.h"
#include "treadle/train.h"

namespace treadle::train {

class TrainedValues {
 public:
  NamedTensors parameters, states;

  /// All of them by name, for graphs that read them as values of kind parameter. Made when first asked for: the tensors stay from then on.
  const std::shared_ptr<exec::Variables>& variables();
  /// The library has written them.
  void note_changed();

  /// For callers who may write to them whenever they like from now on: their elements are compared before each run that reads them.
  const NamedTensors& hand_out(const NamedTensors& tensors) const;
  /// The same for as long as one of the tensors returned is held.
  NamedTensors lend(const NamedTensors& tensors) const;
  /// Before a run that reads them.
  void look();
  /// Whether somebody may write to them now, or may have done so since the last call.
  bool may_be_written();
  bool may_have_been_written();

 private:
  void drop_given_back() const;

  mutable std::mutex mutex_;
  mutable bool handed_out_ = false;
  mutable std::vector<std::weak_ptr<Storage>> lent_;
  mutable bool given_back_ = false;         // some of those lent, since the last look
  mutable bool given_back_lately_ = false;  // the same, since may_have_been_written()
  std::shared_ptr<exec::Variables> variables_;
};

}  // namespace treadle::train
