// The values that training changes: parameters and running statistics. Also tracks whether callers may write to them.
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

  /// Returns all values by name, for graphs that read them as values of kind `parameter`. After the first call, which creates the returned
  /// object, the tensors in `parameters` and `states` must not be replaced.
  const std::shared_ptr<exec::Variables>& variables();
  /// Records that the library has changed the values.
  void note_changed();

  /// Returns `tensors` for a caller who may write to them at any time from now on. To detect this, the elements are compared with the last
  /// known ones before each run that reads them.
  const NamedTensors& hand_out(const NamedTensors& tensors) const;
  /// Like hand_out(), but the caller may write to the tensors only while any of the returned ones exists.
  NamedTensors lend(const NamedTensors& tensors) const;
  /// Must be called before a run that reads the values: detects whether callers have changed them.
  void look();
  /// may_be_written() returns true if a caller may write to the values now. may_have_been_written() returns true if a caller may have
  /// written to them since may_have_been_written() was last called.
  bool may_be_written();
  bool may_have_been_written();

 private:
  void drop_given_back() const;

  mutable std::mutex mutex_;
  mutable bool handed_out_ = false;
  mutable std::vector<std::weak_ptr<Storage>> lent_;
  mutable bool given_back_ = false;         // lent tensors have been released since the last look()
  mutable bool given_back_lately_ = false;  // lent tensors have been released since the last may_have_been_written()
  std::shared_ptr<exec::Variables> variables_;
};

}  // namespace treadle::train
